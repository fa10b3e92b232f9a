"""One file of tensors and plain values: safetensors with a JSON tree, no pickle.

The file is a valid safetensors file, so that any reader of that format can look
inside. Its metadata comes first and starts with the kind of the file, the version of
the format and a digest of everything else. Damage is found by the digest before
anything is parsed. A file that was crafted to match its digest is held to its lengths,
and to twice its size in memory: the writer lengthens a header whose content needs more.
"""

import hashlib
import json
import os
import platform
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from sklearn_sharpbalance.exceptions import FileNotWrittenError, ModelFileError
from sklearn_sharpbalance.persistence.encoding import Entry, check_table, decode, encode
from sklearn_sharpbalance.persistence.unpacked import (
    ROOM,
    bytes_to_decode,
    bytes_to_parse,
)

__all__ = [
    "FORMAT_VERSION",
    "atomic_file",
    "check_folder",
    "read_archive",
    "read_digest",
    "remove_leftovers",
    "write_archive",
    "writing",
]

FORMAT_VERSION = 1
CHUNK = 2**20
DIGEST_BYTES = 32
HEAD_BYTES = 256  # the digest and all before it
OLD = 24 * 3600  # seconds after which no writer is still at work
WRITER = re.compile(r"\.([0-9a-f]{8})-(\d{1,9})-[0-9a-f]{8}\.tmp$")
LONGEST_HEADER = 100_000_000  # what the safetensors library accepts
HEAD = re.compile(
    rb'\{"__metadata__":\{"format":"sklearn-sharpbalance (\w+) (\d{1,9})","digest":"'
)


