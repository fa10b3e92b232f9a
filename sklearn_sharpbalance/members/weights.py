"""Weights of a member between steps: averages over epochs, and pruning by magnitude.

The zeros of a pruned member are its mask, so no mask has to be saved or sent. After
each step pruned weights are set to zero again, in case an optimizer that is not
elementwise, or a callback, has changed them.
"""

from copy import deepcopy
from dataclasses import dataclass, replace

import torch

from sklearn_sharpbalance._validation import Interval, Real
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members.state import MemberState, restore

__all__ = [
    "WeightAveraging",
    "epochs_of",
    "gradient_masks",
    "prune_by_magnitude",
    "pruned_member",
    "resolve_averaging",
    "updated_average",
]

KINDS = ("uniform", "exponential")


def epochs_of(fraction: float, n_epochs: int) -> int:
    """Return the number of whole epochs in a fraction of all epochs.

    Examples
    --------
    >>> epochs_of(0.5, 9), epochs_of(0.29, 100)
    (4, 29)
    """
    # Rounded first: 0.29 * 100 is a little less than 29.
    return int(round(fraction * n_epochs, 9))


@dataclass(frozen=True)
class WeightAveraging:
    """How a member's weights are averaged after each epoch, and from which epoch on.

    Parameters
    ----------
    kind : {"uniform", "exponential"}, default="uniform"
        Equal weight for all epochs (stochastic weight averaging), or more for recent
        ones.
    start : float, default=0.5
        Fraction of the epochs after which averaging begins.
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
    """Return the average, None before its first epoch, with the weights of one more.

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


def prune_by_magnitude(state, fraction, names=None):
    """Set the smallest weights of a state to zero, over all layers together.

    Matrices and filters are pruned; biases, norm layers and input statistics are not.
    A state does not mark them: ``names`` are those to prune, None is every matrix.

    Examples
    --------
    >>> import torch
    >>> state = {"module.weight": torch.tensor([[3.0, -1.0], [0.5, 2.0]])}
    >>> prune_by_magnitude(state, 0.5)["module.weight"]
    tensor([[3., 0.],
            [0., 2.]])
    """
    names = state if names is None else names
    prunable = {name: state[name] for name in names if _prunable(name, state[name])}
    n_pruned = round(fraction * sum(value.numel() for value in prunable.values()))
    if n_pruned == 0:
        return dict(state)
    magnitudes = torch.cat([value.abs().flatten() for value in prunable.values()])
    threshold = magnitudes.kthvalue(n_pruned).values
    pruned = magnitudes < threshold
    # Prune only as many of the weights at the threshold as needed: all may be equal.
    ties = (magnitudes == threshold).nonzero().squeeze(1)
    pruned[ties[: n_pruned - int(pruned.sum())]] = True
    parts = pruned.split([value.numel() for value in prunable.values()])
    kept = {
        key: value.masked_fill(part.view(value.shape), 0.0)
        for (key, value), part in zip(prunable.items(), parts)
    }
    return {**state, **kept}


def pruned_member(member: MemberState, fraction: float, net) -> MemberState:
    """Return a member with its smallest weights set to zero.

    The state of the optimizer is reset: its momentum would move pruned weights. So is
    an average of weights: the mean of zero and earlier values is not zero. Frozen
    weights and buffers are not pruned: training could not compensate for it.
    """
    twins = _trained(restore(net, replace(member, optimizer=None)).module_)
    module = prune_by_magnitude(member.module, fraction, set(twins.values()))
    module |= {name: module[one] for name, one in twins.items()}
    extra = {key: value for key, value in member.extra.items() if key != "average"}
    return replace(member, module=module, optimizer=None, extra=extra)


def _trained(module):
    """Map the names of trainable parameters to the first name of the same weight.

    A weight that layers fraction is in a state once for every layer.
    """
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(weight), name)
        for name, weight in module.named_parameters(remove_duplicate=False)
        if weight.requires_grad
    }


def gradient_masks(weights):
    """Return masks of the nonzero entries, for trainable matrices with zeros.

    ``weights`` are pairs of name and parameter. Biases are not pruned.
    """
    masks = {}
    for name, weight in weights:
        if weight.requires_grad and _prunable(name, weight):
            mask = (weight.detach() != 0).to(weight.dtype)
            if not mask.all():
                masks[name] = mask
    return masks


def _prunable(name, value):
    return name.startswith("module.") and value.is_floating_point() and value.ndim > 1
