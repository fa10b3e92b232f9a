"""Model files: everything comes back, nothing is run, nothing crashes."""

import copy
import io
import json
import pickle
import re
import tracemalloc

import joblib
import numpy as np
import pandas as pd
import pytest
import safetensors
import safetensors.torch
import torch
from scipy.special import softmax
from sklearn import config_context
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback

from sklearn_sharpbalance import (
    MLP,
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
)
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.exceptions import (
    InvalidInputError,
    ModelFileError,
    SharpBalanceError,
)
from sklearn_sharpbalance.members.averaging import WeightAveraging
from sklearn_sharpbalance.persistence import allowed_names as naming
from sklearn_sharpbalance.persistence import archive
from sklearn_sharpbalance.persistence.allowed_names import named
from sklearn_sharpbalance.persistence.archive import (
    FileNotWrittenError,
    read_archive,
    write_archive,
)
from sklearn_sharpbalance.persistence.model_file import load
from sklearn_sharpbalance.persistence.unpacked import ROOM
from sklearn_sharpbalance.sharpness import LossScorer
from tests.training.killing import (
    assert_bitwise,
    small_data,
    start_in_child,
    weights,
)

FEW = {"n_estimators": 2, "max_epochs": 2, "batch_size": 32, "random_state": 0}
NARROW = {"estimator__module__hidden": (4,), **FEW}


class Net(torch.nn.Module):
    """A user's own network."""

    def __init__(self, n_features, n_classes, act=torch.nn.ReLU):
        super().__init__()
        self.first = torch.nn.Linear(n_features, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.act = act()
        self.last = torch.nn.Linear(6, n_classes)

    def forward(self, x):
        return self.last(self.act(self.norm(self.first(x))))


class ReadsNumbers(Net):
    """Takes the rates of its layers from a tensor, as many transformers do."""

    def __init__(self, n_features, n_classes):
        super().__init__(n_features, n_classes)
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 3)]


class Follows(Net):
    """Keeps a running mean in a buffer that is not part of its state dict."""

    def __init__(self, n_features, n_classes):
        super().__init__(n_features, n_classes)
        self.register_buffer("seen", torch.zeros(n_features), persistent=False)

    def forward(self, x):
        if self.training:
            self.seen = 0.9 * self.seen + x.detach().abs().mean(0)
        return super().forward(x * (1 + self.seen))


class SaysMore(Net):
    """Has state beside its weights."""

    def get_extra_state(self):
        return {"factor": 2}

    def set_extra_state(self, state):
        self.factor = state["factor"]


class OwnNet(NeuralNetClassifier):
    pass


def own_schedule(progress):
    return 1 - progress


class Silent(Callback):
    pass


def net(module=Net, kind=NeuralNetClassifier, **params):
    return kind(
        module,
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.AdamW,
        lr=0.01,
        module__n_features=5,
        module__n_classes=3,
        **params,
    )


