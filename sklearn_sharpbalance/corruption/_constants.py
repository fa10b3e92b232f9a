"""Severity constants of CIFAR-10-C, Tiny-ImageNet-C and ImageNet-C.

The numbers are those of the three published generators [1]_: for each kind and each
family of pictures, one entry per severity. The fields of a tuple get their names where
they are unpacked.

References
----------
.. [1] Hendrycks and Dietterich. "Benchmarking Neural Network Robustness to Common
   Corruptions and Perturbations." ICLR 2019. https://github.com/hendrycks/robustness
"""

from typing import Any

__all__ = ["CONSTANTS", "family", "severity_constants"]

SMALL_SIDE = 48  # up to here CIFAR's constants (32 x 32)
MEDIUM_SIDE = 96  # up to here Tiny-ImageNet's (64 x 64), above ImageNet's (224 x 224)

CONSTANTS: dict[str, dict[str, tuple]] = {
    "gaussian_noise": {
        "cifar": (0.04, 0.06, 0.08, 0.09, 0.10),
        "tiny": (0.04, 0.08, 0.12, 0.15, 0.18),
        "imagenet": (0.08, 0.12, 0.18, 0.26, 0.38),
    },
    "shot_noise": {
        "cifar": (500, 250, 100, 75, 50),
        "tiny": (250, 100, 50, 30, 15),
        "imagenet": (60, 25, 12, 5, 3),
    },
    "impulse_noise": {
        "cifar": (0.01, 0.02, 0.03, 0.05, 0.07),
        "tiny": (0.01, 0.02, 0.05, 0.08, 0.14),
        "imagenet": (0.03, 0.06, 0.09, 0.17, 0.27),
    },
    "defocus_blur": {
        "cifar": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        "tiny": ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        "imagenet": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    },
    "glass_blur": {
        "cifar": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        "tiny": ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        "imagenet": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    },
    "motion_blur": {
        "cifar": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        "tiny": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        "imagenet": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    },
    "zoom_blur": {
        "cifar": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        "tiny": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        "imagenet": (
            (1.11, 0.01),
            (1.16, 0.01),
            (1.21, 0.02),
            (1.26, 0.02),
            (1.31, 0.03),
        ),
    },
    "snow": {
        "cifar": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        "tiny": (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
        ),
        "imagenet": (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    },
    "frost": {
        "cifar": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        "tiny": ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
        "imagenet": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    },
    "fog": {
        "cifar": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        "tiny": ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        "imagenet": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    },
    "brightness": {
        "cifar": (0.05, 0.1, 0.15, 0.2, 0.3),
        "tiny": (0.1, 0.2, 0.3, 0.4, 0.5),
        "imagenet": (0.1, 0.2, 0.3, 0.4, 0.5),
    },
    "contrast": {
        "cifar": (0.75, 0.5, 0.4, 0.3, 0.15),
        "tiny": (0.4, 0.3, 0.2, 0.1, 0.05),
        "imagenet": (0.4, 0.3, 0.2, 0.1, 0.05),
    },
    # In units of the side; ImageNet-C used 244 for the side of its 224 x 224 pictures.
    "elastic_transform": {
        "cifar": (
            (0, 0, 0.08),
            (0.05, 0.2, 0.07),
            (0.08, 0.06, 0.06),
            (0.1, 0.04, 0.05),
            (0.1, 0.03, 0.03),
        ),
        "tiny": (
            (0, 0, 0.08),
            (0.05, 0.3, 0.06),
            (0.1, 0.08, 0.06),
            (0.1, 0.03, 0.03),
            (0.16, 0.03, 0.02),
        ),
        "imagenet": tuple(
            tuple(value * 244 / 224 for value in row)
            for row in (
                (2, 0.7, 0.1),
                (2, 0.08, 0.2),
                (0.05, 0.01, 0.02),
                (0.07, 0.01, 0.02),
                (0.12, 0.01, 0.02),
            )
        ),
    },
    "pixelate": {
        "cifar": (0.95, 0.9, 0.85, 0.75, 0.65),
        "tiny": (0.9, 0.8, 0.7, 0.6, 0.5),
        "imagenet": (0.6, 0.5, 0.4, 0.3, 0.25),
    },
    "jpeg_compression": {
        "cifar": (80, 65, 58, 50, 40),
        "tiny": (65, 58, 50, 40, 25),
        "imagenet": (25, 18, 15, 10, 7),
    },
}


def family(height: int, width: int) -> str:
    """Return the constants for pictures of this size: "cifar", "tiny", "imagenet"."""
    side = max(height, width)
    if side <= SMALL_SIDE:
        return "cifar"
    return "tiny" if side <= MEDIUM_SIDE else "imagenet"


def severity_constants(name: str, images, severity: int) -> Any:
    """Return the constants of one kind for ``images`` of shape (N, H, W, C)."""
    return CONSTANTS[name][family(*images.shape[1:3])][severity - 1]
