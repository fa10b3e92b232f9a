"""Monte-Carlo simulation of the linear model behind Theorems 1 and 2."""

from dataclasses import dataclass

import numpy as np

from sklearn_sharpbalance._validation import (
    NON_NEGATIVE,
    POSITIVE_INTEGER,
    check_numbers,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.theory._theorems import subset_size


@dataclass(frozen=True)
class SimulationResult:
    """Result of :func:`simulate`, one row per data matrix.

    Attributes
    ----------
    diversities : ndarray of shape (n_matrices, ...)
        Variance of the predictions over the starting weights, averaged over the test
        points.
    sharpnesses : ndarray of shape (n_matrices, ...)
        Largest increase of the training loss within the radius of the mean weights.
    """

    diversities: np.ndarray
    sharpnesses: np.ndarray

    @property
    def diversity(self):
        """Mean over the data matrices."""
        return self.diversities.mean(axis=0)

    @property
    def sharpness(self):
        """Mean over the data matrices."""
        return self.sharpnesses.mean(axis=0)

    @property
    def diversity_error(self):
        """Standard error of the mean."""
        return _standard_error(self.diversities)

    @property
    def sharpness_error(self):
        """Standard error of the mean."""
        return _standard_error(self.sharpnesses)


def _standard_error(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        errors = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return np.where(np.isnan(errors), np.inf, errors)[()]


def simulate(
    k,
    eta,
    rho,
    *,
    radius=0.5,
    n=3000,
    d=150,
    n_test=1000,
    n_subsets=1,
    n_matrices=50,
    n_starts=50,
    sigma=1.0,
    theta_norm=1.0,
    random_state=None,
):
    r"""Train linear models with SAM on random data; measure diversity and sharpness.

    Parameters
    ----------
    k : int or array-like of int
        Steps of SAM; broadcast with ``eta`` and ``rho``. All points of such a grid are
        measured on the same matrices.
    eta, rho : float or array-like of float
        Step size and perturbation of SAM.
    radius, sigma, theta_norm
        See :func:`sam_sharpness_bounds` and :func:`sam_diversity`.
    n, d, n_test : int, default=3000, 150, 1000
        Training samples, features, test samples.
    n_subsets : int, default=1
        Number of subsets of the data; each model trains on one of them, drawn at
        random.
    n_matrices, n_starts : int, default=50, 50
        Number of data matrices, and of starting weights for each.
    random_state : None, int or Generator, default=None
        Seed.

    Returns
    -------
    SimulationResult
        With arrays of shape (n_matrices, \*broadcast shape); infinite if the weights
        are beyond the range of floats.

    Notes
    -----
    There is no training loop: :math:`\theta_k = \theta^* + B^k(\theta_0 - \theta^*)` is
    evaluated in the eigenbasis of :math:`A^\top A`, where :math:`B` is diagonal. As in
    the theorems, sharpness is measured on all of A, at the expectation of
    :math:`\theta_k` over starting weights and subsets. The paper finds it by 50 steps
    of projected ascent, which may not reach the radius; here it is exact.

    Examples
    --------
    >>> from sklearn_sharpbalance.theory import sam_diversity, simulate
    >>> sizes = {"n": 60, "d": 20}
    >>> run = simulate(2, 0.1, 0.2, n_matrices=200, random_state=0, **sizes)
    >>> expected = sam_diversity(2, eta=0.1, rho=0.2, **sizes)
    >>> bool(abs(run.diversity / expected - 1) < 0.05)
    True
    """
    check_numbers(POSITIVE_INTEGER, d=d, n_test=n_test)
    check_numbers(POSITIVE_INTEGER, n_matrices=n_matrices, n_starts=n_starts)
    check_numbers(NON_NEGATIVE, radius=radius, sigma=sigma, theta_norm=theta_norm)
    size = subset_size(n, n_subsets)
    if n_matrices < 2 or n_starts < 2:
        raise InvalidInputError(
            "n_matrices and n_starts must be at least 2 for variances, got "
            f"{n_matrices} and {n_starts}."
        )
    k, eta, rho = _check_grid(k, eta, rho)
    rng = np.random.default_rng(random_state)
    teacher = np.zeros(d)
    teacher[0] = theta_norm  # any direction: the distribution of A is isotropic
    grid = list(zip(k.ravel(), eta.ravel(), rho.ravel()))
    shape = (n_matrices, *k.shape)
    diversities, sharpnesses = np.empty((2, n_matrices, k.size))
    for row in range(n_matrices):
        A = rng.standard_normal((n, d)) / np.sqrt(d)
        T = rng.standard_normal((n_test, d)) / np.sqrt(d)
        starts = rng.standard_normal((n_starts, d)) * sigma
        which = rng.integers(n_subsets, size=n_starts)
        with np.errstate(over="ignore", invalid="ignore"):
            diversities[row], gradients, curvature = _train(
                subsets=A.reshape(n_subsets, size, d),
                T=T,
                starts=starts,
                which=which,
                teacher=teacher,
                grid=grid,
            )
            sharpnesses[row] = _exact_maximum(curvature, gradients, radius)
    for values in (diversities, sharpnesses):  # NaN if infinite terms are subtracted
        values[np.isnan(values)] = np.inf
    return SimulationResult(diversities.reshape(shape), sharpnesses.reshape(shape))


def _check_grid(k, eta, rho):
    """Return steps, step sizes and perturbations, broadcast to one shape."""
    given = {"k": np.asarray(k), "eta": np.asarray(eta), "rho": np.asarray(rho)}
    for name, values in given.items():
        kinds, what = ("iu", "integers") if name == "k" else ("iuf", "finite")
        is_sound = values.dtype.kind in kinds and np.isfinite(values).all()
        if not is_sound or (values < 0).any():
            raise InvalidInputError(
                f"{name} must be {what} and >= 0, got {values.tolist()!r}."
            )
    shapes = ", ".join(f"{name} {v.shape}" for name, v in given.items())
    try:
        grid = np.broadcast_arrays(*given.values())
    except ValueError as error:
        raise InvalidInputError(
            f"k, eta and rho must be numbers or broadcast to one shape, got {shapes}."
        ) from error
    if not grid[0].size:
        raise InvalidInputError(f"k, eta and rho must not be empty, got {shapes}.")
    return grid


def _train(*, subsets, T, starts, which, teacher, grid):
    """Train on one data matrix, for each of P points (k, eta, rho) of the grid.

    The training data are ``subsets`` (S, n / S, d), the test data ``T`` (n_test, d).
    Model i starts at ``starts[i]`` and trains on the subset ``which[i]``. Returns the
    diversities (P,), the gradients of the loss on all data at the mean weights, in the
    eigenbasis of A'A, (P, d), and the eigenvalues of A'A, (d,).
    """
    n_subsets, _, d = subsets.shape
    spectrum, basis = np.linalg.eigh(subsets.swapaxes(1, 2) @ subsets)  # (S, d[, d])
    if n_subsets == 1:
        curvature, axes = spectrum[0], basis[0]
    else:
        A = subsets.reshape(-1, d)
        curvature, axes = np.linalg.eigh(A.T @ A)  # (d,), (d, d)
    # The mean square of T x depends on T'T only: replace T by a root of at most d rows.
    root = np.linalg.qr(T, mode="r")  # (min(n_test, d), d)
    outputs = root @ basis  # (S, rows, d)
    rotated_teacher = teacher @ basis  # (S, d)
    errors = [(starts[which == s] - teacher) @ basis[s] for s in range(n_subsets)]
    diversities, gradients = [], []
    for k, eta, rho in grid:
        shrink = (1 - eta * spectrum - eta * rho * spectrum**2) ** k  # (S, d)
        predictions = np.concatenate(
            [(shrink[s] * errors[s]) @ outputs[s].T for s in range(n_subsets)]
        )  # (n_starts, rows)
        centered = predictions - predictions.mean(axis=0)
        diversities.append(np.sum(centered**2) / (len(T) * (len(starts) - 1)))
        mean_error = np.einsum("sij,sj->i", basis, shrink * rotated_teacher) / n_subsets
        gradients.append(curvature * (mean_error @ axes))
    return np.array(diversities), np.array(gradients), curvature


def _exact_maximum(curvature, gradients, radius):
    r"""Return the maxima of :math:`\frac12 e'De + g'e` over :math:`\|e\| \le r`, (P,).

    Strong duality holds for one quadratic constraint: the maximum is the minimum over
    :math:`\mu \ge \max D` of :math:`\frac12 (\mu r^2 + \sum_i g_i^2 / (\mu - D_i))`,
    found by bisection where its derivative vanishes.
    """
    if radius == 0:
        return np.zeros(len(gradients))
    top = curvature.max()
    gaps = top - curvature  # (d,)
    squares = gradients**2  # (P, d)
    # Bounds of the distance from mu to the largest curvature. The floor avoids 0 / 0
    # for a zero gradient, for which the distance is zero.
    floor = 1e-15 * (top + 1)
    low = np.maximum(np.sqrt(squares[:, gaps == 0].max(axis=1)) / radius, floor)
    high = np.maximum(np.sqrt(squares.sum(axis=1)) / radius, floor)
    for _ in range(100):
        middle = 0.5 * (low + high)
        too_low = (squares / (middle[:, None] + gaps) ** 2).sum(axis=1) > radius**2
        low = np.where(too_low, middle, low)
        high = np.where(too_low, high, middle)
    dual = (squares / (high[:, None] + gaps)).sum(axis=1)
    return 0.5 * ((top + high) * radius**2 + dual)
