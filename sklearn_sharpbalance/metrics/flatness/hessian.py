"""Trace and largest eigenvalue of the Hessian in the weights, without forming it."""

from functools import partial

import numpy as np
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

from sklearn_sharpbalance._validation import (
    NON_NEGATIVE,
    POSITIVE_INTEGER,
    check_numbers,
)
from sklearn_sharpbalance.autodiff import HessianOperator, sample_losses
from sklearn_sharpbalance.exceptions import SharpBalanceError
from sklearn_sharpbalance.metrics.flatness._frame import (
    Weights,
    check_finite,
    mean_over_members,
    measure_members,
)

# Samples at a time; halved when memory runs out.
CHUNK_SIZE = 128


def _operator(member):
    return HessianOperator(
        member.net.module_,
        partial(sample_losses, member.net),
        member.rows.X,
        member.rows.y,
        forward=member.net.infer,
        chunk_size=CHUNK_SIZE,
    )


def _probe(member, *, n_probes):
    """Return ``v_k^T H v_k`` for each probe, (n_probes,)."""
    weights, operator = Weights(member.net.module_), _operator(member)
    estimates = []
    for k in range(n_probes):
        v = member.normal_like(weights.origin, k).sign()
        estimates.append((v @ (operator @ v)).item())
    return np.array(estimates)


def _standard_error(estimates):
    """Return the standard error of the mean over the last axis, inf for one probe."""
    n_probes = estimates.shape[-1]
    if n_probes == 1:
        return np.full(estimates.shape[:-1], np.inf)
    return estimates.std(axis=-1, ddof=1) / np.sqrt(n_probes)


def hessian_trace(
    net,
    X,
    y,
    *,
    n_probes=20,
    n_samples=None,
    random_state=None,
    per_member=False,
    return_std_error=False,
):
    r"""Trace of the Hessian of the loss in the weights, by Hutchinson's estimator.

    M. F. Hutchinson, "A stochastic estimator of the trace of the influence matrix
    for Laplacian smoothing splines", 1989.

    Parameters
    ----------
    n_probes : int, default=20
        Number of random sign vectors, the same for all members.
    n_samples : int or None, default=None
        Number of random samples; None uses all.
    net, X, y, random_state, per_member
        See :func:`adaptive_sharpness`.
    return_std_error : bool, default=False
        Also return the standard error due to the probes; ``inf`` for one probe. It
        does not include the choice of samples.

    Returns
    -------
    float or ndarray of shape (n_members,)
        The trace, or a pair ``(trace, standard error)``.

    Notes
    -----
    :math:`\mathrm{tr}\, H = \mathbb E[v^\top H v]` for random signs :math:`v`, in eval
    mode.
    """
    check_numbers(POSITIVE_INTEGER, n_probes=n_probes)
    measure = partial(_probe, n_probes=n_probes)
    values = measure_members(  # (n_members, n_probes)
        measure, net, X, y, n_samples=n_samples, random_state=random_state
    )
    trace = mean_over_members(values.mean(axis=1), per_member)
    if not return_std_error:
        return trace
    if per_member:
        return trace, _standard_error(values)
    # The members share their probes, so their errors are not independent.
    return trace, float(_standard_error(values.mean(axis=0)))


def _checked(operator):
    """Return the operator; it raises for a product that is not finite."""

    def product(vector):
        result = operator.matvec(vector)
        check_finite(result)  # Lanczos would fail without a reason
        return result

    return LinearOperator(operator.shape, matvec=product, dtype=operator.dtype)


def _largest_eigenvalue(operator, start, tol):
    """Return the largest eigenvalue of an operator, by Lanczos from ``start``."""
    try:
        values = eigsh(
            operator,
            k=1,
            which="LA",
            v0=start.astype(operator.dtype),
            tol=tol,
            return_eigenvectors=False,
        )
    except ArpackNoConvergence as error:
        raise SharpBalanceError(
            f"Lanczos did not converge to tol={tol}. Raise tol."
        ) from error
    except ArpackError:
        if operator.matvec(start.astype(operator.dtype)).any():
            raise
        return 0.0  # Lanczos cannot start: all samples are right with certainty
    return float(values[0])


def _top_eigenvalue(member, *, tol):
    """Return the largest eigenvalue of the Hessian of the mean loss."""
    operator = _checked(_operator(member).to_scipy())
    start = np.random.default_rng(member.seed).normal(size=operator.shape[0])
    return _largest_eigenvalue(operator, start, tol)


def hessian_top_eigenvalue(
    net, X, y, *, tol=1e-3, n_samples=None, random_state=None, per_member=False
):
    r"""Largest eigenvalue of the Hessian of the loss in the weights, by Lanczos.

    Parameters
    ----------
    tol : float, default=1e-3
        Relative accuracy; 0 for machine precision.
    net, X, y, n_samples, random_state, per_member
        See :func:`hessian_trace`.

    Returns
    -------
    float or ndarray of shape (n_members,)
        The largest in value, not in magnitude: negative only if the curvature of the
        loss is negative in all directions.

    Notes
    -----
    :func:`scipy.sparse.linalg.eigsh` with Hessian-vector products in eval mode. It
    stores twenty vectors of the size of the weights.
    """
    check_numbers(NON_NEGATIVE, tol=tol)
    measure = partial(_top_eigenvalue, tol=tol)
    values = measure_members(
        measure, net, X, y, n_samples=n_samples, random_state=random_state
    )
    return mean_over_members(values, per_member)
