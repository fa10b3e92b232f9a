"""Compare the selection rules with small cases and their definitions by sets."""

import numpy as np
import pytest
from sklearn.base import clone

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.selection import (
    SUBSET_SELECTORS,
    FunctionSelector,
    SharpestSelector,
    SubsetSelector,
    extreme_samples,
)

RATIO_RULES = ["sharpest", "flattest_union", "flattest", "random", "same"]


@pytest.fixture
def sharpness():
    return np.random.default_rng(0).exponential(size=(3, 100))


def lowest_k(scores, k):
    return set(sorted(range(len(scores)), key=lambda n: scores[n])[:k])


def as_sets(masks):
    return [set(np.flatnonzero(row)) for row in masks]


@pytest.mark.parametrize("name", list(SUBSET_SELECTORS))
def test_every_rule_follows_the_protocol(name, sharpness):
    selector = clone(SUBSET_SELECTORS.resolve(name))
    selector.check()
    before = sharpness.copy()
    masks = selector.select(sharpness, random_state=7)
    assert masks.shape == sharpness.shape
    assert masks.dtype == bool
    np.testing.assert_array_equal(sharpness, before)
    np.testing.assert_array_equal(masks, selector.select(sharpness, random_state=7))
    assert name in ("all", "none") or not selector.needs_sharpness or masks.any()


def test_sharpbalance_is_the_union_of_the_others_highest(sharpness):
    masks = SharpestSelector(0.3).select(sharpness)
    top = [lowest_k(-row, 30) for row in sharpness]
    expected = [top[1] | top[2], top[0] | top[2], top[0] | top[1]]
    assert as_sets(masks) == expected


def test_a_single_member_gets_an_empty_set():
    assert not SharpestSelector(0.5).select(np.ones((1, 10))).any()


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_flat_ratio_of_zero_and_one(ratio, sharpness):
    masks = SharpestSelector(ratio).select(sharpness)
    assert masks.all() if ratio else not masks.any()


@pytest.mark.parametrize("name", ["flattest_union", "flattest"])
def test_reference_rules_against_their_definition(name, sharpness):
    masks = SUBSET_SELECTORS.resolve(name).set_params(flat_ratio=0.2).select(sharpness)
    low = [lowest_k(row, 20) for row in sharpness]
    remaining = [n for n in range(100) if not any(n in s for s in low)]
    for i, got in enumerate(as_sets(masks)):
        union = set.union(*(low[j] for j in range(3) if j != i))
        every_third = set(remaining[i::3])
        extra = (
            every_third if name == "flattest_union" else set(remaining) - every_third
        )
        assert got == union | extra


def test_random_has_the_sizes_of_sharpbalance_and_same_has_one_set(sharpness):
    sizes = SharpestSelector(0.4).select(sharpness).sum(axis=1)
    random = SUBSET_SELECTORS.resolve("random").select(sharpness, random_state=0)
    np.testing.assert_array_equal(random.sum(axis=1), sizes)
    assert (random[0] != random[1]).any()
    same = SUBSET_SELECTORS.resolve("same").select(sharpness, random_state=0)
    assert (same == same[0]).all()
    assert same[0].sum() == round(sizes.mean())


def test_the_result_of_a_function_is_checked():
    rule = SUBSET_SELECTORS.resolve(lambda s, random_state: s > 0.5)
    assert isinstance(rule, FunctionSelector)
    assert rule.select(np.array([[0.0, 1.0]])).tolist() == [[False, True]]
    for masks in (np.ones((2, 3)), [[True], [True, False]]):
        bad = SUBSET_SELECTORS.resolve(lambda s, random_state, masks=masks: masks)
        with pytest.raises(InvalidInputError, match=r"array of the shape \(2, 3\)"):
            bad.select(np.ones((2, 3)))


