"""Settings of a configured skorch net are used, or raise before training."""

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.base import clone
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback, Checkpoint, EarlyStopping, EpochScoring, Freezer
from skorch.dataset import Dataset, ValidSplit
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler, default_collate

from sklearn_sharpbalance import DeepEnsembleClassifier, DiversifiedEnsembleClassifier
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.optim import ASAM, GSAM, SAM
from sklearn_sharpbalance.persistence.fingerprint import describe
from tests.cases import clusters, rest_slow

X, y = clusters()


class Module(nn.Module):
    def __init__(self, n_classes=3):
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(4, 8), nn.Linear(8, n_classes)

    def forward(self, x):
        return self.lin2(torch.relu(self.lin1(x)))


def configured(**settings):
    given = {"criterion": nn.CrossEntropyLoss, "max_epochs": 4, "lr": 0.1} | settings
    return NeuralNetClassifier(Module, **given)


class OwnLoader(DataLoader):
    pass


class OwnDataset(Dataset):
    pass


def half(z):
    return torch.softmax(z / 2, -1)


class Tempered(nn.CrossEntropyLoss):
    """A criterion with a trainable temperature."""

    def __init__(self, learns=True, **options):
        super().__init__(**options)
        self.log_heat = nn.Parameter(torch.zeros(1), requires_grad=learns)

    def forward(self, logits, labels):
        return super().forward(logits / self.log_heat.exp(), labels)