CASES = {
    "default": (SharpBalance(**NARROW), {}),
    "deep": (DeepEnsembleClassifier(**NARROW), {}),
    "own_module": (SharpBalance(Net, **FEW), {"module": Net}),
    "own_prototype": (SharpBalance(Net(5, 3), **FEW), {"module": Net(5, 3)}),
    "layer_of_torch": (
        DeepEnsembleClassifier(
            torch.nn.Linear,
            estimator__module__in_features=5,
            estimator__module__out_features=3,
            **FEW,
        ),
        {},
    ),
    "reads_numbers": (SharpBalance(ReadsNumbers, **FEW), {"module": ReadsNumbers}),
    "loose_buffer": (SharpBalance(Follows, **FEW), {"module": Follows}),
    "own_net": (SharpBalance(net(kind=OwnNet), **FEW), {"module": net(kind=OwnNet)}),
    "class_as_setting": (
        DeepEnsembleClassifier(Net, estimator__module__act=torch.nn.Tanh, **FEW),
        {"module": Net},
    ),
    "net": (SharpBalance(net(), **FEW), {"module": Net}),
    "named_net": (SharpBalance(net(MLP, module__hidden=(4,)), **FEW), {}),
    "soup": (SharpBalance(Net, aggregation="uniform_soup", **FEW), {"module": Net}),
    "temperature": (
        SharpBalance(aggregation="temperature", validation_fraction=0.3, **NARROW),
        {},
    ),
    "early_stopping": (
        SharpBalance(early_stopping=1, validation_fraction=0.3, **NARROW),
        {},
    ),
    "scorer": (SharpBalance(sharpness=LossScorer(), rho=[0.1, 0.2], **NARROW), {}),
    "function": (
        SharpBalance(lr_schedule=own_schedule, **NARROW),
        {"lr_schedule": own_schedule},
    ),
    "callbacks": (
        SharpBalance(callbacks=[("silent", Silent())], **NARROW),
        {"callbacks": [("silent", Silent())]},
    ),
    "random_state": (
        SharpBalance(**{**NARROW, "random_state": np.random.RandomState(3)}),
        {},
    ),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small fitted model, and its file."""
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    clf = SharpBalance(**NARROW).fit(*small_data())
    clf.save(path)
    return clf, path


def assert_same(got, want, X):
    assert_bitwise(weights(got), weights(want))
    np.testing.assert_array_equal(got.predict_proba(X), want.predict_proba(X))
    np.testing.assert_array_equal(got.predict(X), want.predict(X))
    np.testing.assert_array_equal(
        got.member_predict_proba(X), want.member_predict_proba(X)
    )


@pytest.mark.parametrize("case", CASES)
def test_everything_comes_back(case, tmp_path):
    clf, passed = CASES[case]
    X, y = small_data()
    labels = np.array(["ant", "bee", "cicada"])[y]
    frame = pd.DataFrame(X, columns=list("abcde"))
    clf.fit(frame, labels)
    path = tmp_path / "model"
    clf.save(path)
    if passed:
        (name,) = passed
        with pytest.raises(InvalidInputError, match=rf"load\(path, {name}=\.\.\.\)"):
            load(path)
    again = load(path, **passed)
    assert type(again) is type(clf)
    assert vars(again).keys() == vars(clf).keys()
    assert_same(again, clf, frame)
    for name in ("classes_", "feature_names_in_", "sam_masks_", "sharpness_"):
        got, want = np.asarray(getattr(again, name)), np.asarray(getattr(clf, name))
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype
    for name in ("n_features_in_", "history_", "engine_", "n_iter_", "input_format_"):
        assert getattr(again, name) == getattr(clf, name)
    assert again.n_passes_ == clf.n_passes_
    # Not a picture of the model but the model: it trains on as the original does.
    for each in (again, clf):
        each.set_params(early_stopping=False).partial_fit(frame, labels)
    assert_bitwise(weights(again), weights(clf))


TRUNK = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh())


class Shifted(torch.nn.Linear):
    """A layer with a random buffer that no state dict has."""

    def __init__(self):
        super().__init__(5, 6)
        self.register_buffer("shift", torch.randn(6), persistent=False)

    def forward(self, x):
        return super().forward(x) + self.shift


def test_a_trunk_keeps_buffers_that_no_state_has(tmp_path):
    X, y = small_data()
    settings = NARROW | {"random_state": 3}
    clf = DiversifiedEnsembleClassifier(shared_trunk=Shifted, **settings).fit(X, y)
    clf.save(tmp_path / "model")
    assert_same(load(tmp_path / "model", shared_trunk=Shifted), clf, X)


@pytest.mark.parametrize("trunk", [None, TRUNK], ids=["alone", "trunk"])
def test_members_that_were_trained_together(trunk, tmp_path):
    X, y = small_data()
    clf = DiversifiedEnsembleClassifier(shared_trunk=trunk, **NARROW).fit(X, y)
    clf.save(tmp_path / "model")
    other = {} if trunk is None else {"shared_trunk": copy.deepcopy(trunk)}
    for tensor in other["shared_trunk"].parameters() if other else ():
        tensor.data.zero_()  # the weights come from the file
    again = load(tmp_path / "model", **other)
    assert vars(again).keys() == vars(clf).keys()
    assert_same(again, clf, X)


def test_parameters_come_back(model):
    clf, path = model
    got, want = load(path).get_params(), clf.get_params()
    assert got == want


def own_rule(logits):
    return softmax(logits.max(axis=0), axis=1)


@pytest.mark.parametrize("kind", [SharpBalance, DiversifiedEnsembleClassifier])
@pytest.mark.parametrize(
    ("fitted", "then"),
    [
        ("mean_logit", "majority"),
        ("temperature", "mean_proba"),
        ("mean_proba", "temperature"),
        ("majority", own_rule),
        (own_rule, "mean_logit"),
    ],
)
def test_parameters_set_since_the_fit_change_no_prediction(
    kind, fitted, then, tmp_path
):
    X, y = small_data()
    clf = kind(aggregation=fitted, validation_fraction=0.3, **NARROW).fit(X, y)
    clf.set_params(aggregation=then)
    if then == "temperature":
        clf.set_params(aggregation__bounds=(0.5, 2.0))
    clf.save(tmp_path / "model")
    functions = {"aggregation": own_rule} if own_rule in (fitted, then) else {}
    again = load(tmp_path / "model", **functions)
    assert_same(again, clf, X)
    assert again.get_params() == clf.get_params()


def test_state_beside_the_weights(tmp_path):
    X, y = small_data()
    clf = DeepEnsembleClassifier(SaysMore, **FEW).fit(X, y)
    clf.save(tmp_path / "model")
    again = load(tmp_path / "model", module=SaysMore)
    assert again.estimators_[0].module_.module.factor == 2
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))


@pytest.mark.parametrize("then", [None, net(MLP)], ids=["none", "net"])
def test_a_network_that_no_parameter_names_any_more(then, tmp_path):
    clf = DeepEnsembleClassifier(Net, **FEW).fit(*small_data())
    clf.set_params(estimator=then)
    with pytest.raises(InvalidInputError, match=r"Net.*no parameter .* any more"):
        clf.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_class_that_was_defined_anew(tmp_path):
    def define():
        return type("Anew", (DeepEnsembleClassifier,), {"__module__": "__main__"})

    first = define()
    first(**NARROW).fit(*small_data()).save(tmp_path / "model")
    second = define()  # as when a cell of a notebook runs again
    assert first is not second
    assert type(second.load(tmp_path / "model")) is second


def test_an_averaging_of_ones_own_comes_back(tmp_path):
    averaging = WeightAveraging("exponential", start=0.2, decay=0.7)
    clf = SharpBalance(weight_averaging=averaging, **NARROW).fit(*small_data())
    clf.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.weight_averaging == averaging
    assert_same(again, clf, small_data()[0])


def test_without_momentum_the_file_is_smaller(tmp_path):
    X, y = small_data()
    clf = DeepEnsembleClassifier(**FEW).fit(X, y)
    clf.save(tmp_path / "whole")
    clf.save(tmp_path / "light", optimizer=False)
    sizes = [(tmp_path / name).stat().st_size for name in ("light", "whole")]
    assert sizes[0] < 0.6 * sizes[1]
    again = load(tmp_path / "light")
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))


def test_paths_of_the_other_machine_are_not_kept(tmp_path):
    clf = SharpBalance(**NARROW, memory=str(tmp_path / "m"), n_jobs=1)
    clf.fit(*small_data())
    clf.save(tmp_path / "model")
    again = load(tmp_path / "model", n_jobs=2, device="cpu")
    assert (again.memory, again.n_jobs, again.device) == (None, 2, "cpu")


def test_a_file_from_a_gpu_opens_without_one(tmp_path, monkeypatch):
    clf = SharpBalance(**NARROW, device="cpu").fit(*small_data())
    clf.device = "cuda:3"  # as if it had been fitted there
    clf.save(tmp_path / "model")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    again = load(tmp_path / "model")
    assert again.net_.device == "cpu"
    assert again.predict(small_data()[0]).shape == (96,)


@pytest.mark.gpu
def test_between_cpu_and_gpu(tmp_path):
    X, y = small_data()
    clf = SharpBalance(**NARROW, device="cuda").fit(X, y)
    clf.save(tmp_path / "model")
    on_cpu, on_gpu = load(tmp_path / "model", device="cpu"), load(tmp_path / "model")
    assert next(on_cpu.estimators_[0].module_.parameters()).device.type == "cpu"
    assert next(on_gpu.estimators_[0].module_.parameters()).device.type == "cuda"
    np.testing.assert_allclose(
        on_cpu.predict_proba(X), on_gpu.predict_proba(X), atol=1e-5
    )
    copy = pickle.loads(pickle.dumps(clf))
    np.testing.assert_allclose(copy.predict_proba(X), clf.predict_proba(X), atol=1e-5)


def test_the_class_method_takes_its_own_kind_only(model):
    _, path = model
    assert isinstance(SharpBalance.load(path), SharpBalance)
    with pytest.raises(ModelFileError, match=r"holds a SharpBalance.*, not a DeepEns"):
        DeepEnsembleClassifier.load(path)


def test_what_the_file_holds_cannot_be_overruled(model):
    with pytest.raises(InvalidInputError, match="rho is a setting that the file holds"):
        load(model[1], rho=0.3)


def test_other_readers_of_safetensors_can_look_inside(model):
    clf, path = model
    tensors = safetensors.torch.load_file(path)
    want = clf.estimators_[1].module_.state_dict()
    for key, value in want.items():
        assert torch.equal(tensors[f"members.1.module.{key}"], value)
    with safetensors.safe_open(path, "pt") as file:
        tree = json.loads(file.metadata()["tree"])
    assert tree["class"].endswith("SharpBalanceEnsembleClassifier")


def test_opens_in_a_new_process(model, tmp_path):
    clf, path = model
    X, _ = small_data()
    process = start_in_child(predict_to_file, str(path), X, str(tmp_path / "proba.npy"))
    process.join(120)
    got = np.load(tmp_path / "proba.npy")
    np.testing.assert_allclose(got, clf.predict_proba(X), atol=1e-12)


def predict_to_file(path, X, target):
    np.save(target, load(path).predict_proba(X))


def test_not_fitted(tmp_path):
    with pytest.raises(ValueError, match="is not fitted yet"):
        SharpBalance().save(tmp_path / "model")


def test_an_attribute_that_no_file_can_hold(tmp_path):
    clf = SharpBalance(**NARROW).fit(*small_data())
    clf.extra_ = object()
    with pytest.raises(InvalidInputError, match=r"fitted\.extra_ is a object"):
        clf.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


# Pickle -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["default", "own_module", "net", "temperature"])
def test_pickle_and_joblib(case, tmp_path):
    clf, _ = CASES[case]
    X, y = small_data()
    clf.fit(X, y)
    joblib.dump(clf, tmp_path / "model.joblib")
    for again in (
        pickle.loads(pickle.dumps(clf)),
        joblib.load(tmp_path / "model.joblib"),
    ):
        assert_same(again, clf, X)


# Hostile files ------------------------------------------------------------------------


def mutations(content, rng, n):
    """Flipped, cut, lengthened, doubled and swapped bytes."""
    header = int.from_bytes(content[:8], "little") + 8
    for _ in range(n):
        mutated = bytearray(content)
        kind = rng.integers(6)
        if kind <= 2:  # bytes anywhere, in the header, in the length
            top = (len(content), header, 8)[kind]
            for place in rng.integers(top, size=rng.integers(1, 6)):
                mutated[place] = rng.integers(256)
        elif kind == 3:
            del mutated[rng.integers(len(content)) :]
        elif kind == 4:
            place = rng.integers(len(content))
            mutated[place:place] = rng.bytes(rng.integers(1, 64))
        else:
            a, b = sorted(rng.integers(len(content), size=2))
            mutated[a:b] = mutated[a:b][::-1]
        if mutated != content:
            yield bytes(mutated)


def load_all(files, path):
    """Load each content from a file; returns how many were refused."""
    refused = 0
    for content in files:
        path.write_bytes(content)
        watched = refused % 10 == 0
        if watched:
            tracemalloc.start()
        with pytest.raises(SharpBalanceError):
            load(path)
        if watched:
            assert tracemalloc.get_traced_memory()[1] < 2 * len(content) + ROOM
            tracemalloc.stop()
        refused += 1
    return refused


@pytest.mark.parametrize(
    "n", [2000, pytest.param(10_000, marks=pytest.mark.slow)], ids=["2000", "10000"]
)
def test_mutated_files_are_refused(n, model, tmp_path):
    content = model[1].read_bytes()
    files = mutations(content, np.random.default_rng(0), n)
    assert load_all(files, tmp_path / "mutated") > 0.99 * n


def sign(content):
    """The content with the digest that belongs to it, as an attacker can."""
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    head = archive.HEAD.match(header)
    if head is None:
        return content
    start, stop = 8 + head.end(), 8 + head.end() + 2 * archive.DIGEST_BYTES
    digest = archive._digest([content[:start], content[stop:]])
    return content[:start] + digest + content[stop:]


def test_mutated_files_with_the_right_digest_do_no_harm(model, tmp_path):
    """They open or they are refused; nothing else happens."""
    content, rng = model[1].read_bytes(), np.random.default_rng(1)
    path, header = tmp_path / "mutated", int.from_bytes(content[:8], "little")
    letters = b'0123456789"{}[],:-.eabcnrtu$_'
    refused = 0
    for _ in range(700):
        mutated = bytearray(content)
        for place in rng.integers(160, header, size=rng.integers(1, 3)):
            mutated[place] = rng.choice(list(letters))
        path.write_bytes(sign(bytes(mutated)))
        try:
            load(path)
        except SharpBalanceError:
            refused += 1
    assert refused > 400


def crafted(model, tmp_path, change):
    """The model's file with another tree, properly written and signed."""
    from sklearn_sharpbalance.persistence.allowed_names import (
        SPECIAL_TAGS,
        special_value,
    )

    tree = read_archive(model[1], "model", SPECIAL_TAGS)
    change(tree)
    path = tmp_path / "crafted"
    write_archive(path, "model", tree, special_value)
    return path


def set_net(name, value):
    return lambda tree: tree["net"]["params"].update({name: {"value": value}})


class Marker:
    """Would leave a trace if a file could make it run."""

    ran = False

    def __reduce__(self):
        return exec, ("raise SystemExit('code was run')",)


def assert_refused_in_bounds(path, message):
    """Refused, with no more memory than twice the file's size and a constant."""
    with pytest.raises(ModelFileError, match=message):
        load(path)  # once for what Python itself keeps: compiled patterns, warnings
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=message):
            load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * path.stat().st_size + ROOM


