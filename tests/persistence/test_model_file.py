"""Model files restore the model, run no code, and are refused if damaged."""

import copy
import io
import json
import pickle
import tracemalloc

import joblib
import numpy as np
import pandas as pd
import pytest
import safetensors
import safetensors.torch
import torch
from scipy.special import softmax
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback

from sklearn_sharpbalance import (
    MLP,
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    load,
)
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.exceptions import (
    InvalidInputError,
    ModelFileError,
    SharpBalanceError,
)
from sklearn_sharpbalance.persistence import archive
from sklearn_sharpbalance.persistence.allowed_names import named
from sklearn_sharpbalance.persistence.archive import (
    FileNotWrittenError,
    read_archive,
    write_archive,
)
from sklearn_sharpbalance.sharpness import LossScorer
from tests.cases import rest_slow
from tests.persistence.crafting import crafted, set_net
from tests.training.killing import assert_bitwise, small_data, weights

FEW = {"n_estimators": 2, "max_epochs": 2, "batch_size": 32, "random_state": 0}
NARROW = {"estimator__module__hidden": (4,), **FEW}
CONSTANT = 2**20  # bytes that the interpreter takes for any file


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


def assert_same(got, want, X):
    assert_bitwise(weights(got), weights(want))
    np.testing.assert_array_equal(got.predict_proba(X), want.predict_proba(X))
    np.testing.assert_array_equal(got.predict(X), want.predict(X))
    np.testing.assert_array_equal(
        got.member_predict_proba(X), want.member_predict_proba(X)
    )


VARIANTS = {
    *("class_as_setting", "deep", "named_net", "net", "own_module"),
    *("random_state", "reads_numbers", "scorer", "soup"),
}


@pytest.mark.parametrize("case", rest_slow(CASES, CASES.keys() - VARIANTS))
def test_load_restores_the_model(case, tmp_path):
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
    names = ["n_features_in_", "history_", "engine_", "n_iter_", "input_format_"]
    for name in (*names, "n_passes_", "settings_"):
        assert getattr(again, name) == getattr(clf, name)
    # Further training gives the same weights as well.
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


@pytest.mark.parametrize("trunk", [None, TRUNK, Shifted], ids=["no", "net", "class"])
def test_load_restores_a_joint_ensemble(trunk, tmp_path):
    X, y = small_data()
    clf = DiversifiedEnsembleClassifier(shared_trunk=trunk, **NARROW).fit(X, y)
    clf.save(tmp_path / "model")
    passed = {} if trunk is None else {"shared_trunk": copy.deepcopy(trunk)}
    if trunk is TRUNK:
        passed["shared_trunk"][0].weight.data.zero_()  # the weights are in the file
    again = load(tmp_path / "model", **passed)
    assert vars(again).keys() == vars(clf).keys()
    for twin in (again, pickle.loads(pickle.dumps(clf)), copy.deepcopy(clf)):
        assert_same(twin, clf, X)
        if trunk is not None:  # one trunk for all members
            trunks = {id(net.module_.trunk) for net in twin.estimators_}
            assert trunks == {id(twin.trunk_.module)}


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
    clf.save(tmp_path / "model")
    functions = {"aggregation": own_rule} if own_rule in (fitted, then) else {}
    again = load(tmp_path / "model", **functions)
    assert_same(again, clf, X)
    assert again.get_params() == clf.get_params()


def test_load_restores_the_extra_state_of_a_module(tmp_path):
    X, y = small_data()
    clf = DeepEnsembleClassifier(SaysMore, **FEW).fit(X, y)
    clf.save(tmp_path / "model")
    again = load(tmp_path / "model", module=SaysMore)
    assert again.estimators_[0].module_.module.factor == 2
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))


@pytest.mark.parametrize("then", [None, net(MLP)], ids=["none", "net"])
def test_save_refuses_a_network_that_no_parameter_names(then, tmp_path):
    clf = DeepEnsembleClassifier(Net, **FEW).fit(*small_data())
    clf.set_params(estimator=then)
    with pytest.raises(InvalidInputError, match=r"Net.*no longer a parameter"):
        clf.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_without_momentum_the_file_is_smaller(tmp_path):
    X, y = small_data()
    clf = DeepEnsembleClassifier(**FEW).fit(X, y)
    clf.save(tmp_path / "whole")
    clf.save(tmp_path / "light", optimizer=False)
    sizes = [(tmp_path / name).stat().st_size for name in ("light", "whole")]
    assert sizes[0] < 0.6 * sizes[1]
    again = load(tmp_path / "light")
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))


