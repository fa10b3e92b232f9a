"""All members as one network: every weight with a leading member axis.

torch.func's vmap would do the same for any module, but a step takes a quarter longer
than with batched matrix products, which suffice for MLP-like members.
"""

from collections.abc import Sequence

import torch
from torch import nn

from sklearn_sharpbalance.engine.called_layers import called_layers
from sklearn_sharpbalance.optim.look_sam import COUNT
from sklearn_sharpbalance.runtime.torch_internals import (
    child_modules,
    foreach_copy_,
    has_hooks,
)

__all__ = [
    "StackedNetwork",
    "in_step",
    "is_hooked",
    "layers_to_stack",
    "stack_optimizer",
    "stackable_layers",
    "stacking_obstacle",
    "unstack_optimizer",
]

POINTWISE = (
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.LeakyReLU,
    nn.Softplus,
    nn.Identity,
)


def stackable_layers(module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """Return the names and layers of an MLP-like module; None for any other module.

    MLP-like: an ``nn.Sequential`` (or subclass that does not override ``forward``),
    possibly nested, of Linear, pointwise activations and a Flatten at the front; or a
    module that only calls such layers one after the other (:func:`called_layers`).
    Subclasses of these layers, hooks, and weights outside of a layer are not allowed,
    nor layers that change the input in place: members share it.

    Examples
    --------
    >>> relu = nn.ReLU()
    >>> layers = stackable_layers(nn.Sequential(nn.Linear(2, 2), relu, relu))
    >>> [name for name, _ in layers]
    ['0', '1', '2']
    """
    return _chain(module) if stacking_obstacle(module) is None else None


def stacking_obstacle(module: nn.Module) -> str | None:
    """Return why a module cannot be stacked; None if it can.

    Examples
    --------
    >>> stacking_obstacle(nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.ReLU()))
    'Dropout (1) is neither'
    """
    layers = _chain(module)
    if layers is None:
        return "it does more than to call its layers one after the other"
    for name, layer in layers:
        if not _is_plain(layer):
            why = "has hooks" if is_hooked(layer) else "is neither"
            return f"{type(layer).__name__} ({name}) {why}"
    linear = [layer for _, layer in layers if isinstance(layer, nn.Linear)]
    weights = [p for layer in linear for p in layer.parameters()]
    obstacles = {
        "it has no Linear layer": not linear,
        "it changes its input in place": _changes_input(layers),
        "some of its weights are frozen": not all(p.requires_grad for p in weights),
        "its layers share weights": len({id(p) for p in weights}) < len(weights),
        "it calls its layers in another order than it defines them": (
            [id(p) for p in weights] != [id(p) for p in module.parameters()]
        ),
        "a Flatten comes after other layers": any(
            isinstance(layer, nn.Flatten) for _, layer in layers[1:]
        ),
    }
    return next((text for text, is_there in obstacles.items() if is_there), None)


def layers_to_stack(module: nn.Module, prefix: str) -> list[tuple[str, nn.Module]]:
    """Return the stackable layers with a prefix before names; raise if None."""
    layers = stackable_layers(module)
    if layers is None:
        raise ValueError(f"{type(module).__name__} cannot be stacked.")
    return [(prefix + name, layer) for name, layer in layers]


def _chain(module):
    """Return the layers of nested Sequentials in call order; None for others."""
    if is_hooked(module):
        return None
    if type(module).forward is nn.Sequential.forward:
        names: list[str] | None = list(child_modules(module))  # with repeated layers
    else:
        names = called_layers(module)
    if names is None:
        return None
    layers = []
    for name in names:
        child = child_modules(module)[name]
        inner = _chain(child) if isinstance(child, nn.Sequential) else [("", child)]
        if inner is None:
            return None
        layers += [(f"{name}.{sub}" if sub else name, layer) for sub, layer in inner]
    return layers


def _is_plain(layer):
    """Whether a layer is of a known class, without hooks, buffers or other weights."""
    if is_hooked(layer) or next(layer.buffers(), None) is not None:
        return False
    if isinstance(layer, nn.Flatten):
        return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)
    names = {name for name, _ in layer.named_parameters()}
    known = {"weight", "bias"} if type(layer) is nn.Linear else set()
    return type(layer) in (nn.Linear, *POINTWISE) and names <= known


def _changes_input(layers):
    """Whether a layer before the first Linear works in place."""
    for _, layer in layers:
        if isinstance(layer, nn.Linear):
            return False
        if getattr(layer, "inplace", False):
            return True
    return False


def is_hooked(module: nn.Module) -> bool:
    """Whether a call of the module is changed by hooks or an own ``forward``.

    Examples
    --------
    >>> layer = nn.ReLU()
    >>> is_hooked(layer)
    False
    >>> handle = layer.register_forward_hook(lambda layer, args, output: -output)
    >>> is_hooked(layer)
    True
    """
    return "forward" in vars(module) or has_hooks(module)


