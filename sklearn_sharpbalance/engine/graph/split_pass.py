"""One pass over a mixed batch with separate gradients for its two parts.

A balanced step needs the gradients of the SAM part and of the normal part at the same
weights. Two passes over small parts cost nearly as much as two over whole batches.
Here both parts share a pass. Each layer normalises the parts separately, and computes
one weight gradient for each.
"""

import operator

import torch
from torch import fx, nn
from torch.nn import functional

from sklearn_sharpbalance.engine.graph.fused_norms import NormStep
from sklearn_sharpbalance.engine.stacked.network import is_hooked
from sklearn_sharpbalance.runtime.torch_internals import foreach_copy_

__all__ = ["SplitPass"]

# Layers and functions without weights that process each sample independently.
SAFE_LAYERS = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Identity,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
)
SAFE_FUNCTIONS = (
    operator.add,
    operator.iadd,
    operator.mul,
    torch.add,
    torch.relu,
    functional.relu,
    functional.gelu,
    functional.silu,
    functional.max_pool2d,
    functional.avg_pool2d,
    functional.adaptive_avg_pool2d,
)


class SplitPass:
    """A copy of a fused module with separate weights for the second part of a batch.

    The first part has ``n_first`` samples. :attr:`module` is None if the gradients
    cannot be separated: layers other than convolutions, Linear and BatchNorm have
    weights, a weight is used twice, or other operations may mix samples.
    """

    def __init__(self, fused: fx.GraphModule | None, n_first: int):
        self.module = None if fused is None else _split(fused, n_first)

    def take_gradients(self, owner_of):
        """Return pairs of weight and gradient of the second part; reset the gradients.

        ``owner_of`` returns the optimizer's weight for a weight of a layer.
        """
        assert self.module is not None  # it has made a pass
        found = [
            (owner_of(weight), grad)
            for layer in self.module.modules()
            if isinstance(layer, _SplitLayer)
            for weight, grad in layer.take_gradients()
        ]
        same = [pair for pair in found if pair[0].dtype == pair[1].dtype]
        cast = [pair for pair in found if pair[0].dtype != pair[1].dtype]
        grads = [torch.empty_like(owner) for owner, _ in cast]
        if grads:  # all have the same dtype: one call
            foreach_copy_(grads, [grad for _, grad in cast])
        return same + [(owner, grad) for (owner, _), grad in zip(cast, grads)]


class _SplitLayer(nn.Module):
    """A layer with second leaves for its weights, which share their memory."""

    def __init__(self, layer, owner, n_first):
        super().__init__()
        self.layer, self.owner, self.n_first = layer, owner, n_first
        self.seconds = {
            name: nn.Parameter(weight.detach(), requires_grad=weight.requires_grad)
            for name, weight in owner.named_parameters(recurse=False)
        }

    def computed_with(self, x):
        """Return input, both weights and both biases in the dtype of autocast.

        Most weights have been cast before; frozen and tied ones have not.
        """
        layer, kind = self.layer, x.device.type
        dtype = layer.weight.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        seconds = self.seconds
        weights = (layer.weight, seconds["weight"], layer.bias, seconds.get("bias"))
        return [None if t is None else t.to(dtype) for t in (x, *weights)]

    def take_gradients(self):
        """Yield pairs of weight and gradient of the second part; reset gradients."""
        for name, second in self.seconds.items():
            if second.grad is not None:
                yield getattr(self.owner, name), second.grad
                second.grad = None


class _SplitConv(_SplitLayer):
    def forward(self, x):
        return _ConvFunction.apply(*self.computed_with(x), self.layer, self.n_first)


class _SplitLinear(_SplitLayer):
    def forward(self, x):
        return _LinearFunction.apply(*self.computed_with(x), self.n_first)


class _SplitNorm(_SplitLayer):
    def forward(self, x, residual=None):
        step, norm, n = self.layer, self.owner, self.n_first
        weight2, bias2 = self.seconds["weight"], self.seconds["bias"]
        if step.fits(x, residual):
            return step.fused(x, residual, n, weight2, bias2)

        def normalise(part, weight, bias):
            return functional.batch_norm(
                x[part],
                norm.running_mean,
                norm.running_var,
                weight=weight,
                bias=bias,
                training=True,
                momentum=norm.momentum,
                eps=norm.eps,
            )

        # Running statistics depend on the order: the same as in two passes.
        second = normalise(slice(n, None), weight2, bias2)
        first = normalise(slice(n), norm.weight, norm.bias)
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(2)
        return step.finish(torch.cat([first, second]), residual)


