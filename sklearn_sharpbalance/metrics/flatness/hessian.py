"""Trace and largest eigenvalue of the Hessian in the weights, without forming it."""

from functools import partial

import numpy as np
import torch
from scipy.sparse.linalg import (
    ArpackError,
    ArpackNoConvergence,
    LinearOperator,
    eigsh,
)

from sklearn_sharpbalance._validation import (
    NON_NEGATIVE,
    POSITIVE_INTEGER,
    check_numbers,
    check_optional_numbers,
)
from sklearn_sharpbalance.autodiff import sample_losses
from sklearn_sharpbalance.autodiff.hessian import HessianOperator
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceError
from sklearn_sharpbalance.metrics.flatness._members import (
    average_values,
    check_finite,
    measure_batches,
)
from sklearn_sharpbalance.metrics.flatness._weights import Weights

__all__ = ["hessian_top_eigenvalue", "hessian_trace"]


def _operator(batches, X, y, chunk_size):
    return HessianOperator(
        batches.net.module_,
        partial(sample_losses, batches.net),
        X,
        y,
        forward=batches.net.infer,
        chunk_size=chunk_size,
    )


def _probe(batches, *, n_probes, mask):
    """Return ``v_k^T H_b v_k`` for each probe and batch, (n_probes, n_batches)."""
    weights = Weights(batches.net.module_, mask)
    table = torch.zeros(n_probes, len(batches.slices), dtype=torch.float64)
    table = table.to(batches.device)
    for b, batch in enumerate(batches.slices):
        x, y = batches.rows[batch]
        operator = _operator(batches, x, y, len(y))
        for k in range(n_probes):
            v = batches.normal_like(weights.origin, k).sign() * weights.free
            table[k, b] = v @ (operator @ v)
    return table.cpu().numpy()


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
    batch_size=128,
    n_batches=None,
    mask=None,
    random_state=None,
    per_member=False,
    return_batches=False,
    return_std_error=False,
):
    r"""Trace of the Hessian of the loss in the weights, by Hutchinson's estimator.

    Parameters
    ----------
    net, X, y
        See :func:`adaptive_sharpness`.
    n_probes : int, default=20
        Number of random sign vectors, the same for all batches and members.
    batch_size, n_batches, mask, random_state, per_member, return_batches
        See :func:`adaptive_sharpness`.
    return_std_error : bool, default=False
        Also return the standard error due to the probes; ``inf`` for one probe. It
        does not include the choice of samples, which the spread over batches shows.

    Returns
    -------
    float or ndarray
        The trace, or a pair ``(trace, standard error)``; the error has one value, or
        one per member.

    Notes
    -----
    :math:`\mathrm{tr}\, H = \mathbb E[v^\top H v]` for random signs :math:`v`, in eval
    mode.

    References
    ----------
    .. [1] M. F. Hutchinson, "A stochastic estimator of the trace of the influence
       matrix for Laplacian smoothing splines", 1989.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from skorch import NeuralNetClassifier
    >>> net = NeuralNetClassifier(torch.nn.Linear, module__in_features=1,
    ...     module__out_features=2, module__bias=False,
    ...     criterion=torch.nn.CrossEntropyLoss).initialize()
    >>> with torch.no_grad():
    ...     _ = net.module_.weight.zero_()
    >>> X, y = np.ones((1, 1), dtype=np.float32), np.array([0])
    >>> trace, error = hessian_trace(net, X, y, n_probes=400, random_state=0,
    ...     return_std_error=True)
    >>> bool(abs(trace - 0.5) < 4 * error)  # 2 p (1 - p)
    True
    """
    check_numbers(POSITIVE_INTEGER, n_probes=n_probes)
    values, sizes = measure_batches(  # (M, n_probes, n_batches)
        _probe,
        net,
        X,
        y,
        batch_size=batch_size,
        n_batches=n_batches,
        random_state=random_state,
        n_probes=n_probes,
        mask=mask,
    )
    trace = average_values(
        values.mean(axis=1),
        sizes,
        per_member=per_member,
        return_batches=return_batches,
    )
    if not return_std_error:
        return trace
    estimates = np.average(values, axis=2, weights=sizes)  # (M, n_probes)
    if per_member:
        return trace, _standard_error(estimates)
    # The members share their probes, so their errors are not independent.
    return trace, float(_standard_error(estimates.mean(axis=0)))


