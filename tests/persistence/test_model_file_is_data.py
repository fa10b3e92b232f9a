"""A model file is data: what it may set, of which types, and errors of writing."""

import inspect
import os
import pickle
import re
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from skorch import NeuralNet, NeuralNetClassifier
from skorch.callbacks import EarlyStopping

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    load,
)
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.aggregation.rules import MeanLogitAggregation
from sklearn_sharpbalance.exceptions import (
    FileNotWrittenError,
    InvalidInputError,
    ModelFileError,
    SharpBalanceError,
)
from sklearn_sharpbalance.persistence import allowed_names as naming
from sklearn_sharpbalance.persistence import archive
from sklearn_sharpbalance.persistence.allowed_names import (
    SPECIAL_TAGS,
    is_left_out,
    is_passed_again,
)
from tests.persistence.crafting import crafted, set_net, set_params
from tests.persistence.test_model_file import TRUNK
from tests.training.killing import small_data

FEW = {"n_estimators": 2, "max_epochs": 2, "batch_size": 32, "random_state": 0}
NARROW = {"estimator__module__hidden": (4,), "device": "cpu", **FEW}


class Pretrained(torch.nn.Linear):
    """A user's own network that reads a file named by its argument."""

    read = []

    def __init__(self, n_features, n_classes, weights_path=None, norm="none"):
        super().__init__(n_features, n_classes)
        self.read.append(weights_path)


class OwnNet(NeuralNetClassifier):
    """A user's own net with a parameter of its own."""

    def __init__(self, *args, scale=1.0, **kwargs):
        self.scale = scale
        super().__init__(*args, **kwargs)

    def infer(self, x, **fit_params):
        return self.scale * super().infer(x, **fit_params)


class Named(MeanLogitAggregation):
    """A user's own aggregation, with an attribute that another one has as a number."""

    def prepare(self, nets, data):
        self.member_ = "the best"
        return nets


def net(module=torch.nn.Linear, kind=NeuralNetClassifier, **params):
    sizes = {"module__in_features": 5, "module__out_features": 3}
    loss = torch.nn.CrossEntropyLoss
    return kind(module, criterion=loss, **{**sizes, **params})


def stored_tree(path):
    return archive.read_archive(path, "model", SPECIAL_TAGS)


# Settings that a file may not have ----------------------------------------------------


def set_users_net(name, value):
    """The same for a net that the file has as the parameter estimator."""
    linear = {"module": {"value": torch.nn.Linear}, name: {"value": value}}
    described = {"class": {"value": NeuralNetClassifier}, "params": linear}
    return lambda tree: tree["params"].update({"estimator": {"net": described}})


REFUSED_ENSEMBLE = {"memory": "cache", "checkpoint_dir": "checkpoints"}
# Of a skorch net, wherever a file can have them.
REFUSED_NET = {
    "torch_load_kwargs": {"weights_only": False},
    "iterator_train": torch.nn.Linear,
    "iterator_valid": torch.nn.Linear,
    "iterator_train__num_workers": 64,
    "iterator_valid__num_workers": 64,
    "iterator_train__multiprocessing_context": "spawn",
    "iterator_train__worker_init_fn": torch.nn.Linear,
    "iterator_train__collate_fn": torch.nn.Linear,
    "dataset": torch.nn.Linear,
    "dataset__root": "folder",
    "train_split": 3,
    "compile": True,
    "compile__backend": "inductor",
    "module__compile": True,
    "callbacks__checkpoint__dirname": "folder",
    "callbacks__checkpoint__load_best": True,
    "callbacks__print_log__sink": torch.nn.Linear,
    "history": "history.json",
    "initialized_": True,
    "prefixes_": [],
    "virtual_params_": {},
    "module__weights_path": "weights",
    "module__backbone": "some/folder",
    "module__source": "https://example.org/weights",
    "module__home": "~",
    "module__options": {"checkpoint": "best"},
    "module__stages": [{"file": "a"}, {"file": "b"}],
    "module__disk": "C:\\weights",
    "criterion__priors": "priors.npy",
    "optimizer__state_file": "state",
}


@pytest.mark.parametrize("name", REFUSED_ENSEMBLE)
def test_a_file_cannot_set_folders_and_processes(name, model, tmp_path):
    path = crafted(model, tmp_path, set_params(**{name: REFUSED_ENSEMBLE[name]}))
    match = f"it sets {name} to .*may not set.* Set {name} yourself, by load or"
    with pytest.raises(ModelFileError, match=match):
        load(path)
    crafted(
        model, tmp_path, lambda tree: tree["params"].update({name: {"missing": ""}})
    )
    with pytest.raises(ModelFileError, match="may not set"):
        load(path)


