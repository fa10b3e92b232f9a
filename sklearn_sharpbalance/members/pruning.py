"""Sparse members: weights pruned by magnitude that stay pruned.

The zeros themselves are the mask. A pruned weight starts at zero, its gradient is
multiplied by zero, and no elementwise optimizer moves a weight whose gradients were
all zero; so nothing beside the weights has to be kept, saved or sent.
"""

from dataclasses import replace

import torch

from sklearn_sharpbalance.members.state import MemberState

__all__ = ["gradient_masks", "prune_by_magnitude", "pruned_member", "sparsity"]


def prune_by_magnitude(state, share):
    """Set the smallest weights of a module to zero, over all layers together.

    Matrices and filters are pruned; biases, norm layers and input statistics are not.

    Parameters
    ----------
    state : dict of str to Tensor
        State of a :class:`MemberModule`.
    share : float
        Share of the prunable weights to set to zero.

    Returns
    -------
    state : dict of str to Tensor
        New tensors where weights were pruned.

    Examples
    --------
    >>> import torch
    >>> state = {"module.weight": torch.tensor([[3.0, -1.0], [0.5, 2.0]])}
    >>> prune_by_magnitude(state, 0.5)["module.weight"]
    tensor([[3., 0.],
            [0., 2.]])
    """
    prunable = {key: value for key, value in state.items() if _prunable(key, value)}
    magnitudes = torch.cat([value.abs().flatten() for value in prunable.values()])
    n_pruned = round(share * len(magnitudes))
    if n_pruned == 0:
        return dict(state)
    threshold = magnitudes.kthvalue(n_pruned).values
    kept = {
        key: torch.where(value.abs() > threshold, value, 0.0)
        for key, value in prunable.items()
    }
    return {**state, **kept}


def pruned_member(member: MemberState, share: float) -> MemberState:
    """A member whose smallest weights are zero.

    The optimizer starts afresh: its memory of pruned weights would move them.
    """
    module = prune_by_magnitude(member.module, share)
    return replace(member, module=module, optimizer=None)


def gradient_masks(weights):
    """For each trainable weight, where it is not zero; None where nothing is pruned.

    Parameters
    ----------
    weights : iterable of (name, Tensor)
    """
    masks = {}
    for name, weight in weights:
        if _prunable(name, weight):
            mask = (weight.detach() != 0).to(weight.dtype)
            if not mask.all():
                masks[name] = mask
    return masks


def sparsity(net):
    """Share of a member's prunable weights that are zero.

    Parameters
    ----------
    net : NeuralNetClassifier
        A fitted member.
    """
    weights = [w for name, w in net.module_.state_dict().items() if _prunable(name, w)]
    return sum((w == 0).sum().item() for w in weights) / sum(w.numel() for w in weights)


def _prunable(name, value):
    return name.startswith("module.") and value.is_floating_point() and value.ndim > 1
