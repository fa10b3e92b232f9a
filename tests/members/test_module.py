"""The module of a member: standardised input, new copies of a prototype."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from torch import nn

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning
from sklearn_sharpbalance.members import MemberModule
from sklearn_sharpbalance.members.module import fresh_copy


def wide_linear():
    return nn.Sequential(nn.Linear(4, 3, dtype=torch.float64))


@pytest.mark.parametrize("engine", ["skorch", "stacked"])
def test_float64_weights_get_float64_input(engine):
    """An ensemble passes tables as float32."""
    X, y = load_iris(return_X_y=True)
    options = {"n_estimators": 2, "max_epochs": 3, "lr": 0.1, "random_state": 0}
    options |= {"engine": engine}
    wide = SharpBalance(wide_linear, **options).fit(X, y)
    assert wide.estimators_[0].module_.module[0].weight.dtype is torch.float64
    assert wide.score(X, y) > 0.6
    np.testing.assert_array_equal(
        wide.member_decision_function(X)[0].argmax(1), wide.estimators_[0].predict(X)
    )


def test_keyword_inputs_are_converted_to_float64():
    module = MemberModule(nn.Bilinear, in1_features=2, in2_features=2, out_features=1)
    parts = {"input1": torch.ones(3, 2), "input2": torch.ones(3, 2)}
    assert module.double()(**parts).dtype is torch.float64
    assert parts["input1"].dtype is torch.float32


@pytest.mark.parametrize("standardize", [True, False])
def test_member_accepts_tables_like_its_ensemble(standardize):
    X, y = load_iris(return_X_y=True)  # float64
    clf = DeepEnsembleClassifier(
        n_estimators=2, max_epochs=2, standardize=standardize, random_state=0
    ).fit(X, y)
    member = clf.estimators_[0]
    np.testing.assert_array_equal(member.predict(X), member.predict(np.float32(X)))
    logits = clf.member_decision_function(X)[0]
    np.testing.assert_array_equal(member.predict(X), logits.argmax(axis=1))


class Sum(nn.Module):
    def forward(self, left, right):
        return left + 10 * right


def test_keyword_inputs_are_not_standardised():
    module = MemberModule(Sum)
    assert module(left=torch.ones(2), right=torch.ones(2)).tolist() == [11.0, 11.0]


def prototype():
    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)]
    module = nn.Sequential(*layers)
    module(torch.randn(8, 3))  # changes the running statistics
    return module


def test_copies_of_a_prototype_have_new_and_different_weights():
    original = prototype()
    before = {key: value.clone() for key, value in original.state_dict().items()}
    copies = [fresh_copy(original) for _ in range(2)]
    for key in ("0.weight", "3.weight", "0.bias"):
        versions = [m.state_dict()[key] for m in (original, *copies)]
        assert len({tuple(v.flatten().tolist()) for v in versions}) == 3
    for copied in copies:
        assert (copied[1].running_mean == 0).all()
        assert copied[1].num_batches_tracked == 0
    for key, value in original.state_dict().items():
        assert value.equal(before[key])


class WithToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.ones(1, 2))
        self.head = nn.Linear(2, 2)

    def forward(self, X):
        return self.head(X + self.token)


def test_layer_that_cannot_be_reinitialised_warns():
    with pytest.warns(SharpBalanceWarning, match="WithToken"):
        MemberModule(WithToken())


class Constants(nn.Module):
    """Initialise parameters with constants in several ways."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.empty(2)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.ones_(self.scale)
        self.shift.data.zero_()


def test_layers_with_constant_initial_values_do_not_warn():
    layers = [nn.LayerNorm(3), nn.BatchNorm1d(3), nn.PReLU(), Constants()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh_copy(nn.Sequential(*layers, nn.LSTM(2, 3), nn.Embedding(3, 2)))


def test_layer_with_renamed_weights_warns():
    """Spectral norm renames the weights, which reset_parameters does not reach."""
    layer = nn.utils.spectral_norm(nn.Linear(4, 2))
    with pytest.warns(SharpBalanceWarning, match=r"Linear \(weight_orig\)"):
        copied = fresh_copy(nn.Sequential(layer))
    assert copied[0].weight_orig.equal(layer.weight_orig)


def test_copies_have_the_settings_of_the_prototype():
    """Only the weights are initialised again."""
    original = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, bias=False), nn.Dropout(0.3))
    copied = fresh_copy(original)
    assert repr(copied) == repr(original)
    assert np.shape(copied[0].weight) == (2, 1, 3, 3)


@pytest.mark.parametrize("clip", ["x", -1.0, float("nan"), True])
def test_a_bound_of_another_type_raises(clip):
    """A model file may have any value."""
    with pytest.raises(InvalidInputError, match="clip"):
        MemberModule(nn.Linear(2, 2), clip=clip)
