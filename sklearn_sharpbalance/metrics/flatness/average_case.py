"""Average-case sharpness: the mean rise of the loss along random directions."""

import torch

from sklearn_sharpbalance._validation import POSITIVE, POSITIVE_INTEGER, check_numbers
from sklearn_sharpbalance.autodiff import evaluation_mode
from sklearn_sharpbalance.metrics.flatness._members import measure_members
from sklearn_sharpbalance.metrics.flatness._weights import Weights

__all__ = ["average_case_sharpness", "sam_sharpness"]


def _gaussian(noise, weights, rho, adaptive):
    """Return ``eps ~ N(0, rho^2 diag(w^2))``, or without ``w`` if not adaptive."""
    return rho * noise * (weights.origin.abs() if adaptive else 1.0)


def _on_sphere(noise, weights, rho, adaptive):
    """Return a step of length ``rho``, measured relative to ``|w|`` if adaptive."""
    return _gaussian(noise / noise.norm().clamp_min(1e-30), weights, rho, adaptive)


def _mean_rises(batches, *, perturbation, rho, adaptive, n_draws, mask):
    """Return the loss rise of each batch, mean over draws, (n_batches,)."""
    module = batches.net.module_
    with evaluation_mode(module), torch.no_grad(), Weights(module, mask) as weights:
        before = batches.per_sample(batches.losses).double()  # (N,)
        rise = torch.zeros_like(before)
        for draw in range(n_draws):
            noise = batches.normal_like(weights.origin, draw) * weights.free
            eps = perturbation(noise, weights, rho, adaptive)
            weights.write(weights.origin + eps)
            rise += batches.per_sample(batches.losses).double() - before
        return batches.means(rise / n_draws)


def average_case_sharpness(
    net,
    X,
    y,
    *,
    rho=0.1,
    adaptive=True,
    n_draws=20,
    batch_size=5,
    n_batches=100,
    mask=None,
    random_state=None,
    per_member=False,
    return_batches=False,
):
    r"""Mean rise of the loss when all weights get random noise.

    Parameters
    ----------
    net, X, y
        See :func:`adaptive_sharpness`.
    rho : float, default=0.1
        Standard deviation of the noise of each weight, relative to its absolute value.
        In the worst case, where ``rho`` bounds the norm over all weights, 0.5 is
        common; here it would destroy most networks.
    adaptive : bool, default=True
        Scale the noise by ``|w|``. Weights that are zero then stay zero.
    n_draws : int, default=20
        Number of random perturbations, the same for all batches and members.
    batch_size, n_batches, mask, random_state, per_member, return_batches
        See :func:`adaptive_sharpness`.

    Returns
    -------
    float or ndarray
        Negative if the loss has a negative curvature.

    Notes
    -----
    :math:`\mathbb E_{\epsilon \sim N(0, \rho^2 \mathrm{diag}(w^2))}
    [L(w + \epsilon) - L(w)]`, in eval mode. For small :math:`\rho` it is
    :math:`\frac{\rho^2}{2} \sum_i w_i^2 H_{ii}`.

    References
    ----------
    .. [1] M. Andriushchenko et al., "A modern look at the relationship between
       sharpness and generalization", ICML 2023.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from skorch import NeuralNetClassifier
    >>> net = NeuralNetClassifier(torch.nn.Linear, module__in_features=2,
    ...     module__out_features=2, criterion=torch.nn.CrossEntropyLoss).initialize()
    >>> X, y = np.eye(2, dtype=np.float32), np.array([0, 1])
    >>> average_case_sharpness(net, X, y, random_state=0, return_batches=True).shape
    (1,)
    """
    check_numbers(POSITIVE, rho=rho)
    check_numbers(POSITIVE_INTEGER, n_draws=n_draws)
    return measure_members(
        _mean_rises,
        net,
        X,
        y,
        batch_size=batch_size,
        n_batches=n_batches,
        random_state=random_state,
        per_member=per_member,
        return_batches=return_batches,
        perturbation=_gaussian,
        rho=rho,
        adaptive=adaptive,
        n_draws=n_draws,
        mask=mask,
    )


def sam_sharpness(
    net,
    X,
    y,
    *,
    rho=0.005,
    adaptive=False,
    n_draws=100,
    batch_size=128,
    n_batches=None,
    mask=None,
    random_state=None,
    per_member=False,
    return_batches=False,
):
    r"""Mean rise of the loss at random points of a fixed distance.

    Parameters
    ----------
    net, X, y
        See :func:`adaptive_sharpness`.
    rho : float, default=0.005
        Length of the perturbation.
    adaptive : bool, default=False
        Measure the length relative to the absolute value of each weight.
    n_draws : int, default=100
        Number of random directions, the same for all batches and members.
    batch_size, n_batches, mask, random_state, per_member, return_batches
        See :func:`adaptive_sharpness`.

    Returns
    -------
    float or ndarray
        Negative if the loss has a negative curvature.

    Notes
    -----
    :math:`\mathbb E_u [L(w + \rho u / \|u\|) - L(w)]`, :math:`u \sim N(0, I)`, in eval
    mode. For small :math:`\rho` it is :math:`\frac{\rho^2}{2d} \mathrm{tr}\, H`.

    References
    ----------
    .. [1] I. Mason-Williams, F. Ekholm and F. Huszár, "Explicit regularisation,
       sharpness and calibration", NeurIPS workshop 2024.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from skorch import NeuralNetClassifier
    >>> net = NeuralNetClassifier(torch.nn.Linear, module__in_features=2,
    ...     module__out_features=2, criterion=torch.nn.CrossEntropyLoss).initialize()
    >>> X, y = np.eye(2, dtype=np.float32), np.array([0, 1])
    >>> bool(abs(sam_sharpness(net, X, y, random_state=0)) < 0.005)
    True
    """
    check_numbers(POSITIVE, rho=rho)
    check_numbers(POSITIVE_INTEGER, n_draws=n_draws)
    return measure_members(
        _mean_rises,
        net,
        X,
        y,
        batch_size=batch_size,
        n_batches=n_batches,
        random_state=random_state,
        per_member=per_member,
        return_batches=return_batches,
        perturbation=_on_sphere,
        rho=rho,
        adaptive=adaptive,
        n_draws=n_draws,
        mask=mask,
    )
