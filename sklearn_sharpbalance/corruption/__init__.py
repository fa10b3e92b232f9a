"""Corruptions of images and tables, and a reader of the published datasets."""

from sklearn_sharpbalance.corruption._base import SEVERITIES, ImageRng
from sklearn_sharpbalance.corruption.blur import (
    defocus_blur,
    glass_blur,
    motion_blur,
    zoom_blur,
)
from sklearn_sharpbalance.corruption.digital import (
    contrast,
    elastic_transform,
    gaussian_noise,
    impulse_noise,
    jpeg_compression,
    pixelate,
    shot_noise,
)
from sklearn_sharpbalance.corruption.images import (
    CORRUPTION_GROUPS,
    CORRUPTIONS,
    Corruption,
    corrupt,
    iter_corruptions,
)
from sklearn_sharpbalance.corruption.sets import CorruptionFiles
from sklearn_sharpbalance.corruption.tabular import (
    TABULAR_CORRUPTIONS,
    TabularCorruption,
    corrupt_table,
    feature_noise,
    feature_shift,
    label_shift,
    missing_nan,
    missing_values,
)
from sklearn_sharpbalance.corruption.weather import brightness, fog, frost, snow

__all__ = [
    "CORRUPTIONS",
    "CORRUPTION_GROUPS",
    "SEVERITIES",
    "TABULAR_CORRUPTIONS",
    "Corruption",
    "CorruptionFiles",
    "ImageRng",
    "TabularCorruption",
    "brightness",
    "contrast",
    "corrupt",
    "corrupt_table",
    "defocus_blur",
    "elastic_transform",
    "feature_noise",
    "feature_shift",
    "fog",
    "frost",
    "gaussian_noise",
    "glass_blur",
    "impulse_noise",
    "iter_corruptions",
    "jpeg_compression",
    "label_shift",
    "missing_nan",
    "missing_values",
    "motion_blur",
    "pixelate",
    "shot_noise",
    "snow",
    "zoom_blur",
]
