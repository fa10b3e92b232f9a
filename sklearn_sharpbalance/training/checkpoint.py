"""Checkpoints of a fit: written whole or not at all, read by the same fit only.

A folder holds the last states of one fit. Since a fit draws all its seeds at its
start and every epoch's randomness depends on a member's seed and the epoch alone,
going on from a checkpoint gives bit for bit what the uninterrupted fit gives.
"""

import hashlib
import re
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from sklearn_sharpbalance._parameters import names_where
from sklearn_sharpbalance.exceptions import (
    CheckpointError,
    CheckpointMismatchError,
    ModelFileError,
    SharpBalanceWarning,
)
from sklearn_sharpbalance.members import Segment
from sklearn_sharpbalance.persistence.archive import (
    read_archive,
    read_digest,
    remove_leftovers,
    write_archive,
)
from sklearn_sharpbalance.persistence.encoding import NotPlainError
from sklearn_sharpbalance.persistence.fingerprint import condense, describe, differences
from sklearn_sharpbalance.training.state import Seeds
from sklearn_sharpbalance.training.state_tree import state_from_tree, state_tree

__all__ = ["CheckpointFolder", "FitCheckpoints", "fit_fingerprint"]

KEPT = 2  # the last one and, should the disk spoil it, the one before
NAME = re.compile(r"epoch-(\d{6,})\.safetensors")


