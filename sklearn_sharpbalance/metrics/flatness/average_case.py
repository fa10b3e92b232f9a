"""Average-case sharpness: the mean rise of the loss along random directions."""

from functools import partial

import torch

from sklearn_sharpbalance.autodiff.state import evaluation_mode
from sklearn_sharpbalance.metrics.flatness._members import (
    check_count,
    check_positive,
    measure_members,
)
from sklearn_sharpbalance.metrics.flatness._weights import Weights

__all__ = ["average_case_sharpness", "sam_sharpness"]


def _gaussian(noise, weights, rho, adaptive):
    """``eps ~ N(0, rho^2 diag(w^2))``, or without ``w`` if not adaptive."""
    return rho * noise * (weights.origin.abs() if adaptive else 1.0)


def _on_sphere(noise, weights, rho, adaptive):
    """A direction of length ``rho``, measured relative to ``|w|`` if adaptive."""
    return _gaussian(noise / noise.norm().clamp_min(1e-30), weights, rho, adaptive)


def _mean_rises(batches, *, perturbation, rho, adaptive, n_draws, mask):
    """Mean over draws of the loss rise of each batch, (n_batches,)."""
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


def _check(rho, n_draws):
    check_count("n_draws", n_draws)
    check_positive("rho", rho)


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
    r"""Mean rise of the loss when every weight is moved at random.

    Parameters
    ----------
    net : NeuralNetClassifier or ensemble
        An initialised skorch net, or a fitted ensemble (``estimators_``,
        ``classes_``), whose members are measured one by one. It is not changed.
    X : array, tensor, dict of those, or Dataset
        Samples as the net takes them.
    y : array-like of shape (n_samples,)
        Class codes, or labels for an ensemble.
    rho : float, default=0.1
        Standard deviation, relative to each weight's size. It works on every weight
        at once: the 0.5 that is usual for the worst case, where it bounds all of
        them together, would leave little of a network.
    adaptive : bool, default=True
        Scale the noise by ``|w|``. Weights that are zero then stay zero.
    n_draws : int, default=20
        Random perturbations, the same for all batches and members.
    batch_size : int, default=5
        Samples per batch; it only matters for ``return_batches``.
    n_batches : int or None, default=100
        Number of disjoint random batches, less if there are not enough samples. None
        takes all samples.
    mask : None, "nonzero" or dict of str to array, default=None
        Weights that may move: all, those not exactly zero, or by parameter name.
    random_state : int, Generator, RandomState or None, default=None
        Draws batches and perturbations.
    per_member, return_batches : bool, default=False
        Return a value for each member, for each batch, or for both.

    Returns
    -------
    float or ndarray
        May be below zero where the loss curves down.

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
    _check(rho, n_draws)
    measure = partial(
        _mean_rises,
        perturbation=_gaussian,
        rho=rho,
        adaptive=adaptive,
        n_draws=n_draws,
        mask=mask,
    )
    return measure_members(
        net,
        X,
        y,
        measure,
        batch_size=batch_size,
        n_batches=n_batches,
        random_state=random_state,
        per_member=per_member,
        return_batches=return_batches,
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
    r"""Mean rise of the loss at points a fixed distance away.

    Parameters
    ----------
    net : NeuralNetClassifier or ensemble
        An initialised skorch net, or a fitted ensemble (``estimators_``,
        ``classes_``), whose members are measured one by one. It is not changed.
    X : array, tensor, dict of those, or Dataset
        Samples as the net takes them.
    y : array-like of shape (n_samples,)
        Class codes, or labels for an ensemble.
    rho : float, default=0.005
        Length of the perturbation.
    adaptive : bool, default=False
        Measure the length relative to each weight's size.
    n_draws : int, default=100
        Random directions, the same for all batches and members.
    batch_size : int, default=128
        Samples per batch; it only matters for ``return_batches``.
    n_batches : int or None, default=None
        Number of disjoint random batches; None takes all samples.
    mask : None, "nonzero" or dict of str to array, default=None
        Weights that may move: all, those not exactly zero (a pruned net), or by
        parameter name.
    random_state : int, Generator, RandomState or None, default=None
        Draws batches and directions.
    per_member, return_batches : bool, default=False
        Return a value for each member, for each batch, or for both.

    Returns
    -------
    float or ndarray
        May be below zero where the loss curves down.

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
    _check(rho, n_draws)
    measure = partial(
        _mean_rises,
        perturbation=_on_sphere,
        rho=rho,
        adaptive=adaptive,
        n_draws=n_draws,
        mask=mask,
    )
    return measure_members(
        net,
        X,
        y,
        measure,
        batch_size=batch_size,
        n_batches=n_batches,
        random_state=random_state,
        per_member=per_member,
        return_batches=return_batches,
    )