@pytest.mark.parametrize("name", REFUSED_NET)
@pytest.mark.parametrize("place", ["nested", "net", "users_net"])
def test_a_file_cannot_set_what_a_net_reads_or_runs(name, place, model, tmp_path):
    value = REFUSED_NET[name]
    change = {
        "nested": set_params(**{f"estimator__{name}": value}),
        "net": set_net(**{name: value}),
        "users_net": set_users_net(name, value),
    }[place]
    path = crafted(model, tmp_path, change)
    with pytest.raises(ModelFileError, match=f"it sets estimator__{name} to .*may not"):
        load(path)


@pytest.mark.parametrize(
    "change",
    [
        set_params(member_params=[{"module__weights_path": "a"}, {}]),
        set_net(module__member_params=({"module__source": "a/b.pt"}, {})),
    ],
)
def test_a_file_cannot_give_members_files_of_their_own(change, model, tmp_path):
    with pytest.raises(ModelFileError, match=r"member_params to .*may not set"):
        load(crafted(model, tmp_path, change))


def test_a_file_cannot_give_members_other_settings(model, tmp_path):
    change = set_net(module__member_params=({"torch_load_kwargs": {}}, {}))
    with pytest.raises(InvalidInputError, match="cannot be a setting of one member"):
        load(crafted(model, tmp_path, change))


NET = "skorch.NeuralNetClassifier"
OBJECTS = {
    "net": (NET, {"module": torch.nn.Linear, "torch_load_kwargs": {}}),
    "aggregation": (
        "sklearn_sharpbalance.aggregation.rules.FunctionAggregation",
        {"func": torch.nn.Softmax},
    ),
    "scorer": (
        "sklearn_sharpbalance.sharpness.FunctionScorer",
        {"func": torch.nn.Softmax},
    ),
    "selector": (
        "sklearn_sharpbalance.selection.FunctionSelector",
        {"func": torch.nn.Softmax},
    ),
    "layer": ("torch.nn.Linear", {"in_features": 2, "out_features": 2}),
}


@pytest.mark.parametrize("case", OBJECTS)
def test_a_file_cannot_make_objects_that_call_functions(case):
    with pytest.raises(ValueError, match="which a file may not"):
        SPECIAL_TAGS["$object"](OBJECTS[case])


@pytest.mark.parametrize("name", ["callbacks", "shared_trunk", "lr_schedule"])
def test_only_the_estimator_may_be_a_net(name, model, tmp_path):
    described = {"class": {"value": NeuralNetClassifier}, "params": {}}
    change = {name: {"net": described}}
    path = crafted(model, tmp_path, lambda tree: tree["params"].update(change))
    with pytest.raises(ModelFileError):
        load(path)


WRONG_KINDS = {
    "criterion": ("WideResNet", "a loss"),
    "module__module": ("SAM", "a network"),
    "optimizer": ("WideResNet", "an optimizer"),
    "optimizer__base_optimizer": ("MLP", "an optimizer"),
}


@pytest.mark.parametrize("name", WRONG_KINDS)
def test_a_class_must_be_of_the_kind_that_is_called(name, model, tmp_path):
    found, wanted = WRONG_KINDS[name]
    folder = "optim" if found == "SAM" else "networks"
    value = naming.named(f"sklearn_sharpbalance.{folder}.{found}")
    with pytest.raises(ModelFileError, match=f"it takes {found} for {wanted}"):
        load(crafted(model, tmp_path, set_net(**{name: value})))


def all_parameters():
    """Names of all parameters that an ensemble or its skorch net can have."""
    kinds = (SharpBalance, DeepEnsembleClassifier, DiversifiedEnsembleClassifier)
    for kind in kinds:
        yield from kind().get_params(deep=False)
    for kind in (NeuralNet, NeuralNetClassifier):
        for name, parameter in inspect.signature(kind).parameters.items():
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                yield f"estimator__{name}"


