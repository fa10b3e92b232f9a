"""All members as one network: every weight with a leading member axis.

torch.func's vmap would do the same for any module, but costs a quarter more per step
than batched matrix products, which is what MLP-like members need.
"""

from collections.abc import Sequence

import torch
from torch import nn

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


HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)


def stackable_layers(module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """Layers of an MLP-like module with their names; None if it is not one.

    MLP-like: an ``nn.Sequential`` (or subclass that does not override ``forward``),
    possibly nested, of Linear, pointwise activations and a Flatten at the front. What
    computes anything else besides (subclasses, hooks, weights that are not a layer's
    own) is not, nor what changes its input, which members share, in place.

    Examples
    --------
    >>> relu = nn.ReLU()
    >>> layers = stackable_layers(nn.Sequential(nn.Linear(2, 2), relu, relu))
    >>> [name for name, _ in layers]
    ['0', '1', '2']
    """
    return _chain(module) if stacking_obstacle(module) is None else None


def stacking_obstacle(module: nn.Module) -> str | None:
    """What keeps a module from being stacked; None if nothing does.

    Examples
    --------
    >>> stacking_obstacle(nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.ReLU()))
    'Dropout (1) is neither'
    """
    layers = _chain(module)
    if layers is None:
        return "it is no plain nn.Sequential"
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
        "a Flatten comes after other layers": any(
            isinstance(layer, nn.Flatten) for _, layer in layers[1:]
        ),
    }
    return next((text for text, is_there in obstacles.items() if is_there), None)


def layers_to_stack(module: nn.Module, prefix: str) -> list[tuple[str, nn.Module]]:
    """The same of a module that is known to stack; names begin with the prefix."""
    layers = stackable_layers(module)
    if layers is None:
        raise ValueError(f"{type(module).__name__} does not stack.")
    return [(prefix + name, layer) for name, layer in layers]


def _chain(module):
    """Layers of nested Sequentials in the order of their calls; None for others."""
    if type(module).forward is not nn.Sequential.forward or is_hooked(module):
        return None
    layers = []
    for name, child in module._modules.items():  # named_children: a layer only once
        inner = _chain(child) if isinstance(child, nn.Sequential) else [("", child)]
        if inner is None:
            return None
        layers += [(f"{name}.{sub}" if sub else name, layer) for sub, layer in inner]
    return layers


