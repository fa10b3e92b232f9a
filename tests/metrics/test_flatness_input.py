"""Flatness metrics with unusual input or in unusual contexts."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import BaggingClassifier
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import TensorDataset

from sklearn_sharpbalance import metrics
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.metrics.nets import ensemble_of, mlp, samples
from tests.metrics.test_flatness import call, every


@every
def test_value_is_the_same_in_inference_mode(measure):
    net, (X, y) = mlp(), samples(12)
    kwargs = {"batch_size": 4, "n_batches": 2}
    expected = call(measure, net, X, y, **kwargs)
    with torch.inference_mode():
        found = call(measure, net, X, y, **kwargs)
    assert found == pytest.approx(expected, rel=1e-9)


@every
def test_missing_labels_raise(measure):
    X, _ = samples(5)
    for model in (mlp(), ensemble_of([mlp()], list("abcd"))):
        with pytest.raises(InvalidInputError, match=r"y is None.*Pass the labels as y"):
            call(measure, model, X, None)


@every
def test_class_codes_without_an_output_raise(measure):
    """On a GPU such a code would end the process."""
    X, y = samples(5)
    dataset = TensorDataset(torch.as_tensor(X), torch.as_tensor(y + 4))
    message = f"class code {y.max() + 4}, but the net has only 4 outputs"
    with pytest.raises(InvalidInputError, match=message):
        call(measure, mlp(), dataset, None)


@pytest.mark.parametrize(
    "measure", [metrics.fisher_rao_norm, metrics.mean_fisher_trace]
)
def test_a_net_without_trainable_weights_raises(measure):
    frozen = mlp()
    frozen.module_.requires_grad_(False)
    with pytest.raises(InvalidInputError, match="has no trainable parameters"):
        measure(frozen, *samples(5))


def test_the_number_of_samples_does_not_overflow():
    net, (X, y) = mlp(), samples(12)
    many = np.int32(2**16)
    found = metrics.fisher_rao_norm(net, X, y, batch_size=many, n_batches=many)
    assert found == pytest.approx(metrics.fisher_rao_norm(net, X, y), rel=1e-9)


def bagging(X, y, **kwargs):
    net = NeuralNetClassifier(
        nn.Linear,
        module__in_features=3,
        module__out_features=4,
        criterion=nn.CrossEntropyLoss,
        max_epochs=1,
        train_split=None,
        verbose=0,
    )
    return BaggingClassifier(net, n_estimators=2, random_state=0, **kwargs).fit(X, y)


def test_members_with_their_own_columns_raise():
    X, y = samples(20)
    X = X.astype(np.float32)
    whole = bagging(X, y)
    alone = [metrics.fisher_rao_norm(net, X, y) for net in whole.estimators_]
    assert metrics.fisher_rao_norm(whole, X, y) == pytest.approx(np.mean(alone))
    with pytest.raises(
        InvalidInputError, match="BaggingClassifier takes its own columns"
    ):
        metrics.fisher_rao_norm(bagging(X, y, bootstrap_features=True), X, y)