def test_every_parameter_is_known_to_be_stored_or_left_out():
    """A new parameter of an ensemble or of skorch's net needs a decision here."""
    stays = {name for name in all_parameters() if is_left_out(name)}
    of_net = {"dataset", "iterator_train", "iterator_valid", "torch_load_kwargs"}
    of_net |= {"compile", "train_split"}
    assert stays == {"memory", "checkpoint_dir"} | {
        f"estimator__{name}" for name in of_net
    }
    travels = {name for name in all_parameters() if not is_left_out(name)}
    words = ("path", "file", "dir", "folder", "url", "jobs", "memory", "kwargs")
    assert not [n for n in travels if any(word in n.split("_") for word in words)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("class_weight", {"n/a": 2.0, "b.c": 1.0}),
        ("device", ["cuda:0", "cuda:1"]),
        ("estimator__module__activation", "leaky_relu"),
        ("estimator__module__pretrained", True),
        ("estimator__module__n_files", 3),
        ("estimator__module__profile", "wide"),
        ("estimator__optimizer__param_groups", [("first.bias", {"lr": 0.1})]),
        ("estimator__callbacks__print_log", None),
    ],
)
def test_usual_settings_are_stored(name, value):
    assert not is_left_out(name)
    assert not is_passed_again(name, value)


def test_save_leaves_out_what_load_refuses(tmp_path):
    X, y = small_data()
    options = {"memory": str(tmp_path / "m"), "engine": "skorch"}
    options["estimator__iterator_train__num_workers"] = 0
    options["estimator__torch_load_kwargs"] = {"weights_only": False}
    clf = SharpBalance(**NARROW, **options).fit(X, y)
    clf.save(tmp_path / "model")
    tree = stored_tree(tmp_path / "model")
    assert not [name for name in tree["params"] if is_left_out(name)]
    assert not [n for n in tree["net"]["params"] if is_left_out(f"estimator__{n}")]
    again = load(tmp_path / "model", memory=str(tmp_path / "own"))
    assert again.memory == str(tmp_path / "own")
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))


EARLY = [("early", EarlyStopping(monitor="train_loss"))]
OWN = net(kind=OwnNet, scale=2.5, iterator_train__num_workers=0)
READ = {"estimator__module__weights_path": "old.pt"}
OF_MEMBERS = [{"module__weights_path": "a.pt"}, {"module__weights_path": "b.pt"}]
# An ensemble, what load asks for, and what it is passed.
PASSED_AGAIN = {
    "own net": (DeepEnsembleClassifier(OWN, **FEW), "module=...", {"module": OWN}),
    "path": (
        DeepEnsembleClassifier(
            Pretrained, estimator__module__norm="batch", **READ, **FEW
        ),
        "module=..., estimator__module__weights_path=...",
        {"module": Pretrained, "estimator__module__weights_path": "new.pt"},
    ),
    "paths of members": (
        DeepEnsembleClassifier(Pretrained, member_params=OF_MEMBERS, **FEW),
        "member_params=...",
        {"module": Pretrained, "member_params": OF_MEMBERS},
    ),
    "options of callbacks": (
        DeepEnsembleClassifier(
            net(callbacks=EARLY, callbacks__early__patience=7), **FEW
        ),
        "estimator__callbacks__early__patience=...",
        {"estimator__callbacks": EARLY, "estimator__callbacks__early__patience": 3},
    ),
}


@pytest.mark.parametrize("case", PASSED_AGAIN)
def test_what_a_file_only_names_must_be_passed_again(case, tmp_path):
    clf, asked, passed = PASSED_AGAIN[case]
    X, y = small_data()
    clf.fit(X, y).save(tmp_path / "model")
    with pytest.raises(InvalidInputError, match=re.escape(asked)):
        load(tmp_path / "model")
    Pretrained.read.clear()
    again = load(tmp_path / "model", **passed)
    assert "old.pt" not in Pretrained.read
    assert vars(again).keys() == vars(clf).keys()
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))
    params = again.get_params()
    for name in passed.keys() & params.keys():
        assert params[name] == passed[name]


def test_save_refuses_a_trunk_set_after_the_fit(tmp_path):
    X, y = small_data()
    clf = DiversifiedEnsembleClassifier(**NARROW).fit(X, y)
    clf.set_params(shared_trunk=TRUNK)
    with pytest.raises(
        InvalidInputError, match=r"shared_trunk is Sequential.* set after the fit"
    ):
        clf.save(tmp_path / "model")


# A poisoned cache ---------------------------------------------------------------------