CRAFTED = {
    "huge_network": (set_net("module__hidden", (10**6, 10**6)), "not those of MLP"),
    "endless_network": (set_net("module__hidden", (1,) * 5000), "more layers than"),
    "other_class": (
        lambda tree: tree.update({"class": "subprocess.Popen"}),
        "no ensemble of that name",
    ),
    "loss_that_is_a_layer": (
        set_net("criterion", torch.nn.Linear),
        "takes Linear for a loss",
    ),
    "method": (
        lambda tree: tree["fitted"].update({"__class__": "x"}),
        "sets '__class__', which no fit does",
    ),
    "parameter": (
        lambda tree: tree["params"].update({"rho__x": {"value": 1}}),
        "unexpected parameter",
    ),
    "range": (
        lambda tree: tree["params"].update({"flat_ratio": {"value": 7}}),
        "flat_ratio",
    ),
    "fewer_members": (lambda tree: tree["members"].pop(), "member_seeds_"),
    "weights_of_another": (
        lambda tree: tree["members"][0]["module"].pop("module.1.bias"),
        "not those of MLP",
    ),
    "no_net": (lambda tree: tree.pop("net"), "KeyError"),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_crafted_files_are_refused(case, model, tmp_path):
    change, message = CRAFTED[case]
    assert_refused_in_bounds(crafted(model, tmp_path, change), message)


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "builtins.eval",
        "subprocess.Popen",
        "torch.load",
        "torch.nn.functional",
        "torch.nn.modules.module.torch",
        "sklearn_sharpbalance.networks.finetune",
        "sklearn_sharpbalance.sharpness.fisher_trace",
        "sklearn_sharpbalance.persistence.allowed_names.importlib",
        "tests.persistence.test_model_file.Net",
        "torch.nn.__class__",
        "",
    ],
)
def test_a_file_cannot_name_what_is_not_on_the_list(name):
    with pytest.raises(ValueError, match="which a file may not name"):
        named(name)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_is_not_opened(protocol, tmp_path):
    (tmp_path / "model").write_bytes(pickle.dumps(Marker(), protocol))
    with pytest.raises(ModelFileError, match="no model of this package"):
        load(tmp_path / "model")
    buffer = io.BytesIO()
    torch.save(torch.nn.Linear(1, 1), buffer)
    (tmp_path / "model").write_bytes(buffer.getvalue())
    with pytest.raises(ModelFileError, match="no model of this package"):
        load(tmp_path / "model")