class StackedNetwork:
    """M networks of one architecture as batched matrix products.

    Parameters
    ----------
    layers : list of (name, module)
        From :func:`stackable_layers`, with the prefix of the state's keys.
    states : sequence of dict
        State of each member's module.
    device : torch.device

    Attributes
    ----------
    params : dict of str to Tensor (M, ...)
        Trainable weights, in the order of a member's optimizer.
    """

    def __init__(self, layers, states: Sequence[dict], device):
        self.layers = layers
        self.params: dict[str, torch.Tensor] = {}
        for name, layer in layers:
            for key, _ in layer.named_parameters(recurse=False):
                own = [state[f"{name}.{key}"].to(device) for state in states]
                self.params[f"{name}.{key}"] = torch.stack(own).requires_grad_()
        # Weights of the second part of a batch: other leaves with the same memory.
        self._seconds = {
            key: value.detach().requires_grad_() for key, value in self.params.items()
        }
        self._seconds_differ = False  # whether they have their own memory

    def __call__(self, x: torch.Tensor, n_first: int | None = None) -> torch.Tensor:
        """Return the logits (M, B, C) of inputs (M, B, F).

        With ``n_first``, only the first ``n_first`` samples of each member contribute
        to the ``.grad`` of the weights; :meth:`second_gradients` returns the gradients
        of the others. This is faster than one pass for each part.
        """
        for name, layer in self.layers:
            if isinstance(layer, nn.Linear):
                keys = f"{name}.weight", f"{name}.bias"
                weight, bias = (self.params.get(key) for key in keys)
                if n_first is None:
                    x = stacked_linear(x, weight, bias)
                else:
                    weight2, bias2 = (self._seconds.get(key) for key in keys)
                    product = _TwoProducts if self._seconds_differ else _SplitProduct
                    x = split_linear(product, x, weight, bias, weight2, bias2, n_first)
            elif not isinstance(layer, nn.Flatten):
                x = layer(x)
        return x

    @torch.no_grad()
    def hold_second_weights(self) -> None:
        """Keep a copy of the current weights for the second part of the next batch.

        Call it before the weights are perturbed for the first part.
        """
        if not self._seconds_differ:
            self._seconds = {
                key: torch.empty_like(value).requires_grad_()
                for key, value in self.params.items()
            }
            self._seconds_differ = True
        foreach_copy_(list(self._seconds.values()), list(self.params.values()))

    def second_gradients(self) -> dict[str, torch.Tensor]:
        """Return the gradients of the second part by name, and reset them."""
        found = {}
        for key, second in self._seconds.items():
            if second.grad is not None:
                found[key], second.grad = second.grad, None
        return found

    @torch.no_grad()
    def take_weights(self, member: int, state: dict[str, torch.Tensor]) -> None:
        """Overwrite the weights of one member with those of its module's state."""
        for key, value in self.params.items():
            value[member].copy_(state[key])

    def member_weights(self, member: int) -> dict[str, torch.Tensor]:
        """Return views of the weights of one member, by the keys of its state."""
        return {key: value.detach()[member] for key, value in self.params.items()}


def stacked_linear(x, weight, bias=None):
    """Apply M linear layers: x (M, B, I), weight (M, O, I), bias (M, O)."""
    if x.device.type == "cpu" and not torch.is_autocast_enabled("cpu"):
        return _CpuLinear.apply(x, weight, bias)
    return _affine(x, weight, bias)


