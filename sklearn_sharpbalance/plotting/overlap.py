"""Overlap of the members' sharpness-aware sets, and their sharpest pictures."""

import numpy as np

from sklearn_sharpbalance._validation import needing
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.plotting._base import (
    SEQUENTIAL,
    Display,
    check_member_names,
    check_square,
    draw_matrix,
    matrix_size,
    wrapped,
)
from sklearn_sharpbalance.plotting._ensembles import check_ensemble, found_estimator

__all__ = ["SubsetOverlapDisplay", "subset_overlap"]


def subset_overlap(sam_masks, *, measure="jaccard"):
    r"""Return the overlap of each pair of sharpness-aware sets.

    Parameters
    ----------
    sam_masks : array-like of bool of shape (n_members, n_samples)
    measure : {"jaccard", "share"}, default="jaccard"
        :math:`|A_i \cap A_j| / |A_i \cup A_j|`, or :math:`|A_i \cap A_j| / |A_i|`.

    Returns
    -------
    ndarray of shape (n_members, n_members)
        If the divisor is zero: 1.0 if both sets are empty, else 0.0.

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
    _check_measure(measure)
    both = masks.astype(np.float64) @ masks.T.astype(np.float64)  # (M, M)
    sizes = np.diag(both)
    divisor = sizes[:, None]
    if measure == "jaccard":
        divisor = divisor + sizes - both
    both_empty = np.logical_and.outer(sizes == 0, sizes == 0)
    return np.where(both_empty, 1.0, both / np.maximum(divisor, 1))


def _check_measure(measure):
    """Raise if the measure is unknown."""
    if measure not in ("jaccard", "share"):
        raise InvalidInputError(
            f"measure must be 'jaccard' or 'share', got {measure!r}."
        )


class SubsetOverlapDisplay(Display):
    """Overlap of the members' sharpness-aware sets, and the sharpest pictures.

    Use :meth:`from_estimator` or :meth:`from_masks` to make one.

    Parameters
    ----------
    overlap : array-like of shape (n_members, n_members)
        Result of :func:`subset_overlap`.
    measure : {"jaccard", "share"}, default="jaccard"
        Measure of the overlap, for the label.
    sharpness : array-like of shape (n_members, n_samples), default=None
        Scores of the samples, for :meth:`plot_hardest`.
    images : array-like of shape (n_samples, ...), default=None
        Pictures, grey (H, W) or with one or three channels, first or last.
    labels : array-like of shape (n_samples,), default=None
        Class of each picture, for its title.
    member_names : sequence of str, default=None
        Name of each member; numbered if None.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure
    im_, colorbar_, text_ : matplotlib artists of the matrix
    axes_ : ndarray of matplotlib Axes
        Pictures of :meth:`plot_hardest`, one row per member.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from sklearn_sharpbalance.plotting import SubsetOverlapDisplay
    >>> masks = [[True, True, False], [False, True, True]]
    >>> SubsetOverlapDisplay.from_masks(masks, measure="share").overlap
    array([[1. , 0.5],
           [0.5, 1. ]])
    """

    def __init__(
        self,
        overlap,
        *,
        measure="jaccard",
        sharpness=None,
        images=None,
        labels=None,
        member_names=None,
    ):
        self.overlap = overlap
        self.measure = measure
        self.sharpness = sharpness
        self.images = images
        self.labels = labels
        self.member_names = member_names

    @classmethod
    def from_estimator(cls, estimator, X=None, y=None, *, ax=None, **kwargs):
        """Plot the sets of a fitted ensemble.

        Parameters
        ----------
        estimator : fitted ensemble with ``sam_masks_``
            It may be the last step of a pipeline, or the best estimator of a search.
        X : array-like of shape (n_samples, ...), default=None
            The training pictures, for :meth:`plot_hardest`.
        y : array-like of shape (n_samples,), default=None
            Class of each picture.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        **kwargs
            Passed to :meth:`from_masks`.

        Returns
        -------
        display : SubsetOverlapDisplay
        """
        estimator = found_estimator(estimator)
        check_ensemble(estimator, "sam_masks_")
        sharpness = getattr(estimator, "sharpness_", None)
        return cls.from_masks(
            estimator.sam_masks_,
            sharpness=sharpness,
            images=X,
            labels=y,
            ax=ax,
            **kwargs,
        )

    @classmethod
    def from_masks(
        cls,
        sam_masks,
        *,
        measure="jaccard",
        sharpness=None,
        images=None,
        labels=None,
        member_names=None,
        ax=None,
        **kwargs,
    ):
        """Plot the overlap of known sets.

        Parameters
        ----------
        sam_masks : array-like of bool of shape (n_members, n_samples)
            Samples that each member applies SAM to.
        measure, sharpness, images, labels, member_names
            See the class.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        **kwargs
            Passed to :meth:`plot`.

        Returns
        -------
        display : SubsetOverlapDisplay
        """
        display = cls(
            subset_overlap(sam_masks, measure=measure),
            measure=measure,
            sharpness=sharpness,
            images=images,
            labels=labels,
            member_names=member_names,
        )
        return display.plot(ax, **kwargs)

    def plot(self, ax=None, *, cmap=SEQUENTIAL, vmin=0.0, vmax=1.0, colorbar=True):
        """Draw the matrix of overlaps.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a new figure.
        cmap : str or Colormap, default="cividis"
            Colours of the values.
        vmin, vmax : float, default=0.0, 1.0
            Limits of the colours.
        colorbar : bool, default=True
            Whether to draw the scale of the colours.

        Returns
        -------
        display : SubsetOverlapDisplay
        """
        matrix = np.asarray(self.overlap, dtype=float)
        check_square(matrix, "overlap")
        _check_measure(self.measure)
        names = check_member_names(self.member_names, len(matrix))
        ax = self._start(ax, matrix_size(names), square=True)
        labels = {"jaccard": "Jaccard index", "share": "Share of the row's set"}
        self.im_, self.colorbar_, self.text_ = draw_matrix(
            ax,
            matrix,
            names,
            label=labels[self.measure],
            vmin=vmin,
            vmax=vmax,
            cmap=cmap,
            colorbar=colorbar,
        )
        ax.set_title("Overlap of sharpness-aware sets")
        return self

    def plot_hardest(self, n_images=8, *, highest=True):
        """Draw the pictures with the highest sharpness, one row per member.

        Parameters
        ----------
        n_images : int, default=8
            Number of pictures per member.
        highest : bool, default=True
            Draw the pictures with the highest sharpness; False draws the lowest.

        Returns
        -------
        display : SubsetOverlapDisplay
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
                "trained on, without those held out for validation."
            )
        order = np.argsort(-sharpness if highest else sharpness, axis=1, kind="stable")
        chosen = order[:, :n_images]
        names = check_member_names(self.member_names, len(sharpness))
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
        images = self.images
        if hasattr(images, "iloc"):
            images = images.to_numpy()
        for row, samples in enumerate(chosen):
            self.axes_[row, 0].set_ylabel(wrapped(names[row], 12), fontsize=10)
            for ax, sample in zip(self.axes_[row], samples):
                title = f"{sharpness[row, sample]:.3g}"
                if labels is not None:
                    title = f"{wrapped(str(labels[sample]), 16)}\n{title}"
                _draw_picture(ax, images[sample], title)
        self.figure_.suptitle("Sharpest samples" if highest else "Flattest samples")
        return self


def _draw_picture(ax, image, title):
    ax.imshow(as_picture(image), cmap="gray", interpolation="nearest")
    ax.set_title(title, fontsize=8)
    ax.set(xticks=[], yticks=[])


def as_picture(image):
    """Return a picture as ``imshow`` needs it: (H, W), or (H, W, 3) in [0, 1]."""
    picture = np.asarray(image)
    if picture.ndim == 3 and picture.shape[0] in (1, 3) and picture.shape[2] > 4:
        picture = picture.transpose(1, 2, 0)
    if picture.ndim == 3 and picture.shape[2] == 1:
        picture = picture[..., 0]
    if picture.ndim not in (2, 3) or (picture.ndim == 3 and picture.shape[2] != 3):
        raise InvalidInputError(
            "A picture must have shape (H, W), (C, H, W) or (H, W, C) with one or "
            f"three channels, got {np.shape(image)}."
        )
    if picture.dtype == np.uint8 or picture.ndim == 2:
        return picture
    low, high = picture.min(), picture.max()
    if low >= 0 and high <= 1:
        return picture
    return (picture - low) / max(high - low, 1e-12)  # imshow would clip it