def test_a_newer_format_says_update(model, tmp_path):
    content = model[1].read_bytes()
    newer = content.replace(b"sharpbalance model 1", b"sharpbalance model 9", 1)
    (tmp_path / "newer").write_bytes(newer)
    with pytest.raises(
        ModelFileError, match=r"has format 9, which is newer.*pip insta"
    ):
        load(tmp_path / "newer")


def test_a_checkpoint_is_no_model(tmp_path):
    SharpBalance(**NARROW, checkpoint_dir=tmp_path).fit(*small_data())
    (path,) = tmp_path.iterdir()
    with pytest.raises(ModelFileError, match="is a checkpoint, not a model"):
        load(path)


def header_of(text, body=b""):
    return len(text).to_bytes(8, "little") + text + body


HEAD = (
    b'{"__metadata__":{"format":"sklearn-sharpbalance model 1",'
    b'"digest":"%s","tree":"%s"}'
)


def bomb(tree, tensors=b"", body=b""):
    text = HEAD % (b"0" * 64, tree) + tensors + b"}"
    return sign(header_of(text, body))


STRUCTURE = "more structure than a file of its size may"
MEMORY = "more memory than a file of its size may"


def items(item, n=300_000):
    return bomb(b"[" + (item + b",") * n + item + b"]")


