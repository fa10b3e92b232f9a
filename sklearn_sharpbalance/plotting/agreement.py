"""How often each pair of members predicts different classes."""

import numpy as np

from sklearn_sharpbalance.metrics import pairwise_disagreement
from sklearn_sharpbalance.plotting._base import (
    SEQUENTIAL,
    Display,
    check_member_names,
    check_square,
    draw_matrix,
    matrix_size,
)
from sklearn_sharpbalance.plotting._ensembles import member_probas_of

__all__ = ["MemberAgreementDisplay"]


class MemberAgreementDisplay(Display):
    """Matrix of the members' pairwise disagreement.

    Use :meth:`from_estimator` or :meth:`from_predictions` to make one.

    Parameters
    ----------
    disagreement : array-like of shape (n_members, n_members)
        Share of samples on which two members predict different classes.
    member_names : sequence of str, default=None
        Name of each member; numbered if None.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    im_ : matplotlib AxesImage
    text_ : ndarray of shape (n_members, n_members) of matplotlib Text
    colorbar_ : matplotlib Colorbar or None

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from sklearn_sharpbalance.plotting import MemberAgreementDisplay
    >>> probas = [[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.3, 0.7]]]
    >>> MemberAgreementDisplay.from_predictions(probas).disagreement
    array([[0. , 0.5],
           [0.5, 0. ]])
    """

    def __init__(self, disagreement, *, member_names=None):
        self.disagreement = disagreement
        self.member_names = member_names

    @classmethod
    def from_estimator(cls, estimator, X, *, member_names=None, ax=None, **kwargs):
        """Plot the disagreement of a fitted ensemble's members on ``X``.

        Parameters
        ----------
        estimator : fitted ensemble, or a pipeline or search that ends in one
        X : array-like of shape (n_samples, ...)
        member_names : sequence of str, default=None
            Name of each member; numbered if None.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : MemberAgreementDisplay
        """
        probas = member_probas_of(estimator, X)
        return cls.from_predictions(probas, member_names=member_names, ax=ax, **kwargs)

    @classmethod
    def from_predictions(cls, member_probas, *, member_names=None, ax=None, **kwargs):
        """Plot the disagreement of members whose probabilities are known.

        Parameters
        ----------
        member_probas : array-like of shape (n_members, n_samples, n_classes)
        member_names : sequence of str, default=None
            Name of each member; numbered if None.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : MemberAgreementDisplay
        """
        matrix = pairwise_disagreement(member_probas)
        return cls(matrix, member_names=member_names).plot(ax, **kwargs)

    def plot(self, ax=None, *, cmap=SEQUENTIAL, vmin=0.0, vmax=None, colorbar=True):
        """Draw the matrix.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        cmap : str or Colormap, default="cividis"
            Colours of the values.
        vmin, vmax : float, default=0.0, None
            Limits of the colours; pass them to compare ensembles. ``vmax=None`` is the
            largest value.
        colorbar : bool, default=True
            Whether to draw the scale of the colours.

        Returns
        -------
        display : MemberAgreementDisplay
        """
        matrix = np.asarray(self.disagreement, dtype=float)
        check_square(matrix, "disagreement")
        names = check_member_names(self.member_names, len(matrix))
        if vmax is None:
            vmax = matrix.max() if matrix.max() > 0 else 1.0  # 0 if all members agree
        ax = self._start(ax, matrix_size(names), square=True)
        self.im_, self.colorbar_, self.text_ = draw_matrix(
            ax,
            matrix,
            names,
            label="Share of samples",
            vmin=vmin,
            vmax=vmax,
            cmap=cmap,
            colorbar=colorbar,
        )
        ax.set_title("Disagreement of members")
        return self