class CheckpointFolder:
    """A folder with the last checkpoints of one fit.

    Parameters
    ----------
    folder : str or path-like
    on_error : {"raise", "warn"}, default="raise"
        What happens when the disk is full, read-only or broken.
    """

    def __init__(self, folder, on_error="raise"):
        self.folder, self.on_error = Path(folder), on_error
        self._last: str | None = None  # digest of what was read or written last

    def files(self) -> list[Path]:
        """Checkpoints from the oldest to the newest."""
        try:
            names = [
                (NAME.fullmatch(path.name), path) for path in self.folder.iterdir()
            ]
        except FileNotFoundError:
            return []
        except OSError as error:
            self._fail(
                f"Cannot look into checkpoint_dir {self.folder}: {error}. Pass a "
                "folder that can be read; on_checkpoint_error='warn' goes on without.",
                error,
            )
            return []
        epochs = sorted((int(name[1]), path) for name, path in names if name)
        return [path for _, path in epochs]

    def latest(self) -> Any:
        """Content of the newest checkpoint that is intact; None if there is none."""
        damage, files = None, self.files()
        for path in reversed(files):
            try:
                self._last = read_digest(path)
                return read_archive(path, "checkpoint")
            except FileNotFoundError:  # another fit in this folder has gone beyond it
                continue
            except (ModelFileError, OSError) as error:
                damage = error
                warnings.warn(
                    f"A checkpoint cannot be read and is passed over: {error}",
                    SharpBalanceWarning,
                    stacklevel=2,
                )
        if damage is not None:
            self._fail(
                f"No checkpoint in {self.folder} can be read. Delete the folder to "
                "start again.",
                damage,
            )
        # All that was listed is gone only if another fit has written newer ones since.
        return self.latest() if files and damage is None else None

    def newest_of_others(self) -> Any:
        """Content of the newest checkpoint if another fit has written it since.

        None if none has, and for a file that cannot be read.
        """
        with suppress(ModelFileError, OSError):
            for path in self.files()[-1:]:
                if read_digest(path) != self._last:
                    return read_archive(path, "checkpoint")
        return None

    def write(self, epoch: int, tree: Any, *, last: bool = False) -> None:
        """Write a checkpoint and remove those that are not needed any more.

        Parameters
        ----------
        epoch : int
            Epochs that are done.
        tree : dict
            Plain values, arrays and tensors.
        last : bool, default=False
            Whether the fit is finished, so that no other checkpoint is needed.
        """
        path = self.folder / f"epoch-{epoch:06d}.safetensors"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._last = write_archive(path, "checkpoint", tree)
        except NotPlainError as error:
            self._fail(
                f"Cannot write the checkpoint {path}: {error}, which a file without "
                "pickle cannot hold. Record numbers and strings, or leave out the "
                "callback that keeps it.",
                error,
            )
        except OSError as error:
            self._fail(
                f"Cannot write the checkpoint {path}: {error}. Free some space or pass "
                "another checkpoint_dir; on_checkpoint_error='warn' goes on without.",
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
        if self.on_error == "raise":
            raise CheckpointError(message) from error
        warnings.warn(f"{message} The fit goes on.", SharpBalanceWarning, stacklevel=3)


def fit_fingerprint(params: dict[str, Any], data: dict[str, str]) -> dict[str, str]:
    """Descriptions of everything that the result of a fit depends on.

    Parameters
    ----------
    params : dict
        Parameters of the estimator, nested ones included.
    data : dict
        From :func:`data_fingerprint`.
    """
    ignored = names_where(changes_result=False)
    described = {
        k: condense(describe(v)) for k, v in params.items() if k not in ignored
    }
    described["random_state"] = _source_of_seeds(params.get("random_state"))
    return {**described, **data}


def _source_of_seeds(random_state):
    """A seed, or where a generator stands: two fits may be given different ones."""
    if isinstance(random_state, Integral):
        return describe(random_state)
    if random_state is None or random_state is np.random.mtrand._rand:
        return "drawn"  # they cannot be drawn again: the checkpoint has them
    state = describe(random_state.get_state(legacy=False))
    return f"RandomState at {_digest(state)}"


@dataclass
class SavedFit:
    """What a checkpoint says about a fit."""

    state: Any
    scores: list[float]
    best: Any
    best_score: tuple[float, float]
    finished: bool


class FitCheckpoints:
    """Checkpoints of one fit.

    Parameters
    ----------
    folder : CheckpointFolder
    fingerprint : dict
        From :func:`fit_fingerprint`.
    seeds : Seeds
    every : int or None, default=None
        Epochs after which a checkpoint is due in any case.
    saved : dict or None, default=None
        Content of the newest checkpoint.
    """

    def __init__(self, folder, fingerprint, seeds, *, every=None, saved=None):
        self.folder, self.fingerprint, self.seeds = folder, fingerprint, seeds
        self.every, self._saved = every, saved

    @classmethod
    def open(cls, folder, fingerprint, seeds, *, every=None, on_error="raise"):
        """Read what an earlier fit left in a folder; raise if it was another fit.

        Parameters
        ----------
        folder : str or path-like
            ``{fit}`` in it stands for a digest of data and parameters, so that the
            fits of a search get a folder each.
        fingerprint : dict
            From :func:`fit_fingerprint`.
        seeds : Seeds
            Drawn for this fit; those of a checkpoint replace them.
        every : int or None, default=None
            Epochs after which a checkpoint is due in any case.
        on_error : {"raise", "warn"}, default="raise"
        """
        text = describe(list(fingerprint.items()))
        name = str(folder).replace("{fit}", _digest(text))
        opened = CheckpointFolder(name, on_error)
        saved = opened.latest()
        checkpoints = cls(opened, fingerprint, seeds, every=every, saved=saved)
        if saved is not None:
            checkpoints._check(
                saved,
                "The checkpoint in {} belongs to another fit",
                ", or delete the folder to start again",
            )
            own = saved["seeds"]
            checkpoints.seeds = Seeds(
                members=tuple(own["members"]),
                selection=own["selection"],
                split=own["split"],
            )
        return checkpoints

    def _check(self, saved, problem, remedy=""):
        found = differences(saved["fingerprint"], self.fingerprint)
        if found:
            raise CheckpointMismatchError(
                f"{problem.format(self.folder.folder)}: {'; '.join(found)}. Pass "
                f"another checkpoint_dir, one with '{{fit}}' in its name{remedy}."
            )

    def load(self, net, data) -> SavedFit | None:
        """Where the fit stands; None if it has not begun.

        Parameters
        ----------
        net : NeuralNetClassifier
            Settings of all members; its callbacks get back what they knew.
        data : TrainingData
        """
        if self._saved is None:
            return None
        saved, self._saved = self._saved, None
        state = state_from_tree(saved["state"], net, data)
        best = saved["best"]
        return SavedFit(
            state,
            saved["scores"],
            state if best is None else state_from_tree(best, net, data),
            saved["best_score"],
            saved["finished"],
        )

    def is_due(self, segment: Segment, following: Segment | None) -> bool:
        """Whether to write after a segment: a phase ends, or it has been long."""
        if following is None or following.select or following.prune:
            return True
        return self.every is not None and segment.stop % self.every == 0

    def write(self, state, stopping=None, *, finished=False) -> None:
        """Write where the fit stands.

        Parameters
        ----------
        state : EnsembleState
        stopping : EarlyStopping or None, default=None
        finished : bool, default=False
        """
        other = self.folder.newest_of_others()
        if other is not None:  # the same fit may be at work twice
            self._check(other, "Another fit has begun to write to {} beside this one")
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


def _digest(text):
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
