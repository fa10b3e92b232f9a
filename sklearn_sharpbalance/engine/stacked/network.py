"""All members as one network: every weight with a leading member axis.

torch.func's vmap would do the same for any module, but a step takes a quarter longer
than with batched matrix products, which suffice for MLP-like members.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial

import torch
from torch import nn
from torch.nn.functional import pad

from sklearn_sharpbalance.exceptions import UnsupportedEngineError
from sklearn_sharpbalance.optim.look_sam import COUNT
from sklearn_sharpbalance.runtime.torch_internals import (
    CHILDREN,
    child_modules,
    has_own_tensors,
    hooks_of,
    own_buffers,
    own_parameters,
)

__all__ = [
    "StackedNetwork",
    "affine",
    "called_layers",
    "check_in_step",
    "is_hooked",
    "stack_optimizer",
    "stackable_layers",
    "stacked_forward",
    "stacking_obstacle",
    "unstack_optimizer",
]

ALIGNMENT = 16  # each weight begins at a multiple of so many entries of a row

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
    """
    layers = _chain(module)
    return layers if _obstacle(module, layers) is None else None


def stacking_obstacle(module: nn.Module) -> str | None:
    """Return why a module cannot be stacked; None if it can.

    Examples
    --------
    >>> stacking_obstacle(nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.ReLU()))
    'Dropout (1) is neither'
    """
    return _obstacle(module, _chain(module))


def _obstacle(module, layers):
    """Return why a module with this chain of layers cannot be stacked."""
    if layers is None:
        return "it does more than to call its layers one after the other"
    weights: list[nn.Parameter] = []
    for i, (name, layer) in enumerate(layers):
        if not _is_plain(layer):
            why = "has hooks" if is_hooked(layer) else "is neither"
            return f"{type(layer).__name__} ({name}) {why}"
        if isinstance(layer, nn.Flatten) and i > 0:
            return "a Flatten comes after other layers"
        if not weights and getattr(layer, "inplace", False):
            return "it changes its input in place"
        weights += _own_weights(layer).values()
    if not weights:
        return "it has no Linear layer"
    if not all(weight.requires_grad for weight in weights):
        return "some of its weights are frozen"
    ids = [id(weight) for weight in weights]
    if len(set(ids)) < len(ids):
        return "its layers share weights"
    if ids != [id(weight) for weight in module.parameters()]:
        return "it calls its layers in another order than it defines them"
    return None


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
    if is_hooked(layer) or own_buffers(layer) or child_modules(layer):
        return False
    if isinstance(layer, nn.Flatten):
        return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)
    known = {"weight", "bias"} if type(layer) is nn.Linear else set()
    is_known = type(layer) in (nn.Linear, *POINTWISE)
    return is_known and _own_weights(layer).keys() <= known


def _own_weights(layer):
    """Return the weights of a layer without layers of its own, by name."""
    weights = own_parameters(layer).items()
    return {name: weight for name, weight in weights if weight is not None}


def is_hooked(module: nn.Module) -> bool:
    """Whether a call of the module is changed by hooks or an own ``forward``."""
    return "forward" in vars(module) or bool(hooks_of(module))


