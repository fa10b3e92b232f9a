"""Overlap of the members' sharpness-aware sets."""

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting._base import (
    NAME_WIDTH,
    Display,
    check_fitted,
    check_names,
    draw_cells,
    wrapped,
)

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
    member_names : sequence of str, default=None
        Name of each member; numbered if None.

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

    def __init__(self, overlap, *, member_names=None):
        self.overlap = overlap
        self.member_names = member_names

    @classmethod
    def from_estimator(cls, estimator, *, member_names=None, **kwargs):
        """Plot the sets of a fitted ensemble.

        Parameters
        ----------
        estimator : fitted ensemble with ``sam_masks_``
            It may be the last step of a pipeline, or the best estimator of a search.
        member_names : sequence of str, default=None
            Name of each member; numbered if None.
        **kwargs
            Passed to :meth:`plot`.
        """
        overlap = subset_overlap(check_fitted(estimator, "sam_masks_").sam_masks_)
        return cls(overlap, member_names=member_names).plot(**kwargs)

    def plot(self, ax=None, *, colorbar=True):
        """Draw the matrix of overlaps.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        colorbar : bool, default=True
            Whether to draw the scale of the colours.
        """
        matrix = np.asarray(self.overlap, dtype=float)
        M = len(matrix)
        if matrix.shape != (M, M) or M == 0:
            raise InvalidInputError(
                f"overlap must have shape (n_members, n_members), got {matrix.shape}."
            )
        names = check_names(self.member_names, M, "Member", first=0)
        ax = self._start(ax, _size(names), square=True)
        self.im_, self.text_, self.colorbar_ = draw_cells(
            ax,
            matrix,
            np.vectorize("{:.2f}".format)(matrix),
            label="Jaccard index",
            colorbar=colorbar,
            vmin=0.0,
            vmax=1.0,
        )
        names = [wrapped(name, NAME_WIDTH) for name in names]
        ax.set_yticks(range(M), labels=names)
        ax.set_xticks(range(M), labels=names)
        if max(len(name) for name in names) * M > 24:
            ax.tick_params(axis="x", rotation=40)
            for tick_label in ax.get_xticklabels():
                tick_label.set(ha="right", rotation_mode="anchor")
        ax.set_title("Overlap of sharpness-aware sets")
        ax.figure.figure.draw_without_rendering()
        cell_width = ax.get_window_extent().width / M
        if self.text_[0, 0].get_window_extent().width > cell_width:
            for text in self.text_.flat:
                text.set_visible(False)
        return self


def _size(names):
    """Return the size in inches of a figure of a matrix with readable names."""
    scale = max(1.0, len(names) / 10)
    longest = min(max(map(len, names)), NAME_WIDTH)
    room = 0.08 * max(longest - 10, 0)  # for names longer than "Member 10"
    return 4.6 * scale + room, 3.8 * scale + 0.7 * room  # names below are slanted
