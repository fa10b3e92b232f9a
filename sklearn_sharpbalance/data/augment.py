"""Augmentation of whole batches on the device.

torchvision's v2 transforms take batches too, but use one crop and one flip for the
whole batch. An :class:`ImageTransform` draws random numbers for each image, for a
whole epoch at once, so that engines can apply it to one batch or to many.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import torch

from sklearn_sharpbalance._validation import (
    FROM_0_BELOW_1,
    check_choice,
    check_numbers,
)
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["EpochAugment", "ImageTransform", "RandomCropFlip", "resolve_transform"]

PADDING_MODES = ("zeros", "reflect")
STEPS = 1000  # from no warp to the largest


class ImageTransform(ABC):
    """Augmentation that draws its random numbers before it is applied."""

    @abstractmethod
    def draw(self, shape: tuple[int, ...], device) -> Any:
        """Return random numbers for an array of images.

        Draw from torch's global generator, which is seeded for each member and epoch.

        Parameters
        ----------
        shape : tuple of int
            Shape of the array; the result has the shape ``(*shape, ...)``.
        device : str or torch.device
            Device of the result.
        """

    @abstractmethod
    def apply(self, x: torch.Tensor, drawn: Any) -> torch.Tensor:
        """Return augmented images.

        Parameters
        ----------
        x : Tensor of shape (B, C, H, W)
            Images of any dtype.
        drawn : Tensor of shape (B, ...)
            Random numbers from :meth:`draw`.
        """

    def __call__(self, x):
        """Draw random numbers for a batch and augment it."""
        return self.apply(x, self.draw((len(x),), x.device))


class RandomCropFlip(ImageTransform):
    """Pad, crop at a random place, flip at random and warp, image by image.

    Parameters
    ----------
    padding : int, default=4
        Pixels added on each side before the crop.
    flip : bool, default=True
        Whether to mirror half of the images left to right.
    mode : {"zeros", "reflect"}, default="zeros"
        Values of the added pixels: zeros, or the image mirrored at its edge.
    warp : float, default=0.0
        Half of the images get a random affine map around their centre, which turns,
        shears and scales: the identity, plus up to ``warp`` in each of four entries.

    Examples
    --------
    >>> import torch
    >>> x = torch.arange(4.0).reshape(1, 1, 2, 2)
    >>> RandomCropFlip(padding=0, flip=False)(x).equal(x)
    True
    """

    def __init__(self, padding=4, flip=True, mode="zeros", warp=0.0):
        if not isinstance(padding, Integral) or padding < 0:
            raise InvalidInputError(
                f"padding must be a whole number of pixels >= 0, got {padding!r}."
            )
        check_choice("mode", mode, PADDING_MODES)
        check_numbers(FROM_0_BELOW_1, warp=warp)
        self.padding, self.flip, self.mode = int(padding), flip, mode
        self.warp = float(warp)

    def draw(self, shape, device):
        """Return offsets from top and left, and whether to mirror: (*shape, 3).

        With ``warp`` also four entries, in units of ``warp / STEPS``: (*shape, 7).
        """
        offsets = torch.randint(2 * self.padding + 1, (*shape, 2), device=device)
        mirror = torch.randint(2 if self.flip else 1, (*shape, 1), device=device)
        if not self.warp:
            return torch.cat([offsets, mirror], dim=-1)
        matrix = torch.randint(-STEPS, STEPS + 1, (*shape, 4), device=device)
        warped = torch.randint(2, (*shape, 1), device=device)
        return torch.cat([offsets, mirror, warped * matrix], dim=-1)

    def apply(self, x, drawn):
        """Return augmented images, which are channels-last in memory."""
        n, _, height, width = x.shape
        device = x.device
        top, left, mirror = drawn[:, :3, None].unbind(1)  # (B, 1) each
        rows = top + torch.arange(height, device=device)  # (B, H)
        column = torch.arange(width, device=device)
        columns = left + torch.where(mirror > 0, width - 1 - column, column)  # (B, W)
        if self.mode == "reflect":
            rows = _reflected(rows - self.padding, height)
            columns = _reflected(columns - self.padding, width)
        else:
            x = torch.nn.functional.pad(x, (self.padding,) * 4)
        sample = torch.arange(n, device=device)[:, None, None]
        picked = x.permute(0, 2, 3, 1)[sample, rows[:, :, None], columns[:, None]]
        cropped = picked.permute(0, 3, 1, 2)  # (B, C, H, W)
        if not self.warp:
            return cropped
        return _warped(cropped, drawn[:, 3:] * (self.warp / STEPS))

    def __repr__(self):
        return (
            f"RandomCropFlip(padding={self.padding}, flip={self.flip}, "
            f"mode={self.mode!r}, warp={self.warp})"
        )


def _warped(x, change):
    """Map each image around its centre by the identity plus ``change`` (B, 4)."""
    height, width = x.shape[2:]
    row = torch.arange(height, device=x.device)[:, None] - (height - 1) / 2  # (H, 1)
    column = torch.arange(width, device=x.device) - (width - 1) / 2  # (W,)
    a, b, c, d = change[:, :, None, None].unbind(1)  # (B, 1, 1) each
    columns = column + a * column + b * row  # (B, H, W)
    rows = row + c * column + d * row
    places = torch.stack([columns * (2 / width), rows * (2 / height)], dim=-1)
    moved = torch.nn.functional.grid_sample(
        x.float(), places, padding_mode="reflection", align_corners=False
    )
    if not x.is_floating_point():
        moved = moved.round()
    return moved.to(x.dtype).contiguous(memory_format=torch.channels_last)


def _reflected(place, size):
    """Return the places inside of an axis that places outside are reflected to."""
    last = size - 1
    return last - (last - place.remainder(max(1, 2 * last))).abs()


def resolve_transform(transform):
    """Return None, the transform of the name "crop_flip", or a function of a batch."""
    if transform is None or callable(transform):
        return transform
    if isinstance(transform, str) and transform == "crop_flip":
        return RandomCropFlip()
    raise InvalidInputError(
        f"Unknown train_transform {transform!r}. Choose one of 'auto', 'crop_flip', or "
        "pass a function of a batch (B, C, H, W) such as a torchvision.transforms.v2 "
        "transform."
    )


class EpochAugment:
    """Augmentation of one member's epoch, of shape (n_batches, B)."""

    def __init__(self, transform, shape, device):
        self.transform = transform
        self.drawn = None
        if isinstance(transform, ImageTransform):
            self.drawn = transform.draw(shape, device)  # (n_batches, B, ...)

    def batch(self, t, x):
        """Augment batch number ``t``."""
        if self.transform is None:
            return x
        if self.drawn is None:
            return _checked(self.transform(x), x)
        return _checked(self.transform.apply(x, self.drawn[t, : len(x)]), x)

    def batches(self, start, stop, x):
        """Augment batches ``start`` to ``stop``, given as (T, B, ...)."""
        if self.transform is None:
            return x
        if self.drawn is None:
            return torch.stack([_checked(self.transform(batch), batch) for batch in x])
        drawn = self.drawn[start:stop].flatten(0, 1)
        rows = x.flatten(0, 1)
        return _checked(self.transform.apply(rows, drawn), rows).unflatten(
            0, x.shape[:2]
        )


def _checked(result, x):
    """Return the result of a transform; raise if it cannot replace the batch."""
    if isinstance(x, Mapping):
        wanted = f"a dictionary of {sorted(x)} with as many rows each"
        fits = isinstance(result, Mapping) and result.keys() == x.keys()
        fits = fits and all(_same_rows(result[key], x[key]) for key in x)
    else:
        wanted = f"a tensor of {len(x)} rows, one per sample of the batch"
        fits = _same_rows(result, x)
    if fits:
        return result
    got = f"a {type(result).__name__}"
    if isinstance(result, Mapping):
        got = f"a dictionary of {sorted(map(str, result))}"
    elif torch.is_tensor(result):
        got = f"a tensor of shape {tuple(result.shape)}"
    raise InvalidInputError(
        f"train_transform must return {wanted}, but it returned {got}. Return a "
        "changed copy of the batch."
    )


def _same_rows(result, x):
    return torch.is_tensor(result) and result.ndim > 0 and len(result) == len(x)