class Touch:
    """Creates a file when its pickle is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def poison(folder, marker):
    """Replace all results in a joblib cache; returns how many there were."""
    results = list(folder.rglob("output.pkl"))
    for path in results:
        path.write_bytes(pickle.dumps(Touch(marker)))
    return len(results)


def test_a_poisoned_cache_beside_a_file_is_never_read(model, tmp_path):
    X, y = small_data()
    cache, marker = tmp_path / "cache", tmp_path / "code-was-run"
    SharpBalance(**NARROW, memory=str(cache)).fit(X, y)
    assert poison(cache, marker) > 0
    path = crafted(model, tmp_path, set_params(memory=str(cache)))
    with pytest.raises(ModelFileError, match="it sets memory to"):
        load(path)
    # Without that setting, a fit does not read the cache beside the file.
    load(model[1]).fit(X, y).predict(X)
    assert not marker.exists()
    # A user who passes the folder runs the code that is stored there.
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")  # joblib computes again what it cannot read
        load(model[1], memory=str(cache)).fit(X, y)
    assert marker.exists()


# Values of other types ----------------------------------------------------------------


def test_attributes_of_a_users_aggregation_have_any_type(tmp_path):
    X, y = small_data()
    clf = SharpBalance(aggregation=Named(), validation_fraction=0.3, **NARROW)
    clf.fit(X, y).save(tmp_path / "model")
    again = load(tmp_path / "model", aggregation=Named())
    assert again.aggregation_.member_ == "the best"

    def change(tree):
        tree["aggregation"]["__class__"] = "x"

    path = crafted((clf, tmp_path / "model"), tmp_path, change)
    with pytest.raises(ModelFileError, match="sets '__class__', which no fit does"):
        load(path, aggregation=Named())


@pytest.mark.parametrize("name", sorted(naming.PARTS))
def test_parts_are_refused_as_fitted_values(name, model, tmp_path):
    path = crafted(model, tmp_path, lambda tree: tree["fitted"].update({name: []}))
    with pytest.raises(ModelFileError, match=f"it sets '{name}', which no fit does"):
        load(path)


WRONG_FORMATS = {
    "kind": [None, "cube", ["table"], 3],
    "given_shape": [None, "5", [5], ("5",), (5.0,), 5, (9,)],
    "shape": [None, "5", [5], ("5",), 5],
    "dtype": [None, "float99", 3],
    "keys": ["ab", ("a",), (1,), ["a"]],
    "shapes": ["ab", ((5,),), [(5,)], 3],
    "more": [1],
}


@pytest.mark.parametrize("name", WRONG_FORMATS)
def test_the_input_format_has_checked_types(name, model, tmp_path):
    for value in WRONG_FORMATS[name]:
        change = {name: value}
        path = crafted(model, tmp_path, lambda t, c=change: t["input_format"].update(c))
        with pytest.raises(ModelFileError):
            load(path)


def fewer_classes(tree):
    """Labels and codes agree, but the weights are for more classes."""
    tree["fitted"]["classes_"] = np.arange(2)
    set_net(classes=[0, 1])(tree)


LESS = {
    "no_classes": lambda tree: tree["fitted"].pop("classes_"),
    "no_history": lambda tree: tree["fitted"].pop("history_"),
    "fewer_classes": fewer_classes,
    "more_classes": lambda tree: tree["fitted"].update(classes_=np.arange(4)),
    "other_codes": set_net(classes=[0, 1]),
    "other_features": lambda tree: tree["fitted"].update(n_features_in_=9),
    "no_predictors": lambda tree: tree.update(predictors=[]),
    "predictors": lambda tree: tree.update(predictors=[5]),
    "no_members": lambda tree: tree.update(members=[]),
    "engine": lambda tree: tree.update(engine=[1, 2]),
}


@pytest.mark.parametrize("case", LESS)
def test_inconsistent_parts_are_refused(case, model, tmp_path):
    with pytest.raises(ModelFileError):
        load(crafted(model, tmp_path, LESS[case]))


# Files that cannot be written ---------------------------------------------------------


def refuse(number):
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number), "/somewhere/.model.0-0-0.tmp")

    return fail


def test_save_refuses_what_is_no_file_in_a_folder(model, tmp_path):
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "model"
    reasons = {
        tmp_path: "it is a folder. Name a file in it.",
        below: f"{below.parent} is not a folder. Use another folder.",
    }
    for path, reason in reasons.items():
        with pytest.raises(FileNotWrittenError) as error:
            model[0].save(path)
        assert str(error.value) == f"Cannot write {path}: {reason}"
    assert isinstance(error.value, OSError)
    assert isinstance(error.value, SharpBalanceError)


@pytest.mark.parametrize(
    ("number", "text"), [(13, "Permission denied"), (28, "No space left on device")]
)
def test_save_names_the_path_if_writing_fails(
    number, text, model, tmp_path, monkeypatch
):
    path = tmp_path / "model"
    monkeypatch.setattr(archive.os, "fsync", refuse(number))
    with pytest.raises(FileNotWrittenError) as error:
        model[0].save(str(path))
    message = f"Cannot write {path}: {text}. Name a file in a folder that can be "
    assert str(error.value) == f"{message}written to and has room."
    assert isinstance(error.value.__cause__, OSError)
    assert not list(tmp_path.iterdir())