def tensor(name, shape, stop):
    row = b',"%s":{"dtype":"U8","shape":[%s],"data_offsets":[0,%d]}'
    return row % (name, shape, stop)


def with_array(tree, size=10**6, *, shape=None, each=b"%s", n=1, brace=b"{"):
    """A tree that speaks of one array, once or many times."""
    array = each % (brace + rb"\"$array\":\"x\"}")
    tree = tree % b",".join(array.replace(b"#", b"%d" % i) for i in range(n))
    if shape is not None:
        size = 0
    return bomb(tree, tensor(b"x", shape or b"%d" % size, size), b"1" * size)


BOMBS = {
    "long_header": (
        (10**12).to_bytes(8, "little") + b"{}" * 5000,
        "speaks of a header",
    ),
    "negative_length": (b"\xff" * 8 + b"{}" * 5000, "speaks of a header"),
    "empty": (b"", "speaks of a header of 0"),
    "deep": (bomb(b"[" * 5_000 + b"]" * 5_000), "recursion"),
    "deeper": (bomb(b"[" * 200_000 + b"]" * 200_000), STRUCTURE),
    "digits": (bomb(b"9" * 100_000), "digits"),
    "lists": (items(b"[]"), STRUCTURE),
    "dictionaries": (items(b"{}"), STRUCTURE),
    "records_of_one": (items(rb"{\"a\":1}"), STRUCTURE),
    "small_numbers": (items(b"1"), STRUCTURE),
    "large_numbers": (items(b"1000"), STRUCTURE),
    "words": (items(rb"\"ab\""), STRUCTURE),
    "pairs": (bomb(rb"{\"$dict\":[" + b"[1,1]," * 99_999 + b"[1,1]]}"), STRUCTURE),
    "names": (
        bomb(b"{%s}" % b",".join(rb"\"%d\":1" % i for i in range(99_999))),
        STRUCTURE,
    ),
    # One letter of four bytes makes every other one as wide.
    "wide_letters": (
        bomb(rb"\"" + b"a" * 999_999 + rb"\\ud83d\\ude00\""),
        STRUCTURE,
    ),
    "wide_letters_outside": (
        bomb(rb"\"" + b"a" * 999_999 + rb"\ud83d\ude00\""),
        STRUCTURE,
    ),
    "many_tensors": (
        bomb(b"{}", b"".join(tensor(b"%d" % i, b"0", 0) for i in range(20_000))),
        STRUCTURE,
    ),
    # Few bytes that stand for many: in columns, in references, in shapes.
    "long_column": (with_array(rb"{\"$records\":[[\"a\",%s]]}"), MEMORY),
    "hidden_column": (
        with_array(rb"{\"$records\":[[\"a\",{\"z\":[],%s]]}", brace=b""),
        MEMORY,
    ),
    "many_columns": (
        with_array(rb"{\"$records\":[%s]}", 1000, each=rb"[\"#\",%s]", n=1000),
        MEMORY,
    ),
    "empty_rows": (
        with_array(rb"{\"$records\":[[\"a\",%s]]}", shape=b"9999999999,0"),
        MEMORY,
    ),
    "scalars": (with_array(rb"{\"$scalars\":%s}"), MEMORY),
    "scalars_again": (
        with_array(b"[%s]", 10**5, each=rb"{\"$scalars\":%s}", n=999),
        MEMORY,
    ),
    "huge_tensor": (
        bomb(
            b"{}", b',"x":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}'
        ),
        "does not lie where it should",
    ),
    "overlapping": (
        bomb(
            b"{}",
            b',"x":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}'
            b',"y":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}',
            b"8" * 8,
        ),
        "does not lie where it should",
    ),
    "negative_shape": (
        bomb(
            b"{}", b',"x":{"dtype":"U8","shape":[-2,-2],"data_offsets":[0,4]}', b"1234"
        ),
        "no proper shape",
    ),
    "unused_bytes": (bomb(b"{}", b"", b"1" * 4000), "4000 bytes of tensors"),
    "wide_text": (
        bomb(rb"{\"$text\":[\"a\"],\"dtype\":\"<U500000000\",\"shape\":[1]}"),
        MEMORY,
    ),
    "texts": (
        bomb(
            b"[%s0]"
            % (50 * rb"{\"$text\":[\"a\"],\"dtype\":\"<U50000\",\"shape\":[1]},")
        ),
        MEMORY,
    ),
    "unknown_tag": (bomb(rb"{\"$pickle\":\"gASVBQ\"}"), "unknown tag"),
    "not_an_optimizer": (
        bomb(rb"{\"$bound\":[\"torch.nn.ReLU\",{}]}"),
        "takes 'torch.nn.ReLU' for an optimizer",
    ),
    "not_a_class": (
        bomb(rb"{\"$bound\":[\"sklearn_sharpbalance.networks.ResNet18\",{}]}"),
        r"networks\.ResNet18' for an optimizer",
    ),
}


