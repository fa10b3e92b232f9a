"""Sparse members: weights pruned by magnitude that stay pruned.

The zeros themselves are the mask. A pruned weight starts at zero, its gradient is
multiplied by zero, and no elementwise optimizer moves a weight whose gradients were
all zero; so nothing beside the weights has to be kept, saved or sent. What another
optimizer, or a callback, makes of the zeros is undone after each step.
"""

from dataclasses import replace

import torch

from sklearn_sharpbalance.members.state import MemberState, restore

__all__ = ["gradient_masks", "prune_by_magnitude", "pruned_member", "sparsity"]


def prune_by_magnitude(state, share, names=None):
    """Set the smallest weights of a module to zero, over all layers together.

    Matrices and filters are pruned; biases, norm layers and input statistics are not.

    Parameters
    ----------
    state : dict of str to Tensor
        State of a :class:`MemberModule`.
    share : float
        Share of the prunable weights to set to zero.
    names : iterable of str or None, default=None
        Those that are weights. A state does not mark them among other tensors: None
        takes every matrix in it for one.

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
    names = state if names is None else names
    prunable = {name: state[name] for name in names if _prunable(name, state[name])}
    n_pruned = round(share * sum(value.numel() for value in prunable.values()))
    if n_pruned == 0:
        return dict(state)
    magnitudes = torch.cat([value.abs().flatten() for value in prunable.values()])
    threshold = magnitudes.kthvalue(n_pruned).values
    pruned = magnitudes < threshold
    # Of weights of one size as many as it takes: all of them may be of one size.
    ties = (magnitudes == threshold).nonzero().squeeze(1)
    pruned[ties[: n_pruned - int(pruned.sum())]] = True
    parts = pruned.split([value.numel() for value in prunable.values()])
    kept = {
        key: value.masked_fill(part.view(value.shape), 0.0)
        for (key, value), part in zip(prunable.items(), parts)
    }
    return {**state, **kept}


def pruned_member(member: MemberState, share: float, net) -> MemberState:
    """A member whose smallest weights are zero.

    The optimizer starts afresh: its memory of pruned weights would move them. So does
    an average of weights: the mean of a pruned weight and its past is not zero.

    Parameters
    ----------
    member : MemberState
    share : float
        Share of the weights to set to zero.
    net : NeuralNetClassifier
        Settings shared by all members. Its module says what is trained: frozen
        weights and buffers stay as they are, nothing here could make up for their
        loss.
    """
    twins = _trained(restore(net, replace(member, optimizer=None)).module_)
    module = prune_by_magnitude(member.module, share, set(twins.values()))
    module |= {name: module[one] for name, one in twins.items()}
    extra = {key: value for key, value in member.extra.items() if key != "average"}
    return replace(member, module=module, optimizer=None, extra=extra)


def _trained(module):
    """Names of trainable parameters, each with the one under which it is counted.

    A weight that layers share lies in a state once for every layer.
    """
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(weight), name)
        for name, weight in module.named_parameters(remove_duplicate=False)
        if weight.requires_grad
    }


def gradient_masks(weights):
    """Where the trainable weights are not zero, of those that have zeros.

    Parameters
    ----------
    weights : iterable of (name, Parameter)

    Returns
    -------
    masks : dict of str to Tensor
        One where a weight is not zero. Weights without zeros have no entry, nor have
        frozen ones, which get no gradient, nor biases, which are not pruned.
    """
    masks = {}
    for name, weight in weights:
        if weight.requires_grad and _prunable(name, weight):
            mask = (weight.detach() != 0).to(weight.dtype)
            if not mask.all():
                masks[name] = mask
    return masks


def sparsity(net):
    """Share of a member's prunable weights that are zero.

    These are the matrices and filters that are trained: no buffers, nothing frozen.

    Parameters
    ----------
    net : NeuralNetClassifier
        A fitted member.

    Returns
    -------
    share : float
        Zero for a member without such weights.
    """
    named = net.module_.named_parameters()
    weights = [w for name, w in named if w.requires_grad and _prunable(name, w)]
    n_weights = sum(w.numel() for w in weights)
    return sum((w == 0).sum().item() for w in weights) / max(n_weights, 1)


def _prunable(name, value):
    return name.startswith("module.") and value.is_floating_point() and value.ndim > 1