def _is_plain(layer):
    """Whether the layer does what its class says, and nothing more."""
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
    """Whether a call of the module does more, or else, than its class says.

    Examples
    --------
    >>> layer = nn.ReLU()
    >>> is_hooked(layer)
    False
    >>> handle = layer.register_forward_hook(lambda layer, args, output: -output)
    >>> is_hooked(layer)
    True
    """
    return "forward" in vars(module) or any(getattr(module, name) for name in HOOKS)


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
        Trainable weights, in the order in which a member's optimizer sees them.
    """

    def __init__(self, layers, states: Sequence[dict], device):
        self.layers = layers
        self.params: dict[str, torch.Tensor] = {}
        for name, layer in layers:
            for key, _ in layer.named_parameters(recurse=False):
                stacked = torch.stack([state[f"{name}.{key}"] for state in states])
                self.params[f"{name}.{key}"] = stacked.to(device).requires_grad_()
        self._seconds = {  # other leaves, the same memory
            key: value.detach().requires_grad_() for key, value in self.params.items()
        }

    def __call__(self, x: torch.Tensor, n_first: int | None = None) -> torch.Tensor:
        """Logits (M, B, C) of inputs (M, B, F).

        With ``n_first``, only the first so many samples of each member put their
        gradients where the optimizer finds them; the others' are taken by
        :meth:`second_gradients`. That is quicker than a pass for each part.
        """
        for name, layer in self.layers:
            if isinstance(layer, nn.Linear):
                keys = f"{name}.weight", f"{name}.bias"
                weight, bias = (self.params.get(key) for key in keys)
                if n_first is None:
                    x = stacked_linear(x, weight, bias)
                else:
                    weight2, bias2 = (self._seconds.get(key) for key in keys)
                    x = split_linear(x, weight, bias, weight2, bias2, n_first)
            elif not isinstance(layer, nn.Flatten):
                x = layer(x)
        return x

    def second_gradients(self) -> dict[str, torch.Tensor]:
        """Take the gradients of the samples after the first ones, by name."""
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
        """Weights of one member, as views, by the keys of its state."""
        return {key: value.detach()[member] for key, value in self.params.items()}


def stacked_linear(x, weight, bias=None):
    """Linear layers side by side: x (M, B, I), weight (M, O, I), bias (M, O)."""
    if x.device.type == "cpu" and not torch.is_autocast_enabled("cpu"):
        return _CpuLinear.apply(x, weight, bias)
    if bias is None:
        return torch.bmm(x, weight.mT)
    return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


class _CpuLinear(torch.autograd.Function):
    """``x @ weight.mT + bias`` with no product that has its second factor transposed.

    One node of the graph in place of three, which small networks notice.
    """

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        y = _times_transposed(x, weight)
        return y if bias is None else y.add_(bias.unsqueeze(1))

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_x = torch.bmm(grad, weight) if ctx.needs_input_grad[0] else None
        grad_bias = grad.sum(1) if ctx.has_bias else None
        return grad_x, torch.bmm(grad.mT, x), grad_bias


def _times_transposed(x, weight):
    """``x @ weight.mT``; on a CPU by a copy of the weights.

    Some CPU builds of torch take five to nine times as long for a product with its
    second factor transposed as for the copy and a plain one.
    """
    if x.device.type == "cpu":
        return torch.bmm(x, weight.mT.contiguous())
    return torch.bmm(x, weight.mT)


def split_linear(x, weight, bias, weight2, bias2, n_first):
    """The same as :func:`stacked_linear`, for two parts with leaves of their own."""
    tensors = [x, weight, bias, weight2, bias2]
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        tensors = [None if t is None else t.to(dtype) for t in tensors]
    return _SplitProduct.apply(*tensors, n_first)


class _SplitProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, weight2, bias2, n_first):
        ctx.save_for_backward(x, weight)
        ctx.n_first, ctx.has_bias = n_first, bias is not None
        y = _times_transposed(x, weight)
        return y if bias is None else y.add_(bias.unsqueeze(1))

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        gradients = [torch.bmm(grad, weight) if ctx.needs_input_grad[0] else None]
        for part in (slice(ctx.n_first), slice(ctx.n_first, None)):
            g = grad[:, part]
            of_bias = g.sum(1) if ctx.has_bias else None
            gradients += [torch.bmm(g.mT, x[:, part]), of_bias]
        return *gradients, None


def stack_optimizer(states: Sequence[dict]) -> dict:
    """One optimizer state for stacked weights from one per member."""
    stacked = {"param_groups": states[0]["param_groups"], "state": {}}
    for key in {key: None for state in states for key in state["state"]}:
        entries = [state["state"].get(key, {}) for state in states]
        stacked["state"][key] = _stacked(entries)
    return stacked


def _stacked(entries):
    """Entries of one weight; scalars are those of a member that still trains.

    They are the same for all of these: counts of steps, and what follows from them. A
    member that was pruned after it had stopped has no entries.
    """
    ahead = max(entries, key=lambda entry: (_count(entry), len(entry)))
    return {
        name: torch.stack([e.get(name, torch.zeros_like(value)) for e in entries])
        if _has_member_axis(value)
        else value
        for name, value in ahead.items()
    }


def _count(entry):
    return float(entry.get("step", 0))


def in_step(states) -> list[list[int]]:
    """Positions of members whose optimizers have made as many steps.

    Members that train again after some of them had stopped have not; stacked ones
    share one count. Those that have stopped are in the first group.

    Parameters
    ----------
    states : list of MemberState
    """
    groups: dict[float, list[int]] = {}
    for i, state in enumerate(states):
        if not state.stopped:
            entries = state.optimizer["state"].values() if state.optimizer else ()
            groups.setdefault(max(map(_count, entries), default=0.0), []).append(i)
    first, *others = groups.values() or [[]]
    stopped = [i for i, state in enumerate(states) if state.stopped]
    return [sorted(first + stopped), *others]


def unstack_optimizer(stacked: dict, member: int, groups: list[dict]) -> dict:
    """Optimizer state of one member; ``groups`` are its own parameter groups."""
    state = {
        key: {name: _unstacked(value, member) for name, value in entries.items()}
        for key, entries in stacked["state"].items()
    }
    return {"param_groups": groups, "state": state}


def _unstacked(value, member):
    """A copy: members that go on training change the stacked tensors in place."""
    if not isinstance(value, torch.Tensor):
        return value
    return (value[member] if _has_member_axis(value) else value).clone()


def _has_member_axis(value) -> bool:
    """Counts of steps are scalars; the rest is stacked."""
    return isinstance(value, torch.Tensor) and value.ndim > 0
