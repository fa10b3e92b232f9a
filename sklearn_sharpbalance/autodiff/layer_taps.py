"""Run a module and apply the rule of each layer to its input and output gradient.

The parameters are set to ``requires_grad=False``, so that the backward pass computes
only gradients of activations. A *tap*, an identity after each layer, passes the
gradient in the layer's output to the layer's rule.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sklearn_sharpbalance.autodiff.layer_rules import RULES, Rule
from sklearn_sharpbalance.runtime.torch_internals import in_place_version


class UnsupportedModuleError(Exception):
    """The layer rules would be wrong for this module; the message says why."""


class Layer(NamedTuple):
    """A layer whose parameters have a rule."""

    module: nn.Module
    rule: Rule
    names: tuple[str, ...]  # its trainable parameters


def find_layers(module: nn.Module) -> list[Layer]:
    """Return the layers that own the trainable parameters, each with one rule.

    Examples
    --------
    >>> layers = find_layers(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    >>> [(type(layer.module).__name__, layer.names) for layer in layers]
    [('Linear', ('weight', 'bias'))]
    """
    layers = []
    for m in module.modules():
        own = dict(m.named_parameters(recurse=False, remove_duplicate=False))
        names = tuple(n for n, p in own.items() if p.requires_grad)
        if names:
            layers.append(Layer(m, _rule(m, own, names[0]), names))
    if len(_owners(layers)) < sum(len(layer.names) for layer in layers):
        raise UnsupportedModuleError("two layers share a parameter")
    return layers


def _rule(module, own, first):
    """Return the rule of a layer with these parameters; raise if there is none."""
    rule = RULES.get(type(module))
    overridden = {"forward", "_conv_forward"} & vars(module).keys()
    if rule is None or overridden or not own.keys() <= {"weight", "bias"}:
        kind = type(module).__name__
        raise UnsupportedModuleError(f"{kind} has no layer rule for {first!r}")
    if any(p.is_complex() for p in own.values()):
        raise UnsupportedModuleError("the rules apply to real numbers only")
    return rule


def _owners(layers):
    """Return the layer module of each trainable parameter."""
    return {
        layer.module.get_parameter(name): layer.module
        for layer in layers
        for name in layer.names
    }


# --- the trial run: are the rules valid for this module?


def check_calls(
    layers: Sequence[Layer], losses: Callable[[], Any], batch_size: int
) -> int:
    """Run the module once and raise if the rules would be wrong for it.

    Return about how many numbers the actual run stores for each sample.

    A weight that is used outside of its layer (``F.linear(x, self.embed.weight)``)
    has gradients that no tap receives. An input whose first axis is not the batch would
    be attributed to the wrong samples; this is detected if the batch sizes of this run
    and of the next one differ.
    """
    watch = ParameterWatch(_owners(layers), "a parameter is used outside of its layer")
    called, activations, workspace = set(), 0, 0

    def enter(module, args):
        watch.current = module

    def leave(layer, x, output):
        nonlocal activations, workspace
        watch.current = None
        called.add(layer.module)
        _check_batch_axis(layer, x, batch_size)
        activations += x.numel() + output.numel()
        workspace = max(workspace, layer.rule.workspace(layer.module, output))

    with ExitStack() as stack:
        stack.enter_context(_hooked(layers, leave))
        for layer in layers:
            handle = layer.module.register_forward_pre_hook(enter)
            stack.callback(handle.remove)
        stack.enter_context(torch.no_grad())
        stack.enter_context(watch)
        losses()
    if len(called) < len(layers):
        raise UnsupportedModuleError("a layer with parameters is not called")
    return 1 + (activations + workspace) // batch_size


class ParameterWatch(TorchFunctionMode):
    """Raise for operations on a parameter outside of the layer that owns it."""

    def __init__(self, owners, refusal):
        super().__init__()
        self.owners = owners
        self.refusal = refusal
        self.current = None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, (Tensor, list, tuple)) and not isinstance(
            result, torch.Size
        ):  # reading a shape or a dtype does not use the values
            for parameter in _parameters_in((args, kwargs)):
                if self.owners.get(parameter, self.current) is not self.current:
                    raise UnsupportedModuleError(self.refusal)
        return result


def _parameters_in(value):
    if isinstance(value, nn.Parameter):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _parameters_in(item)
    elif isinstance(value, dict):
        yield from _parameters_in(list(value.values()))


def _check_batch_axis(layer, x, batch_size):
    if len(x) != batch_size:
        kind = type(layer.module).__name__
        raise UnsupportedModuleError(
            f"the input of a {kind} does not start with the batch axis"
        )


@contextmanager
def _hooked(layers, on_call) -> Iterator[None]:
    """Call ``on_call(layer, input, output)`` after each layer; it may replace output.

    The hook runs before those of the user, which may change the output.
    """
    with ExitStack() as stack:
        for layer in layers:

            def hook(module, args, kwargs, output, layer=layer):
                x = args[0] if args else next(iter(kwargs.values()))
                return on_call(layer, x, output)

            handle = layer.module.register_forward_hook(
                hook, prepend=True, with_kwargs=True
            )
            stack.callback(handle.remove)
        yield


# --- the actual run


def tapped_squared_norms(
    module: nn.Module,
    layers: Sequence[Layer],
    losses: Callable[[], Tensor],
    batch_size: int,
) -> Tensor:
    """Return the squared gradient norm (B,) of each sample, summed over ``layers``.

    ``losses`` runs the module in eval mode and returns the losses (B,). The parameters
    are set to ``requires_grad=False``; the caller must restore it.
    """
    module.requires_grad_(False)
    accumulator = _Accumulator(batch_size)
    with _hooked(layers, accumulator.tap):
        values = losses()  # (B,)
    if values.requires_grad:
        with torch.autocast(values.device.type, enabled=False):
            torch.autograd.grad(values.sum(), accumulator.anchor, allow_unused=True)
    dtype = torch.promote_types(values.dtype, torch.float32)
    norms = accumulator.finish() + torch.zeros_like(values, dtype=dtype)
    return norms.clamp(min=0)  # rounding can leave a small negative number


class _Accumulator:
    """Add up the squared norms of one batch during the backward pass."""

    def __init__(self, batch_size):
        self.batch_size = batch_size
        self.total = 0
        self.calls: Counter[nn.Module] = Counter()
        self.pending = defaultdict(list)  # inputs and gradients of repeated calls
        self.anchor = torch.zeros((), requires_grad=True)

    def tap(self, layer, x, output):
        """Return the output with a tap that adds the squared norms of the layer."""
        if not torch.is_grad_enabled():
            return output
        _check_batch_axis(layer, x, self.batch_size)
        self.calls[layer.module] += 1
        source, x = x, x.detach()
        version = in_place_version(x)

        def receive(gradient):
            if in_place_version(x) != version:
                raise UnsupportedModuleError("a layer's input is modified in place")
            if self.calls[layer.module] > 1:
                self.pending[layer].append((x, gradient))
            else:
                self.add(layer, layer.rule.factors(layer.module, x, gradient))

        if layer.rule.input_gradient is None:
            return _Tap.apply(output, self.anchor, receive)
        input_gradient = partial(layer.rule.input_gradient, layer.module)
        return _Bypass.apply(
            source, output.detach(), self.anchor, receive, input_gradient
        )

    def add(self, layer, factors):
        norms = layer.rule.squared_norm(layer.module, layer.names, *factors)  # (B,)
        self.total = self.total + norms

    def finish(self):
        """Return the squared norms of all layers; 0 if there was no gradient."""
        for layer, calls in self.pending.items():
            factors = [layer.rule.factors(layer.module, x, g) for x, g in calls]
            self.add(layer, [torch.cat(parts, -1) for parts in zip(*factors)])
        return self.total


class _Tap(torch.autograd.Function):
    """Identity that passes the gradient to ``receive``.

    It works in place, because autograd allows no in-place activation after a view, or
    after an output that is the input itself. No layer with a rule saves its output for
    the backward pass, so this changes no saved tensor. The ``anchor`` requires a
    gradient, so that the graph starts at the first tap.
    """

    @staticmethod
    def forward(ctx, output, anchor, receive):
        ctx.receive = receive
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx, gradient):
        ctx.receive(gradient)
        return (gradient if ctx.needs_input_grad[0] else None), None, None


class _Bypass(torch.autograd.Function):
    """Tap that replaces the backward pass of its layer by ``input_gradient``."""

    @staticmethod
    def forward(ctx, source, output, anchor, receive, input_gradient):
        ctx.receive = receive
        ctx.input_gradient = input_gradient
        ctx.dtype = source.dtype
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx, gradient):
        ctx.receive(gradient)
        of_source = None
        if ctx.needs_input_grad[0]:
            of_source = ctx.input_gradient(gradient).to(ctx.dtype)
        return of_source, None, None, None, None