def test_a_function_may_work_in_place_and_return_the_same_array_twice(sharpness):
    masks = np.empty(sharpness.shape, dtype=bool)

    def above_mean(sharpness, random_state):
        sharpness -= sharpness.mean()
        return np.greater(sharpness, 0, out=masks)

    before, rule = sharpness.copy(), FunctionSelector(above_mean)
    first = rule.select(sharpness)
    np.testing.assert_array_equal(sharpness, before)
    rule.select(-sharpness)
    np.testing.assert_array_equal(first, before > before.mean())


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, bool, np.float32])
def test_scores_of_any_type_are_ranked(dtype):
    scores = np.array([[0, 1, 1, 0]]).astype(dtype)
    assert extreme_samples(scores, 0.5).tolist() == [[False, True, True, False]]
    lowest = extreme_samples(scores, 0.5, highest=False)
    assert lowest.tolist() == [[True, False, False, True]]


@pytest.mark.parametrize("name", RATIO_RULES)
def test_scores_that_cannot_be_ranked_raise(name):
    rule = SUBSET_SELECTORS.resolve(name)
    with pytest.raises(InvalidInputError, match=r"shape \(2, 2\) with 1 NaN"):
        rule.select(np.array([[np.nan, 1.0], [1.0, 2.0]]))
    with pytest.raises(
        InvalidInputError, match=r"\(members, samples\).*got shape \(3,\)"
    ):
        rule.select(np.ones(3))


@pytest.mark.parametrize("name", ["random", "same", "function"])
def test_draws_without_a_seed_do_not_use_the_global_generator(name, sharpness):
    def draws(sharpness, random_state):
        return random_state.random_sample(sharpness.shape) < 0.5

    rule = SUBSET_SELECTORS.resolve(draws if name == "function" else name)
    before = np.random.get_state()  # noqa: NPY002
    first, second = rule.select(sharpness), rule.select(sharpness)
    _, key, position, *_ = np.random.get_state()  # noqa: NPY002
    np.testing.assert_array_equal(key, before[1])
    assert position == before[2]
    assert (first != second).any()


@pytest.mark.parametrize("name", RATIO_RULES)
@pytest.mark.parametrize("ratio", [2, -1.0, 1.0001, np.nan, "0.4", None, True])
def test_a_ratio_outside_of_zero_to_one_raises(name, ratio, sharpness):
    rule = SUBSET_SELECTORS.resolve(name).set_params(flat_ratio=ratio)
    message = rf"flat_ratio must be a float in the range \[0.0, 1.0\], got {ratio!r}"
    with pytest.raises(InvalidInputError, match=message):
        rule.check()
    with pytest.raises(InvalidInputError, match=message):
        rule.select(sharpness)
    with pytest.raises(InvalidInputError, match=r"^ratio must be a float in the"):
        extreme_samples(sharpness, ratio)


@pytest.mark.parametrize(
    "function",
    [
        lambda sharpness: sharpness > 0,
        lambda sharpness, rng, more: sharpness > 0,
        lambda sharpness, *, random_state: sharpness > 0,
        lambda: None,
    ],
)
def test_a_function_with_other_arguments_raises(function):
    rule = SUBSET_SELECTORS.resolve(function)
    message = r"called as func\(sharpness, random_state\), but takes \("
    with pytest.raises(InvalidInputError, match=message):
        rule.check()
    with pytest.raises(InvalidInputError, match=message):
        rule.select(np.ones((2, 3)))


@pytest.mark.parametrize(
    "function",
    [
        lambda sharpness, rng: sharpness > 0,
        lambda *args: args[0] > 0,
        lambda sharpness, rng, margin=0: sharpness > margin,
        np.greater,  # has no signature to inspect
    ],
)
def test_a_function_with_these_arguments_is_accepted(function):
    SUBSET_SELECTORS.resolve(function).check()


def test_a_rule_without_random_state_raises():
    class Mine(SubsetSelector):
        def select(self, sharpness):
            return sharpness > 0

    with pytest.raises(InvalidInputError, match=r"Mine\.select is called as .*takes"):
        Mine().check()
