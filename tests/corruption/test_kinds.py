"""Each kind against a closed form, a naive float64 loop or another library."""

import colorsys
import io

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from sklearn_sharpbalance.corruption import SEVERITIES, ImageRng, blur, corrupt
from sklearn_sharpbalance.corruption._base import CONSTANTS, stream_seed
from sklearn_sharpbalance.corruption.blur import disk, motion_blur_planar
from sklearn_sharpbalance.corruption.weather import frost_textures, plasma
from tests.cases import make_images

each_severity = pytest.mark.parametrize("severity", SEVERITIES)


def cifar(name, severity):
    return CONSTANTS[name]["cifar"][severity - 1]


def streams(name, severity, n):
    """Return the streams that ``corrupt(..., random_state=0)`` uses."""
    return ImageRng(stream_seed(0, name, severity), np.arange(n))


def assert_within_one(out, expected):
    """Assert equality, except for values that rounding moves across an integer."""
    expected = np.floor(np.clip(expected, 0, 255) + 1e-4)
    gap = np.abs(out.astype(float) - expected)
    assert gap.max() <= 1
    assert (gap > 0).mean() < 0.02


@each_severity
def test_gaussian_noise_has_the_published_deviation(severity):
    flat = np.full((100, 32, 32, 3), 128, dtype=np.uint8)
    noise = corrupt(flat, "gaussian_noise", severity, random_state=0) - 128.0
    sigma = 255 * cifar("gaussian_noise", severity)
    assert noise.mean() == pytest.approx(-0.5, abs=0.2)  # truncation subtracts one half
    assert noise.std() == pytest.approx(np.sqrt(sigma**2 + 1 / 12), rel=0.02)
    correlation = np.corrcoef(noise[..., 0].ravel(), noise[..., 1].ravel())[0, 1]
    assert abs(correlation) < 0.02


@each_severity
def test_shot_noise_has_variance_proportional_to_light(severity):
    flat = np.full((100, 32, 32, 1), 102, dtype=np.uint8)  # 0.4 of the range
    out = corrupt(flat, "shot_noise", severity, random_state=0) / 255
    photons = cifar("shot_noise", severity)
    assert out.mean() == pytest.approx(0.4, abs=0.004)
    assert out.var() == pytest.approx(0.4 / photons, rel=0.06)
    black = np.zeros((1, 32, 32, 3), dtype=np.uint8)
    np.testing.assert_array_equal(corrupt(black, "shot_noise", severity), black)


@each_severity
def test_impulse_noise_changes_the_published_fraction(severity):
    flat = np.full((100, 32, 32, 3), 100, dtype=np.uint8)
    out = corrupt(flat, "impulse_noise", severity, random_state=0)
    fraction = cifar("impulse_noise", severity)
    assert set(np.unique(out)) == {0, 100, 255}
    for value in (0, 255):
        assert (out == value).mean() == pytest.approx(fraction / 2, rel=0.06)


@each_severity
def test_defocus_blur_equals_scipy_with_the_disk(severity):
    images = make_images(4)
    kernel = disk(*cifar("defocus_blur", severity))
    assert kernel.sum() == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(kernel, kernel[::-1], atol=1e-12)
    np.testing.assert_allclose(kernel, kernel.T, atol=1e-12)
    expected = ndimage.correlate(
        images.astype(float), kernel[None, :, :, None], mode="mirror"
    )
    assert_within_one(corrupt(images, "defocus_blur", severity), expected)


def test_defocus_blur_by_fft_equals_scipy():
    images = make_images(1, 112, 112)
    kernel = disk(*CONSTANTS["defocus_blur"]["imagenet"][2])
    assert np.count_nonzero(kernel) > 64  # the FFT is used
    assert disk(3, 0.1)[3, 0] == pytest.approx(1 / 29)  # 29 points within radius 3
    expected = ndimage.correlate(
        images.astype(float), kernel[None, :, :, None], mode="mirror"
    )
    assert_within_one(corrupt(images, "defocus_blur", 3), expected)


@each_severity
def test_glass_blur_equals_the_naive_loop(severity):
    images = make_images(2)
    sigma, reach, iterations = cifar("glass_blur", severity)
    assert_within_one(
        corrupt(images, "glass_blur", severity, random_state=0),
        naive_glass(
            images, streams("glass_blur", severity, 2), sigma, reach, iterations
        ),
    )


def test_glass_blur_with_a_wide_window_equals_the_naive_loop():
    sigma, reach, iterations = CONSTANTS["glass_blur"]["tiny"][4]
    assert reach > 1
    images = make_images(3, 49, 30)
    assert_within_one(
        corrupt(images, "glass_blur", 5, random_state=0),
        naive_glass(images, streams("glass_blur", 5, 3), sigma, reach, iterations),
    )