@pytest.mark.parametrize("case", BOMBS)
def test_bombs_take_no_more_memory_than_twice_their_size(case, tmp_path):
    content, message = BOMBS[case]
    (tmp_path / "bomb").write_bytes(content)
    assert_refused_in_bounds(tmp_path / "bomb", message)


@pytest.mark.parametrize("n_rows", [1, 300])
def test_a_file_is_as_long_as_its_content_needs(n_rows, tmp_path):
    """Many small tensors and long histories are more in memory than on the disk."""
    few = {**NARROW, "n_estimators": 40, "max_epochs": 1}
    clf = DeepEnsembleClassifier(**few).fit(*small_data())
    clf.history_ = [rows * n_rows for rows in clf.history_]
    path = tmp_path / "model"
    clf.save(path)
    assert load(path).history_ == clf.history_
    safetensors.torch.load_file(path)  # the spaces bother nobody
    tracemalloc.start()
    tree = read_archive(path, "model", naming.SPECIAL_TAGS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert tree["fitted"]["history_"] == clf.history_
    assert peak < 2 * path.stat().st_size + ROOM


def test_an_ordinary_file_is_not_lengthened(model):
    content = model[1].read_bytes()
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    assert len(header) - len(header.rstrip()) < 8


def test_damage_is_found_before_anything_is_read(model, tmp_path):
    """A large file whose last byte is wrong costs one chunk of memory."""
    tree = {"x": np.zeros(5_000_000)}
    write_archive(tmp_path / "large", "model", tree)
    content = bytearray((tmp_path / "large").read_bytes())
    content[-1] ^= 1
    (tmp_path / "large").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ModelFileError, match="does not match its digest"):
        load(tmp_path / "large")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * archive.CHUNK


