"""Average the weights of a member over epochs."""

from copy import deepcopy
from dataclasses import dataclass

import torch

from sklearn_sharpbalance._validation import Interval, Real
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["WeightAveraging", "epochs_of", "resolve_averaging", "updated_average"]

KINDS = ("uniform", "exponential")


def epochs_of(share: float, n_epochs: int) -> int:
    """Return the number of whole epochs in a share of all epochs.

    Examples
    --------
    >>> epochs_of(0.5, 9), epochs_of(0.29, 100)
    (4, 29)
    """
    # Rounded first: 0.29 * 100 is a little less than 29.
    return int(round(share * n_epochs, 9))


@dataclass(frozen=True)
class WeightAveraging:
    """How a member's weights are averaged after each epoch, and from which epoch on.

    Parameters
    ----------
    kind : {"uniform", "exponential"}, default="uniform"
        Equal weight for all epochs (stochastic weight averaging), or more for recent
        ones.
    start : float, default=0.5
        Share of the epochs after which averaging begins.
    decay : float, default=0.9
        Weight of the old average in each exponential update.

    References
    ----------
    Arpit et al., Ensemble of averages: improving model selection and boosting
    performance in domain generalization, NeurIPS 2022.
    """

    kind: str = "uniform"
    start: float = 0.5
    decay: float = 0.9

    def __post_init__(self):
        if self.kind not in KINDS:
            raise InvalidInputError(
                f"Unknown kind of averaging {self.kind!r}. Choose one of {KINDS}."
            )
        for name in ("start", "decay"):
            value = getattr(self, name)
            if not Interval(Real, 0, 1, closed="left").is_satisfied_by(value):
                raise InvalidInputError(f"{name} must be in [0, 1), got {value!r}.")

    def covers(self, epoch: int, n_epochs: int) -> bool:
        """Whether the weights after ``epoch`` are part of the average."""
        return epoch >= epochs_of(self.start, n_epochs)


def resolve_averaging(value):
    """Return a :class:`WeightAveraging`, also for a name; None for None."""
    if value is None or isinstance(value, WeightAveraging):
        return value
    if isinstance(value, str) and value in KINDS:
        return WeightAveraging(value)
    raise InvalidInputError(
        f"Unknown weight_averaging {value!r}. Choose one of {KINDS}, or pass a "
        "WeightAveraging."
    )


def updated_average(average, weights, averaging):
    """Return the average with the weights of one more epoch.

    Parameters
    ----------
    average : dict or None
        Has "weights" and "count"; None before the first epoch.
    weights : dict of str to Tensor
    averaging : WeightAveraging

    Returns
    -------
    average : dict

    Examples
    --------
    >>> import torch
    >>> how, average = WeightAveraging("uniform"), None
    >>> for value in (1.0, 2.0, 6.0):
    ...     average = updated_average(average, {"w": torch.tensor(value)}, how)
    >>> average["weights"]["w"].item()
    3.0
    """
    if average is None:
        copies = {key: _copied(value) for key, value in weights.items()}
        return {"weights": copies, "count": 1}
    count = average["count"] + 1
    step = 1 / count if averaging.kind == "uniform" else 1 - averaging.decay
    mean = {
        key: torch.lerp(average["weights"][key].to(value.device), value, step)
        if torch.is_tensor(value) and (value.is_floating_point() or value.is_complex())
        else _copied(value)
        for key, value in weights.items()
    }
    return {"weights": mean, "count": count}


def _copied(value):
    """Copy an entry of a state dict, which may be any object."""
    return value.detach().clone() if torch.is_tensor(value) else deepcopy(value)
