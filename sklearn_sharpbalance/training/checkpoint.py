"""Checkpoints of a fit: written atomically, read by the same fit only.

A folder has the last states of one fit. A fit draws all seeds at its start, and the
random numbers of an epoch depend on the member's seed and the epoch only. A resumed fit
therefore has exactly the same result as an uninterrupted one.
"""

import re
import warnings
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sklearn_sharpbalance._parameters import names_where
from sklearn_sharpbalance._validation import printable
from sklearn_sharpbalance.exceptions import (
    CheckpointError,
    CheckpointMismatchError,
    ModelFileError,
    SharpBalanceError,
    SharpBalanceWarning,
)
from sklearn_sharpbalance.persistence.archive import (
    read_archive,
    read_digest,
    remove_leftovers,
    write_archive,
)
from sklearn_sharpbalance.persistence.encoding import NotPlainError
from sklearn_sharpbalance.persistence.fingerprint import (
    condense,
    describe,
    differences,
    stable_hash,
)
from sklearn_sharpbalance.training.plan import Seeds
from sklearn_sharpbalance.training.state_tree import state_from_tree, state_tree

KEPT = 2  # the last one, and the one before in case the last one is damaged
NAME = re.compile(r"epoch-(\d{6,})\.safetensors")


class CheckpointFolder:
    """A folder with the last checkpoints of one fit.

    A disk that is full, read-only or broken is an error before a fit has written its
    first checkpoint, and later a warning, so that no training is lost.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self._last: str | None = None  # digest of the file read or written last

    def files(self) -> list[Path]:
        """Return the checkpoints from the oldest to the newest."""
        try:
            names = [
                (NAME.fullmatch(path.name), path) for path in self.folder.iterdir()
            ]
        except FileNotFoundError:
            return []
        except OSError as error:
            self._fail(
                f"Cannot read checkpoint_dir {self.folder}: {error}. Pass a folder "
                "that can be read.",
                error,
            )
            return []
        epochs = sorted((int(name[1]), path) for name, path in names if name)
        return [path for _, path in epochs]

    def latest(self) -> Any:
        """Return the content of the newest checkpoint that can be read, or None."""
        damage, files = None, self.files()
        for path in reversed(files):
            try:
                digest, content = read_digest(path), read_archive(path, "checkpoint")
            except FileNotFoundError:  # another fit in this folder has deleted it
                continue
            except (ModelFileError, OSError) as error:
                damage = error
                warnings.warn(
                    f"A checkpoint cannot be read and is skipped: {error}",
                    SharpBalanceWarning,
                    stacklevel=2,
                )
            else:
                self._last = digest
                return content
        if damage is not None:
            self._fail(
                f"No checkpoint in {self.folder} can be read. Delete the folder to "
                "start again.",
                damage,
            )
        # If all files are gone, another fit has written newer ones.
        return self.latest() if files and damage is None else None

    def newest_of_others(self) -> Any:
        """Return the newest checkpoint if another fit wrote it and it can be read."""
        with suppress(ModelFileError, OSError):
            for path in self.files()[-1:]:
                if read_digest(path) != self._last:
                    return read_archive(path, "checkpoint")
        return None

    def write(self, epoch: int, tree: Any, *, last: bool = False) -> None:
        """Write a checkpoint and delete older ones; all of them if it is the last."""
        path = self.folder / f"epoch-{epoch:06d}.safetensors"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._last = write_archive(path, "checkpoint", tree)
        except NotPlainError as error:
            self._fail(
                f"Cannot write the checkpoint {path}: {error}, which a file without "
                "pickle cannot store. Record numbers and strings, or remove the "
                "callback that records it.",
                error,
            )
        except OSError as error:
            self._fail(
                f"Cannot write the checkpoint {path}: {error}. Free some space, pass "
                "another checkpoint_dir, or None to fit without.",
                error,
            )
        else:
            self._prune(path, keep=1 if last else KEPT)

    def _prune(self, newest, keep):
        older = [path for path in self.files() if path != newest]
        with suppress(OSError):
            remove_leftovers(self.folder, "epoch-*.safetensors")
            for path in older[: len(older) - keep + 1]:
                path.unlink(missing_ok=True)

    def _fail(self, message, error):
        if self._last is None:
            raise CheckpointError(message) from error
        warnings.warn(
            f"{message} The fit continues.", SharpBalanceWarning, stacklevel=3
        )


def fit_fingerprint(params: dict[str, Any], data: dict[str, str]) -> dict[str, str]:
    """Describe everything that the result of a fit depends on."""
    ignored = names_where(changes_result=False)
    described = {
        k: condense(describe(v)) for k, v in params.items() if k not in ignored
    }
    random_state = params.get("random_state")
    if random_state is None or random_state is np.random.mtrand._rand:
        # Its seeds cannot be drawn again; they are in the checkpoint.
        described["random_state"] = "drawn"
    elif isinstance(random_state, np.random.RandomState):
        described["random_state"] = f"RandomState at {stable_hash(random_state)}"
    return {**described, **data}


@dataclass
class SavedFit:
    """Content of a checkpoint."""

    state: Any
    scores: list[float]
    best: Any
    best_score: tuple[float, float]
    finished: bool


class FitCheckpoints:
    """Checkpoints of one fit; raises if the folder is of another fit.

    ``{fit}`` in the name of the folder is replaced by a digest of data and parameters,
    so that each fit of a search has its own folder. ``seeds`` are those of a new fit;
    those of a checkpoint replace them.
    """

    def __init__(self, folder, fingerprint: dict[str, str], seeds: Seeds):
        digest = stable_hash(list(fingerprint.items()))
        name = str(folder).replace("{fit}", digest)
        self.folder, self.fingerprint = CheckpointFolder(name), fingerprint
        self._saved = self.folder.latest()
        self.seeds = (
            seeds if self._saved is None else self._saved_seeds(len(seeds.members))
        )

    def _saved_seeds(self, n_members) -> Seeds:
        """Return the seeds of the newest checkpoint, if it is of the same fit."""
        with _readable(self.folder.folder):
            self._check(
                self._saved,
                "The checkpoint in {} belongs to another fit",
                ", or delete the folder to start again",
            )
            stored = self._saved["seeds"]
            members = tuple(stored["members"])
            found = Seeds(members, stored["selection"], stored["split"])
            are_seeds = all(map(_is_seed, (*members, found.selection, found.split)))
            if len(members) != n_members or not are_seeds:
                raise ValueError("it has no valid seeds")
        return found

    def _check(self, saved, problem, remedy=""):
        found = differences(saved["fingerprint"], self.fingerprint)
        if found:
            raise CheckpointMismatchError(
                f"{problem.format(self.folder.folder)}: {'; '.join(found)}. Pass "
                f"another checkpoint_dir, one with '{{fit}}' in its name{remedy}."
            )

    def load(self, net, data) -> SavedFit | None:
        """Return the state of the fit; None if there is no checkpoint."""
        if self._saved is None:
            return None
        saved, self._saved = self._saved, None
        with _readable(self.folder.folder):
            state = state_from_tree(saved["state"], net, data)
            best = saved["best"]
            members = {len(one["members"]) for one in (saved["state"], best) if one}
            if members != {len(self.seeds.members)}:
                raise ValueError("it has another number of members")
            return SavedFit(
                state=state,
                scores=list(map(float, saved["scores"])),
                best=state if best is None else state_from_tree(best, net, data),
                best_score=saved["best_score"],
                finished=bool(saved["finished"]),
            )

    def write(self, state, stopping=None, *, finished=False) -> None:
        """Write the state of the fit, and of its early stopping."""
        other = self.folder.newest_of_others()
        if other is not None:  # the same fit may run twice
            self._check(other, "Another fit writes to {} at the same time")
        best = None if stopping is None or stopping.best is state else stopping.best
        tree = {
            "fingerprint": self.fingerprint,
            "seeds": asdict(self.seeds),
            "state": state_tree(state),
            "scores": [] if stopping is None else stopping.scores,
            "best": None if best is None else state_tree(best),
            "best_score": None if stopping is None else stopping.best_score,
            "finished": finished,
        }
        self.folder.write(state.epoch, tree, last=finished)


@contextmanager
def _readable(folder):
    """Raise CheckpointError for the content of a folder that no fit wrote."""
    try:
        yield
    except SharpBalanceError:
        raise
    except Exception as error:  # of any kind, if a file was crafted
        raise CheckpointError(
            f"The checkpoint in {folder} does not describe a fit: "
            f"{type(error).__name__}: {printable(str(error))}. Delete the folder to "
            "start again."
        ) from error


def _is_seed(value):
    return type(value) is int and 0 <= value < 2**63