# The tree -----------------------------------------------------------------------------

VALUES = {
    "numbers": [0.1, -0.0, 1e-320, float("inf"), float("-inf"), 2**80, True, None],
    "text": {"é\u2028": "\x00\ud7ff", "$odd": "key", "": ""},
    "containers": [(), ((1,), [2]), {1: {2: (3,)}}, {}],
    "records": [{"epoch": i, "loss": i / 3, "name": "w"} for i in range(3)],
    "uneven_records": [{"a": 1}, {"a": 1, "b": 2.0}],
}


@pytest.mark.parametrize("case", VALUES)
def test_plain_values_come_back_exactly(case, tmp_path):
    write_archive(tmp_path / "x", "model", {"value": VALUES[case]})
    got = read_archive(tmp_path / "x", "model")["value"]
    assert repr(got) == repr(VALUES[case])


ARRAYS = [
    np.float32(0.1),
    np.array([np.nan, -np.inf]),
    np.arange(6, dtype=">i4").reshape(2, 3).T[::-1],
    np.zeros((0, 3), dtype=bool),
    np.array(["a", "bcd"]),
    np.array(["x", None, 3], dtype=object),
    np.array(["2020-01-01", "NaT"], dtype="M8[D]"),
    np.float16([1.5]),
    np.uint64([2**64 - 1]),
    np.array(3.5),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: str(a.dtype))
