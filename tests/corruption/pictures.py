"""Different pictures for the tests: smooth blobs of colour with sharp edges."""

import numpy as np
from scipy import ndimage


def make_pictures(n=32, height=32, width=32, channels=3, seed=0):
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((n, height, width, channels))
    smooth = ndimage.gaussian_filter(noise, (0, height / 10, width / 10, 0))
    smooth /= smooth.std(axis=(1, 2, 3), keepdims=True)
    edges = np.sign(ndimage.gaussian_filter(noise[..., :1], (0, 3, 3, 0)))
    return np.clip(128 + 45 * smooth + 35 * edges, 0, 255).astype(np.uint8)


def rms(a, b):
    return np.sqrt(np.mean((a.astype(float) - b.astype(float)) ** 2))