def _restricted(operator, free):
    """Return the operator on NumPy vectors of the weights in the mask."""
    index = np.flatnonzero(free.cpu().numpy())
    if len(index) == 0:
        raise InvalidInputError("mask excludes all weights. Include at least one.")
    whole = operator.to_scipy()

    def product(vector):
        full = np.zeros(whole.shape[0], whole.dtype)
        full[index] = vector.reshape(-1)
        result = whole.matvec(full)[index]
        check_finite(result)  # Lanczos would fail without a reason
        return result

    return LinearOperator((len(index),) * 2, matvec=product, dtype=whole.dtype)


def _largest_eigenvalue(operator, start, tol, max_iter):
    """Return the largest eigenvalue of an operator, by Lanczos from ``start``."""
    if operator.shape[0] == 1:  # Lanczos needs two dimensions
        return float(operator.matvec(np.ones(1, operator.dtype))[0])
    try:
        values = eigsh(
            operator,
            k=1,
            which="LA",
            v0=start.astype(operator.dtype),
            tol=tol,
            maxiter=max_iter,
            return_eigenvectors=False,
        )
    except ArpackNoConvergence as error:
        raise SharpBalanceError(
            f"Lanczos did not converge to tol={tol} in {max_iter} iterations. Raise "
            "max_iter or tol."
        ) from error
    except ArpackError:
        if operator.matvec(start.astype(operator.dtype)).any():
            raise
        return 0.0  # Lanczos cannot start: all samples are right with certainty
    return float(values[0])


def _top_eigenvalues(batches, *, tol, max_iter, mask, chunk_size, separately):
    """Return the largest eigenvalue of each batch's Hessian, or of the mean Hessian."""
    weights = Weights(batches.net.module_, mask)
    if separately:
        groups = [batches.rows[batch] for batch in batches.slices]
    else:
        groups = [(batches.rows.X, batches.rows.y)]
    values = []
    for X, y in groups:
        operator = _restricted(_operator(batches, X, y, chunk_size), weights.free)
        start = np.random.default_rng(batches.seed).normal(size=operator.shape[0])
        values.append(_largest_eigenvalue(operator, start, tol, max_iter))
    return np.array(values)  # (n_batches,) or (1,)


def hessian_top_eigenvalue(
    net,
    X,
    y,
    *,
    tol=1e-3,
    max_iter=None,
    batch_size=128,
    n_batches=None,
    mask=None,
    random_state=None,
    per_member=False,
    return_batches=False,
):
    r"""Largest eigenvalue of the Hessian of the loss in the weights, by Lanczos.

    Parameters
    ----------
    net, X, y
        See :func:`adaptive_sharpness`.
    tol : float, default=1e-3
        Relative accuracy; 0 for machine precision.
    max_iter : int, default=None
        Maximum number of Lanczos restarts; None for ten times the number of weights.
    batch_size, n_batches, mask, random_state, per_member
        See :func:`adaptive_sharpness`.
    return_batches : bool, default=False
        Return a value for each batch instead of the value of all batches together.
        The mean over batches is at least the largest eigenvalue of the mean Hessian.

    Returns
    -------
    float or ndarray
        The largest in value, not in magnitude: negative only if the curvature of the
        loss is negative in all directions.

    Notes
    -----
    :func:`scipy.sparse.linalg.eigsh` with Hessian-vector products in eval mode. It
    stores twenty vectors of the size of the weights.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from skorch import NeuralNetClassifier
    >>> net = NeuralNetClassifier(torch.nn.Linear, module__in_features=1,
    ...     module__out_features=2, module__bias=False,
    ...     criterion=torch.nn.CrossEntropyLoss).initialize()
    >>> with torch.no_grad():
    ...     _ = net.module_.weight.zero_()
    >>> X, y = np.ones((1, 1), dtype=np.float32), np.array([0])
    >>> round(hessian_top_eigenvalue(net, X, y, random_state=0), 4)  # p (1 - p) 2
    0.5
    """
    check_numbers(NON_NEGATIVE, tol=tol)
    check_optional_numbers(POSITIVE_INTEGER, max_iter=max_iter)
    values, _ = measure_batches(  # (M, n_batches) or (M, 1)
        _top_eigenvalues,
        net,
        X,
        y,
        batch_size=batch_size,
        n_batches=n_batches,
        random_state=random_state,
        tol=tol,
        max_iter=max_iter,
        mask=mask,
        chunk_size=batch_size,
        separately=return_batches,
    )
    return average_values(
        values, None, per_member=per_member, return_batches=return_batches
    )
