"""Common tests of all kinds of corruption."""

from functools import partial

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier

from sklearn_sharpbalance.corruption import (
    CORRUPTION_GROUPS,
    CORRUPTIONS,
    SEVERITIES,
    ImageRng,
    _registry,
    corrupt,
    iter_corruptions,
)
from sklearn_sharpbalance.evaluation import corruption_accuracy
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.cases import rest_slow
from tests.corruption.pictures import make_pictures, rms

# Kinds whose published constants do not move ever farther from the clean picture; what
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


def test_groups_partition_the_fifteen_kinds():
    members = [name for group in CORRUPTION_GROUPS.values() for name in group]
    assert len(members) == 15
    assert set(members) == set(CORRUPTIONS)


@each_kind
@pytest.mark.parametrize("shape", [(3, 32, 32, 3), (3, 28, 28), (2, 40, 24, 1)])
def test_shape_and_dtype_are_kept(name, shape):
    images = make_pictures(*(shape if len(shape) == 4 else (*shape, 1))).reshape(shape)
    before = images.copy()
    out = corrupt(images, name, 3, random_state=0)
    assert out.shape == shape
    assert out.dtype == np.uint8
    assert rms(out, images) > 0
    np.testing.assert_array_equal(images, before)


@each_kind
@pytest.mark.parametrize("side", rest_slow([8, 64, 112]))
def test_every_size_of_picture_works(name, side):
    images = make_pictures(2, side, side)
    out = corrupt(images, name, 5, random_state=0)
    assert out.shape == images.shape
    assert rms(out, images) > 1


@each_kind
def test_a_seed_gives_one_result_without_the_global_generator(name):
    images = make_pictures(4)
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first = corrupt(images, name, 2, random_state=7)
    np.testing.assert_array_equal(first, corrupt(images, name, 2, random_state=7))
    np.testing.assert_array_equal(state, np.random.get_state()[1])  # noqa: NPY002
    same = np.array_equal(first, corrupt(images, name, 2, random_state=8))
    assert same == (name in DETERMINISTIC)


@each_kind
@pytest.mark.parametrize("side", rest_slow([32, 64, 112]))
def test_result_does_not_depend_on_the_batch(name, side):
    n = 40 if side == 32 else 5
    images = make_pictures(n, side, side)
    whole = corrupt(images, name, 4, random_state=3)
    order = np.random.default_rng(0).permutation(n)
    for rows in np.array_split(order, 3):
        part = corrupt(images[rows], name, 4, random_state=3, indices=rows)
        np.testing.assert_array_equal(part, whole[rows])


@each_kind
def test_threads_do_not_change_the_result(name):
    images = make_pictures(150)
    one = corrupt(images, name, 3, random_state=0)
    two = corrupt(images, name, 3, random_state=0, n_jobs=2)
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", sorted(set(CORRUPTIONS) - NOT_MONOTONE))
@pytest.mark.parametrize("side", rest_slow([32, 64]))
def test_distance_from_the_clean_picture_grows_with_severity(name, side):
    images = make_pictures(64 if side == 32 else 24, side, side)
    out = [corrupt(images, name, s, random_state=0) for s in SEVERITIES]
    distances = np.array([rms(images, one) for one in out])
    # Snow 2 and 3, and motion blur 3 and 4, are about equally strong.
    assert (np.diff(distances) > -0.04 * distances[:-1]).all(), distances
    assert distances[4] > 1.3 * distances[0]


def test_iter_corruptions_runs_over_kinds_groups_and_severities():
    images = make_pictures(2)
    found = list(iter_corruptions(images, ["noise", "fog"], (1, 4), random_state=5))
    kinds = ["gaussian_noise", "shot_noise", "impulse_noise", "fog"]
    assert [(name, s) for name, s, _ in found] == [
        (k, s) for k in kinds for s in (1, 4)
    ]
    for name, severity, out in found:
        np.testing.assert_array_equal(
            out, corrupt(images, name, severity, random_state=5)
        )
    assert sum(1 for _ in iter_corruptions(images)) == 75
    assert list(iter_corruptions(images, [])) == []  # an empty list is not None


