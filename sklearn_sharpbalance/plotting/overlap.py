"""Overlap of the members' sharpness-aware sets."""

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting._base import Display, check_fitted, draw_cells

__all__ = ["SubsetOverlapDisplay", "subset_overlap"]


def subset_overlap(sam_masks):
    r"""Return the Jaccard index of each pair of sharpness-aware sets.

    Parameters
    ----------
    sam_masks : array-like of bool of shape (n_members, n_samples)

    Returns
    -------
    ndarray of shape (n_members, n_members)
        :math:`|A_i \cap A_j| / |A_i \cup A_j|`; 1.0 if both sets are empty.
    """
    masks = np.asarray(sam_masks)
    if masks.ndim != 2 or masks.dtype != bool:
        raise InvalidInputError(
            "sam_masks must be a boolean array of shape (n_members, n_samples), got "
            f"{masks.dtype} of shape {masks.shape}."
        )
    both = masks.astype(np.float64) @ masks.T.astype(np.float64)  # (M, M)
    sizes = np.diag(both)
    either = np.add.outer(sizes, sizes) - both
    return np.where(either == 0, 1.0, both / np.maximum(either, 1))


class SubsetOverlapDisplay(Display):
    """Overlap of the members' sharpness-aware sets.

    Use :meth:`from_estimator` to make one, or pass the overlap of known sets.

    Parameters
    ----------
    overlap : array-like of shape (n_members, n_members)
        Result of :func:`subset_overlap`.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    im_, colorbar_, text_ : matplotlib artists of the matrix

    Examples
    --------
    >>> from sklearn_sharpbalance.plotting import SubsetOverlapDisplay, subset_overlap
    >>> overlap = subset_overlap([[True, True, False], [False, True, True]])
    >>> SubsetOverlapDisplay(overlap).plot().text_[0, 1].get_text()
    '0.33'
    """

    def __init__(self, overlap):
        self.overlap = overlap

    @classmethod
    def from_estimator(cls, estimator, **kwargs):
        """Plot the sets of a fitted ensemble.

        Parameters
        ----------
        estimator : fitted ensemble with ``sam_masks_``
            It may be the last step of a pipeline, or the best estimator of a search.
        **kwargs
            Passed to :meth:`plot`.
        """
        overlap = subset_overlap(check_fitted(estimator, "sam_masks_").sam_masks_)
        return cls(overlap).plot(**kwargs)

    def plot(self, ax=None):
        """Draw the matrix of overlaps.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        """
        matrix = np.asarray(self.overlap, dtype=float)
        M = len(matrix)
        if matrix.shape != (M, M) or M == 0:
            raise InvalidInputError(
                f"overlap must have shape (n_members, n_members), got {matrix.shape}."
            )
        scale = max(1.0, M / 10)
        ax = self._start(ax, (4.6 * scale, 3.8 * scale), square=True)
        self.im_, self.text_, self.colorbar_ = draw_cells(
            ax,
            matrix,
            np.vectorize("{:.2f}".format)(matrix),
            label="Jaccard index",
            vmin=0.0,
            vmax=1.0,
        )
        ax.set(xticks=range(M), yticks=range(M), xlabel="Member", ylabel="Member")
        ax.set_title("Overlap of sharpness-aware sets")
        return self