class StackedNetwork:
    """M networks of one architecture as batched matrix products.

    Parameters
    ----------
    layers : list of (name, module)
        From :func:`stackable_layers`, with the prefix of the state's keys.
    states : sequence of dict
        State of each member's module, on any device.
    device : torch.device

    Attributes
    ----------
    weights : Tensor of shape (M, P)
        All trainable weights of a member in one row, so that an optimizer handles them
        in one call. Each begins at a multiple of 16 entries, as fast kernels of a GPU
        require; the entries between them are zero.
    shapes : dict of str to torch.Size
        Shape of each weight of a member, in the order of its optimizer.
    """

    def __init__(self, layers, states: Sequence[dict], device):
        self.layers = layers
        self.shapes = {
            f"{name}.{key}": weight.shape
            for name, layer in layers
            for key, weight in layer.named_parameters(recurse=False)
        }
        rows = [self.row([state[key] for key in self.shapes]) for state in states]
        rows = [row.to(device) for row in rows]
        self.weights = torch.stack(rows).requires_grad_()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (M, B, C) of inputs (M, B, F)."""
        weights = self.views(self.weights)
        for name, layer in self.layers:
            if isinstance(layer, nn.Linear):
                bias = weights.get(f"{name}.bias")
                x = stacked_linear(x, weights[f"{name}.weight"], bias)
            elif not isinstance(layer, nn.Flatten):
                x = layer(x)
        return x

    def row(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the weights of one member, or their gradients, as one row (P,)."""
        padded = [pad(t.flatten(), (0, -t.numel() % ALIGNMENT)) for t in tensors]
        return torch.cat(padded)

    def views(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return views (M, ...) of the weights in rows (M, P), by name."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = rows.split([size + -size % ALIGNMENT for size in sizes], dim=1)
        return {
            name: part[:, :size].view(len(rows), *shape)
            for (name, shape), size, part in zip(self.shapes.items(), sizes, parts)
        }

    @torch.no_grad()
    def take_weights(self, member: int, state: dict[str, torch.Tensor]) -> None:
        """Overwrite the weights of one member with those of its module's state."""
        self.weights[member].copy_(self.row([state[key] for key in self.shapes]))

    def member_weights(self, member: int) -> dict[str, torch.Tensor]:
        """Return views of the weights of one member, by the keys of its state."""
        own = self.views(self.weights.detach()[member : member + 1])
        return {key: value[0] for key, value in own.items()}


def stacked_forward(modules: Sequence[nn.Module]) -> Callable | None:
    """Return a function from inputs (M, B, F) to the logits (M, B, C) of M modules.

    Return None unless they are :func:`stackable_layers` of the same options.
    """
    chains = [stackable_layers(module) or [] for module in modules]
    kinds = [[(n, type(layer), layer.extra_repr()) for n, layer in c] for c in chains]
    if not chains[0] or any(kind != kinds[0] for kind in kinds):
        return None
    steps: list[Callable] = []
    for named in zip(*chains):
        layers = [layer for _, layer in named]
        if isinstance(layers[0], nn.Linear):
            weight = torch.stack([layer.weight for layer in layers])
            has_bias = layers[0].bias is not None
            bias = torch.stack([layer.bias for layer in layers]) if has_bias else None
            steps.append(partial(affine, weight=weight, bias=bias))
        elif not isinstance(layers[0], nn.Flatten):  # the input is flat
            steps.append(layers[0])

    def forward(x):
        for step in steps:
            x = step(x)
        return x

    return forward


def stacked_linear(x, weight, bias=None):
    """Apply M linear layers: x (M, B, I), weight (M, O, I), bias (M, O)."""
    if x.device.type == "cpu" and not torch.is_autocast_enabled("cpu"):
        return _CpuLinear.apply(x, weight, bias)
    return affine(x, weight, bias)


class _CpuLinear(torch.autograd.Function):
    """``x @ weight.mT + bias`` as one node of the autograd graph: faster than three."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return affine(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = torch.bmm(grad, weight) if ctx.needs_input_grad[0] else None
        grad_bias = grad.sum(1) if ctx.has_bias else None
        return grad_x, torch.bmm(grad.mT, x), grad_bias


def affine(x, weight, bias):
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


def stack_optimizer(states: Sequence[dict], network: StackedNetwork) -> dict:
    """Return the optimizer state of stacked weights from the members' states.

    Scalars are counts of steps or functions of them, equal for all weights and running
    members. A member that was pruned after it had stopped has no entries: zeros.
    """
    weights = network.weights
    zeros = [weights.new_zeros(shape) for shape in network.shapes.values()]
    own = [[s["state"].get(i, {}) for i in range(len(zeros))] for s in states]
    first = [entries[0] for entries in own]
    ahead = max(first, key=lambda entry: (_count(entry), len(entry)))
    stacked = dict(ahead)
    for name in [name for name, value in ahead.items() if _is_stacked(value)]:
        rows = []
        for entries in own:
            values = [entry.get(name, zero) for entry, zero in zip(entries, zeros)]
            rows.append(network.row([value.to(weights.device) for value in values]))
        stacked[name] = torch.stack(rows)
    groups = states[0]["param_groups"]
    return {"param_groups": groups, "state": {0: stacked} if stacked else {}}


def _count(entry):
    """Return the steps of the optimizer, and those of LookSAM."""
    return float(entry.get("step", 0)), entry.get(COUNT, 0)


def check_in_step(states) -> None:
    """Raise if optimizers have made different numbers of steps.

    Stacked members share one count. Counts differ if members train again after some of
    them had stopped.
    """
    counts = set()
    for state in states:
        if not state.stopped:
            entries = state.optimizer["state"].values() if state.optimizer else ()
            counts.add(max(map(_count, entries), default=(0.0, 0)))
    if len(counts) > 1:
        raise UnsupportedEngineError(
            "Callbacks have stopped members at different steps, but stacked members "
            "share one count of steps. Use engine='skorch' to train them further."
        )


def unstack_optimizer(
    stacked: dict, network: StackedNetwork, member: int, groups: list[dict]
) -> dict:
    """Return the optimizer state of one member, with copies of the stacked tensors."""
    state: dict[int, dict] = {i: {} for i in range(len(network.shapes))}
    entries = stacked["state"].get(0, {})
    for name, value in entries.items():
        if _is_stacked(value):
            views = network.views(value[member : member + 1]).values()
            own = [view[0].clone() for view in views]
        else:
            own = [deepcopy(value) for _ in network.shapes]
        for i, each in enumerate(own):
            state[i][name] = each
    return {"param_groups": groups, "state": state if entries else {}}


def _is_stacked(value) -> bool:
    """Whether a value has a member axis; counts of steps are scalars."""
    return isinstance(value, torch.Tensor) and value.ndim > 0


def called_layers(module: nn.Module) -> list[str] | None:
    """Return the names of the layers that ``forward`` calls, in order.

    ``forward`` may mention no other names than those of the module's layers. It is
    called with a placeholder, on a copy whose layers only record their calls, and must
    pass the placeholder from layer to layer and return the last one. Return None if it
    does anything else, or if the module has weights and buffers of its own.

    Examples
    --------
    >>> class Wrapper(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    ...
    ...     def forward(self, x):
    ...         return self.net(x)
    >>> called_layers(Wrapper())
    ['net']
    """
    if has_own_tensors(module) or type(module).__call__ is not nn.Module.__call__:
        return None
    layers = child_modules(module)
    code = getattr(type(module).forward, "__code__", None)
    # Other names may be side effects, which a stacked computation would leave out.
    if code is None or code.co_freevars or not set(code.co_names) <= set(layers):
        return None
    names: list[str] = []
    placeholders = [object()]

    def record(name, x):
        if x is not placeholders[-1]:
            raise TypeError("The input of a layer is not the output of the last one.")
        names.append(name)
        placeholders.append(object())
        return placeholders[-1]

    probe = object.__new__(type(module))
    vars(probe).update(vars(module))
    vars(probe)[CHILDREN] = {name: partial(record, name) for name in layers}
    try:
        output = probe.forward(placeholders[0])
    except Exception:  # any error: the placeholder supports no operation
        return None
    return names if output is placeholders[-1] else None
