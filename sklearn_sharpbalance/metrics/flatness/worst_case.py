"""Worst-case sharpness: the largest rise of the loss in a ball around the weights."""

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

from sklearn_sharpbalance._validation import (
    POSITIVE,
    POSITIVE_INTEGER,
    check_choice,
    check_numbers,
    check_optional_numbers,
)
from sklearn_sharpbalance.autodiff import evaluation_mode
from sklearn_sharpbalance.metrics.flatness._frame import (
    Weights,
    mean_over_members,
    measure_members,
)
from sklearn_sharpbalance.metrics.flatness._objectives import (
    Objective,
    is_small,
    stacked_objective,
)
from sklearn_sharpbalance.runtime.process import torch_threads

MOMENTUM = 0.75
INCREASING_SHARE = 0.75


class _Ball(NamedTuple):
    """Steepest unit step and projection for one norm, in place, along the last axis."""

    steepest: Callable[[Tensor, Tensor], Tensor]
    project: Callable[[Tensor, float], Tensor]


def _length(v):
    return torch.linalg.vector_norm(v, dim=-1, keepdim=True)


def _steepest_l2(gradient, fallback):
    norm = _length(gradient)
    away = fallback.to(gradient) / _length(fallback).clamp_min(1e-30)
    gradient.div_(torch.where(norm > 0, norm, 1.0))
    return _add_where_zero(gradient, norm, away)


def _steepest_linf(gradient, fallback):
    norm = _length(gradient)
    return _add_where_zero(gradient.sign_(), norm, fallback.sign().to(gradient))


def _add_where_zero(direction, norm, away):
    """Add ``away`` to directions whose gradient is zero."""
    if not norm.is_cuda and bool(norm.all()):  # a GPU does not wait for the host
        return direction
    return direction.addcmul_(away, (norm == 0).to(direction))


def _project_l2(v, rho):
    return v.mul_((rho / _length(v).clamp_min(1e-30)).clamp_max(1.0))


BALLS = {
    "l2": _Ball(_steepest_l2, _project_l2),
    "linf": _Ball(_steepest_linf, lambda v, rho: v.clamp_(-rho, rho)),
}


def checkpoints(n_iter: int) -> list[int]:
    """Return the steps after which progress is checked, at decreasing distances.

    Examples
    --------
    >>> checkpoints(20)
    [5, 9, 12, 14, 16, 18, 19, 20]
    """
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    # Round first, because 0.7 + 0.06 > 0.76 in floating point.
    steps = {ceil(round(share * n_iter, 9)) for share in shares[1:]}
    return sorted(step for step in steps if step <= n_iter)


def ascend(
    objective: Callable[[Tensor], tuple[Tensor, Tensor]],
    origin: Tensor,
    scale: Tensor,
    *,
    rho: float,
    norm: str,
    n_iter: int,
    fallback: Tensor,
) -> Tensor:
    """Return the largest rise of ``objective`` that Auto-PGD finds around ``origin``.

    It searches ``v`` with weights ``origin + scale * v`` and ``norm(v) <= rho``. All
    decisions are tensors, so that a GPU never waits for the host. Leading axes hold
    independent searches. ``objective`` returns loss (...) and gradient (..., d) at
    weights (..., d); the gradient is changed in place. ``fallback`` (d,) is the
    direction of the step at a point with zero gradient, such as a minimum.
    """
    ball, checked = BALLS[norm], checkpoints(n_iter)

    # Reused in every step: new tensors cost more than the arithmetic.
    v, before, spare, weights = (torch.zeros_like(origin) for _ in range(4))

    def evaluate(v):
        torch.addcmul(origin, scale.to(v), v, out=weights)
        loss, gradient = objective(weights)
        # An overflow of the loss must not make the position NaN.
        return loss.clone(), gradient.mul_(scale).nan_to_num_(0.0, 0.0, 0.0)

    first, gradient = evaluate(v)
    loss = best = best_at_check = first
    best_v, best_gradient = v.clone(), gradient.clone()
    step = torch.full_like(first, 2 * rho)
    increases = halved = torch.zeros_like(first)
    last_check = 0
    for k in range(1, n_iter + 1):
        direction = ball.steepest(gradient, fallback)
        target = torch.addcmul(v, direction, step[..., None], out=spare)
        target = ball.project(target, rho)
        if k > 1:  # v + MOMENTUM * (target - v) + (1 - MOMENTUM) * (v - before)
            target = target.mul_(MOMENTUM).add_(v, alpha=2 * (1 - MOMENTUM))
            target = ball.project(target.sub_(before, alpha=1 - MOMENTUM), rho)
        v, before, spare, old_loss = target, v, before, loss
        loss, gradient = evaluate(v)
        increases = increases + (loss > old_loss)
        better = loss > best
        # Unlike torch.where this keeps a NaN, and the caller raises for it.
        best = torch.maximum(best, loss)
        _replace_where(better, best_v, v)
        _replace_where(better, best_gradient, gradient)
        if k in checked:
            stuck = increases < INCREASING_SHARE * (k - last_check)
            stuck = stuck | ((halved == 0) & (best <= best_at_check))
            step = torch.where(stuck, step / 2, step)
            # Continue from the best point, without momentum.
            _replace_where(stuck, v, best_v)
            _replace_where(stuck, before, v)
            _replace_where(stuck, gradient, best_gradient)
            loss = torch.where(stuck, best, loss)
            halved, increases = stuck.to(first), torch.zeros_like(first)
            best_at_check, last_check = best, k
    return best - first


