"""Flatness in the input: the mean curvature of the loss around the samples."""

from functools import partial

from sklearn_sharpbalance.metrics.flatness._members import measure_members
from sklearn_sharpbalance.sharpness.input_curvature import input_curvature

__all__ = ["mean_input_curvature"]


def _curvatures(batches, **options):
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
    net : NeuralNetClassifier or ensemble
        An initialised skorch net, or a fitted ensemble (``estimators_``,
        ``classes_``), whose members are measured one by one. It is not changed.
    X : array, tensor, dict of those, or Dataset
        Samples as the net takes them.
    y : array-like of shape (n_samples,)
        Class codes, or labels for an ensemble.
    step : float, default=1e-3
        Length of the finite difference.
    n_directions : int, default=10
        Random directions, the same for all samples and members.
    directions : {"rademacher", "sign_gradient"}, default="rademacher"
        Random signs, or the sign of the sample's own gradient.
    batch_size : int, default=128
        Samples per batch; it only matters for ``return_batches``.
    n_batches : int or None, default=None
        Number of disjoint random batches; None takes all samples.
    random_state : int, Generator, RandomState or None, default=None
        Draws batches and directions.
    per_member, return_batches : bool, default=False
        Return a value for each member, for each batch, or for both.

    Returns
    -------
    float or ndarray
        Not negative.

    Notes
    -----
    The mean over samples of what
    :func:`sklearn_sharpbalance.sharpness.input_curvature` gives for each.

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
    measure = partial(
        _curvatures, step=step, n_directions=n_directions, directions=directions
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
