"""Read and write a tree of plain values, arrays and tensors as one safetensors file.

Tensors and arrays are the tensors of the file. Its metadata is the format, a digest of
the content, and the tree of all other values as JSON. Nothing is pickled.
"""

import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sklearn_sharpbalance._validation import printable
from sklearn_sharpbalance.exceptions import FileNotWrittenError, ModelFileError
from sklearn_sharpbalance.persistence.encoding import byte_view, decode, encode

FORMAT_VERSION = 1
FORMAT = re.compile(r"sklearn-sharpbalance (\w+) (\d{1,9})")
# Bytes of JSON in a file. Parsed and decoded, a byte can become 64 bytes of memory.
MAX_HEADER = 2**25
# Lists and dictionaries in the JSON: each takes far more memory than two characters.
MAX_CONTAINERS = 10_000
TEXT_OF_CONTAINER = 8  # characters, on average, of each container beyond that number
MAX_AGE = 24 * 3600  # seconds; the writer of an older temporary file has ended


def write_archive(path, kind: str, tree: Any, special=None) -> str:
    """Write a tree that :func:`encode` accepts as one file, and return its digest.

    The file gets its name when it is complete and on the disk: after a crash there is
    either the old file or the new one. Its ``kind`` is "model" or "checkpoint".
    """
    tensors: dict[str, Tensor] = {}
    encoded = encode(tree, tensors, special)
    text = json.dumps(encoded, allow_nan=False, separators=(",", ":"))
    file_format = f"sklearn-sharpbalance {kind} {FORMAT_VERSION}"
    digest = _digest(file_format, text, sorted(tensors.items()))
    metadata = {"format": file_format, "digest": digest, "tree": text}
    with _temporary_file(path) as temporary:
        try:
            save_file(tensors, str(temporary), metadata=metadata)
        except SafetensorError as error:
            raise OSError(str(error)) from error
        size = _header_size(temporary)
        if size > MAX_HEADER or _is_crowded(text):
            raise FileNotWrittenError(
                f"Cannot write {path}: all values that are not arrays take {size} "
                f"bytes of JSON, more than {MAX_HEADER}, or are too many short lists. "
                "Store long lists as arrays."
            )
    return digest


def read_digest(path) -> str | None:
    """Return the digest that a file states; None if it is not of this package."""
    try:
        with _opened(path) as file:
            return (file.metadata() or {}).get("digest")
    except ModelFileError:
        return None


def _digest(file_format: str, text: str, tensors: Iterable[tuple[str, Tensor]]) -> str:
    digest = hashlib.blake2b(digest_size=32)
    digest.update(json.dumps([file_format, text]).encode())
    for name, tensor in tensors:
        row = [name, str(tensor.dtype), list(tensor.shape)]
        digest.update(json.dumps(row).encode())
        digest.update(byte_view(tensor).data)
    return digest.hexdigest()


def _is_crowded(text: str) -> bool:
    n_containers = text.count("[") + text.count("{")
    return n_containers > MAX_CONTAINERS + len(text) / TEXT_OF_CONTAINER


def _header_size(path) -> int:
    with open(path, "rb") as file:
        return int.from_bytes(file.read(8), "little")


def read_archive(path, kind: str, special=None) -> Any:
    """Return the tree that :func:`write_archive` wrote; objects as by :func:`decode`.

    Raise ModelFileError if the file is damaged, of another kind or of a newer format.
    """
    with _opened(path) as file:
        metadata = file.metadata() or {}
        _check_format(path, kind, metadata.get("format", ""))
        names = sorted(file.keys())
        try:
            content = ((name, file.get_tensor(name)) for name in names)
            digest = _digest(metadata["format"], metadata["tree"], content)
            if digest != metadata["digest"]:
                raise ModelFileError(
                    f"{path} is damaged: its content does not match its digest. Fetch "
                    "or write it again."
                )
            # A copy, because the tensors of safetensors are part of the mapped file.
            tensors = {name: file.get_tensor(name).clone() for name in names}
            if _is_crowded(metadata["tree"]):
                raise ValueError("it has too many short lists.")
            tree = decode(json.loads(metadata["tree"]), tensors, special)
        except ModelFileError:
            raise
        except Exception as error:  # of any kind, if the file was crafted
            reason = printable(str(error)) or type(error).__name__
            raise ModelFileError(
                f"{path} is not a {kind} that this package wrote: {reason}"
            ) from error
    return tree


@contextmanager
def _opened(path) -> Iterator[Any]:
    """Open a safetensors file if its header is not too large to be parsed."""
    size = _header_size(path)
    if size > MAX_HEADER:
        raise ModelFileError(
            f"{path} is damaged or not a file of this package: its header would have "
            f"{size} bytes, more than {MAX_HEADER}."
        )
    try:
        opened = safe_open(str(path), framework="pt")
    except SafetensorError as error:
        raise ModelFileError(
            f"{path} is damaged or not a file of this package: {printable(str(error))}."
        ) from error
    with opened as file:
        yield file


def _check_format(path, kind, text):
    found = FORMAT.fullmatch(text)
    if found is None:
        raise ModelFileError(
            f"{path} is not a {kind} of this package: its metadata names no format of "
            "this package."
        )
    if int(found[2]) > FORMAT_VERSION:
        raise ModelFileError(
            f"{path} has format {found[2]}, which is newer than {FORMAT_VERSION}, the "
            "newest that this version reads. Update: pip install -U "
            "sklearn-sharpbalance."
        )
    if found[1] != kind:
        raise ModelFileError(f"{path} is a {found[1]}, not a {kind}.")


@contextmanager
def writing(path) -> Iterator[None]:
    """Raise an error that names the user's path if writing fails."""
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
    """Return the path; raise if it is a folder or its folder does not exist."""
    path = Path(path)
    with writing(path):
        if path.is_dir():
            problem = "it is a folder. Name a file in it."
        elif path.parent.is_dir():
            return path
        elif path.parent.exists():
            problem = f"{path.parent} is not a folder. Use another folder."
        else:
            problem = f"there is no folder {path.parent}. Create it first."
    raise FileNotWrittenError(f"Cannot write {path}: {problem}")


@contextmanager
def atomic_file(path) -> Iterator[BinaryIO]:
    """Open a file that gets its name when it is complete, and is deleted on errors."""
    with writing(path), _temporary_file(path) as new, open(new, "wb") as file:
        yield file


@contextmanager
def _temporary_file(path) -> Iterator[Path]:
    """Yield a path beside the given one; flush the file there and rename it."""
    path = check_folder(path)
    # Other threads, processes and machines may write to the same path.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _flush_folder(path.parent)


def remove_leftovers(folder, names: str) -> None:
    """Delete temporary files that are so old that their writer was killed.

    The complete files would have names of the pattern ``names``.
    """
    for path in folder.glob(f".{names}.*.tmp"):
        with suppress(FileNotFoundError):  # another process has deleted it
            if time.time() - path.stat().st_mtime > MAX_AGE:
                path.unlink()


def _flush_folder(folder):
    """Make a rename durable where the system can open a folder."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
