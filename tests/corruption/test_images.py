"""Common tests of all kinds of corruption."""

from functools import partial

import numpy as np
import pytest

from sklearn_sharpbalance.corruption import (
    CORRUPTION_GROUPS,
    CORRUPTIONS,
    SEVERITIES,
    ImageRng,
    corrupt,
    iter_corruptions,
)
from sklearn_sharpbalance.corruption import images as image_module
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.cases import make_images, rest_slow, rms

# Kinds whose published constants do not move ever farther from the clean image; what
# does grow with their severity is tested on its own.
NOT_MONOTONE = {"glass_blur", "elastic_transform", "frost"}
DETERMINISTIC = {
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
}

each_kind = pytest.mark.parametrize("name", CORRUPTIONS)


def darken(images, severity, rng, by=2):
    """Change the images in place."""
    assert len(rng) == len(images)
    images //= by * severity
    return images


def lift(images, severity, rng, by=2):
    return np.maximum(images, by)


@each_kind
@pytest.mark.parametrize("shape", [(3, 28, 28), (2, 40, 24, 1), (2, 8, 8, 3)])
def test_shape_and_dtype_are_kept(name, shape):
    images = make_images(*(shape if len(shape) == 4 else (*shape, 1))).reshape(shape)
    before = images.copy()
    out = corrupt(images, name, 5, random_state=0)
    assert out.shape == shape
    assert out.dtype == np.uint8
    assert rms(out, images) > 1
    np.testing.assert_array_equal(images, before)


@each_kind
def test_a_seed_gives_one_result_without_the_global_generator(name):
    images = make_images(4)
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first = corrupt(images, name, 2, random_state=7)
    np.testing.assert_array_equal(first, corrupt(images, name, 2, random_state=7))
    np.testing.assert_array_equal(state, np.random.get_state()[1])  # noqa: NPY002
    same = np.array_equal(first, corrupt(images, name, 2, random_state=8))
    assert same == (name in DETERMINISTIC)


@each_kind
@pytest.mark.parametrize("side", rest_slow([32, 64, 112]))
def test_result_does_not_depend_on_batch_or_threads(name, side, monkeypatch):
    n = 40 if side == 32 else 5
    images = make_images(n, side, side)
    whole = corrupt(images, name, 4, random_state=3)
    order = np.random.default_rng(0).permutation(n)
    for rows in np.array_split(order, 3):
        part = corrupt(images[rows], name, 4, random_state=3, indices=rows)
        np.testing.assert_array_equal(part, whole[rows])
    monkeypatch.setattr(image_module, "CHUNK_VALUES", 1)
    threaded = corrupt(images, name, 4, random_state=3, n_jobs=2)
    np.testing.assert_array_equal(threaded, whole)


@pytest.mark.parametrize("name", sorted(set(CORRUPTIONS) - NOT_MONOTONE))
@pytest.mark.parametrize("side", rest_slow([32, 64]))
def test_distance_from_the_clean_image_grows_with_severity(name, side):
    images = make_images(64 if side == 32 else 24, side, side)
    out = [corrupt(images, name, s, random_state=0) for s in SEVERITIES]
    distances = np.array([rms(images, one) for one in out])
    # Snow 2 and 3, and motion blur 3 and 4, are about equally strong.
    assert (np.diff(distances) > -0.04 * distances[:-1]).all(), distances
    assert distances[4] > 1.3 * distances[0]


def test_iter_corruptions_runs_over_kinds_groups_and_severities():
    images = make_images(2)
    names = ["noise", "fog", "shot_noise"]  # a kind that is also in a group, once
    found = list(iter_corruptions(images, names, (1, 4, 1), random_state=5))
    kinds = ["gaussian_noise", "shot_noise", "impulse_noise", "fog"]
    assert [(name, s) for name, s, _ in found] == [
        (k, s) for k in kinds for s in (1, 4)
    ]
    for name, severity, out in found:
        np.testing.assert_array_equal(
            out, corrupt(images, name, severity, random_state=5)
        )
    every = {name for name, _, _ in iter_corruptions(images, severities=1)}
    assert every == {name for group in CORRUPTION_GROUPS.values() for name in group}
    assert len(every) == 15
    assert list(iter_corruptions(images, [])) == []  # an empty list is not None