def naive_glass(images, rng, sigma, reach, iterations):
    def blur(x):
        return ndimage.gaussian_filter(x, (0, sigma, sigma, 0), mode="nearest")

    height, width = images.shape[1:3]
    places = [
        (h, w)
        for h in range(height - reach, reach, -1)
        for w in range(width - reach, reach, -1)
    ]
    out = np.floor(blur(images.astype(float)) + 1e-4)
    for _ in range(iterations):
        moves = rng.integers(-reach, reach, (2, len(places)))
        for i in range(len(images)):
            for k, (h, w) in enumerate(places):
                out[i, h, w] = out[i, h + moves[i, 1, k], w + moves[i, 0, k]]
    return blur(out)


@pytest.mark.parametrize("angle", [-45.0, -10.0, 0.0, 30.0, -90.0, -130.0])
def test_motion_blur_equals_the_naive_loop(angle):
    image = make_images(1, 16, 20)[..., 0].astype(np.float32)
    out = motion_blur_planar(image[:, None], np.array([angle]), 6, 2.0)[0, 0]
    weights = np.exp(-0.5 * (np.arange(13) / 2.0) ** 2)
    expected = np.zeros((16, 20))
    for i, weight in enumerate(weights / weights.sum()):
        dx = int(np.ceil(i * np.cos(np.deg2rad(angle)) - 0.5))
        dy = int(np.ceil(i * np.sin(np.deg2rad(angle)) - 0.5))
        for y in range(16):
            for x in range(20):
                source = np.clip(y + dy, 0, 15), np.clip(x + dx, 0, 19)
                expected[y, x] += weight * image[0][source]
    np.testing.assert_allclose(out, expected, atol=0.01)


@each_severity
def test_motion_blur_rounds_to_the_nearest_level(severity):
    """As ImageMagick does; truncation would darken by half a level."""
    images = make_images(4)
    planes = images.transpose(0, 3, 1, 2).astype(np.float32)
    radius, sigma = cifar("motion_blur", severity)
    angles = streams("motion_blur", severity, 4).uniform(low=-45, high=45)
    exact = motion_blur_planar(planes, angles, radius, sigma).transpose(0, 2, 3, 1)
    out = corrupt(images, "motion_blur", severity, random_state=0)
    assert np.abs(out - exact).max() < 0.501
    assert abs((out - exact).mean()) < 0.02


@each_severity
def test_zoom_blur_equals_scipy_zoom(severity):
    images = make_images(2)
    stop, step = cifar("zoom_blur", severity)
    factors = np.arange(1, stop, step)
    total = images.astype(float)
    for factor in factors:
        crop = int(np.ceil(32 / factor))
        top = (32 - crop) // 2
        middle = images[:, top : top + crop, top : top + crop].astype(float)
        large = ndimage.zoom(middle, (1, factor, factor, 1), order=1)
        trim = (large.shape[1] - 32) // 2
        total += large[:, trim : trim + 32, trim : trim + 32]
    expected = total / (len(factors) + 1)
    assert_within_one(corrupt(images, "zoom_blur", severity), expected)


def test_zoom_blur_of_large_images_uses_no_matrix(monkeypatch):
    images = make_images(2, 100, 120)
    by_matrix = corrupt(images, "zoom_blur", 3)
    held = blur.zoom_blur_matrix.cache_info().currsize
    monkeypatch.setattr(blur, "MAX_MATRIX_PIXELS", 100)
    for severity in (1, 3):
        out = corrupt(images, "zoom_blur", severity)
    assert blur.zoom_blur_matrix.cache_info().currsize == held
    out = corrupt(images, "zoom_blur", 3).astype(int)
    assert np.abs(out - by_matrix).max() <= 1
    assert np.mean(out != by_matrix) < 1e-3


@each_severity
def test_brightness_equals_colorsys(severity):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 12, 12, 3), dtype=np.uint8)
    images[0, 0, 0] = 0  # black has no hue
    lift = cifar("brightness", severity)
    expected = np.empty(images.shape)
    for where in np.ndindex(images.shape[:3]):
        hue, saturation, value = colorsys.rgb_to_hsv(*images[where] / 255)
        bright = colorsys.hsv_to_rgb(hue, saturation, min(value + lift, 1))
        expected[where] = np.array(bright) * 255
    assert_within_one(corrupt(images, "brightness", severity), expected)


@each_severity
def test_contrast_keeps_the_mean_and_scales_the_spread(severity):
    images = make_images(8)
    scale = cifar("contrast", severity)
    x = images.astype(float)
    mean = x.mean(axis=(1, 2), keepdims=True)
    out = corrupt(images, "contrast", severity)
    assert_within_one(out, mean + scale * (x - mean))