def _replace_where(condition, old, new):
    """Replace vectors (..., d) in place where the condition (...) holds."""
    if old.is_cuda:  # without waiting for the host; lerp is exact at weights 0 and 1
        old.lerp_(new, condition[..., None].to(old))
        return
    for index in condition.nonzero().tolist():
        old[tuple(index)].copy_(new[tuple(index)])


def _largest_rises(member, *, batch_size, adaptive, **options):
    """Return the largest rise found for each batch, (n_batches,)."""
    size = min(batch_size, len(member.rows))
    with (
        evaluation_mode(member.net.module_) as module,
        Weights(module) as weights,
        torch_threads(1 if is_small(module, weights, size) else None),
    ):
        scale = weights.origin.abs()
        scale = scale if adaptive else torch.ones_like(scale)
        fallback = member.normal_like(scale) * (scale > 0)
        stacked = stacked_objective(member, weights, size)
        objective = stacked or Objective(member.losses, weights)
        rises = []
        step = size * objective.n_batches
        for start in range(0, len(member.rows), step):
            x, y = member.rows[start : start + step]
            objective.load(x, y)
            rise = ascend(
                objective, objective.origin, scale, fallback=fallback, **options
            )
            rises.append(rise.reshape(-1))
        return torch.cat(rises).double().cpu().numpy()


def adaptive_sharpness(
    net,
    X,
    y,
    *,
    rho=0.5,
    norm="l2",
    adaptive=True,
    n_iter=20,
    batch_size=5,
    n_batches=100,
    random_state=None,
    per_member=False,
    return_batches=False,
):
    r"""Worst-case sharpness of a net, by default relative to the size of its weights.

    Parameters
    ----------
    net : NeuralNetClassifier or ensemble
        An initialised skorch net, or a fitted ensemble (``estimators_``,
        ``classes_``), whose members are measured separately. It is not changed.
    X : array, tensor, dict of those, or Dataset
        Samples as the net takes them.
    y : array-like of shape (n_samples,)
        Class codes, or labels for an ensemble.
    rho : float, default=0.5
        Radius of the ball.
    norm : {"l2", "linf"}, default="l2"
        Norm of the ball.
    adaptive : bool, default=True
        Measure a perturbation relative to each weight's absolute value, ``eps / |w|``.
        Weights that are zero then stay zero, so a pruned net keeps its pattern.
    n_iter : int, default=20
        Number of steps of the ascent.
    batch_size : int, default=5
        Samples per batch; the search is separate for each batch.
    n_batches : int or None, default=100
        Number of disjoint random batches, fewer if there are not enough samples.
        None uses all samples. An incomplete batch is left out, unless it is the only
        one.
    random_state : int, Generator, RandomState or None, default=None
        Seed of the choice of samples and of all other random numbers.
    per_member : bool, default=False
        Return a value for each member instead of their mean.
    return_batches : bool, default=False
        Return a value for each batch instead of their mean.

    Returns
    -------
    float or ndarray
        Not negative. The shape is (n_members,) with ``per_member``, (n_batches,) with
        ``return_batches`` and (n_members, n_batches) with both.

    Notes
    -----
    .. math:: \frac1B \sum_b \max_{\|\epsilon \oslash |w|\|_p \le \rho}
        L_b(w + \epsilon) - L_b(w)

    in eval mode, by projected gradient ascent from ``w`` with momentum 0.75 and first
    step :math:`2\rho` (Auto-PGD). At checkpoints without progress the step is halved
    and the ascent continues from its best point. The result is the best value found, a
    lower bound of the maximum.

    References
    ----------
    .. [1] J. Kwon et al., "ASAM: adaptive sharpness-aware minimization for
       scale-invariant learning of deep neural networks", ICML 2021.
    .. [2] M. Andriushchenko et al., "A modern look at the relationship between
       sharpness and generalization", ICML 2023.
    .. [3] F. Croce and M. Hein, "Reliable evaluation of adversarial robustness with an
       ensemble of diverse parameter-free attacks", ICML 2020.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from skorch import NeuralNetClassifier
    >>> net = NeuralNetClassifier(torch.nn.Linear, module__in_features=2,
    ...     module__out_features=2, criterion=torch.nn.CrossEntropyLoss).initialize()
    >>> X, y = np.eye(2, dtype=np.float32), np.array([0, 1])
    >>> bool(adaptive_sharpness(net, X, y, random_state=0) > 0)
    True
    """
    check_choice("norm", norm, BALLS)
    check_numbers(POSITIVE, rho=rho)
    check_numbers(POSITIVE_INTEGER, n_iter=n_iter, batch_size=batch_size)
    check_optional_numbers(POSITIVE_INTEGER, n_batches=n_batches)
    measure = partial(
        _largest_rises,
        batch_size=int(batch_size),
        rho=rho,
        norm=norm,
        adaptive=adaptive,
        n_iter=n_iter,
    )
    values = measure_members(  # (n_members, n_batches)
        measure,
        net,
        X,
        y,
        n_samples=None if n_batches is None else int(batch_size) * int(n_batches),
        random_state=random_state,
        batch_size=int(batch_size),
    )
    if return_batches:
        return values if per_member else values.mean(axis=0)
    return mean_over_members(values.mean(axis=1), per_member)
