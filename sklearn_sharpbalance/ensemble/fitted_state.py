"""What an estimator keeps when a fit fails."""

import warnings

from sklearn_sharpbalance.exceptions import SharpBalanceWarning

__all__ = ["FittedState"]


class FittedState:
    """Around a fit: leaves what was fitted before untouched if the fit fails.

    Where nothing was fitted before, an interrupted fit may leave a part of itself.

    Parameters
    ----------
    estimator : BaseDeepEnsemble

    Attributes
    ----------
    usable_epochs : int
        Epochs of the usable state that an interrupted fit has given the estimator.
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
                "The fit was interrupted. The ensemble is usable as it was after epoch "
                f"{self.usable_epochs}, the last that all members had finished "
                "together, or the best of those with early stopping.",
                SharpBalanceWarning,
                stacklevel=4,
            )
            return
        for name in self._attributes():
            delattr(self.estimator, name)
        vars(self.estimator).update(self.before)
