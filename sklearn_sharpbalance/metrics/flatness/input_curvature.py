"""Flatness in the input: the mean curvature of the loss."""

from sklearn_sharpbalance.metrics.flatness._members import measure_members
from sklearn_sharpbalance.sharpness.input_curvature import input_curvature

__all__ = ["mean_input_curvature"]


def _curvatures(batches, **options):
    """Return the mean input curvature of each batch, (n_batches,)."""
    rows = batches.rows
    seed = batches.seed % 2**32
    values = input_curvature(batches.net, rows.X, rows.y, random_state=seed, **options)
    return batches.means(values)


def mean_input_curvature(
    net,
    X,
    y,
    *,
    step=1e-3,
    n_directions=10,
    directions="rademacher",
    batch_size=128,
    n_batches=None,
    random_state=None,
    per_member=False,
    return_batches=False,
):
    r"""Mean curvature of the loss in the input.

    Parameters
    ----------
    net, X, y
        See :func:`adaptive_sharpness`.
    step : float, default=1e-3
        Length of the finite difference.
    n_directions : int, default=10
        Number of random directions, the same for all samples and members.
    directions : {"rademacher", "sign_gradient"}, default="rademacher"
        Random signs, or the sign of the sample's own gradient.
    batch_size, n_batches, random_state, per_member, return_batches
        See :func:`adaptive_sharpness`.

    Returns
    -------
    float or ndarray
        Not negative.

    Notes
    -----
    The mean over samples of
    :func:`sklearn_sharpbalance.sharpness.input_curvature`.

    References
    ----------
    .. [1] I. Garg and K. Roy, "Samples with low loss curvature improve data
       efficiency", CVPR 2023.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from skorch import NeuralNetClassifier
    >>> net = NeuralNetClassifier(torch.nn.Linear, module__in_features=2,
    ...     module__out_features=2, criterion=torch.nn.CrossEntropyLoss).initialize()
    >>> X, y = np.eye(2, dtype=np.float32), np.array([0, 1])
    >>> mean_input_curvature(net, X, y, random_state=0) >= 0
    True
    """
    return measure_members(
        _curvatures,
        net,
        X,
        y,
        batch_size=batch_size,
        n_batches=n_batches,
        random_state=random_state,
        per_member=per_member,
        return_batches=return_batches,
        step=step,
        n_directions=n_directions,
        directions=directions,
    )
