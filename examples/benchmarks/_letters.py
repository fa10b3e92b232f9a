"""Grey images of letters, drawn from the fonts of matplotlib.

Test letters are of other fonts than training letters.
"""

import string
from pathlib import Path

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw, ImageFont

__all__ = ["letters"]

SIDE = 28
FONTS = Path(mpl.get_data_path(), "fonts", "ttf")
TRAIN_FONTS = "DejaVuSans*", "DejaVuSerif*"
TEST_FONTS = "STIXGeneral*", "cm[brt]*10.ttf", "cmss10.ttf"


def letters(n_train=20_000, n_test=5_000):
    """Return training and test images (N, 28, 28) of uint8, each with their labels."""
    rng = np.random.default_rng(0)
    X, y = draw(TRAIN_FONTS, n_train, rng)
    return X, y, *draw(TEST_FONTS, n_test, rng)


def draw(patterns, n_images, rng):
    """Return images of turned, sheared and shifted letters with noise, and labels."""
    fonts = [font for pattern in patterns for font in sorted(FONTS.glob(pattern))]
    fonts = [font for font in fonts if "Display" not in font.stem]  # has no letters
    sizes = [
        [ImageFont.truetype(font, size) for size in (16, 19, 22)] for font in fonts
    ]
    y = rng.integers(len(string.ascii_uppercase), size=n_images)
    X = np.empty((n_images, SIDE, SIDE), np.uint8)
    for i, code in enumerate(y):
        font = sizes[rng.integers(len(fonts))][rng.integers(3)]
        image = Image.new("L", (SIDE, SIDE))
        ImageDraw.Draw(image).text(
            (SIDE / 2, SIDE / 2),
            string.ascii_uppercase[code],
            fill=int(rng.integers(120, 256)),
            font=font,
            anchor="mm",
        )
        turn, shear = rng.normal(0, 0.25, 2)
        matrix = np.array([[np.cos(turn), shear - np.sin(turn)], [np.sin(turn), 1]])
        shift = SIDE / 2 - matrix @ (SIDE / 2 + rng.uniform(-2, 2, 2))
        rows = np.column_stack([matrix, shift]).ravel()
        image = image.transform(image.size, Image.Transform.AFFINE, rows.tolist())
        X[i] = np.clip(np.asarray(image) + rng.normal(20, 30, X[i].shape), 0, 255)
    return X, y