WEIGHT = torch.tensor([1.0, 2.0, 3.0])
REFUSED = [
    ({"batch_size": -1}, r"batch_size of the net .* got -1\. .*len\(X\)"),
    ({"batch_size": 0}, "batch_size of the net"),
    (
        {"iterator_train__batch_size": 7},
        "iterator_train__batch_size=7 is not used. Pass batch_size=7",
    ),
    ({"max_epochs": 0}, "max_epochs of the net"),
    ({"max_epochs": -3}, "max_epochs of the net"),
    (
        {"optimizer": ASAM, "optimizer__rho": 5.0},
        "optimizer__rho=5.0 .* not used|does not apply SAM",
    ),
    ({"iterator_train": OwnLoader}, "iterator_train=.* not used"),
    (
        {"iterator_train__sampler": WeightedRandomSampler(np.ones(60), 60)},
        "iterator_train__sampler=.* is not used: .* class_weight",
    ),
    ({"dataset": OwnDataset}, "dataset=.* not used"),
    ({"train_split": ValidSplit(3)}, "train_split=.* validation_fraction"),
    ({"criterion__weight": torch.ones(3)}, "weight of the criterion .* class_weight"),
    (
        {"criterion": nn.CrossEntropyLoss(weight=WEIGHT)},
        "weight of the criterion CrossEntropyLoss .* class_weight",
    ),
    (
        {"criterion": partial(nn.NLLLoss, weight=WEIGHT)},
        "weight of the criterion NLLLoss .* class_weight",
    ),
    ({"criterion": Tempered}, "criterion Tempered has trainable .* into the module"),
    ({"criterion": Tempered()}, "criterion Tempered has trainable .* into the module"),
    (
        {"iterator_train__collate_fn": default_collate},
        "iterator_train__collate_fn=.* not used",
    ),
    (
        {"iterator_valid__collate_fn": default_collate},
        "iterator_valid__collate_fn=.* not used",
    ),
    ({"iterator_train__drop_last": True}, "drop_last=True is not used: every epoch"),
    ({"iterator_valid": OwnLoader}, "iterator_valid=.* not used"),
    ({"predict_nonlinearity": half}, "predict_nonlinearity=.* not used"),
    ({"callbacks": [Freezer("lin1.*")]}, "Freezer .* requires_grad=False"),
    ({"callbacks": [EarlyStopping()]}, "EarlyStopping .* validation_fraction=0.1"),
    ({"callbacks": [Checkpoint()]}, "Checkpoint .* 'valid_loss_best'"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
@pytest.mark.parametrize("kind", [SharpBalance, DeepEnsembleClassifier])
def test_unused_settings_of_the_net_raise(kind, settings, message):
    with pytest.raises(InvalidInputError, match=message):
        kind(configured(**settings)).fit(X, y)


def test_criterion_without_parameters_is_accepted():
    plain, tempered = (
        SharpBalance(configured(criterion=c), random_state=0, engine="skorch").fit(X, y)
        for c in (nn.CrossEntropyLoss, partial(Tempered, learns=False))
    )
    np.testing.assert_allclose(
        tempered.predict_proba(X), plain.predict_proba(X), rtol=1e-5
    )


# Options that the base optimizer and the sharpness-aware optimizer both have.
OWN_OPTIONS = [
    ("gsam", torch.optim.RMSprop, "alpha", 0.5, 0.4),
    ("gsam", torch.optim.ASGD, "alpha", 0.6, 0.4),
    ("sam", torch.optim.Adadelta, "rho", 0.95, 0.05),
]


@pytest.mark.parametrize(
    ("sam", "optimizer", "name", "value", "default"), rest_slow(OWN_OPTIONS)
)
def test_options_of_the_net_apply_to_its_base_optimizer(
    sam, optimizer, name, value, default, tmp_path
):
    net = configured(optimizer=optimizer, **{f"optimizer__{name}": value})
    clf = SharpBalance(net, sam=sam, random_state=0).fit(X, y)
    for member in clf.estimators_:
        group = member.optimizer_.param_groups[0]
        assert (group[name], group[f"sam_{name}"]) == (value, default)
    bound = configured(optimizer=partial(optimizer, **{name: value}))
    want = SharpBalance(bound, sam=sam, random_state=0).fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(clf.predict_proba(X), want)
    again = pickle.loads(pickle.dumps(clf))
    np.testing.assert_array_equal(again.predict_proba(X), want)
    np.testing.assert_array_equal(clone(clf).fit(X, y).predict_proba(X), want)
    assert describe(clf.net_) == describe(again.net_) == describe(clone(clf.net_))
    clf.save(tmp_path / "model")
    again = SharpBalance.load(tmp_path / "model", module=Module)
    np.testing.assert_array_equal(
        again.partial_fit(X, y).predict_proba(X), clf.partial_fit(X, y).predict_proba(X)
    )


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, SAM])
def test_rho_of_a_replaced_optimizer_raises(optimizer):
    net = configured(optimizer=torch.optim.Adadelta, optimizer__rho=0.95)
    with pytest.raises(InvalidInputError, match=r"optimizer__rho=0.95 .* not used"):
        SharpBalance(net, optimizer=optimizer).fit(X, y)


def test_options_of_a_sharpness_aware_optimizer_are_kept():
    base = partial(torch.optim.RMSprop, alpha=0.5)
    own = {"optimizer__base_optimizer": base, "optimizer__alpha": 0.3}
    clf = SharpBalance(configured(optimizer=GSAM, **own), max_epochs=1).fit(X, y)
    group = clf.estimators_[0].optimizer_.param_groups[0]
    assert (group["alpha"], group["sam_alpha"]) == (0.5, 0.3)


def test_parameters_of_the_ensemble_replace_those_of_the_net():
    clf = SharpBalance(configured(batch_size=-1, max_epochs=0), batch_size=30)
    clf.set_params(max_epochs=2, random_state=0).fit(X, y)
    assert clf.n_iter_ == 2


@pytest.mark.parametrize(
    "kind", [DeepEnsembleClassifier, DiversifiedEnsembleClassifier]
)
@pytest.mark.parametrize(
    "params",
    [
        {"optimizer": SAM},
        {"estimator__optimizer": SAM},
        {"estimator": NeuralNetClassifier(Module, optimizer=SAM, optimizer__rho=0.1)},
        {"estimator": NeuralNetClassifier(Module), "optimizer": SAM},
    ],
)
def test_sharpness_aware_optimizer_raises_in_ensembles_without_sam(kind, params):
    clf = kind(**params)
    with pytest.raises(
        InvalidInputError, match=r"does not apply SAM, .* optimizer=SAM"
    ):
        clf.fit(X, y)