def test_a_kind_may_be_a_function():
    def invert(images, severity, rng):
        assert len(rng) == len(images)
        return 255 - images

    images = make_pictures(3)
    np.testing.assert_array_equal(corrupt(images, invert, 1), 255 - images)
    [(label, _, _)] = iter_corruptions(images, [invert], [2])
    assert label == "invert"


@pytest.mark.parametrize(
    ("random_state", "other"),
    [
        (np.random.default_rng(0), np.random.default_rng(0)),
        (np.random.RandomState(0), np.random.RandomState(0)),
    ],
)
def test_generators_are_accepted_and_advance(random_state, other):
    images = make_pictures(2)
    first = corrupt(images, "fog", 1, random_state=random_state)
    np.testing.assert_array_equal(first, corrupt(images, "fog", 1, random_state=other))
    again = corrupt(images, "fog", 1, random_state=random_state)
    assert not np.array_equal(first, again)


def test_an_empty_array_gives_an_empty_array():
    empty = np.empty((0, 32, 32, 3), dtype=np.uint8)
    assert corrupt(empty, "snow", 1).shape == (0, 32, 32, 3)
    assert corrupt(empty, "snow", 1, indices=[]).shape == (0, 32, 32, 3)


@each_kind
def test_every_function_accepts_an_empty_array(name):
    for side, severity in ((32, 5), (64, 5), (100, 5)):
        empty = np.empty((0, side, side, 3), dtype=np.uint8)
        out = CORRUPTIONS[name](empty, severity, ImageRng(0, []))
        assert out.shape == empty.shape
        assert out.dtype == np.uint8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": ["fog", "rain"]}, r"Unknown corruption 'rain'"),
        ({"names": ["fog", ["snow"]]}, r"Unknown corruption \['snow'\]"),
        ({"names": 3}, r"Unknown corruption 3"),
        ({"severities": [1, 6]}, r"severity must be an integer from 1 to 5, got 6"),
        ({"severities": 2.0}, r"severity must be an integer from 1 to 5, got 2\.0"),
        ({"severities": None}, r"severity must be an integer from 1 to 5, got None"),
    ],
)
def test_iter_corruptions_raises_before_it_corrupts(change, message):
    made = []
    with pytest.raises(InvalidInputError, match=message):
        made.extend(iter_corruptions(make_pictures(1), **{"names": "fog", **change}))
    assert made == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"name": "rain"},
            r"Unknown corruption 'rain'\. Choose one of 'gaussian_noise'",
        ),
        ({"severity": 6}, r"severity must be an integer from 1 to 5, got 6"),
        ({"severity": 2.0}, r"severity must be an integer from 1 to 5, got 2\.0"),
        ({"images": np.zeros((2, 32, 32, 3))}, r"must be uint8 .* got float64"),
        ({"images": np.zeros((2, 3, 32, 32), np.uint8)}, r"transpose\(0, 2, 3, 1\)"),
        (
            {"images": np.zeros((32, 32), np.uint8)},
            r"must have shape .* got \(32, 32\).* images\[None\]",
        ),
        (
            {"images": np.zeros((32, 32, 3), np.uint8)},
            r"got \(32, 32, 3\)\. For one picture pass images\[None\]",
        ),
        (
            {"images": np.zeros((2, 32, 32, 4), np.uint8)},
            r"got \(2, 32, 32, 4\)\. Remove .* images\[\.\.\., :3\]",
        ),
        (
            {"images": np.zeros((2, 4, 32), np.uint8)},
            r"at least 8 x 8 pixels, got 4 x 32",
        ),
        (
            {"images": np.zeros((2, 32, 32, 2), np.uint8)},
            r"got \(2, 32, 32, 2\)\. Grey pictures have one channel, colour",
        ),
        (
            {"images": [np.zeros((s, s, 3), np.uint8) for s in (8, 9)]},
            r"Pictures must have one size .* Resize them",
        ),
        ({"indices": [0]}, r"indices must be 2 non-negative integers"),
        ({"indices": [0, -1]}, r"indices must be 2 non-negative integers"),
        ({"random_state": -1}, r"random_state must be None, a non-negative int"),
        ({"n_jobs": 0}, r"n_jobs must be None, a positive count or -1"),
    ],
)
def test_bad_input_raises(change, message):
    call = {"images": make_pictures(2), "name": "fog", "severity": 1, **change}
    with pytest.raises(InvalidInputError, match=message):
        corrupt(**call)