def write_archive(path, kind: str, tree: Any, special=None) -> bytes:
    """Write a tree of plain values, arrays and tensors as one file, or not at all.

    The file appears under its name when it is complete and on the disk, so that a
    crash at any moment leaves the old file or the new one.

    Parameters
    ----------
    path : str or path-like
    kind : str
        "model" or "checkpoint".
    tree : dict
        What :func:`encode` takes.
    special : callable, default=None
        For objects, as in :func:`encode`.

    Returns
    -------
    digest : bytes
        As in :func:`read_digest`.
    """
    entries: dict[str, Entry] = {}
    encoded = encode(tree, entries, special)
    text = json.dumps(encoded, allow_nan=False, separators=(",", ":"))
    first, rest = _header(kind, text, entries)
    body = [entry.data for entry in entries.values()]
    n_body = sum(map(len, body))
    header = first[8:] + b"0" * (2 * DIGEST_BYTES) + rest
    missing = _bytes_needed(header, encoded, entries, n_body) - ROOM
    missing -= 2 * (8 + len(header) + n_body)
    first, rest = _lengthened(first, rest, (missing + 1) // 2)
    digest = _digest(chain([first, rest], body))
    with _complete_file(path) as file:
        file.writelines(chain([first, digest, rest], body))
    return digest


def read_digest(path) -> bytes | None:
    """What tells the content of a file from any other; None if it names nothing."""
    with open(path, "rb") as file:
        start = file.read(HEAD_BYTES)
    head = HEAD.match(start, 8)
    return head and start[head.end() : head.end() + 2 * DIGEST_BYTES]


def _header(kind, text, entries):
    """Bytes before and after the digest: length and metadata, then the tensors."""
    form = f'{{"__metadata__":{{"format":"sklearn-sharpbalance {kind} {FORMAT_VERSION}"'
    head = (form + ',"digest":"').encode()
    tail = f'","tree":{json.dumps(text)}}}'
    start = 0
    for name, entry in entries.items():
        stop = start + len(entry.data)
        offsets = {"dtype": entry.dtype, "shape": entry.shape}
        offsets["data_offsets"] = [start, stop]
        tail += f",{json.dumps(name)}:{json.dumps(offsets, separators=(',', ':'))}"
        start = stop
    rest = (tail + "}").encode()
    n_bytes = len(head) + 2 * DIGEST_BYTES + len(rest)
    rest += b" " * (-n_bytes % 8)  # tensors start at a multiple of eight
    n_bytes += -n_bytes % 8
    return n_bytes.to_bytes(8, "little") + head, rest


def _lengthened(first, rest, n_bytes):
    """The header with so many spaces at its end."""
    n_bytes = max(0, n_bytes + -n_bytes % 8)
    length = int.from_bytes(first[:8], "little") + n_bytes
    return length.to_bytes(8, "little") + first[8:], rest + b" " * n_bytes


def _bytes_needed(header, tree, entries, n_body):
    """Memory at the two peaks of reading: parsing the header, decoding the tree."""
    parsing = bytes_to_parse(header)
    shapes = {name: entry.shape for name, entry in entries.items()}
    return max(parsing, parsing - len(header) + n_body + bytes_to_decode(tree, shapes))


def _digest(chunks: Iterable) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest().encode()


@contextmanager
def writing(path) -> Iterator[None]:
    """Raise an error that names the path that the user gave if writing fails."""
    try:
        yield
    except FileNotWrittenError:
        raise
    except OSError as error:
        raise FileNotWrittenError(
            f"Cannot write {path}: {error.strerror or error}. Name a file in a folder "
            "that can be written to and has room."
        ) from error


def check_folder(path) -> Path:
    """The path; an error if it is a folder, or there is none to write the file to."""
    path = Path(path)
    with writing(path):
        if path.is_dir():
            problem = "it is a folder. Name a file in it."
        elif path.parent.is_dir():
            return path
        elif path.parent.exists():
            problem = f"{path.parent} is not a folder. Name another one."
        else:
            problem = f"there is no folder {path.parent}. Make it first."
    raise FileNotWrittenError(f"Cannot write {path}: {problem}")


@contextmanager
def atomic_file(path) -> Iterator[BinaryIO]:
    """A file to write to that appears under its name when it is complete.

    It is a neighbour until then, which is flushed to the disk and renamed, or deleted
    if anything fails.
    """
    with writing(path), _complete_file(path) as file:
        yield file


@contextmanager
def _complete_file(path):
    path = check_folder(path)
    # Other threads, processes and machines may be writing to the same name.
    writer = f"{_host()}-{os.getpid()}-{secrets.token_hex(4)}"
    temporary = path.with_name(f".{path.name}.{writer}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _flush_folder(path.parent)


def remove_leftovers(folder, names: str) -> None:
    """Delete what killed writers left behind, not what others are writing just now.

    Parameters
    ----------
    folder : Path
    names : str
        Pattern for the names that the files would have got.
    """
    for path in folder.glob(f".{names}.*.tmp"):
        with suppress(FileNotFoundError):  # somebody else was faster
            is_old = time.time() - path.stat().st_mtime > OLD
            if is_old or _is_of_the_dead(path.name):
                path.unlink()


def _is_of_the_dead(name):
    """Whether the process that wrote a temporary file is known to have ended."""
    found = WRITER.search(name)
    if found is None or found[1] != _host() or os.name == "nt":
        return False  # Windows would end the process that is asked for
    try:
        os.kill(int(found[2]), 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is there and belongs to another user
        return False
    return False


def _host():
    return hashlib.blake2b(platform.node().encode(), digest_size=4).hexdigest()


def _flush_folder(folder):
    """Make a rename durable where the system can open a folder."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_archive(path, kind: str, special=None) -> Any:
    """The tree that :func:`write_archive` wrote.

    Parameters
    ----------
    path : str or path-like
    kind : str
        What the file must be.
    special : dict of str to callable, default=None
        For objects, as in :func:`decode`.

    Raises
    ------
    ModelFileError
        If the file is damaged, of another kind or of a newer format.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header = _read_header(file, size, path, kind)
        try:
            return _read_tree(file, header.pop(), size, special)
        except Exception as error:  # whatever a crafted tree makes of the reader
            reason = str(error) or type(error).__name__
            raise ModelFileError(
                f"{path} is not a {kind} that this package wrote: {reason}"
            ) from error


def _read_header(file, size, path, kind) -> list[bytes]:
    """The header, once the whole file has been found to be intact.

    In a list, so that whoever takes it out is the only one to hold it.
    """
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or not 0 < length <= min(size - 8, LONGEST_HEADER):
        raise ModelFileError(
            f"{path} is damaged or no {kind} of this package: it has {size} bytes and "
            f"speaks of a header of {length}."
        )
    header = file.read(length)
    head = HEAD.match(header)
    if head is None:
        raise ModelFileError(
            f"{path} is damaged or no {kind} of this package: it does not start as one."
        )
    found, version = head[1].decode(errors="replace"), int(head[2])
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"{path} has format {version}, which is newer than {FORMAT_VERSION}, the "
            "newest that this version reads. Update: pip install -U "
            "sklearn-sharpbalance."
        )
    if found != kind:
        raise ModelFileError(f"{path} is a {found}, not a {kind}.")
    view, stop = memoryview(header), head.end() + 2 * DIGEST_BYTES
    parts = [start, view[: head.end()], view[stop:]]
    body = _chunks(file, size - 8 - length)
    if _digest(chain(parts, body)) != header[head.end() : stop]:
        raise ModelFileError(
            f"{path} is damaged: its content does not match its digest. Fetch or write "
            "it again."
        )
    return [header]


def _chunks(file: BinaryIO, n_bytes: int) -> Iterator[bytes]:
    while n_bytes > 0 and (chunk := file.read(min(CHUNK, n_bytes))):
        n_bytes -= len(chunk)
        yield chunk


def _read_tree(file, header, size, special):
    budget, start = 2 * size + ROOM, 8 + len(header)
    header = header.rstrip(b" ")
    if bytes_to_parse(header) > budget:
        raise ValueError("it holds more structure than a file of its size may.")
    left = budget - bytes_to_parse(header) + len(header) - (size - start)
    header = header.decode("ascii")
    table = json.loads(header)
    del header
    tree = json.loads(table.pop("__metadata__")["tree"])
    check_table(table, size - start)
    if (
        bytes_to_decode(tree, {name: row["shape"] for name, row in table.items()})
        > left
    ):
        raise ValueError("it asks for more memory than a file of its size may.")
    entries = {
        name: Entry(row["dtype"], row["shape"], _read(file, start, row["data_offsets"]))
        for name, row in table.items()
    }
    return decode(tree, entries, special)


def _read(file, start, offsets):
    data = bytearray(offsets[1] - offsets[0])
    file.seek(start + offsets[0])
    if file.readinto(data) != len(data):
        raise ValueError("it ends too early.")
    return data
