"""Sparse members: weights pruned by magnitude that stay pruned.

The zeros are the mask. A pruned weight starts at zero, its gradient is multiplied by
zero, and an elementwise optimizer does not move a weight whose gradients were all zero.
So no mask has to be saved or sent with the weights. After each step pruned weights are
set to zero again, in case another optimizer or a callback has changed them.
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
        Names of the weights, which a state does not mark; None prunes every matrix.

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
    # Prune only as many of the weights at the threshold as needed: all may be equal.
    ties = (magnitudes == threshold).nonzero().squeeze(1)
    pruned[ties[: n_pruned - int(pruned.sum())]] = True
    parts = pruned.split([value.numel() for value in prunable.values()])
    kept = {
        key: value.masked_fill(part.view(value.shape), 0.0)
        for (key, value), part in zip(prunable.items(), parts)
    }
    return {**state, **kept}


def pruned_member(member: MemberState, share: float, net) -> MemberState:
    """Return a member with its smallest weights set to zero.

    The state of the optimizer is reset: its momentum would move pruned weights. So is
    an average of weights: the mean of zero and earlier values is not zero.

    Parameters
    ----------
    member : MemberState
    share : float
        Share of the weights to set to zero.
    net : NeuralNetClassifier
        Settings shared by all members. Frozen weights and buffers of its module are
        not pruned: training could not compensate for it.
    """
    twins = _trained(restore(net, replace(member, optimizer=None)).module_)
    module = prune_by_magnitude(member.module, share, set(twins.values()))
    module |= {name: module[one] for name, one in twins.items()}
    extra = {key: value for key, value in member.extra.items() if key != "average"}
    return replace(member, module=module, optimizer=None, extra=extra)


def _trained(module):
    """Map the names of trainable parameters to the first name of the same weight.

    A weight that layers share is in a state once for every layer.
    """
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(weight), name)
        for name, weight in module.named_parameters(remove_duplicate=False)
        if weight.requires_grad
    }


def gradient_masks(weights):
    """Return masks of the nonzero entries, for trainable weights with zeros.

    Parameters
    ----------
    weights : iterable of (name, Parameter)

    Returns
    -------
    masks : dict of str to Tensor
        One where a weight is not zero. There is no mask for weights without zeros, for
        frozen weights, and for biases, which are not pruned.
    """
    masks = {}
    for name, weight in weights:
        if weight.requires_grad and _prunable(name, weight):
            mask = (weight.detach() != 0).to(weight.dtype)
            if not mask.all():
                masks[name] = mask
    return masks


def sparsity(net):
    """Return the share of a member's prunable weights that are zero.

    These are the trainable matrices and filters: no buffers, no frozen weights.

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
