"""Invalid settings raise before training and do not change a fitted ensemble."""

import copy
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback, EpochTimer
from torch import nn
from torch.utils.data import TensorDataset

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.data.augment import EpochAugment, ImageTransform
from sklearn_sharpbalance.exceptions import CheckpointError, InvalidInputError
from sklearn_sharpbalance.selection import FunctionSelector
from tests.cases import rest_slow

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4)).astype(np.float32)
Y = np.arange(30) % 3
BOTH = [SharpBalanceEnsembleClassifier, DiversifiedEnsembleClassifier]
STEPS = []


class Counting(nn.Module):
    """Record every backward pass."""

    def __init__(self, n_features=4, n_classes=3):
        super().__init__()
        self.last = nn.Linear(n_features, n_classes)

    def forward(self, x):
        output = self.last(x)
        if self.training:  # checks before training make no backward pass
            output.register_hook(lambda gradient: STEPS.append(len(gradient)))
        return output


def make(kind=SharpBalanceEnsembleClassifier, **params):
    few = {"n_estimators": 2, "max_epochs": 2, "batch_size": 16, "device": "cpu"}
    return kind(Counting, random_state=0, **{**few, **params})


@cache
def fitted_ensemble(kind):
    return make(kind).fit(X, Y)


def check_refused(
    kind, params, message, X=X, y=Y, error=InvalidInputError, **fit_params
):
    """Check that a new and a fitted ensemble raise before training."""
    fitted = copy.deepcopy(fitted_ensemble(kind))
    before = fitted.predict_proba(globals()["X"])
    new = make(kind, **params)
    for clf in (new, fitted.set_params(**params)):
        STEPS.clear()
        with pytest.raises(error, match=message) as caught:
            clf.fit(X, y, **fit_params)
        assert type(caught.value) is error
        assert not STEPS
    assert not hasattr(new, "classes_")
    np.testing.assert_array_equal(fitted.predict_proba(globals()["X"]), before)


# Numbers, callbacks, folders ----------------------------------------------------------

NUMBERS = ["n_estimators", "max_epochs", "batch_size", "lr", "checkpoint_every"]


@pytest.mark.parametrize("kind", [*BOTH, DeepEnsembleClassifier])
@pytest.mark.parametrize("name", NUMBERS)
def test_true_is_not_a_number(kind, name):
    check_refused(kind, {name: True}, f"{name} must be a number, got True")


@pytest.mark.parametrize("name", ["flat_ratio", "warmup_epochs", "reselect_every"])
def test_true_is_not_a_number_of_samples_or_epochs(name):
    check_refused(BOTH[0], {name: True}, f"{name} must be a number, got True")


def test_boolean_parameters_accept_booleans():
    clf = make(standardize=False, warm_start=True, verbose=False, early_stopping=True)
    assert clf.set_params(validation_fraction=0.3).fit(X, Y).n_iter_ == 2


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("callback", "shown"),
    [(3, "3"), ("print", "'print'"), (("a", 3), r"\('a', 3\)"), (None, "None")],
)
def test_invalid_callbacks_raise(kind, callback, shown):
    message = rf"callbacks\[1\] must be a skorch callback.*got {shown}"
    check_refused(kind, {"callbacks": [EpochTimer(), callback]}, message)


