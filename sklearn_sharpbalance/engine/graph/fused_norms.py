"""Fuse BatchNorm layers of a module with the sum and ReLU after them."""

import operator
from contextlib import contextmanager

import torch
from torch import fx, nn
from torch.nn import functional

from sklearn_sharpbalance._triton import kernels_run_on
from sklearn_sharpbalance.engine.stacking import is_hooked

__all__ = ["FusedNorms", "fuse_norms"]

ADDITIONS = (operator.add, operator.iadd, torch.add)
CLAMPS = (functional.relu, torch.relu, functional.relu_, torch.relu_)
MAX_NUMBERS = 2**31  # limit of the indices in a kernel


class FusedNorms:
    """Replaces a member's layers by fused ones while its step is captured.

    Parameters
    ----------
    owner : MemberModule
        Changed in place until :meth:`close`.
    wanted : bool
        If False, nothing changes.

    Attributes
    ----------
    fused : nn.Module or None
    """

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
    """Return a module that computes the same function with fewer kernels.

    It is for training only.

    Parameters
    ----------
    module : nn.Module
        Not changed; its layers are shared with the result.

    Returns
    -------
    fused : nn.Module or None
        None if nothing can be fused: without BatchNorm2d, on a GPU without support by
        Triton, if the module's code cannot be traced, or if the trace would lose hooks
        or layers that stay in evaluation mode.
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
        size, device = 3 * norm.num_features, norm.weight.device
        # Not a buffer, to keep it out of state dicts.
        self.counter = torch.zeros(size, dtype=torch.int32, device=device)

    def forward(self, x, residual=None):
        """(N, C, H, W) -> (N, C, H, W)."""
        if self.fits(x, residual):
            return self.fused(x, residual)
        return self.finish(self.norm(x), residual)

    def fused(self, x, residual, n_first=None, weight2=None, bias2=None):
        """Use the kernels; ``weight2`` and ``bias2`` are those of the second group."""
        y, _ = self._by_kernels(
            x=x,
            x2=None,
            residual=residual,
            residual2=None,
            n_first=n_first,
            weight2=weight2,
            bias2=bias2,
        )
        return y

    def fused_pair(self, x, x2, residual, residual2, weight2, bias2):
        """Use the kernels for two groups with separate tensors; return both results."""
        return self._by_kernels(
            x=x,
            x2=x2,
            residual=residual,
            residual2=residual2,
            n_first=None,
            weight2=weight2,
            bias2=bias2,
        )

    def _by_kernels(self, *, x, x2, residual, residual2, n_first, weight2, bias2):
        norm = self.norm
        if norm.num_batches_tracked is not None:
            one_group = x2 is None and n_first is None
            norm.num_batches_tracked.add_(1 if one_group else 2)
        return _NormFunction.apply(  # accepts no keywords
            self,
            n_first,
            x,
            x2,
            residual,
            residual2,
            norm.weight,
            weight2,
            norm.bias,
            bias2,
        )

    def finish(self, y, residual):
        """Apply the sum and the ReLU after the norm."""
        y = y if residual is None else y + residual
        return functional.relu(y) if self.relu else y

    def fits(self, x, residual):
        """Whether the kernels support this input."""
        alike = residual is None or (
            residual.shape == x.shape and residual.dtype == x.dtype
        )
        return x.is_cuda and self.norm.training and alike and x.numel() < MAX_NUMBERS


class _NormFunction(torch.autograd.Function):
    """A :class:`NormStep` by the kernels, for one or two groups of pictures.

    Two groups have separate tensors, or share those of the first group, whose first
    ``n_first`` pictures are the first group.
    """

    @staticmethod
    def forward(
        ctx, step, n_first, x, x2, residual, residual2, weight, weight2, bias, bias2
    ):
        from sklearn_sharpbalance.engine.graph import norm_kernels

        x, x2 = channels_last(x), channels_last(x2)
        residual, residual2 = channels_last(residual), channels_last(residual2)
        y, y2 = _empty_like(x), _empty_like(x2)
        ctx.step, ctx.n_first, ctx.add = step, n_first, residual is not None
        mean, rstd = norm_kernels.forward(
            x=_groups(x, x2, n_first),
            residual=_groups(residual, residual2, n_first),
            y=_groups(y, y2, n_first),
            weight=_groups(weight, weight2),
            bias=_groups(bias, bias2),
            norm=step.norm,
            counter=step.counter,
            relu=step.relu,
        )
        # Only then backward needs the output, for its sign.
        saved = (y, y2) if ctx.add and step.relu else (None, None)
        ctx.save_for_backward(x, x2, *saved, mean, rstd, weight, weight2, bias, bias2)
        return y, y2

    @staticmethod
    def backward(ctx, grad, grad2):
        from sklearn_sharpbalance.engine.graph import norm_kernels

        step, n_first = ctx.step, ctx.n_first
        x, x2, y, y2, mean, rstd, weight, weight2, bias, bias2 = ctx.saved_tensors
        grad, grad2 = channels_last(grad), channels_last(grad2)
        grad_x, grad_x2 = _empty_like(x), _empty_like(x2)
        grad_residual, grad_residual2 = None, None
        if ctx.add and step.relu:
            grad_residual, grad_residual2 = _empty_like(x), _empty_like(x2)
        grad_weight, grad_bias = norm_kernels.backward(
            grad=_groups(grad, grad2, n_first),
            x=_groups(x, x2, n_first),
            y=_groups(y, y2, n_first),
            mean=mean,
            rstd=rstd,
            weight=_groups(weight, weight2),
            bias=_groups(bias, bias2),
            grad_x=_groups(grad_x, grad_x2, n_first),
            grad_residual=_groups(grad_residual, grad_residual2, n_first),
            counter=step.counter,
            relu=step.relu,
        )
        if ctx.add and not step.relu:
            grad_residual, grad_residual2 = grad, grad2
        of_pictures = (grad_x, grad_x2, grad_residual, grad_residual2)
        if weight2 is None:
            return None, None, *of_pictures, grad_weight[0], None, grad_bias[0], None
        return None, None, *of_pictures, *grad_weight, *grad_bias


def channels_last(x):
    """Return the tensor in the memory format channels-last; None for None."""
    return None if x is None else x.contiguous(memory_format=torch.channels_last)


def _empty_like(x):
    return None if x is None else torch.empty_like(x)


def _groups(first, second, n_first=None):
    """Return the tensors of all groups as a list; None if there are none."""
    if first is None:
        return None
    if second is not None:
        return [first, second]
    return [first] if n_first is None else [first[:n_first], first[n_first:]]


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
