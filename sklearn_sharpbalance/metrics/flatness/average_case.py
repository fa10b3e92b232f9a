"""Average-case sharpness: the mean rise of the loss along random directions."""

from functools import partial

import torch

from sklearn_sharpbalance._validation import POSITIVE, POSITIVE_INTEGER, check_numbers
from sklearn_sharpbalance.autodiff import evaluation_mode
from sklearn_sharpbalance.metrics.flatness._frame import (
    Weights,
    mean_over_members,
    measure_members,
)


def _gaussian(noise, w, *, rho, adaptive):
    """Return ``eps ~ N(0, rho^2 diag(w^2))``, or without ``w`` if not adaptive."""
    return rho * noise * (w.abs() if adaptive else 1.0)


def _on_sphere(noise, w, *, rho):
    return rho * noise / noise.norm().clamp_min(1e-30)


def _mean_rise(member, *, perturbation, n_draws):
    """Return the rise of the mean loss, averaged over draws."""
    module = member.net.module_
    with evaluation_mode(module), torch.no_grad(), Weights(module) as weights:
        before = member.mean(member.losses)
        total = 0.0
        for draw in range(n_draws):
            noise = member.normal_like(weights.origin, draw)
            weights.write(weights.origin + perturbation(noise, weights.origin))
            total += member.mean(member.losses) - before
        return total / n_draws


def average_case_sharpness(
    net,
    X,
    y,
    *,
    rho=0.1,
    adaptive=True,
    n_draws=20,
    n_samples=500,
    random_state=None,
    per_member=False,
):
    r"""Mean rise of the loss when all weights get random noise.

    M. Andriushchenko et al., "A modern look at the relationship between sharpness
    and generalization", ICML 2023.

    Parameters
    ----------
    rho : float, default=0.1
        Standard deviation of the noise of each weight, relative to its absolute value.
        In the worst case, where ``rho`` bounds the norm over all weights, 0.5 is
        common; here it would destroy most networks.
    adaptive : bool, default=True
        Scale the noise by ``|w|``. Weights that are zero then stay zero.
    n_draws : int, default=20
        Number of random perturbations, the same for all members.
    n_samples : int or None, default=500
        Number of random samples; None uses all.
    net, X, y, random_state, per_member
        See :func:`adaptive_sharpness`.

    Returns
    -------
    float or ndarray of shape (n_members,)
        Negative if the loss has a negative curvature.

    Notes
    -----
    :math:`\mathbb E_{\epsilon \sim N(0, \rho^2 \mathrm{diag}(w^2))}
    [L(w + \epsilon) - L(w)]`, in eval mode. For small :math:`\rho` it is
    :math:`\frac{\rho^2}{2} \sum_i w_i^2 H_{ii}`.
    """
    check_numbers(POSITIVE, rho=rho)
    check_numbers(POSITIVE_INTEGER, n_draws=n_draws)
    noise = partial(_gaussian, rho=rho, adaptive=adaptive)
    measure = partial(_mean_rise, perturbation=noise, n_draws=n_draws)
    values = measure_members(
        measure, net, X, y, n_samples=n_samples, random_state=random_state
    )
    return mean_over_members(values, per_member)


def sam_sharpness(
    net,
    X,
    y,
    *,
    rho=0.005,
    n_draws=100,
    n_samples=None,
    random_state=None,
    per_member=False,
):
    r"""Mean rise of the loss at random points of a fixed distance.

    I. Mason-Williams, F. Ekholm and F. Huszár, "Explicit regularisation, sharpness
    and calibration", NeurIPS workshop 2024.

    Parameters
    ----------
    rho : float, default=0.005
        Length of the perturbation.
    n_draws : int, default=100
        Number of random directions, the same for all members.
    n_samples : int or None, default=None
        Number of random samples; None uses all.
    net, X, y, random_state, per_member
        See :func:`adaptive_sharpness`.

    Returns
    -------
    float or ndarray of shape (n_members,)
        Negative if the loss has a negative curvature.

    Notes
    -----
    :math:`\mathbb E_u [L(w + \rho u / \|u\|) - L(w)]`, :math:`u \sim N(0, I)`, in eval
    mode. For small :math:`\rho` it is :math:`\frac{\rho^2}{2d} \mathrm{tr}\, H`.
    """
    check_numbers(POSITIVE, rho=rho)
    check_numbers(POSITIVE_INTEGER, n_draws=n_draws)
    step = partial(_on_sphere, rho=rho)
    measure = partial(_mean_rise, perturbation=step, n_draws=n_draws)
    values = measure_members(
        measure, net, X, y, n_samples=n_samples, random_state=random_state
    )
    return mean_over_members(values, per_member)
