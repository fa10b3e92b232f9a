"""Squared gradient norm of each sample's loss: layer rules, then vmap, then a loop."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sklearn_sharpbalance.autodiff.chunks import check_chunk_size, in_chunks
from sklearn_sharpbalance.autodiff.layer_rules import squared_norm
from sklearn_sharpbalance.autodiff.layer_taps import (
    ParameterWatch,
    UnsupportedModuleError,
    check_calls,
    find_layers,
    tapped_squared_norms,
)
from sklearn_sharpbalance.autodiff.losses import one_per_sample
from sklearn_sharpbalance.autodiff.rows import Rows, map_tensors
from sklearn_sharpbalance.autodiff.state import (
    MATH_ATTENTION,
    Shared,
    device_of,
    evaluation_mode,
    trainable_parameters,
)
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["METHODS", "call_module", "check_method", "per_sample_squared_norms"]


def per_sample_squared_norms(
    module: nn.Module,
    loss_fn: Callable[[Any, Tensor], Tensor],
    X: Any,
    y: Any,
    *,
    forward: Callable[[Any], Any] | None = None,
    method: str = "auto",
    chunk_size: int | None = None,
) -> Tensor:
    r"""Squared norm of the gradient of each sample's loss in all trainable parameters.

    Parameters
    ----------
    module : Module
        It is run in eval mode: in train mode the gradient of one sample is undefined.
        Flags, gradients, hooks and tensors that it keeps are as before afterwards.
    loss_fn : callable
        ``loss_fn(outputs, y)`` gives one loss per sample, of shape (B,).
    X : array, tensor, dict or sequence of those, or Dataset
        N samples; see :class:`Rows`. The module must treat each sample by itself.
    y : array or tensor of shape (N,)
        Targets; None takes those of a Dataset.
    forward : callable, default=None
        How to run the module on a batch, if not by ``module(x)``, or ``module(**x)``
        for a dict. It must call ``module``.
    method : {"auto", "layer_rules", "vmap", "loop"}, default="auto"
        "auto" takes the first of the three that is right for the module.
    chunk_size : int, default=None
        Samples at a time; halved when memory runs out. None chooses by the device
        and by the method.

    Returns
    -------
    tensor of shape (N,)
        On the module's device, in float32 at least.

    Notes
    -----
    The value is :math:`\|\nabla_w \ell(f_w(x_n), y_n)\|_2^2`. The layer rules cost
    about as much as one forward and backward pass. They serve linear layers,
    convolutions, normalisations and embeddings, also when a layer is called several
    times; parameters that are shared between layers, held by a module without a rule
    or used outside of their layer lead to ``vmap``, and what ``vmap`` cannot trace
    (recurrent layers) to the loop.

    Examples
    --------
    >>> layer = nn.Linear(2, 1, bias=False)
    >>> loss = lambda outputs, y: outputs[:, 0] * y
    >>> per_sample_squared_norms(layer, loss, torch.eye(2), torch.tensor([1.0, 3.0]))
    tensor([1., 9.])
    """
    check_method(method)
    if chunk_size is not None:
        check_chunk_size(chunk_size)
    if forward is None:
        forward = partial(call_module, module)
    problem = _Problem(module, loss_fn, forward, Rows(X, y, device_of(module)))
    if method == "auto":
        return _first_valid(problem, chunk_size)
    try:
        return _run(METHODS[method], problem, chunk_size)
    except UnsupportedModuleError as reason:
        raise InvalidInputError(
            f"method={method!r} is not right for this module: {reason}. Use "
            "method='auto'."
        ) from None


def check_method(method: str) -> None:
    """Raise unless a method has this name."""
    if method != "auto" and method not in METHODS:
        names = ", ".join(repr(name) for name in ("auto", *METHODS))
        raise InvalidInputError(f"Unknown method {method!r}. Choose one of {names}.")


def call_module(module: nn.Module, x: Any) -> Any:
    """Run ``module`` on a batch; a dict holds keyword arguments.

    Examples
    --------
    >>> call_module(nn.Identity(), torch.ones(2))
    tensor([1., 1.])
    """
    return module(**x) if isinstance(x, Mapping) else module(x)


class _Problem(NamedTuple):
    """What every method works on."""

    module: nn.Module
    loss_fn: Callable[[Any, Tensor], Tensor]
    forward: Callable[[Any], Any]
    rows: Rows

    def losses(self, x, y):
        return one_per_sample(self.loss_fn(self.forward(x), y), y)  # (B,)


def _first_valid(problem, chunk_size):
    *others, last = METHODS.values()
    for method in others:
        try:
            return _run(method, problem, chunk_size)
        except InvalidInputError:  # of the samples or of the losses, in any method
            raise
        except (UnsupportedModuleError, RuntimeError, TypeError, ValueError):
            # A real fault of the module or of the data shows in the last method too,
            # and there without a layer of transformations around it.
            continue
    return _run(last, problem, chunk_size)


def _run(method, problem, chunk_size):
    with evaluation_mode(problem.module):
        norms, cost = method(problem, chunk_size)
        if chunk_size is None:
            most, room = _limits(problem.rows.device)
            chunk_size = min(most, max(3, room // cost))
        return in_chunks(
            lambda rows: norms(*problem.rows[rows]), len(problem.rows), chunk_size
        )


def _limits(device):
    """Most samples of a chunk, and the numbers of four bytes that it may take.

    On a GPU a chunk starts hundreds of small operations, which takes as long for four
    thousand samples as for one; it may take half of what is free.
    """
    if device.type == "cuda":
        return 4096, torch.cuda.mem_get_info(device)[0] // 8
    return 1024, 2**28


# --- the methods: from a problem to a function that gives the norms of a chunk, and to
# the numbers that it keeps in memory for each sample


def _by_layer_rules(problem, chunk_size):
    layers = find_layers(problem.module)
    # The trial's batch size differs from that of the first chunk: see check_calls.
    trial_size = 3 if 2 in (len(problem.rows), chunk_size) else 2
    first = problem.rows[:1]
    trial = map_tensors(lambda t: t.expand(trial_size, *t.shape[1:]).clone(), first)
    cost = check_calls(layers, lambda: problem.losses(*trial), trial_size)

    def norms(x, y):
        losses = partial(problem.losses, x, y)
        return tapped_squared_norms(problem.module, layers, losses, len(y))

    return norms, cost


def _by_vmap(problem, chunk_size):
    runner = _Runner(problem)
    places = _places(problem.module)
    params = [p.detach() for p in places]

    def losses(params, x, y):
        swapped = {
            name: p for names, p in zip(places.values(), params) for name in names
        }
        return torch.func.functional_call(runner, swapped, (x, y), tie_weights=False)

    def loss(params, x, y):
        return losses(params, *map_tensors(lambda t: t[None], (x, y))).sum()

    def trial():
        # A parameter that is held elsewhere, as by a list, is not swapped.
        watch = ParameterWatch(
            dict.fromkeys(places, runner), "a parameter is not read from its module"
        )
        leaves = [p.detach().requires_grad_() for p in params]
        with watch:
            losses(leaves, *problem.rows[:1])

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def norms(x, y):
        with _UNWARNED, MATH_ATTENTION:
            values = gradients(params, x, y)  # (B, *shape) each
        return sum(map(squared_norm, values), torch.zeros(len(y), device=y.device))

    kept = _kept_for_backward(trial)
    return norms, 1 + 2 * sum(p.numel() for p in params) + kept


def _places(module):
    """Names of each trainable parameter in a runner, one for every layer with it.

    A layer that is registered twice has one name here: swapped under both, it would
    be given back what it held in between.
    """
    places = defaultdict(list)
    for path, layer in module.named_modules(prefix="module"):
        for name, p in layer._parameters.items():
            if p is not None and p.requires_grad:
                places[p].append(f"{path}.{name}")
    return places


def _kept_for_backward(forward):
    """Numbers that autograd keeps of a forward pass, such as maps of attention."""
    kept = 0

    def keep(tensor):
        nonlocal kept
        kept += tensor.numel()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t)
    # What fails here need not fail under vmap, which knows other ways.
    with suppress(RuntimeError), hooks, MATH_ATTENTION:
        forward()
    return kept


@contextmanager
def _without_fallback_warnings():
    """What has no rule for vmap runs sample by sample, and nobody need know.

    A filter of warnings would be one for all threads.
    """
    warn = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
    warn(False)
    try:
        yield
    finally:
        warn(True)


_UNWARNED = Shared(_without_fallback_warnings)


class _Runner(nn.Module):
    """Gives losses by the parameters that ``functional_call`` swaps in.

    The losses and not only the outputs: they may contain a penalty on the weights.
    """

    def __init__(self, problem):
        super().__init__()
        self.module = problem.module
        self.losses = problem.losses

    def forward(self, x, y):
        return self.losses(x, y)


def _by_loop(problem, chunk_size):
    params = list(trainable_parameters(problem.module).values())

    def norm(x, y):
        total = torch.zeros(1, device=y.device)
        loss = problem.losses(x, y).sum()
        if loss.requires_grad:
            for g in torch.autograd.grad(loss, params, allow_unused=True):
                if g is not None:
                    total = total + squared_norm(g.to_dense()[None])
        return total  # (1,)

    def norms(x, y):
        samples = (
            map_tensors(lambda t, i=i: t[i : i + 1], (x, y)) for i in range(len(y))
        )
        return torch.cat([norm(*sample) for sample in samples])

    return norms, 1


METHODS = {"layer_rules": _by_layer_rules, "vmap": _by_vmap, "loop": _by_loop}
