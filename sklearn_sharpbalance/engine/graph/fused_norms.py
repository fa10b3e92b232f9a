"""Fuse BatchNorm layers of a module with the sum and ReLU after them."""

import operator
from contextlib import contextmanager

import torch
from torch import fx, nn
from torch.nn import functional

from sklearn_sharpbalance._triton import kernels_run_on
from sklearn_sharpbalance.engine.stacked.network import is_hooked

__all__ = ["FusedNorms", "fuse_norms"]

ADDITIONS = (operator.add, operator.iadd, torch.add)
CLAMPS = (functional.relu, torch.relu, functional.relu_, torch.relu_)
MAX_NUMBERS = 2**31  # limit of the indices in a kernel


class FusedNorms:
    """Replaces a member's layers by fused ones (if ``wanted``) until :meth:`close`."""

    def __init__(self, owner, wanted):
        self.owner, self.own = owner, owner.module
        self.fused = fuse_norms(owner.module) if wanted else None
        self.open()

    def open(self):
        """Use fused layers."""
        self.owner.module = self.fused or self.own

    def close(self):
        """Use the original layers."""
        self.owner.module = self.own


def fuse_norms(module: nn.Module) -> fx.GraphModule | None:
    """Return a module that computes the same function with fewer kernels in training.

    It shares the layers of the module. Return None if nothing can be fused: without
    BatchNorm2d, on a GPU without support by Triton, if the module's code cannot be
    traced, or if the trace would lose hooks or layers that stay in evaluation mode.
    """
    devices = _norm_devices(module)
    on_gpu = [device for device in devices if device.type == "cuda"]
    if not devices or not all(map(kernels_run_on, on_gpu)) or _loses_hooks(module):
        return None
    try:
        with _in_training(module):
            if not all(part.training for part in module.modules()):
                return None  # its `train` keeps some layers in evaluation mode
            traced = fx.symbolic_trace(module)
    except Exception:  # any error of the user's code, which gets no real tensors
        return None
    for node in list(traced.graph.nodes):
        called = node.op == "call_module" and len(node.args) == 1 and not node.kwargs
        if called and _is_plain(traced.get_submodule(node.target)):
            _fuse(traced, node)
    traced.recompile()
    return traced


def _loses_hooks(module):
    """Whether modules have hooks that a trace would lose."""
    kept = fx.Tracer().is_leaf_module
    inside = (part for part in module.modules() if not kept(part, ""))
    return any(is_hooked(part) for part in (module, *inside))


@contextmanager
def _in_training(module):
    """Set a module to training mode for a block, and restore all modes."""
    modes = [(part, part.training) for part in module.modules()]
    module.train()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


class NormStep(nn.Module):
    """``relu(norm(x) + residual)``; residual and ReLU are optional."""

    def __init__(self, norm, relu):
        super().__init__()
        self.norm, self.relu = norm, relu
        size, device = norm.num_features, norm.weight.device
        # Not a buffer, to keep it out of state dicts.
        self.counter = torch.zeros(size, dtype=torch.int32, device=device)

    def forward(self, x, residual=None):
        """(N, C, H, W) -> (N, C, H, W)."""
        if self.fits(x, residual):
            return self.fused(x, residual)
        y = self.norm(x)
        y = y if residual is None else y + residual
        return functional.relu(y) if self.relu else y

    def fused(self, x, residual):
        """Use the kernels."""
        norm = self.norm
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
        return _NormFunction.apply(x, residual, norm.weight, norm.bias, self)

    def fits(self, x, residual):
        """Whether the kernels support this input."""
        alike = residual is None or (
            residual.shape == x.shape and residual.dtype == x.dtype
        )
        return x.is_cuda and self.norm.training and alike and x.numel() < MAX_NUMBERS


class _NormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, weight, bias, step):
        from sklearn_sharpbalance.engine.graph import norm_kernels

        x = channels_last(x)
        residual = residual if residual is None else channels_last(residual)
        ctx.step, ctx.add = step, residual is not None
        y, mean, rstd = norm_kernels.forward(
            x,
            residual,
            norm=step.norm,
            counter=step.counter,
            relu=step.relu,
        )
        # Only then backward needs the output, for its sign.
        saved = y if ctx.add and step.relu else None
        ctx.save_for_backward(x, saved, mean, rstd, weight, bias)
        return y

    @staticmethod
    def backward(ctx, grad):
        from sklearn_sharpbalance.engine.graph import norm_kernels

        step = ctx.step
        x, y, mean, rstd, weight, bias = ctx.saved_tensors
        gradients = norm_kernels.backward(
            grad=channels_last(grad),
            x=x,
            y=y,
            mean=mean,
            rstd=rstd,
            weight=weight,
            bias=bias,
            counter=step.counter,
            relu=step.relu,
            add=ctx.add,
        )
        return *gradients, None


def channels_last(x):
    """Return the tensor in the memory format channels-last."""
    return x.contiguous(memory_format=torch.channels_last)


def _is_plain(layer):
    """Whether a layer is a BatchNorm that the kernels support, without hooks."""
    return (
        type(layer) is nn.BatchNorm2d
        and layer.affine
        and layer.weight.dtype == torch.float32
        and (layer.running_mean is None or layer.momentum is not None)
        and not is_hooked(layer)
    )


def _norm_devices(module):
    """Return the devices of the layers that can be fused."""
    return {layer.weight.device for layer in module.modules() if _is_plain(layer)}


def _fuse(traced, node):
    """Replace a norm, and the sum and ReLU after it, by one :class:`NormStep`."""
    chain, residual = [node], None
    following = _only_user(node)
    if following is not None and _is_addition(following):
        clamp = _only_user(following)
        others = [arg for arg in following.args if arg is not node]
        if clamp is not None and _is_relu(traced, clamp) and len(others) == 1:
            chain, residual = [node, following, clamp], others[0]
    elif following is not None and _is_relu(traced, following):
        chain = [node, following]
    step = NormStep(traced.get_submodule(node.target), relu=len(chain) > 1)
    name = f"norm_step_{node.name}"
    traced.add_submodule(name, step)
    inputs = (node.args[0],) if residual is None else (node.args[0], residual)
    with traced.graph.inserting_before(chain[-1]):
        fused = traced.graph.call_module(name, inputs)
    chain[-1].replace_all_uses_with(fused)
    for replaced in reversed(chain):
        traced.graph.erase_node(replaced)


def _only_user(node):
    users = list(node.users)
    return users[0] if len(users) == 1 else None


def _is_addition(node):
    return (
        node.op == "call_function"
        and node.target in ADDITIONS
        and not node.kwargs
        and all(isinstance(arg, fx.Node) for arg in node.args)
    )


def _is_relu(traced, node):
    if node.op == "call_module":
        layer = traced.get_submodule(node.target)
        return type(layer) is nn.ReLU and not is_hooked(layer)
    if node.op == "call_method":
        return node.target in ("relu", "relu_")
    return node.op == "call_function" and node.target in CLAMPS
