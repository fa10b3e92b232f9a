"""Accuracy on corrupted pictures and tables, by kind and severity."""

import numpy as np

from sklearn_sharpbalance.corruption import SEVERITIES
from sklearn_sharpbalance.evaluation._corrupted import CorruptedSet, predict_corrupted
from sklearn_sharpbalance.evaluation._table import Table
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting import CorruptionDisplay

__all__ = ["CorruptionAccuracy", "corruption_accuracy"]


class CorruptionAccuracy(Table):
    """Accuracy by kind of corruption and severity, of the ensemble and its members.

    As a mapping: columns ``kind``, ``severity``, ``ensemble`` and ``members`` (the
    mean over them), one row for each corrupted set.

    Parameters
    ----------
    kinds : sequence of str of length K
        Names of the corruptions.
    severities : sequence of int of length S
        Severities, 1 to 5.
    ensemble : array-like of shape (K, S)
        Accuracy of the ensemble on each corrupted set.
    members : array-like of shape (M, K, S)
        Accuracy of each member.

    Attributes
    ----------
    kinds, severities : tuple
    ensemble_ : ndarray of shape (K, S)
    members_ : ndarray of shape (M, K, S)
    mean, member_mean : float
        cACC: the mean over kinds and severities.
    by_severity, member_by_severity : ndarray of shape (S,)
    by_kind, member_by_kind : ndarray of shape (K,)

    Examples
    --------
    >>> result = CorruptionAccuracy(["fog"], [1, 5], [[0.75, 0.25]], [[[0.5, 0.0]]])
    >>> result.mean, result.member_mean
    (0.5, 0.25)
    """

    def __init__(self, kinds, severities, ensemble, members):
        self.kinds, self.severities = tuple(kinds), tuple(severities)
        self.ensemble_ = np.asarray(ensemble, dtype=float)
        self.members_ = np.asarray(members, dtype=float)
        shape = (len(self.kinds), len(self.severities))
        if self.ensemble_.shape != shape or self.members_.shape[1:] != shape:
            raise InvalidInputError(
                f"{shape[0]} kinds and {shape[1]} severities need an ensemble of shape "
                f"{shape} and members of shape (M, {shape[0]}, {shape[1]}), got "
                f"{self.ensemble_.shape} and {self.members_.shape}."
            )
        super().__init__(
            {
                "kind": np.repeat(self.kinds, shape[1]),
                "severity": np.tile(self.severities, shape[0]),
                "ensemble": self.ensemble_.ravel(),
                "members": self.members_.mean(axis=0).ravel(),
            }
        )

    @property
    def mean(self) -> float:
        """Accuracy of the ensemble over all kinds and severities (cACC)."""
        return float(self.ensemble_.mean())

    @property
    def member_mean(self) -> float:
        """Accuracy of a member over all kinds and severities."""
        return float(self.members_.mean())

    @property
    def by_severity(self) -> np.ndarray:
        """Accuracy of the ensemble at each severity, over the kinds."""
        return self.ensemble_.mean(axis=0)

    @property
    def member_by_severity(self) -> np.ndarray:
        """Accuracy of a member at each severity."""
        return self.members_.mean(axis=(0, 1))

    @property
    def by_kind(self) -> np.ndarray:
        """Accuracy of the ensemble on each kind, over the severities."""
        return self.ensemble_.mean(axis=1)

    @property
    def member_by_kind(self) -> np.ndarray:
        """Accuracy of a member on each kind."""
        return self.members_.mean(axis=(0, 2))

    def display(self, ax=None, *, name="Ensemble", **kwargs):
        """Draw the accuracy by severity.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        name : str, default="Ensemble"
        **kwargs
            Passed to :meth:`~sklearn_sharpbalance.plotting.CorruptionDisplay.plot`.

        Returns
        -------
        display : CorruptionDisplay
        """
        display = CorruptionDisplay(
            self.by_severity[None],
            member_accuracy=self.member_by_severity[None],
            severities=self.severities,
            names=[name],
        )
        return display.plot(ax, **kwargs)


def corruption_accuracy(
    estimator,
    X,
    y,
    *,
    corruptions=None,
    severities=SEVERITIES,
    random_state=0,
):
    """Accuracy of an ensemble and its members on corrupted samples.

    Parameters
    ----------
    estimator : fitted classifier
        An ensemble of this package; of any other classifier the ensemble and its only
        member are the same. Pipelines and finished searches are looked into.
    X : array-like
        Clean pictures, uint8 of shape (N, H, W[, C]) or (N, C, H, W), or a table
        (N, F). Not used if ``corruptions`` is a mapping.
    y : array-like of shape (N,)
        Labels.
    corruptions : str, iterable of str or callable, mapping, True or None, default=None
        Kinds of corruption or groups of them; None, True or "all" is all fifteen for
        pictures, and all but "missing_nan" for tables. A mapping of (kind, severity)
        to samples and labels is taken as it is, such as
        :class:`~sklearn_sharpbalance.corruption.CorruptionFiles`.
    severities : int or sequence of int, default=(1, 2, 3, 4, 5)
    random_state : int, Generator, RandomState or None, default=0
        Draws the corruptions.

    Returns
    -------
    result : CorruptionAccuracy
        ``mean`` is the cACC of the ensemble, ``by_severity`` and ``by_kind`` its parts.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_sharpbalance.evaluation import corruption_accuracy
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = LogisticRegression(max_iter=500).fit(X, y)
    >>> result = corruption_accuracy(clf, X, y, corruptions=["feature_noise"])
    >>> result.ensemble_.shape
    (1, 5)
    >>> bool(result.by_severity[0] > result.by_severity[4])
    True
    """
    (sets,) = predict_corrupted(
        [estimator], X, y, corruptions, severities, random_state
    )
    return accuracy_of(sets)


def accuracy_of(sets: list[CorruptedSet]) -> CorruptionAccuracy:
    """Accuracy of each set."""
    kinds = list(dict.fromkeys(one.kind for one in sets))
    severities = list(dict.fromkeys(one.severity for one in sets))
    shape = (len(kinds), len(severities))
    right = np.stack([one.right.mean(axis=1) for one in sets], axis=1)  # (M + 1, K * S)
    return CorruptionAccuracy(
        kinds,
        severities,
        right[-1].reshape(shape),
        right[:-1].reshape(len(right) - 1, *shape),
    )
