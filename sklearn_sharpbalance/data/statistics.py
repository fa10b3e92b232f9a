"""Center and scale of features, and a check of float32 rounding."""

import math
import warnings

import numpy as np
import torch

from sklearn_sharpbalance.exceptions import SharpBalanceWarning

__all__ = [
    "class_steps",
    "column_blocks",
    "linear_pieces",
    "moments",
    "piecewise_linear",
    "quantiles",
    "quartiles",
    "relevance",
    "rounded_columns",
    "row_blocks",
    "scale_or_one",
    "soft_clip",
    "warn_of_columns",
    "warn_of_rounding",
]

BLOCK_SIZE = 2**20  # numbers that are converted to float64 at once
ROUNDING = np.finfo(np.float64).eps  # of the sums in a standard deviation
MAX_ROUNDING = 0.01  # largest rounding error without a warning, in standard deviations
MAX_ROWS = 2**16  # rows from which quartiles are computed
MAX_NAMED = 10  # columns that a warning names
NORMAL_RANGE = 1.349  # interquartile range of the standard normal distribution
LEAST_RELEVANCE = 0.005  # larger values let the network fit noise
TREE_ROWS = 2**12  # rows from which the relevance is computed
TREE_FEATURES = 100  # features that a split of a tree tries
FAR = 200  # bounds beyond which a value is cut before it is squared
LARGEST = 1e30  # infinity times a slope of zero is no number
STEP_ROWS = 2**14  # rows from which steps are computed
SHORTEST = 1e-4  # of a step, in the scale of its column
PIECE_HEIGHT = 0.5  # largest value of a piece; scaled values are about one