def test_a_file_from_a_gpu_opens_without_one(tmp_path, monkeypatch):
    clf = SharpBalance(**NARROW, device="cpu").fit(*small_data())
    clf.device = "cuda:3"  # as if it had been fitted there
    assert clf.engine_.threads == 1
    clf.engine_ = clf.engine_._replace(threads=None)
    clf.save(tmp_path / "model")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    again = load(tmp_path / "model")
    assert again.net_.device == "cpu"
    assert again.engine_.threads == 1
    assert again.predict(small_data()[0]).shape == (96,)


@pytest.mark.gpu
def test_models_move_between_cpu_and_gpu(tmp_path):
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


def test_the_class_method_refuses_other_classes(model):
    _, path = model
    assert isinstance(SharpBalance.load(path), SharpBalance)
    with pytest.raises(
        ModelFileError, match=r"contains a SharpBalance.*, not a DeepEns"
    ):
        DeepEnsembleClassifier.load(path)


def test_load_refuses_settings_that_the_file_has(model):
    with pytest.raises(InvalidInputError, match="rho is a setting that the file has"):
        load(model[1], rho=0.3)


def test_the_safetensors_package_reads_weights_and_tree(model):
    clf, path = model
    tensors = safetensors.torch.load_file(path)
    want = clf.estimators_[1].module_.state_dict()
    for key, value in want.items():
        assert torch.equal(tensors[f"members.1.module.{key}"], value)
    with safetensors.safe_open(path, "pt") as file:
        tree = json.loads(file.metadata()["tree"])
    assert tree["class"].endswith("SharpBalanceEnsembleClassifier")


def test_save_refuses_an_object_as_attribute(tmp_path):
    clf = SharpBalance(**NARROW).fit(*small_data())
    clf.extra_ = object()
    with pytest.raises(InvalidInputError, match=r"fitted\.extra_ is a object"):
        clf.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


# Pickle -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", rest_slow(["default", "net", "own_module", "temperature"], keep=2)
)
def test_pickle_and_joblib_restore_the_model(case, tmp_path):
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
    """Load each content from a file; return how many were refused."""
    refused = 0
    for content in files:
        path.write_bytes(content)
        is_watched = refused % 10 == 0
        if is_watched:
            tracemalloc.start()
        with pytest.raises(SharpBalanceError):
            load(path)
        if is_watched:
            assert tracemalloc.get_traced_memory()[1] < memory_bound(content)
            tracemalloc.stop()
        refused += 1
    return refused


def header_size(content):
    return int.from_bytes(content[:8], "little")


def memory_bound(content):
    """Return the bytes that opening a file may take, as the documentation says."""
    return len(content) + 64 * min(header_size(content), len(content)) + CONSTANT


@pytest.mark.parametrize(
    "n", [150, pytest.param(10_000, marks=pytest.mark.slow)], ids=["150", "10000"]
)
def test_mutated_files_are_refused(n, model, tmp_path):
    content = model[1].read_bytes()
    files = mutations(content, np.random.default_rng(0), n)
    assert load_all(files, tmp_path / "mutated") > 0.99 * n


def sign(content):
    """Return the content with its own digest, as an attacker can; if it is readable."""
    try:
        start = 8 + header_size(content)
        header = json.loads(content[8:start])
        tensors = sorted(safetensors.torch.load(content).items())
        metadata = header["__metadata__"]
        digest = archive._digest(metadata["format"], metadata["tree"], tensors)
    except Exception:
        return content
    metadata["digest"] = digest
    text = json.dumps(header, separators=(",", ":")).encode()
    return header_of(text, content[start:])


class Marker:
    """Ends the process if its pickle is read."""

    ran = False

    def __reduce__(self):
        return exec, ("raise SystemExit('code was run')",)


def assert_refused_in_bounds(path, message):
    """Assert that loading raises without more memory than the documented bound."""
    with pytest.raises(ModelFileError, match=message):
        load(path)  # once for what Python itself keeps: compiled patterns, warnings
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=message):
            load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < memory_bound(path.read_bytes())