def test_callbacks_may_be_classes_objects_or_pairs():
    seen = []

    class Mine(Callback):
        def on_epoch_end(self, net, **kwargs):
            seen.append(net)

    make(callbacks=[Mine, Mine(), ("third", Mine()), ["fourth", Mine]]).fit(X, Y)
    assert len(seen) == 4 * 2 * 2  # callbacks, epochs, members


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("folder", ["", "  "])
def test_empty_checkpoint_dir_raises(kind, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = rf"checkpoint_dir='{folder}' is not the name of a folder. Pass a folder"
    check_refused(kind, {"checkpoint_dir": folder}, message)
    assert not list(Path(tmp_path).iterdir())


def test_empty_memory_raises(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = "memory='' is not the name of a folder. Pass a folder, '.' for the"
    check_refused(SharpBalanceEnsembleClassifier, {"memory": ""}, message)
    assert not list(Path(tmp_path).iterdir())


def test_memory_that_is_a_file_raises(tmp_path):
    (tmp_path / "file").write_text("mine")
    message = "file' cannot store results: .*Pass a folder that can be written"
    check_refused(
        SharpBalanceEnsembleClassifier, {"memory": str(tmp_path / "file")}, message
    )


@pytest.mark.parametrize("kind", BOTH)
def test_checkpoint_dir_that_is_a_file_raises(kind, tmp_path):
    (tmp_path / "file").write_text("mine")
    message = "Cannot read checkpoint_dir .*file.*Pass a folder that can be read"
    check_refused(
        kind, {"checkpoint_dir": tmp_path / "file"}, message, error=CheckpointError
    )


# Classes and weights ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "names"),
    rest_slow(
        product([*BOTH, DeepEnsembleClassifier], ["xyz", "abd", "abcd"]),
        [(BOTH[0], "abcd"), (BOTH[1], "xyz")],
    ),
)
def test_warm_start_with_other_classes_raises(kind, names):
    clf = make(kind, warm_start=True).fit(X, np.array(list("abc"))[Y])
    before = clf.predict_proba(X)
    STEPS.clear()
    other = np.array(list(names))[np.arange(30) % len(names)]
    message = rf"fitted to the classes \['a', 'b', 'c'\], but y has .*'{names[-1]}'\]"
    with pytest.raises(InvalidInputError, match=message):
        clf.fit(X, other)
    assert not STEPS
    np.testing.assert_array_equal(clf.predict_proba(X), before)
    assert clf.classes_.tolist() == list("abc")
    clf.fit(X[::-1], np.array(list("cab"))[Y])  # the same classes in another order
    clf.set_params(warm_start=False).fit(X, other)
    assert clf.classes_.tolist() == list(names)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("weight", [np.nan, np.inf, -1.0, "2", None])
def test_invalid_class_weights_raise(kind, weight):
    message = rf"class_weight must give each class .* got {weight!r} for the class 1"
    check_refused(kind, {"class_weight": {0: 1.0, 1: weight}}, message)


def test_class_weights_of_zero_or_too_large_raise():
    zeros = dict.fromkeys(range(3), 0)
    check_refused(
        BOTH[0], {"class_weight": zeros}, "Weights by class_weight must .* zeros"
    )
    huge = dict.fromkeys(range(3), 1e308)
    check_refused(BOTH[0], {"class_weight": huge}, r"too large .* largest is 1e\+308")


def test_class_weights_may_be_zero():
    clf = make(class_weight={0: 0, 1: np.float32(2), 2: 3}).fit(X, Y)
    assert clf.predict_proba(X).shape == (30, 3)


# Selection ----------------------------------------------------------------------------


@pytest.mark.parametrize("selection", ["sharpest", "flattest_union", "same"])
@pytest.mark.parametrize("ratio", [2, -1.0, np.nan])
def test_a_nested_flat_ratio_is_checked_before_the_warm_up(selection, ratio):
    params = {"selection": selection, "selection__flat_ratio": ratio}
    check_refused(BOTH[0], params, f"flat_ratio must be a float in .* got {ratio}")


@pytest.mark.parametrize("wrap", [lambda f: f, FunctionSelector])
def test_a_selection_function_is_checked_before_the_warm_up(wrap):
    params = {"selection": wrap(lambda sharpness: sharpness > 0)}
    message = r"called as func\(sharpness, random_state\), but takes \(sharpness\)"
    check_refused(BOTH[0], params, message)


def test_a_sharpness_function_is_checked_before_the_warm_up():
    params = {"sharpness": lambda net, X: X[:, 0]}
    message = r"called as func\(net, X, y\), but takes \(net, X\)"
    check_refused(BOTH[0], params, message)


@pytest.mark.parametrize("kind", BOTH)
def test_an_aggregation_function_is_checked_before_training(kind):
    params = {"aggregation": lambda logits, weights: logits[0]}
    message = r"called as func\(member_logits\), but takes \(logits, weights\)"
    check_refused(kind, params, message)


# Learning rates -----------------------------------------------------------------------

SCHEDULES = {
    "negative": (lambda p: -1, "finite factor >= 0 .*returned -1 at progress 0"),
    "nan": (lambda p: np.nan, "finite factor >= 0 .*returned nan at progress 0"),
    "infinite": (lambda p: 1e400, "returned inf"),
    "at_the_end": (lambda p: 1 - 1.4 * p, r"returned -0.05 at progress 0.75"),
    "none": (lambda p: None, "returns a number, but .* failed at 0: float"),
    "text": (lambda p: "fast", "returns a number, but .* failed at 0: could not"),
    "two_arguments": (lambda p, q: 1.0, "failed at 0: .*missing 1 required"),
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("case", SCHEDULES)
def test_invalid_schedules_raise(kind, case):
    schedule, message = SCHEDULES[case]
    check_refused(kind, {"lr_schedule": schedule}, message)


def test_schedule_is_checked_at_its_last_step():
    # 30 batches in each of 1000 epochs: only the last of 30 000 steps is invalid.
    params = {"max_epochs": 1000, "batch_size": 1}
    bad = {"lr_schedule": lambda p: -1 if p >= 29_999 / 30_000 else 1}
    check_refused(BOTH[0], {**params, **bad}, "returned -1 at progress 0.99996")


@pytest.mark.parametrize("number", rest_slow([torch.tensor, np.float32, int]))
def test_a_schedule_may_return_any_number(number):
    want = make(lr_schedule="constant").fit(X, Y).predict_proba(X)
    got = make(lr_schedule=lambda p: number(1)).fit(X, Y).predict_proba(X)
    np.testing.assert_array_equal(got, want)


# Augmentation -------------------------------------------------------------------------

TRANSFORMS = {
    "none": (lambda x: None, "a tensor of 15 rows.*returned a NoneType"),
    "array": (lambda x: x.numpy(), "returned a ndarray"),
    "pair": (lambda x: (x, x), "returned a tuple"),
    "fewer": (lambda x: x[:-1], r"returned a tensor of shape \(14, 4\)"),
    "scalar": (lambda x: x.sum(), r"returned a tensor of shape \(\)"),
}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("case", TRANSFORMS)
def test_invalid_results_of_transforms_raise(kind, case):
    transform, message = TRANSFORMS[case]
    message = f"train_transform must return .*{message}. Return"
    check_refused(kind, {"train_transform": transform}, message)


def test_transforms_of_dictionaries():
    x = {"a": torch.zeros(3, 2), "b": torch.zeros(3)}
    kept = EpochAugment(lambda x: {k: v + 1 for k, v in x.items()}, (1, 3), "cpu")
    assert kept.batch(0, x)["b"].tolist() == [1, 1, 1]
    for bad in (lambda x: x["a"], lambda x: {"a": x["a"]}, lambda x: {**x, "b": None}):
        with pytest.raises(InvalidInputError, match=r"a dictionary of \['a', 'b'\]"):
            EpochAugment(bad, (1, 3), "cpu").batch(0, x)


def test_transforms_of_many_batches_at_once():
    class Half(ImageTransform):
        def draw(self, shape, device):
            return torch.zeros(*shape, 1)

        def apply(self, x, drawn):
            return x[::2]

    x = torch.zeros(2, 4, 1, 3, 3)
    for transform in (Half(), lambda x: x[::2]):
        augment = EpochAugment(transform, (2, 4), "cpu")
        with pytest.raises(InvalidInputError, match=r"returned a tensor of shape \("):
            augment.batches(0, 2, x)


# Types that numpy does not have -------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "kind"),
    rest_slow(
        product([torch.bfloat16, torch.float8_e4m3fn], BOTH),
        [(torch.bfloat16, BOTH[0]), (torch.float8_e4m3fn, BOTH[1])],
    ),
)
def test_bfloat16_and_float8_are_converted_to_float32(kind, dtype):
    short = torch.from_numpy(X).to(dtype)
    want = make(kind).fit(short.float(), Y).predict_proba(short.float())
    weight = torch.ones(30).to(dtype)
    clf = make(kind).fit(short, torch.from_numpy(Y), sample_weight=weight)
    np.testing.assert_allclose(clf.predict_proba(short), want, rtol=1e-5)


@pytest.mark.parametrize("kind", BOTH)
def test_bfloat16_in_a_dataset(kind):
    short = torch.from_numpy(X).to(torch.bfloat16)
    want = make(kind).fit(short.float(), Y).predict_proba(short.float())
    pairs = TensorDataset(short, torch.from_numpy(Y))
    clf = make(kind).fit(pairs, None)
    np.testing.assert_allclose(clf.predict_proba(pairs), want, rtol=1e-4)
    tiny = TensorDataset(short.to(torch.float8_e4m3fn), torch.from_numpy(Y))
    check_refused(
        kind, {}, "compute with, got torch.float8_e4m3fn. Convert", X=tiny, y=None
    )


def test_bfloat16_in_a_dictionary():
    short = {"x": torch.from_numpy(X).to(torch.bfloat16)}
    single = {"x": short["x"].float()}
    clf = make(estimator__module__n_features=4).fit(short, Y)
    want = make(estimator__module__n_features=4).fit(single, Y).predict_proba(single)
    np.testing.assert_array_equal(clf.predict_proba(short), want)


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_members_accept_all_floating_types(dtype, standardize):
    """Members can be used without their ensemble."""
    clf = make(standardize=standardize).fit(X, Y)
    short = torch.from_numpy(X).to(dtype)
    member = clf.estimators_[0]
    want = member.predict_proba(short.float())
    np.testing.assert_array_equal(member.predict_proba(short), want)
    named = member.predict_proba({"x": short}) if not standardize else want
    np.testing.assert_array_equal(named, want)


@pytest.mark.parametrize("standardize", [True, False])
def test_members_in_half_precision_accept_half_precision(standardize):
    member = make(standardize=standardize).fit(X, Y).estimators_[0]
    want = member.predict_proba(torch.from_numpy(X).float())
    member.module_.to(torch.bfloat16)
    short = torch.from_numpy(X).to(torch.bfloat16)
    assert member.infer(short).dtype is torch.bfloat16
    got = member.infer(short).float().softmax(1).detach()
    np.testing.assert_allclose(got, want, atol=0.05)
