"""Overlap of the members' sharpness-aware sets."""

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError


def subset_overlap(sam_masks):
    r"""Return the Jaccard index of each pair of sharpness-aware sets.

    Parameters
    ----------
    sam_masks : array-like of bool of shape (n_members, n_samples)

    Returns
    -------
    ndarray of shape (n_members, n_members)
        :math:`|A_i \cap A_j| / |A_i \cup A_j|`; 1.0 if both sets are empty.
        ``ConfusionMatrixDisplay`` of scikit-learn draws it.

    Examples
    --------
    >>> from sklearn_sharpbalance.plotting import subset_overlap
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
