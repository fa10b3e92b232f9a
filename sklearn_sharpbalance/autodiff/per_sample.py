"""Squared gradient norm of each sample's loss, by layer rules, vmap or a loop."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sklearn_sharpbalance._validation import (
    POSITIVE_INTEGER,
    check_choice,
    check_optional_numbers,
)
from sklearn_sharpbalance.autodiff.layer_rules import squared_norm
from sklearn_sharpbalance.autodiff.layer_taps import (
    ParameterWatch,
    UnsupportedModuleError,
    check_calls,
    find_layers,
    tapped_squared_norms,
)
from sklearn_sharpbalance.autodiff.rows import Rows, in_chunks, map_tensors
from sklearn_sharpbalance.autodiff.state import (
    MATH_ATTENTION,
    WITHOUT_VMAP_WARNINGS,
    LossModule,
    device_of,
    evaluation_mode,
    one_per_sample,
    trainable_parameters,
)
from sklearn_sharpbalance.exceptions import InvalidInputError

ROOM_ON_CPU = 2**26  # numbers of 4 bytes that a chunk may store


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
    r"""Return the squared norm of each sample's gradient in all trainable parameters.

    Parameters
    ----------
    module : Module
        Run in eval mode: in train mode the gradient of one sample is not defined. Its
        flags, gradients and hooks are restored afterwards.
    loss_fn : callable
        ``loss_fn(outputs, y)`` returns one loss per sample, of shape (B,).
    X : array, tensor, dict or sequence of those, or Dataset
        N samples; see :class:`Rows`. The module must process samples independently.
    y : array or tensor of shape (N,)
        Targets; None uses those of a Dataset.
    forward : callable, default=None
        Runs the module on a batch. None calls ``module(x)``, or ``module(**x)`` for a
        dict.
    method : {"auto", "layer_rules", "vmap", "loop"}, default="auto"
        "auto" uses the first of the three that is correct for the module.
    chunk_size : int, default=None
        Samples at a time; halved when memory runs out. None chooses a size for the
        device and the method.

    Returns
    -------
    tensor of shape (N,)
        On the module's device, in float32 at least.

    Notes
    -----
    The value is :math:`\|\nabla_w \ell(f_w(x_n), y_n)\|_2^2`. The layer rules cost
    about as much as one forward and backward pass. They apply to linear layers,
    convolutions, batch, group, layer and RMS norms, also if a layer is called several
    times. ``vmap`` is used for parameters that layers share, that belong to a module
    without a rule or that are used outside of their layer; the loop is used for modules
    that ``vmap`` cannot trace (recurrent layers).

    Examples
    --------
    >>> layer = nn.Linear(2, 1, bias=False)
    >>> loss = lambda outputs, y: outputs[:, 0] * y
    >>> per_sample_squared_norms(layer, loss, torch.eye(2), torch.tensor([1.0, 3.0]))
    tensor([1., 9.])
    """
    check_method(method)
    check_optional_numbers(POSITIVE_INTEGER, chunk_size=chunk_size)
    if forward is None:
        forward = partial(call_module, module)
    rows = Rows(X, y, device_of(module))
    problem = _Problem(module=module, loss_fn=loss_fn, forward=forward, rows=rows)
    if method == "auto":
        return _first_valid(problem, chunk_size)
    try:
        return _run(METHODS[method], problem, chunk_size)
    except UnsupportedModuleError as reason:
        raise InvalidInputError(
            f"method={method!r} is not correct for this module: {reason}. Use "
            "method='auto'."
        ) from None


def check_method(method: str) -> None:
    """Raise unless there is a method of this name."""
    check_choice("method", method, ("auto", *METHODS))


def call_module(module: nn.Module, x: Any) -> Any:
    """Run ``module`` on a batch; a dict contains keyword arguments."""
    return module(**x) if isinstance(x, Mapping) else module(x)


class _Problem(NamedTuple):
    """Input of every method."""

    module: nn.Module
    loss_fn: Callable[[Any, Tensor], Tensor]
    forward: Callable[[Any], Any]
    rows: Rows

    def losses(self, x, y):
        return one_per_sample(self.loss_fn(self.forward(x), y), y)  # (B,)


def _first_valid(problem, chunk_size):
    """Return the result of the first method that is correct for the module."""
    *others, last = METHODS.values()
    for method in others:
        try:
            return _run(method, problem, chunk_size)
        except InvalidInputError:  # wrong samples or losses: no method would help
            raise
        except (UnsupportedModuleError, RuntimeError, TypeError, ValueError):
            # An actual error of the module or of the data occurs in the last method
            # too, with a shorter traceback.
            continue
    return _run(last, problem, chunk_size)


def _run(method, problem, chunk_size):
    with evaluation_mode(problem.module):
        norms, cost = method(problem, chunk_size)
        if chunk_size is None:
            most, room = _limits(problem.rows.device)
            chunk_size = min(most, max(3, room // cost))

        def norms_of_chunk(chunk):
            x, y = problem.rows[chunk]
            return norms(x, y)

        return in_chunks(norms_of_chunk, len(problem.rows), chunk_size)


def _limits(device):
    """Return the most samples of a chunk, and how many 4-byte numbers it may store."""
    if device.type == "cuda":  # launches take as long for 4096 samples as for one
        return 4096, torch.cuda.mem_get_info(device)[0] // 8
    return 1024, ROOM_ON_CPU


# --- the methods: each returns a function for the norms of a chunk, and how many
# numbers that function stores for each sample


def _by_layer_rules(problem, chunk_size):
    layers = find_layers(problem.module)
    # The trial's batch size differs from that of the first chunk: see check_calls.
    trial_size = 3 if 2 in (len(problem.rows), chunk_size) else 2
    first = problem.rows[:1]
    x, y = map_tensors(lambda t: t.expand(trial_size, *t.shape[1:]).clone(), first)
    cost = check_calls(layers, partial(problem.losses, x, y), trial_size)

    def norms(x, y):
        losses = partial(problem.losses, x, y)
        return tapped_squared_norms(
            problem.module, layers, losses=losses, batch_size=len(y)
        )

    return norms, cost


def _by_vmap(problem, chunk_size):
    runner = LossModule(problem.module, problem.losses)
    places = _places(problem.module)
    params = [p.detach() for p in places]

    def losses(params, x, y):
        swapped = {
            name: p for names, p in zip(places.values(), params) for name in names
        }
        return torch.func.functional_call(runner, swapped, (x, y), tie_weights=False)

    def loss(params, x, y):
        x, y = map_tensors(lambda t: t[None], (x, y))  # a batch of one sample
        return losses(params, x, y).sum()

    def trial():
        # A parameter that is also stored elsewhere, as in a list, is not swapped.
        watch = ParameterWatch(
            dict.fromkeys(places, runner), "a parameter is not read from its module"
        )
        leaves = [p.detach().requires_grad_() for p in params]
        with watch:
            x, y = problem.rows[:1]
            losses(leaves, x, y)

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def norms(x, y):
        with WITHOUT_VMAP_WARNINGS, MATH_ATTENTION:
            values = gradients(params, x, y)  # (B, *shape) each
        return sum(map(squared_norm, values), torch.zeros(len(y), device=y.device))

    kept = _kept_for_backward(trial)
    return norms, 1 + 2 * sum(p.numel() for p in params) + kept


def _places(module):
    """Return the names of each trainable parameter in a runner, one for every layer.

    With both names of a layer that is registered twice, the second swap would save and
    restore the parameter of the first.
    """
    places = defaultdict(list)
    for path, layer in module.named_modules(prefix="module"):
        for name, p in layer.named_parameters(recurse=False, remove_duplicate=False):
            if p.requires_grad:
                places[p].append(f"{path}.{name}")
    return places


def _kept_for_backward(forward):
    """Return how many numbers autograd saves in a forward pass."""
    kept = 0

    def keep(tensor):
        nonlocal kept
        kept += tensor.numel()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t)
    # An operation that fails here may have a rule for vmap.
    with suppress(RuntimeError), hooks, MATH_ATTENTION:
        forward()
    return kept


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
        values = []
        for i in range(len(y)):
            x_i, y_i = map_tensors(lambda t, i=i: t[i : i + 1], (x, y))
            values.append(norm(x_i, y_i))
        return torch.cat(values)

    return norms, 1


METHODS = {"layer_rules": _by_layer_rules, "vmap": _by_vmap, "loop": _by_loop}