def test_two_sharpness_aware_optimizers_raise():
    for given in ({"optimizer": ASAM}, {"estimator": configured(optimizer=ASAM)}):
        clf = SharpBalance(**{"estimator": Module} | given)
        with pytest.raises(InvalidInputError, match="sam='gsam' is not used"):
            clf.set_params(sam="gsam").fit(X, y)
        for said in ("sam", "asam", ASAM):
            clf.set_params(sam=said, max_epochs=1).fit(X, y)
            assert isinstance(clf.estimators_[0].optimizer_, ASAM)


@pytest.mark.parametrize(
    "pattern", rest_slow(["lin1.*", "module.lin1.*", "*lin1.*"], 2)
)
def test_parameter_groups_use_the_names_of_the_users_module(pattern):
    net = configured(optimizer__param_groups=[(pattern, {"lr": 0.0})])
    before = DeepEnsembleClassifier(net, max_epochs=1, lr=1e-30, random_state=0)
    after = DeepEnsembleClassifier(net, random_state=0)
    first, last = (
        [getattr(c.fit(X, y).estimators_[0].module_.module, n).weight for c in pair]
        for n, pair in (("lin1", (before, after)), ("lin2", (before, after)))
    )
    torch.testing.assert_close(*first, rtol=0, atol=0)
    assert not torch.allclose(*last, atol=1e-3)


def test_parameter_groups_without_weights_raise():
    groups = [("lin1.*", {"lr": 0.0}), ("head.*", {"lr": 1.0})]
    clf = DeepEnsembleClassifier(Module, estimator__optimizer__param_groups=groups)
    with pytest.raises(InvalidInputError, match=r"pattern 'head.*lin2\.bias"):
        clf.fit(X, y)


def frozen():
    return Module().requires_grad_(False)


def lazy():
    return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("module", "message"),
    [(frozen, "no weights to train: 4 weights"), (lazy, "lazy layers")],
)
def test_unsupported_modules_raise(module, message):
    with pytest.raises(InvalidInputError, match=message):
        SharpBalance(module).fit(X, y)


@pytest.mark.parametrize("device", ["meta", "xla"])
def test_meta_device_raises(device):
    with pytest.raises(InvalidInputError, match=f"device='{device}' cannot be used"):
        SharpBalance(device=device).fit(X, y)


# --- callbacks


def checkpointed(tmp_path, *callbacks, **settings):
    return SharpBalance(
        Module,
        max_epochs=3,
        validation_fraction=0.2,
        callbacks=list(callbacks),
        random_state=0,
        **settings,
    ).fit(X, y)


def test_members_have_separate_skorch_checkpoints(tmp_path):
    scoring = EpochScoring("accuracy", name="va", lower_is_better=False)
    best = Checkpoint(monitor="va_best", dirname=str(tmp_path), load_best=True)
    clf = checkpointed(tmp_path, scoring, best, n_estimators=3)
    outputs = clf.member_predict_proba(X)
    assert all(
        not np.allclose(outputs[i], outputs[j]) for i, j in ((0, 1), (1, 2), (0, 2))
    )
    names = {path.name for path in tmp_path.iterdir()}
    assert {f"member_{i}_params.pt" for i in range(3)} <= names


class Clip(Callback):
    def on_epoch_end(self, net, **kwargs):
        for weight in net.module_.parameters():
            weight.data.clamp_(-0.01, 0.01)


@pytest.mark.parametrize(
    "ensemble",
    [
        SharpBalance(engine="skorch"),
        SharpBalance(engine="stacked"),
        DiversifiedEnsembleClassifier(),
    ],
)
def test_weights_changed_by_a_callback_are_kept(ensemble):
    clf = ensemble.set_params(max_epochs=4, random_state=0, callbacks=[Clip()])
    weights = clf.fit(X, y).estimators_[0].module_.parameters()
    assert max(weight.abs().max() for weight in weights) <= 0.01
