"""Crafted files with the right digest: nothing crashes, hangs or runs."""

import json
import time

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback, Checkpoint, EarlyStopping

from sklearn_sharpbalance import DeepEnsembleClassifier, load
from sklearn_sharpbalance.exceptions import ModelFileError, SharpBalanceError
from tests.cases import rest_slow
from tests.persistence import fuzz
from tests.persistence.crafting import changed, set_net, set_params
from tests.training.killing import small_data, start_in_child

FEW = {"n_estimators": 1, "max_epochs": 2, "batch_size": 32, "random_state": 0}
FEW |= {"estimator__module__hidden": (4,), "device": "cpu"}
FUSED = {"optimizer": torch.optim.AdamW, "estimator__optimizer__fused": True}


@pytest.fixture
def saved(tmp_path):
    def save(**params):
        clf = DeepEnsembleClassifier(**FEW | params).fit(*small_data())
        clf.save(tmp_path / "model")
        return tmp_path / "model"

    return save


# Momentum -----------------------------------------------------------------------------

WRONG_MOMENTS = {
    "short": lambda state: state.update(exp_avg=torch.zeros(1)),
    "integers": lambda state: state.update(exp_avg=torch.zeros(4, 15).long()),
    "number": lambda state: state.update(exp_avg_sq=0.5),
    "steps": lambda state: state.update(step=torch.zeros(3)),
    "missing": lambda state: state.pop("exp_avg_sq"),
    "more": lambda state: state.update(other=torch.zeros(7)),
}


@pytest.mark.parametrize("case", WRONG_MOMENTS)
def test_moments_of_another_shape_are_refused(case, saved):
    """Fused steps of torch would write beyond them."""

    def change(tree):
        WRONG_MOMENTS[case](tree["members"][0]["optimizer"]["state"][0])

    path = saved(**FUSED)
    assert load(path).partial_fit(*small_data()).n_iter_ == 3
    with pytest.raises(ModelFileError):
        load(changed(path, change))


def test_momentum_that_is_not_a_dictionary_is_refused(saved):
    def change(tree):
        tree["members"][0]["optimizer"]["state"][0] = []

    with pytest.raises(ModelFileError, match="not a dictionary"):
        load(changed(saved(**FUSED), change))


@pytest.mark.parametrize(
    ("name", "value"), [("lr", "fast"), ("betas", 0.9), ("params", [0]), ("eps", None)]
)
def test_options_of_other_types_are_refused(name, value, saved):
    def change(tree):
        tree["members"][0]["optimizer"]["param_groups"][0][name] = value

    with pytest.raises(ModelFileError):
        load(changed(saved(**FUSED), change))


def test_switches_of_the_optimizer_are_those_of_the_settings(saved):
    def change(tree):
        group = tree["members"][0]["optimizer"]["param_groups"][0]
        group.update(maximize=True, amsgrad=True)

    path = saved(optimizer=torch.optim.AdamW)
    (group,) = load(changed(path, change)).estimators_[0].optimizer_.param_groups
    assert (group["maximize"], group["amsgrad"]) == (False, False)


def test_a_checkpoint_with_other_moments_is_refused(tmp_path):
    def change(tree):
        state = tree["state"]["members"][0]["optimizer"]["state"]
        state[0]["exp_avg"] = torch.zeros(1)
        tree["finished"] = False

    def fit():
        clf = DeepEnsembleClassifier(**FEW, **FUSED, checkpoint_dir=tmp_path)
        return clf.fit(*small_data())

    fit()
    (path,) = tmp_path.iterdir()
    changed(path, change, kind="checkpoint")
    with pytest.raises(SharpBalanceError):
        fit()


# Callbacks of a checkpoint ------------------------------------------------------------


class Counting(Callback):
    """Has running state, and writes to a file."""

    def __init__(self, path="own"):
        self.path = path

    def initialize(self):
        self.count_ = 0
        return self

    def on_train_begin(self, net, **kwargs):
        self.target_ = f"{self.path}.txt"

    def on_epoch_end(self, net, **kwargs):
        self.count_ += 1


def test_a_strangers_checkpoint_sets_no_paths(tmp_path):
    elsewhere = tmp_path / "elsewhere"

    def change(tree):
        tree["finished"] = False
        kept = tree["state"]["members"][0]["extra"]["callbacks"]
        kept["writes"]["plain"].update(
            dirname=str(elsewhere), f_params="x.pt", f_pickle="x.pkl", fn_prefix="x"
        )
        kept["counts"]["plain"].update(path="x", target_="/x", on_epoch_end=3, count_=7)

    def fit():
        callbacks = [
            ("writes", Checkpoint(monitor=None, dirname=str(tmp_path / "own"))),
            ("counts", Counting()),
            ("stop", EarlyStopping("train_loss", patience=9)),
        ]
        folder = {"checkpoint_dir": tmp_path / "fit", "callbacks": callbacks}
        return DeepEnsembleClassifier(**FEW, **folder).fit(*small_data())

    fit()
    (path,) = (tmp_path / "fit").iterdir()
    changed(path, change, kind="checkpoint")
    with pytest.warns(UserWarning, match="start again"):
        fit()
    assert not elsewhere.exists()
    assert not any(name.name.startswith("x") for name in (tmp_path / "own").iterdir())