class _CpuLinear(torch.autograd.Function):
    """``x @ weight.mT + bias`` as one node of the autograd graph.

    One node in place of three is faster for small networks.
    """

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _affine(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = torch.bmm(grad, weight) if ctx.needs_input_grad[0] else None
        grad_bias = grad.sum(1) if ctx.has_bias else None
        return grad_x, torch.bmm(grad.mT, x), grad_bias


def _affine(x, weight, bias):
    """Return ``x @ weight.mT + bias``; on some CPUs, copy the transposed weights first.

    In CPU builds of torch without MKL (aarch64) a product with a transposed second
    factor takes five to nine times as long as the copy and a plain product. With MKL
    the copy takes about as long as the product.
    """
    weight = weight.mT
    if x.device.type == "cpu" and not torch.backends.mkl.is_available():
        weight = weight.contiguous()
    if bias is None:
        return torch.bmm(x, weight)
    return torch.baddbmm(bias.unsqueeze(1), x, weight)


def split_linear(product, x, weight, bias, weight2, bias2, n_first):
    """Apply M linear layers whose two parts of the batch have different leaves.

    ``product`` is :class:`_SplitProduct` if the weights of both parts are equal, else
    :class:`_TwoProducts`.
    """
    tensors = [x, weight, bias, weight2, bias2]
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        tensors = [None if t is None else t.to(dtype) for t in tensors]
    x, weight, bias, weight2, bias2 = tensors
    return product.apply(x, weight, bias, weight2, bias2, n_first)


class _SplitProduct(torch.autograd.Function):
    """One product with equal weights, and one weight gradient for each part."""

    @staticmethod
    def forward(ctx, x, weight, bias, weight2, bias2, n_first):
        ctx.save_for_backward(x, weight)
        ctx.n_first, ctx.has_bias = n_first, bias is not None
        return _affine(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        gradients = [torch.bmm(grad, weight) if ctx.needs_input_grad[0] else None]
        for part in (slice(ctx.n_first), slice(ctx.n_first, None)):
            g = grad[:, part]
            of_bias = g.sum(1) if ctx.has_bias else None
            gradients += [torch.bmm(g.mT, x[:, part]), of_bias]
        return *gradients, None


class _TwoProducts(torch.autograd.Function):
    """One product for each part of the samples, with different weights."""

    @staticmethod
    def forward(ctx, x, weight, bias, weight2, bias2, n_first):
        ctx.save_for_backward(x, weight, weight2)
        ctx.n_first, ctx.has_bias = n_first, bias is not None
        first = _affine(x[:, :n_first], weight, bias)
        second = _affine(x[:, n_first:], weight2, bias2)
        return torch.cat([first, second], dim=1)

    @staticmethod
    def backward(ctx, grad):
        x, weight, weight2 = ctx.saved_tensors
        first, second = grad[:, : ctx.n_first], grad[:, ctx.n_first :]
        grad_x = None
        if ctx.needs_input_grad[0]:
            parts = [torch.bmm(first, weight), torch.bmm(second, weight2)]
            grad_x = torch.cat(parts, dim=1)
        return (
            grad_x,
            torch.bmm(first.mT, x[:, : ctx.n_first]),
            first.sum(1) if ctx.has_bias else None,
            torch.bmm(second.mT, x[:, ctx.n_first :]),
            second.sum(1) if ctx.has_bias else None,
            None,
        )


def stack_optimizer(states: Sequence[dict]) -> dict:
    """Return the optimizer state of stacked weights from the members' states."""
    stacked = {"param_groups": states[0]["param_groups"], "state": {}}
    for key in {key: None for state in states for key in state["state"]}:
        entries = [state["state"].get(key, {}) for state in states]
        stacked["state"][key] = _stacked(entries)
    return stacked


def _stacked(entries):
    """Stack the members' entries of one weight; take scalars from a running member.

    Scalars are counts of steps or functions of them, and equal for all running members.
    A member that was pruned after it had stopped has no entries.
    """
    ahead = max(entries, key=lambda entry: (_count(entry), len(entry)))
    return {
        name: torch.stack(
            [e.get(name, torch.zeros_like(value)).to(value.device) for e in entries]
        )
        if _has_member_axis(value)
        else value
        for name, value in ahead.items()
    }


def _count(entry):
    """Return the steps of the optimizer, and those of LookSAM."""
    return float(entry.get("step", 0)), entry.get(COUNT, 0)


def in_step(states) -> list[list[int]]:
    """Group the positions of members by the number of their optimizer's steps.

    Stacked members share one count. Counts differ if members train again after some of
    them had stopped. Members that have stopped are in the first group.

    Parameters
    ----------
    states : list of MemberState
    """
    groups: dict[tuple[float, int], list[int]] = {}
    for i, state in enumerate(states):
        if not state.stopped:
            entries = state.optimizer["state"].values() if state.optimizer else ()
            count = max(map(_count, entries), default=(0.0, 0))
            groups.setdefault(count, []).append(i)
    first, *others = groups.values() or [[]]
    stopped = [i for i, state in enumerate(states) if state.stopped]
    return [sorted(first + stopped), *others]


def unstack_optimizer(stacked: dict, member: int, groups: list[dict]) -> dict:
    """Return the optimizer state of one member with its parameter ``groups``."""
    state = {
        key: {name: _unstacked(value, member) for name, value in entries.items()}
        for key, entries in stacked["state"].items()
    }
    return {"param_groups": groups, "state": state}


def _unstacked(value, member):
    """Return a copy: other members continue to change the stacked tensors in place."""
    if not isinstance(value, torch.Tensor):
        return value
    return (value[member] if _has_member_axis(value) else value).clone()


def _has_member_axis(value) -> bool:
    """Whether a value is stacked; counts of steps are scalars."""
    return isinstance(value, torch.Tensor) and value.ndim > 0