def test_a_function_may_change_its_input():
    def blacken(images, severity, rng):
        images[:, :8] = 0
        return images

    images = make_pictures(3)
    before = images.copy()
    out = corrupt(images, blacken, 1)
    np.testing.assert_array_equal(images, before)
    assert not out[:, :8].any()
    np.testing.assert_array_equal(out[:, 8:], before[:, 8:])


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: x / 255, r"returned float64 of shape \(3, 32, 32, 3\)"),
        (lambda x: x.astype(int) + 100, r"returned int64"),
        (
            lambda x: x[0],
            r"uint8 of shape \(3, 32, 32, 3\).* uint8 of shape \(32, 32, 3",
        ),
        (lambda x: None, r"'faulty' must return uint8 .* returned a NoneType"),
    ],
)
def test_a_bad_result_of_a_function_raises(result, message):
    def faulty(images, severity, rng):
        return result(images)

    with pytest.raises(InvalidInputError, match=message):
        corrupt(make_pictures(3), faulty, 1)


def test_memory_mapped_pictures_give_a_plain_array(tmp_path):
    np.save(tmp_path / "set.npy", make_pictures(2))
    mapped = np.load(tmp_path / "set.npy", mmap_mode="r")
    out = corrupt(mapped, "contrast", 1)
    assert type(out) is np.ndarray
    np.testing.assert_array_equal(out, corrupt(make_pictures(2), "contrast", 1))


def test_partial_functions_have_the_name_of_their_function():
    def darken(images, severity, rng, by=2):
        return images // by

    def lift(images, severity, rng, by=2):
        return np.maximum(images, by)

    images = make_pictures(4)
    kinds = [partial(darken, by=4), partial(lift, by=9)]
    found = list(iter_corruptions(images, kinds, [1]))
    assert [name for name, _, _ in found] == ["darken", "lift"]
    y = np.array([0, 1, 0, 1])
    clf = DummyClassifier().fit(images.reshape(4, -1), y)
    result = corruption_accuracy(clf, images, y, corruptions=kinds, severities=[1, 2])
    assert result.kinds == ("darken", "lift")


def test_one_kind_and_one_severity_need_no_list():
    def darken(images, severity, rng):
        return images // severity

    images = make_pictures(2)
    [(name, severity, out)] = iter_corruptions(images, darken, 3)
    assert (name, severity) == ("darken", 3)
    np.testing.assert_array_equal(out, images // 3)
    assert [s for _, s, _ in iter_corruptions(images, "fog", [3, 1, 3])] == [3, 1]


def test_large_pictures_are_corrupted_in_small_chunks(monkeypatch):
    sizes = []

    def count(images, severity, rng):
        sizes.append(len(images))
        return images

    images = make_pictures(20, 16, 16)
    monkeypatch.setattr(_registry, "CHUNK_VALUES", 1)
    corrupt(images, count, 1)
    monkeypatch.setattr(_registry, "MAX_VALUES", 3 * images[0].size)
    corrupt(images, count, 1)
    monkeypatch.setattr(_registry, "MAX_VALUES", 1)
    corrupt(images[:2], count, 1)
    assert sizes == [16, 4, *[3] * 6, 2, 1, 1]
