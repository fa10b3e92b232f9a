"""Fit a straight line to the points of a trade-off."""

from typing import NamedTuple

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["TradeoffFit", "fit_tradeoff"]


class TradeoffFit(NamedTuple):
    """Line ``diversity = intercept + slope * sharpness``; of logarithms if ``log``.

    Attributes
    ----------
    slope, intercept : float
        The line; ``slope`` is the paper's beta.
    log : bool
        Whether it was fitted to logarithms.
    """

    slope: float
    intercept: float
    log: bool

    def __call__(self, sharpness):
        """Return the diversity on the line."""
        x = np.asarray(sharpness, dtype=float)
        if self.log:
            return np.exp(self.intercept + self.slope * np.log(x))
        return self.intercept + self.slope * x


def fit_tradeoff(sharpness, diversity, *, log=False):
    """Fit the least-squares line of diversity on sharpness.

    Parameters
    ----------
    sharpness, diversity : array-like of shape (n_ensembles,)
        One value of each per ensemble.
    log : bool, default=False
        Fit the logarithms, for a straight line in a log-log plot.

    Returns
    -------
    fit : TradeoffFit or None
        ``slope`` (the paper's beta) and ``intercept``; None with fewer than two
        different values of sharpness.

    Examples
    --------
    >>> fit_tradeoff([1.0, 2.0, 3.0], [1.0, 3.0, 5.0]).slope.round(6)
    np.float64(2.0)
    """
    x, y = np.asarray(sharpness, dtype=float), np.asarray(diversity, dtype=float)
    if log:
        if min(x.min(), y.min()) <= 0:
            raise InvalidInputError(
                "log=True needs positive sharpness and diversity, got a smallest value "
                f"of {min(x.min(), y.min()):.3g}."
            )
        x, y = np.log(x), np.log(y)
    if np.ptp(x) == 0:
        return None
    slope, intercept = np.polyfit(x, y, 1)
    return TradeoffFit(slope, intercept, log)