CRAFTED = {
    "huge_network": (set_net(module__hidden=(10**6, 10**6)), "not those of MLP"),
    "endless_network": (set_net(module__hidden=(1,) * 5000), "more layers than"),
    "other_class": (
        lambda tree: tree.update({"class": "subprocess.Popen"}),
        "no ensemble of that name",
    ),
    "loss_that_is_a_layer": (
        set_net(criterion=torch.nn.Linear),
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
    "fewer_members": (lambda tree: tree["members"].pop(), "describe a model"),
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
    with pytest.raises(ModelFileError, match="not a file of this package"):
        load(tmp_path / "model")
    buffer = io.BytesIO()
    torch.save(torch.nn.Linear(1, 1), buffer)
    (tmp_path / "model").write_bytes(buffer.getvalue())
    with pytest.raises(ModelFileError, match="not a file of this package"):
        load(tmp_path / "model")


def test_a_newer_format_asks_for_an_update(model, tmp_path):
    content = model[1].read_bytes()
    newer = content.replace(b"sharpbalance model 1", b"sharpbalance model 9", 1)
    (tmp_path / "newer").write_bytes(newer)
    with pytest.raises(
        ModelFileError, match=r"has format 9, which is newer.*pip insta"
    ):
        load(tmp_path / "newer")


def test_load_refuses_a_checkpoint(tmp_path):
    SharpBalance(**NARROW, checkpoint_dir=tmp_path).fit(*small_data())
    (path,) = tmp_path.iterdir()
    with pytest.raises(ModelFileError, match="is a checkpoint, not a model"):
        load(path)


def header_of(text, body=b""):
    return len(text).to_bytes(8, "little") + text + body


def bomb(tree, tensors=b"", body=b""):
    """Return a file of this JSON tree and these rows of tensors, with its digest."""
    metadata = {"format": "sklearn-sharpbalance model 1", "digest": ""}
    metadata["tree"] = tree.decode()
    text = b'{"__metadata__":' + json.dumps(metadata).encode() + tensors + b"}"
    return sign(header_of(text, body))


def items(item, n=20_000):
    return bomb(b"[" + (item + b",") * n + item + b"]")


def tensor(name, shape, stop, dtype=b"U8"):
    row = b',"%s":{"dtype":"%s","shape":[%s],"data_offsets":[0,%d]}'
    return row % (name, dtype, shape, stop)


NOT_A_MODEL = "does not describe a model"
BOMBS = {
    "long_header": ((10**12).to_bytes(8, "little") + b"{}" * 5000, "header would have"),
    "negative_length": (b"\xff" * 8 + b"{}" * 5000, "header would have"),
    "longest_header": (
        header_of(b'{"a":' + b"9" * archive.MAX_HEADER + b"}"),
        "header would have",
    ),
    "cut_header": ((5000).to_bytes(8, "little") + b"{}", "not a file of this package"),
    "empty": (b"", "not a file of this package"),
    "no_metadata": (header_of(b"{}"), "names no format"),
    "no_tree": (
        header_of(b'{"__metadata__":{"format":"sklearn-sharpbalance model 1"}}'),
        "that this package wrote: 'tree'",
    ),
    "deep": (bomb(b"[" * 5_000 + b"]" * 5_000), "recursion"),
    "digits": (bomb(b"9" * 100_000), "digits"),
    # Few bytes of JSON that are many in memory.
    "lists": (items(b"[]"), "too many short lists"),
    "records": (items(b'{"a":1}'), NOT_A_MODEL),
    "small_numbers": (items(b"1"), NOT_A_MODEL),
    "tuples": (items(b'{"$tuple":[]}'), NOT_A_MODEL),
    "object_arrays": (items(b'{"$objects":[]}', 10_000), NOT_A_MODEL),
    "numpy_numbers": (items(b'{"$number":1,"dtype":"<f8"}', 10_000), NOT_A_MODEL),
    "pairs": (bomb(b'{"$dict":[' + b"[1,1]," * 9_999 + b"[1,1]]}"), NOT_A_MODEL),
    "names": (
        bomb(b"{%s}" % b",".join(b'"%d":1' % i for i in range(29_999))),
        NOT_A_MODEL,
    ),
    # A character of four bytes makes every other one as wide.
    "wide_letters": (bomb(b'"' + b"a" * 999_999 + rb'\ud83d\ude00"'), NOT_A_MODEL),
    "many_tensors": (
        bomb(b"{}", b"".join(tensor(b"%d" % i, b"0", 0) for i in range(2_000))),
        NOT_A_MODEL,
    ),
    # A tensor belongs to one place, so that no short text refers to it many times.
    "same_tensor_twice": (
        bomb(b'[{"$array":"x"},{"$array":"x"}]', tensor(b"x", b"8", 8), b"1" * 8),
        "that this package wrote: 'x'",
    ),
    "huge_tensor": (
        bomb(b"{}", tensor(b"x", b"1000000000000", 4, dtype=b"F32"), b"1234"),
        "not a file of this package",
    ),
    "overlapping": (
        bomb(b"{}", tensor(b"x", b"8", 8) + tensor(b"y", b"8", 8), b"8" * 8),
        "not a file of this package",
    ),
    "negative_shape": (
        bomb(b"{}", tensor(b"x", b"-2,-2", 4), b"1234"),
        "not a file of this package",
    ),
    "unused_bytes": (bomb(b"{}", b"", b"1" * 4000), "not a file of this package"),
    "no_unicode": (
        bomb(b'{"$text":"x"}', tensor(b"x", b"1,1", 4, dtype=b"U32"), b"\xff" * 4),
        "text that is not Unicode",
    ),
    "empty_text": (
        bomb(b'{"$text":"x"}', tensor(b"x", b"9999999999,0", 0, dtype=b"U32")),
        "that this package wrote",
    ),
    "wide_number": (bomb(b'{"$number":1,"dtype":"<U500000000"}'), "unexpected type"),
    "unknown_tag": (bomb(b'{"$pickle":"gASVBQ"}'), "unknown tag"),
    "not_an_optimizer": (
        bomb(b'{"$bound":["torch.nn.ReLU",{}]}'),
        "takes 'torch.nn.ReLU' for an optimizer",
    ),
    "not_a_class": (
        bomb(b'{"$bound":["sklearn_sharpbalance.networks.ResNet18",{}]}'),
        r"networks\.ResNet18' for an optimizer",
    ),
}


@pytest.mark.parametrize("case", BOMBS)
def test_crafted_files_take_no_more_memory_than_documented(case, tmp_path):
    content, message = BOMBS[case]
    (tmp_path / "bomb").write_bytes(content)
    assert_refused_in_bounds(tmp_path / "bomb", message)


def test_a_header_that_no_reader_would_accept_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_HEADER", 1000)
    with pytest.raises(FileNotWrittenError, match="bytes of JSON, more than 1000"):
        write_archive(tmp_path / "x", "model", {"value": [1] * 1000})
    assert list(tmp_path.iterdir()) == []


def test_a_loaded_model_does_not_depend_on_the_file(model, tmp_path):
    clf, path = model
    (tmp_path / "copy").write_bytes(path.read_bytes())
    again = load(tmp_path / "copy")
    with open(tmp_path / "copy", "r+b") as file:  # the same file, not a new one
        file.write(bytes(path.stat().st_size))
    X, _ = small_data()
    assert_same(again, clf, X)


# The tree -----------------------------------------------------------------------------

VALUES = {
    "numbers": [0.1, -0.0, 1e-320, float("inf"), float("-inf"), 2**80, True, None],
    "text": {"é\u2028": "\x00\ud7ff", "$odd": "key", "": ""},
    "containers": [(), ((1,), [2]), {1: {2: (3,)}}, {}],
    "records": [{"epoch": i, "loss": i / 3, "name": "w"} for i in range(3)],
    "uneven_records": [{"a": 1}, {"a": 1, "b": 2.0}],
    "numpy_numbers": [np.float32(0.1), np.uint64(2**64 - 1), np.bool_(True)],
    "numpy_scalars": [np.float16("nan"), np.str_("ab"), np.datetime64("2020-01-01")],
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
    np.array([["\U0001f600", ""]], dtype="U7"),
    np.array([], dtype="U3"),
    np.array(["x", None, 3], dtype=object),
    np.array(["2020-01-01", "NaT"], dtype="M8[D]"),
    np.float16([1.5]),
    np.uint64([2**64 - 1]),
    np.array(3.5),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
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


def test_tensors_that_share_memory_come_back(tmp_path):
    tensor, array = torch.arange(6.0), np.arange(4)
    array.flags.writeable = False
    values = [tensor, tensor[1:3], tensor.expand(2, 6), tensor.reshape(2, 3), array]
    write_archive(tmp_path / "x", "model", {"value": [*values, array]})
    got = read_archive(tmp_path / "x", "model")["value"]
    for a, b in zip(got, [*values, array], strict=True):
        np.testing.assert_array_equal(a, b)