# Time and memory ----------------------------------------------------------------------


def large_trunk(tree):
    set_params(shared_trunk="vit_h_14")(tree)
    tree["trunk"] = {"module": {"weight": torch.zeros(9)}, "precision": "float32"}


COLLIDING = [i * (2**61 - 1) for i in range(3000)]
ENDLESS = {
    "clones": set_net(
        module__module=torch.nn.TransformerEncoder,
        module__encoder_layer=None,
        module__num_layers=10**8,
    ),
    "numbers": set_net(
        module__module=torch.nn.ParameterList, module__values=[1] * 20_000
    ),
    "blocks": set_net(module__hidden=(1,) * 100_000),
    "epochs": set_params(max_epochs=10**12),
    "members": set_params(n_estimators=10**9),
    "passes": lambda tree: tree["fitted"].update(n_passes_=10**400),
    "classes": lambda tree: tree["fitted"].update(classes_=np.arange(10**5)),
    "compiler": set_params(estimator__compile=True),
    "trunk": large_trunk,
}


@pytest.mark.parametrize("case", ENDLESS)
def test_settings_that_take_forever_are_refused(case, saved):
    path = changed(saved(), ENDLESS[case])
    begun = time.perf_counter()
    with pytest.raises(ModelFileError):
        load(path)
    assert time.perf_counter() - begun < 5


def rewritten(path, old, new):
    """Replace text of the JSON tree."""
    return fuzz.write(path, *fuzz.read(path, lambda text: text.replace(old, new, 1)))


@pytest.mark.parametrize(
    "value",
    [
        {"$dict": [[key, 0] for key in COLLIDING]},
        {"$dict": [[{"$tuple": [1, 2]}, 0]]},
        json.loads("[" * 200 + "]" * 200),
        [[[[]]]] * 50_000,
    ],
    ids=["colliding_keys", "tuples_as_keys", "deep", "many_lists"],
)
def test_json_that_takes_time_or_memory_is_refused(value, saved):
    path = rewritten(saved(), '"net":{', f'"more":{json.dumps(value)},"net":{{')
    begun = time.perf_counter()
    with pytest.raises(ModelFileError):
        load(path)
    assert time.perf_counter() - begun < 5


def test_what_a_file_cannot_store_is_passed_again(tmp_path):
    X, y = small_data()
    clf = DeepEnsembleClassifier(**FEW | {"max_epochs": 1, "batch_size": 10**7})
    clf.fit(X, y).save(tmp_path / "model")
    with pytest.raises(SharpBalanceError, match="batch_size"):
        load(tmp_path / "model")
    again = load(tmp_path / "model", batch_size=10**7)
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))


# Messages -----------------------------------------------------------------------------

RED = "\x1b[31m"


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree["params"].update({"estimator": {"missing": RED}}),
        lambda tree: tree["params"].update({RED: {"value": 1}}),
        lambda tree: tree["fitted"].update({f"{RED}_": 1}),
        lambda tree: tree.update({"class": RED}),
        set_params(lr=RED),
        set_net(**{f"module__{RED}": 1}),
        lambda tree: tree["fitted"].update(feature_names_in_=[RED] * 5),
    ],
)
def test_text_of_a_file_does_not_reach_the_terminal(change, saved):
    with pytest.raises(SharpBalanceError) as error:
        load(changed(saved(), change))
    assert str(error.value).isprintable()


def test_text_of_a_checkpoint_does_not_reach_the_terminal(tmp_path):
    def change(tree):
        tree["state"]["members"][0]["module"][RED] = torch.zeros(1)
        tree["finished"] = False

    def fit():
        DeepEnsembleClassifier(**FEW, checkpoint_dir=tmp_path).fit(*small_data())

    fit()
    (path,) = tmp_path.iterdir()
    changed(path, change, kind="checkpoint")
    with pytest.raises(SharpBalanceError) as error:
        fit()
    assert str(error.value).isprintable()


# Threads ------------------------------------------------------------------------------


class Growing(str):
    """The name of an attribute; who compares it meets an object that grows."""

    def endswith(self, *args):
        setattr(self.owner, f"other_{len(vars(self.owner))}", 0)
        return super().endswith(*args)


def test_predict_does_not_iterate_over_attributes_that_a_fit_may_add():
    X, y = small_data()
    clf = DeepEnsembleClassifier(**FEW | {"max_epochs": 1}).fit(X, y)
    name = Growing("more_")
    name.owner = clf
    vars(clf)[name] = 0
    assert clf.predict(X[:2]).shape == (2,)


# Fuzzing ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "n"), [("frame", 20), *rest_slow([(m, 60) for m in fuzz.MODELS], 0)]
)
def test_mutated_files_do_no_harm(name, n, tmp_path):
    """Files are loaded, predict and are trained further; a checkpoint is continued."""
    log = tmp_path / "log"
    process = start_in_child(fuzz.try_mutated, name, n, tmp_path, log)
    process.join(1200)
    process.kill()
    assert log.read_text() == "done"