@each_severity
@pytest.mark.parametrize("channels", [1, 3])
def test_pixelate_and_jpeg_equal_pillow(severity, channels):
    images = make_images(3, channels=channels)
    small = int(32 * cifar("pixelate", severity))
    quality = cifar("jpeg_compression", severity)
    pixelated = corrupt(images, "pixelate", severity)
    compressed = corrupt(images, "jpeg_compression", severity)
    for i, image in enumerate(images):
        original = Image.fromarray(image.squeeze())
        boxes = original.resize((small, small), Image.BOX).resize((32, 32), Image.BOX)
        np.testing.assert_array_equal(pixelated[i].squeeze(), np.asarray(boxes))
        buffer = io.BytesIO()
        original.save(buffer, format="jpeg", quality=quality)
        decoded = np.asarray(Image.open(buffer))
        np.testing.assert_array_equal(compressed[i].squeeze(), decoded)


@each_severity
def test_elastic_transform_equals_scipy(severity):
    images = make_images(2)
    strength, sigma, shear = (32 * v for v in cifar("elastic_transform", severity))
    rng = streams("elastic_transform", severity, 2)
    moves = rng.uniform((3, 2), low=-shear, high=shear).astype(float)
    noise = rng.uniform((2, 32, 32), low=-1, high=1).astype(float)
    points = 16 + 10 * np.array([[1, 1], [1, -1], [-1, -1]])
    ys, xs = np.mgrid[:32, :32]
    for i, image in enumerate(images.astype(float)):
        to = np.column_stack([points + moves[i], np.ones(3)])
        back = np.linalg.solve(to, points.astype(float)).T  # new (x, y, 1) to old
        old_x = back[0, 0] * xs + back[0, 1] * ys + back[0, 2]
        old_y = back[1, 0] * xs + back[1, 1] * ys + back[1, 2]
        dx, dy = (
            strength * ndimage.gaussian_filter(field, sigma, truncate=3)
            for field in noise[i]
        )
        for c in range(3):
            sheared = ndimage.map_coordinates(
                image[..., c], [old_y, old_x], order=1, mode="mirror"
            )
            expected = ndimage.map_coordinates(
                sheared, [ys + dy, xs + dx], order=1, mode="reflect"
            )
            out = corrupt(images, "elastic_transform", severity, random_state=0)
            assert_within_one(out[i, ..., c], expected)


def test_frost_adds_a_crop_of_a_texture():
    black = np.zeros((6, 32, 32, 3), dtype=np.uint8)
    out = corrupt(black, "frost", 1, random_state=0)
    textures = frost_textures("cifar")
    rng = streams("frost", 1, 6)
    which, corner = rng.integers(0, 5), rng.integers(0, 256, (2,))
    for i in range(6):
        turned = np.roll(textures[which[i]], -corner[i], axis=(0, 1))[:32, :32]
        assert_within_one(out[i], 0.2 * turned)


def test_plasma_is_a_diamond_square_fractal_in_the_unit_range():
    fractals = plasma(ImageRng(0, np.arange(50)), 20, 2.0)
    assert fractals.shape == (50, 32, 32)
    np.testing.assert_allclose(fractals.min(axis=(1, 2)), 0)
    np.testing.assert_allclose(fractals.max(axis=(1, 2)), 1)
    # Neighbours are similar, more so with a faster decay.
    smooth = plasma(ImageRng(0, np.arange(50)), 20, 3.0)
    steps = [np.abs(np.diff(f, axis=1)).mean() for f in (fractals, smooth)]
    assert steps[1] < steps[0] < 0.1


@each_severity
def test_fog_follows_its_formula_on_a_flat_image(severity):
    weight, decay = cifar("fog", severity)
    images = np.full((3, 32, 32, 3), 51, dtype=np.uint8)
    fractal = plasma(streams("fog", severity, 3), 32, decay).astype(float)
    expected = 255 * (0.2 + weight * fractal) * 0.2 / (0.2 + weight)
    out = corrupt(images, "fog", severity, random_state=0)
    assert_within_one(out, np.repeat(expected[..., None], 3, axis=3))


@each_severity
def test_snow_only_brightens_and_is_symmetric_on_black(severity):
    images = make_images(20)
    out = corrupt(images, "snow", severity, random_state=0)
    assert (out.astype(int) - images).min() >= -1
    keep = cifar("snow", severity)[-1]
    black = np.zeros((5, 32, 32, 1), dtype=np.uint8)
    flakes = corrupt(black, "snow", severity, random_state=0)
    np.testing.assert_array_equal(flakes, flakes[:, ::-1, ::-1])
    assert flakes.min() >= int((1 - keep) * 127.5)
    assert flakes.max() > flakes.min()
