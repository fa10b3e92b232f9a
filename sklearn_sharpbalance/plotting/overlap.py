"""Overlap of the members' sharpness-aware sets, and their sharpest images."""

import numpy as np

from sklearn_sharpbalance._validation import needing
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

    Examples
    --------
    >>> subset_overlap([[True, True, False], [False, True, True]]).round(2)
    array([[1.  , 0.33],
           [0.33, 1.  ]])
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
    """Overlap of the members' sharpness-aware sets, and the sharpest images.

    Use :meth:`from_estimator` or :meth:`from_masks` to make one.

    Parameters
    ----------
    overlap : array-like of shape (n_members, n_members)
        Result of :func:`subset_overlap`.
    sharpness : array-like of shape (n_members, n_samples), default=None
        Scores of the samples, for :meth:`plot_hardest`.
    images : array-like of shape (n_samples, ...), default=None
        Images, grey (H, W) or with one or three channels, first or last.
    labels : array-like of shape (n_samples,), default=None
        Class of each image, for its title.
    member_names : sequence of str, default=None
        Name of each member; numbered if None.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    im_, colorbar_, text_ : matplotlib artists of the matrix
    axes_ : ndarray of matplotlib Axes
        Images of :meth:`plot_hardest`, one row per member.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from sklearn_sharpbalance.plotting import SubsetOverlapDisplay
    >>> masks = [[True, True, False, False], [False, True, True, True]]
    >>> SubsetOverlapDisplay.from_masks(masks).overlap
    array([[1.  , 0.25],
           [0.25, 1.  ]])
    """

    def __init__(
        self, overlap, *, sharpness=None, images=None, labels=None, member_names=None
    ):
        self.overlap = overlap
        self.sharpness = sharpness
        self.images = images
        self.labels = labels
        self.member_names = member_names

    @classmethod
    def from_estimator(cls, estimator, X=None, y=None, **kwargs):
        """Plot the sets of a fitted ensemble.

        Parameters
        ----------
        estimator : fitted ensemble with ``sam_masks_``
            It may be the last step of a pipeline, or the best estimator of a search.
        X : array-like of shape (n_samples, ...), default=None
            The training images, for :meth:`plot_hardest`.
        y : array-like of shape (n_samples,), default=None
            Class of each image.
        **kwargs
            Passed to :meth:`from_masks` and :meth:`plot`.
        """
        estimator = check_fitted(estimator, "sam_masks_")
        return cls.from_masks(
            estimator.sam_masks_,
            sharpness=getattr(estimator, "sharpness_", None),
            images=X,
            labels=y,
            **kwargs,
        )

    @classmethod
    def from_masks(
        cls,
        sam_masks,
        *,
        sharpness=None,
        images=None,
        labels=None,
        member_names=None,
        **kwargs,
    ):
        """Plot the overlap of known sets.

        Parameters
        ----------
        sam_masks : array-like of bool of shape (n_members, n_samples)
            Samples that each member applies SAM to.
        sharpness, images, labels, member_names
            See the class.
        **kwargs
            Passed to :meth:`plot`.
        """
        display = cls(
            subset_overlap(sam_masks),
            sharpness=sharpness,
            images=images,
            labels=labels,
            member_names=member_names,
        )
        return display.plot(**kwargs)

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

    def plot_hardest(self, n_images=8):
        """Draw the images with the highest sharpness, one row per member.

        Parameters
        ----------
        n_images : int, default=8
            Number of images per member.
        """
        with needing("matplotlib", "plot_hardest"):
            import matplotlib.pyplot as plt

        if self.sharpness is None or self.images is None:
            raise InvalidInputError(
                "plot_hardest needs sharpness and images. Pass both to the display, or "
                "X to from_estimator."
            )
        sharpness = np.asarray(self.sharpness)  # (M, N)
        if len(self.images) != sharpness.shape[1]:
            raise InvalidInputError(
                f"There are {len(self.images)} images but scores of "
                f"{sharpness.shape[1]} samples. Pass the samples that the members "
                "trained on, without those of the validation set."
            )
        chosen = np.argsort(-sharpness, axis=1, kind="stable")[:, :n_images]
        names = check_names(self.member_names, len(sharpness), "Member", first=0)
        rows, columns = chosen.shape
        self.figure_, self.axes_ = plt.subplots(
            rows,
            columns,
            squeeze=False,
            figsize=(0.5 + columns, 0.3 + 1.25 * rows),
            layout="constrained",
        )
        # Convert pandas objects, which would be indexed by label, not by position.
        labels = None if self.labels is None else np.asarray(self.labels)
        images = self.images.to_numpy() if hasattr(self.images, "iloc") else self.images
        for row, samples in enumerate(chosen):
            self.axes_[row, 0].set_ylabel(wrapped(names[row], 12), fontsize=10)
            for ax, sample in zip(self.axes_[row], samples):
                title = f"{sharpness[row, sample]:.3g}"
                if labels is not None:
                    title = f"{wrapped(str(labels[sample]), 16)}\n{title}"
                ax.imshow(as_image(images[sample]), cmap="gray")
                ax.set_title(title, fontsize=8)
                ax.set(xticks=[], yticks=[])
        self.figure_.suptitle("Sharpest samples")
        return self


def _size(names):
    """Return the size in inches of a figure of a matrix with readable names."""
    scale = max(1.0, len(names) / 10)
    longest = min(max(map(len, names)), NAME_WIDTH)
    room = 0.08 * max(longest - 10, 0)  # for names longer than "Member 10"
    return 4.6 * scale + room, 3.8 * scale + 0.7 * room  # names below are slanted


def as_image(values):
    """Return an image as ``imshow`` needs it: (H, W), or (H, W, 3) in [0, 1]."""
    image = np.asarray(values)
    if image.ndim == 3 and image.shape[0] in (1, 3) and image.shape[2] > 4:
        image = image.transpose(1, 2, 0)
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[..., 0]
    if image.ndim != 2 and image.shape[2:] != (3,):
        raise InvalidInputError(
            "An image must have shape (H, W), (C, H, W) or (H, W, C) with one or "
            f"three channels, got {np.shape(values)}."
        )
    if image.dtype == np.uint8 or image.ndim == 2:
        return image
    low, high = image.min(), image.max()
    if low >= 0 and high <= 1:
        return image
    return (image - low) / max(high - low, 1e-12)  # imshow would clip it
