"""Fitted attributes of an estimator whose fit fails."""

import warnings

from sklearn_sharpbalance.exceptions import SharpBalanceWarning

__all__ = ["FittedState"]


class FittedState:
    """Context that restores the fitted attributes if a fit fails.

    If the estimator was not fitted before, the usable state of an interrupted fit is
    kept.

    Parameters
    ----------
    estimator : BaseDeepEnsemble

    Attributes
    ----------
    usable_epochs : int
        Epochs of the usable state after an interrupted fit; 0 if there is none.
    """

    def __init__(self, estimator):
        self.estimator, self.usable_epochs = estimator, 0
        self.before = self._attributes()

    def _attributes(self):
        return {k: v for k, v in vars(self.estimator).items() if k.endswith("_")}

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is None:
            return
        if self.usable_epochs and "estimators_" not in self.before:
            warnings.warn(
                "The fit was interrupted. The ensemble is usable in its state after "
                f"epoch {self.usable_epochs}, the last one that all members have "
                "completed, or the best one with early stopping.",
                SharpBalanceWarning,
                stacklevel=4,
            )
            return
        for name in self._attributes():
            delattr(self.estimator, name)
        vars(self.estimator).update(self.before)