def moments(X, weight=None):
    """Return mean and standard deviation of each feature in float64.

    Of images (N, C, H, W) they are those of each channel. A sample of weight two counts
    twice; samples of weight zero are ignored. ``StandardScaler.partial_fit`` is not
    used: it takes four times as long, and needs the same center and blocks for constant
    columns and large images.

    Examples
    --------
    >>> moments(np.array([[1.0], [3.0], [9.0]]), weight=[1, 1, 0])
    (array([2.]), array([1.]))
    """
    axes = (0, 2, 3) if X.ndim == 4 else (0,)
    if weight is None or not np.any(weight):
        weight = np.ones(len(X))
    weight = np.asarray(weight, dtype=np.float64)
    # Subtract a center, the first sample that counts, to avoid cancellation.
    first = int(np.argmax(weight > 0))
    # In C order, so that sums do not depend on the strides of a memory map.
    center = X[first : first + 1].astype(np.float64, order="C")
    center = center.mean(axis=axes, keepdims=True)
    total, total_squares = 0.0, 0.0
    for block, block_weight in _blocks(X, weight):
        centered = block.astype(np.float64, order="C") - center
        weighted = centered * block_weight.reshape(-1, *[1] * (X.ndim - 1))
        total = total + weighted.sum(axis=axes)
        weighted *= centered
        total_squares = total_squares + weighted.sum(axis=axes)
    n_values = weight.sum() * (X[0].size // center.size)  # per feature or channel
    mean = total / n_values
    variance = np.maximum(total_squares / n_values - mean**2, 0.0)
    return mean + center.reshape(mean.shape), np.sqrt(variance)


def quartiles(X, weight=None):
    """Return median and scale of each column in float64, which outliers hardly change.

    The scale is the interquartile range, divided by that of the standard normal
    distribution. If half of the values are equal and it is zero, it is half the
    distance between the smallest and the largest value.

    Examples
    --------
    >>> X = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [900.0, 4.0]])
    >>> quartiles(X, weight=[1, 1, 1, 1])
    (array([2., 0.]), array([1.48257969, 2.        ]))
    """
    low, first, median, third, high = quantiles(X, [0, 0.25, 0.5, 0.75, 1], weight)
    scale = np.where(third > first, (third - first) / NORMAL_RANGE, (high - low) / 2)
    return median, scale


def quantiles(X, shares, weight=None):
    """Return quantiles (S, F) of each column, the smallest values that reach a share.

    Of many rows, some evenly spaced ones are used.

    Examples
    --------
    >>> quantiles(np.array([[1.0], [2.0], [9.0]]), [0, 0.5, 1]).ravel()
    array([1., 2., 9.])
    """
    rows, weight = _some_rows(len(X), weight, MAX_ROWS)
    found = np.empty((len(shares), X.shape[1]))
    for columns in column_blocks(X):
        block = X[rows, columns]  # (n_rows, n_columns)
        order = np.argsort(block, axis=0)
        for j, column in enumerate(range(columns.start, columns.stop)):
            values, total = block[order[:, j], j], np.cumsum(weight[order[:, j]])
            # The smallest value that at least this share of the weight does not exceed.
            reached = np.asarray(shares, dtype=np.float64) * total[-1]
            places = np.searchsorted(total, reached * (1.0 - 1e-12))
            found[:, column] = values[np.minimum(places, len(values) - 1)]
    return found


def _some_rows(n_rows, weight, limit):
    """Return up to ``limit`` evenly spaced rows of positive weight, and their weights.

    If there is no positive weight, all rows have weight one.
    """
    if weight is None or not np.any(weight):
        weight = np.ones(n_rows)
    weight = np.asarray(weight, dtype=np.float64)
    rows = np.flatnonzero(weight > 0)
    rows = rows[:: -(-len(rows) // limit)]
    return rows, weight[rows]


def linear_pieces(Z, n_pieces, weight=None):
    """Return the pieces of a piecewise linear encoding, (3, F * n_pieces).

    They lie between quantiles of the columns of ``Z`` (N, F). The rows are column,
    lower end and slope of each piece. A piece between equal quantiles has slope zero.

    Examples
    --------
    >>> Z = np.array([[0.0], [1.0], [1.0], [5.0]])
    >>> linear_pieces(Z, 3)
    array([[0.  , 0.  , 0.  ],
           [0.  , 1.  , 1.  ],
           [1.  , 0.  , 0.25]])
    """
    knots = quantiles(Z, np.linspace(0, 1, n_pieces + 1), weight).T  # (F, n_pieces + 1)
    low, width = knots[:, :-1], np.diff(knots, axis=1)
    slope = np.divide(1.0, width, out=np.zeros_like(width), where=width > 0)
    columns = np.repeat(np.arange(Z.shape[1]), n_pieces)
    return np.stack([columns, low.ravel(), slope.ravel()])


def class_steps(Z, y, n_steps, weight=None):
    """Return pieces (3, S) that rise where the classes change within a column.

    A step lies between neighbouring values of a column of ``Z`` (N, F), at a split of a
    decision tree of this column alone. A split must lower the log-loss by more than its
    parameters cost in the Bayesian information criterion. A column of two values has no
    step, since it is one itself.

    Examples
    --------
    >>> Z = np.arange(200.0)[:, np.newaxis]
    >>> class_steps(Z, Z[:, 0] > 120, n_steps=4)
    array([[  0.],
           [120.],
           [  1.]])
    """
    from sklearn.tree import DecisionTreeClassifier

    rows, weight = _some_rows(len(Z), weight, STEP_ROWS)
    Z, y = Z[rows].clip(-LARGEST, LARGEST).astype(np.float32), y[rows]
    # A threshold, and the shares of the classes, in bits for each row.
    cost = len(np.unique(y)) * math.log2(len(rows)) / (2 * len(rows))
    tree = DecisionTreeClassifier(
        criterion="log_loss",
        max_leaf_nodes=n_steps + 1,
        min_impurity_decrease=cost,
        random_state=0,
    )
    found = [np.empty((3, 0))]
    for column in range(Z.shape[1]):
        values = np.unique(Z[:, column])
        if len(values) < 3:
            continue
        nodes = tree.fit(Z[:, [column]], y, sample_weight=weight).tree_
        thresholds = np.sort(nodes.threshold[nodes.feature >= 0])
        above = np.searchsorted(values, thresholds, side="right")
        low, high = values[above - 1], values[above]
        slope = 1 / np.maximum(high - low, SHORTEST)
        found.append(np.stack([np.full(len(low), column), low, slope]))
    return np.hstack(found)


def piecewise_linear(values, pieces):
    """Return the part of each piece (3, P) that lies below the value of its column.

    It rises from 0 at the lower end of a piece to a constant at its upper end. A linear
    layer of these inputs (..., P) is a piecewise linear function of the column.

    Examples
    --------
    >>> pieces = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.25]])
    >>> piecewise_linear(torch.tensor([[0.5], [3.0]]), pieces) / PIECE_HEIGHT
    tensor([[0.5000, 0.0000],
            [1.0000, 0.5000]])
    """
    column, low, slope = pieces
    finite = values.clamp(-LARGEST, LARGEST)
    below = torch.index_select(finite, -1, column.long()) - low
    return (below * (PIECE_HEIGHT * slope)).clamp(0.0, PIECE_HEIGHT)


def column_blocks(X):
    """Return slices of columns, such that a block has a bounded size.

    Examples
    --------
    >>> column_blocks(np.zeros((3, 4)))
    [slice(0, 4, None)]
    """
    n_rows, n_columns = X.shape
    width = max(1, BLOCK_SIZE // 4 // max(1, n_rows))  # there are copies of a block
    return [
        slice(first, min(first + width, n_columns))
        for first in range(0, n_columns, width)
    ]


def row_blocks(X):
    """Return slices of rows, such that a block has a bounded size.

    Examples
    --------
    >>> row_blocks(np.zeros((3, 2**19)))
    [slice(0, 2, None), slice(2, 4, None)]
    """
    n_rows = max(1, BLOCK_SIZE // max(1, math.prod(X.shape[1:])))
    return [slice(start, start + n_rows) for start in range(0, len(X), n_rows)]


def soft_clip(values, bound):
    """Return ``z / sqrt(1 + (z / bound)**2)`` of each value z of a tensor.

    Small values hardly change, and no value exceeds the bound. Values beyond 200
    bounds have the same result, since their square overflows, in half precision first.

    Examples
    --------
    >>> soft_clip(torch.tensor([0.1, 1.0, 1000.0]), 3.0)
    tensor([0.0999, 0.9487, 3.0000])
    """
    z = values.clamp(-FAR * bound, FAR * bound)
    return z / torch.sqrt(1.0 + torch.square(z / bound))


def relevance(X, y, weight=None, columns=slice(None)):
    """Return how much each feature helps to separate the classes, alone or with others.

    It is ``1 - c / i`` and at least 0.005, with the decrease i of the impurity by a
    feature in extremely randomised trees, and the largest decrease c by any feature if
    the labels are shuffled. ``columns`` are the features of the trees and of the
    result.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(200, 50))
    >>> y = (X[:, 3] + X[:, 7] > 0).astype(int)
    >>> np.flatnonzero(relevance(X, y) > 0.5)
    array([3, 7])
    """
    from sklearn.ensemble import ExtraTreesClassifier

    rows, weight = _some_rows(len(X), weight, TREE_ROWS)
    X, y = X[rows][:, columns], y[rows]
    shuffled = np.random.default_rng(0).permutation(len(y))
    trees = ExtraTreesClassifier(
        n_estimators=50,
        min_samples_leaf=5,
        max_features=min(X.shape[1], TREE_FEATURES),
        n_jobs=torch.get_num_threads(),
        random_state=0,
    )
    noise = _decrease(trees.fit(X, y[shuffled], sample_weight=weight)).max()
    decrease = _decrease(trees.fit(X, y, sample_weight=weight))
    share = noise / np.maximum(decrease, max(noise, np.finfo(np.float64).tiny))
    return np.maximum(1 - share, LEAST_RELEVANCE)


def _decrease(trees):
    """Return how much each feature decreases the impurity, in the mean over trees.

    ``feature_importances_`` sums to one: if many features share the information, each
    has as little as with shuffled labels.
    """
    parts = [
        tree.tree_.compute_feature_importances(normalize=False)
        for tree in trees.estimators_
    ]
    return np.mean(parts, axis=0)


def _blocks(X, weight):
    """Yield parts of X of a bounded size and the weights of their samples.

    A part has some samples, or some lines of one large image.
    """
    sample_size = max(1, X[0].size)
    for rows in row_blocks(X):
        if X.ndim < 4:
            yield X[rows], weight[rows]
            continue
        height = X.shape[2]
        n_lines = max(
            1, height * BLOCK_SIZE // ((rows.stop - rows.start) * sample_size)
        )
        for line in range(0, height, n_lines):
            yield X[rows, :, line : line + n_lines], weight[rows]


def scale_or_one(mean, scale):
    """Return the scale to divide by: one for a feature that does not vary.

    Examples
    --------
    >>> scale_or_one(np.array([5.0, 1e-9]), np.array([0.0, 1e-10]))
    array([1.e+00, 1.e-10])
    """
    # A device may treat a number below the normal ones of float32 as zero.
    is_zero = (scale <= ROUNDING * np.abs(mean)) | (scale < np.finfo(np.float32).tiny)
    return np.where(is_zero, 1.0, scale)


def warn_of_rounding(X, names=None):
    """Warn if float32, which members compute in, rounds away a feature of X.

    For example, a standard deviation of one around 1e8 is smaller than the distance
    between two neighbouring float32 numbers.
    """
    X = np.asarray(X)
    columns = rounded_columns(X.reshape(len(X), -1))
    warn_of_columns([str(i) if names is None else repr(names[i]) for i in columns])


def warn_of_columns(columns):
    """Warn that float32 rounds away the columns of these names, if there are any."""
    if not columns:
        return
    named = columns[:MAX_NAMED]
    if len(columns) > MAX_NAMED:
        named = [*named, "..."]
    warnings.warn(
        f"Members compute in float32, which rounds {len(columns)} column(s) of X by "
        f"more than {MAX_ROUNDING:.0%} of their standard deviation, since that is "
        f"small compared to their mean: {', '.join(named)}. Centre and scale X in "
        "float64 first, for example with make_pipeline(StandardScaler(), ...).",
        SharpBalanceWarning,
        stacklevel=2,
    )


def rounded_columns(X):
    """Return the columns of (N, F) with a large rounding error for their deviation."""
    if X.dtype.kind not in "iuf" or np.can_cast(X.dtype, np.float32) or not len(X):
        return []
    mean, scale = moments(X)
    info = np.finfo(np.float32)
    bound = info.eps / 2 * np.hypot(mean, scale) + float(info.smallest_subnormal)
    varies = scale > ROUNDING * np.abs(mean)
    is_suspect = varies & (bound > MAX_ROUNDING * scale)
    rounded = []
    for column in np.flatnonzero(is_suspect):
        values = X[:, column].astype(np.float64)
        error = values - values.astype(np.float32)
        if np.sqrt(np.square(error).mean()) > MAX_ROUNDING * scale[column]:
            rounded.append(int(column))
    return rounded