class _ConvFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, weight2, bias, bias2, layer, n_first):
        ctx.settings = {
            "stride": layer.stride,
            "padding": layer.padding,
            "dilation": layer.dilation,
            "groups": layer.groups,
        }
        ctx.n_first, ctx.bias_sizes = n_first, None if bias is None else bias.shape
        ctx.save_for_backward(x, weight)
        return functional.conv2d(x, weight, bias, **ctx.settings)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors

        def gradients(part, output_mask):
            return torch.ops.aten.convolution_backward(
                grad[part],
                x[part],
                weight,
                ctx.bias_sizes,
                **ctx.settings,
                transposed=False,
                output_padding=(0, 0),
                output_mask=output_mask,
            )

        grad_x, n = None, ctx.n_first
        if ctx.needs_input_grad[0]:
            grad_x = gradients(slice(None), (True, False, False))[0]
        of_weights = (False, True, ctx.bias_sizes is not None)
        _, grad_weight, grad_bias = gradients(slice(n), of_weights)
        _, grad_weight2, grad_bias2 = gradients(slice(n, None), of_weights)
        return grad_x, grad_weight, grad_weight2, grad_bias, grad_bias2, None, None


class _LinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, weight2, bias, bias2, n_first):
        ctx.n_first, ctx.has_bias = n_first, bias is not None
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        weights, biases = [], []
        for part in (slice(ctx.n_first), slice(ctx.n_first, None)):
            g = grad[part].flatten(0, -2)
            weights.append(g.T @ x[part].flatten(0, -2))
            biases.append(g.sum(0) if ctx.has_bias else None)
        return grad @ weight, *weights, *biases, None


def _split(fused, n_first):
    """Return a copy of a module with split layers; None if it may mix samples."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(fused.graph, {}))
    split = fx.GraphModule(fused, graph)
    inputs = [node for node in split.graph.nodes if node.op == "placeholder"]
    if len(inputs) != 1:
        return None
    for node in split.graph.nodes:
        if node.op == "call_module":
            layer = fused.get_submodule(node.target)
            made = _split_layer(layer, n_first)
            if made is None and not _is_safe(layer):
                return None
            if made is not None:
                if node.kwargs:  # the split layer may name its input differently
                    return None
                node.target = f"split_{node.name}"
                split.add_submodule(node.target, made)
        elif node.op == "call_function":
            if node.target not in SAFE_FUNCTIONS and not _is_flatten(node):
                return None
        elif node.op == "get_attr" or (
            node.op == "call_method" and not _is_flatten(node)
        ):
            return None
    split.recompile()
    return None if _weights_repeat(split) else split


def _weights_repeat(split):
    """Whether layers share a weight, or one is called twice: it has two gradients."""
    layers = (m for m in split.modules() if isinstance(m, _SplitLayer))
    used = [id(w) for m in layers for w in m.owner.parameters(recurse=False)]
    return len(set(used)) < len(used)


def _split_layer(layer, n_first):
    """Return the split form of a layer; None if there is none."""
    if is_hooked(layer):  # hooks may change the weights
        return None
    if isinstance(layer, NormStep):
        return _SplitNorm(layer, layer.norm, n_first)
    if type(layer) is nn.Linear:
        return _SplitLinear(layer, layer, n_first)
    zeros = type(layer) is nn.Conv2d and layer.padding_mode == "zeros"
    if zeros and not isinstance(layer.padding, str):
        return _SplitConv(layer, layer, n_first)
    return None


def _is_safe(layer):
    """Whether a layer has no weights and does not mix samples."""
    flatten = type(layer) is nn.Flatten and layer.start_dim == 1
    return not is_hooked(layer) and (flatten or type(layer) in SAFE_LAYERS)


def _is_flatten(node):
    """Whether a node is ``flatten(x, 1)``, as a function or a method."""
    by_name = node.op == "call_method" and node.target == "flatten"
    if not by_name and node.target is not torch.flatten:
        return False
    start = node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim", 0)
    return start == 1