def test_arrays_come_back_exactly(array, tmp_path):
    write_archive(tmp_path / "x", "model", {"value": array})
    got = read_archive(tmp_path / "x", "model")["value"]
    assert got.dtype == array.dtype.newbyteorder("<")
    assert got.shape == array.shape
    np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool]
)
def test_tensors_come_back_exactly(dtype, tmp_path):
    tensor = torch.randn(3, 4).to(dtype).T
    write_archive(tmp_path / "x", "model", {"value": [tensor, tensor[0, 0]]})
    got = read_archive(tmp_path / "x", "model")["value"]
    for a, b in zip(got, [tensor, tensor[0, 0]]):
        assert a.dtype == dtype
        assert torch.equal(a.view(torch.uint8) if a.ndim else a, _bytes(b))


def _bytes(tensor):
    return tensor.contiguous().view(torch.uint8) if tensor.ndim else tensor


def test_requests_for_metadata_come_back(tmp_path):
    X, y = small_data()
    clf = DeepEnsembleClassifier(**FEW).fit(X, y)
    with config_context(enable_metadata_routing=True):
        clf.set_fit_request(sample_weight="w").set_score_request(sample_weight=False)
    clf.save(tmp_path / "model")
    again = load(tmp_path / "model").get_metadata_routing()
    assert again.fit.requests == {"sample_weight": "w"}
    assert again.score.requests == {"sample_weight": False}
    assert again.partial_fit.requests == clf.get_metadata_routing().partial_fit.requests


def test_a_folder_is_no_name_for_a_file(tmp_path, monkeypatch):
    clf = DeepEnsembleClassifier(**FEW).fit(*small_data())
    monkeypatch.chdir(tmp_path)
    for name, shown in ((tmp_path, tmp_path), ("", ".")):
        text = f"Cannot write {shown}: it is a folder. Name a file in it."
        with pytest.raises(FileNotWrittenError, match=f"^{re.escape(text)}$"):
            clf.save(name)
    assert list(tmp_path.iterdir()) == []