def test_a_kind_may_be_a_function():
    images, before = make_images(3), make_images(3)
    np.testing.assert_array_equal(corrupt(images, darken, 2), images // 4)
    np.testing.assert_array_equal(images, before)
    [(label, severity, out)] = iter_corruptions(images, darken, 3)
    assert (label, severity) == ("darken", 3)
    np.testing.assert_array_equal(out, images // 6)
    kinds = [partial(darken, by=4), partial(lift, by=9)]
    found = [name for name, _, _ in iter_corruptions(images, kinds, [1])]
    assert found == ["darken", "lift"]


@each_kind
@pytest.mark.parametrize("side", rest_slow([32, 64, 100]))
def test_every_function_accepts_an_empty_array(name, side):
    empty = np.empty((0, side, side, 3), dtype=np.uint8)
    out = CORRUPTIONS[name](empty, 5, ImageRng(0, []))
    assert out.shape == empty.shape
    assert out.dtype == np.uint8
    for indices in (None, []):
        assert corrupt(empty, name, 1, indices=indices).shape == empty.shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "rain"}, "'rain'.*'gaussian_noise'"),
        ({"severity": 6}, "severity .* got 6"),
        ({"severity": 2.0}, r"severity .* got 2\.0"),
        ({"images": np.zeros((2, 32, 32, 3))}, "uint8 .* got float64"),
        ({"images": np.zeros((2, 3, 32, 32), np.uint8)}, r"transpose\(0, 2, 3, 1\)"),
        ({"images": np.zeros((32, 32), np.uint8)}, r"images\[None\]"),
        ({"images": np.zeros((32, 32, 3), np.uint8)}, r"images\[None\]"),
        ({"images": np.zeros((2, 32, 32, 4), np.uint8)}, r"images\[\.\.\., :3\]"),
        ({"images": np.zeros((2, 4, 32), np.uint8)}, "8 x 8 .* 4 x 32"),
        ({"images": np.zeros((2, 32, 32, 2), np.uint8)}, r"\(2, 32, 32, 2\)"),
        ({"images": [np.zeros((s, s, 3), np.uint8) for s in (8, 9)]}, "one size"),
        ({"indices": [0]}, "indices"),
        ({"indices": [0, -1]}, "indices"),
        ({"random_state": -1}, "random_state"),
    ],
)
def test_bad_input_raises(change, message):
    call = {"images": make_images(2), "name": "fog", "severity": 1, **change}
    with pytest.raises(InvalidInputError, match=message):
        corrupt(**call)


@pytest.mark.parametrize("names", [["fog", "rain"], ["fog", ["snow"]], 3])
@pytest.mark.parametrize("severities", [[1, 6], 2.0, None])
def test_iter_corruptions_raises_before_it_corrupts(names, severities):
    for bad in ({"names": names}, {"severities": severities}):
        made = []
        with pytest.raises(InvalidInputError, match=r"corruption|severity"):
            made.extend(iter_corruptions(make_images(1), **{"names": "fog", **bad}))
        assert made == []


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: x / 255, "returned float64"),
        (lambda x: x.astype(int) + 100, "returned int64"),
        (lambda x: x[0], r"\(3, 32, 32, 3\).*\(32, 32, 3\)"),
        (lambda x: None, "'faulty' .* NoneType"),
    ],
)
def test_a_bad_result_of_a_function_raises(result, message):
    def faulty(images, severity, rng):
        return result(images)

    with pytest.raises(InvalidInputError, match=message):
        corrupt(make_images(3), faulty, 1)


# Random streams ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.normal((3, 2)),
        lambda rng: rng.uniform((5,), low=-2, high=3),
        lambda rng: rng.integers(-3, 4, (7,)),
        lambda rng: rng.poisson(np.full((len(rng), 6), 20.0)),
        lambda rng: rng.uniform(),
    ],
)
def test_rows_depend_on_their_index_only(draw):
    whole, part = ImageRng(5, np.arange(10)), ImageRng(5, [7, 2])
    for _ in range(2):  # the second draw is different
        a, b = draw(whole), draw(part)
        np.testing.assert_array_equal(a[[7, 2]], b)
    assert len(np.unique(a.reshape(10, -1), axis=0)) > 5


def test_draws_are_numpys_philox_with_the_documented_key():
    bits = np.random.Philox(key=[9, 4], counter=[0, 0, 0, 1])
    expected = np.random.Generator(bits).standard_normal(11, dtype=np.float32)
    np.testing.assert_array_equal(ImageRng(9, [4]).normal((11,))[0], expected)
