"""A fit that resumes from any of its checkpoints gives the same result."""

import os
import re
import resource
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from skorch.callbacks import Callback, EarlyStopping, EpochScoring, LRScheduler
from torch.utils.data import TensorDataset

from sklearn_sharpbalance import MLP, DeepEnsembleClassifier
from sklearn_sharpbalance.exceptions import (
    CheckpointError,
    CheckpointMismatchError,
    SharpBalanceError,
    SharpBalanceWarning,
)
from sklearn_sharpbalance.persistence.archive import MAX_AGE
from sklearn_sharpbalance.training import checkpoint, plan
from sklearn_sharpbalance.training.checkpoint import NAME, CheckpointFolder
from tests.cases import TwoInputs, pictures, rest_slow, skorch_mlp
from tests.conftest import copied_writes
from tests.joint.diversified_cases import Noisy
from tests.training.killing import assert_bitwise, estimator, small_data, weights

FEW = {"max_epochs": 6, "warmup_epochs": 2}


def as_dict(X, y):
    return {"a": X[:, :2], "b": X[:, 2:]}, y


def as_dataset(X, y):
    return TensorDataset(torch.from_numpy(X), torch.from_numpy(y)), None


ADAM = skorch_mlp(module__n_features=5, module__n_classes=3, module__hidden=(4,))
STOP = [
    ("f1", EpochScoring("f1_macro", name="f1", lower_is_better=False)),
    ("stop", EarlyStopping("valid_loss", patience=2)),
]
STEP_LR = LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=2)
OF_MEMBERS = [{"optimizer__k": k} for k in (2, 3)]
HELD_OUT = {"validation_fraction": 0.3, "max_epochs": 8}
CASES = {
    "skorch": {"engine": "skorch"},
    "stacked": {"engine": "stacked"},
    "momentum_sam": {"sam": "momentum_sam", "engine": "skorch"},
    "momentum_sam_stacked": {"sam": "momentum_sam"},
    "momentum_sam_adam": {"sam": "momentum_sam", "estimator": ADAM},
    "look_sam": {"sam": "look_sam", "engine": "skorch"},
    "look_sam_stacked": {"sam": "look_sam"},
    "look_sam_members": {"sam": "look_sam", "member_params": OF_MEMBERS},
    "no_seed": {"random_state": None},
    "adam": {"estimator": ADAM},
    "dropout_and_norms": {"estimator": Noisy},
    "early_stopping": {"early_stopping": 2, **HELD_OUT},
    "scheduler": {"lr_schedule": STEP_LR},
    "callbacks": {"callbacks": STOP, **HELD_OUT},
    "augmented_images": {"train_transform": "crop_flip", "n_estimators": 1}
    | {"estimator": MLP, "estimator__module__n_features": 64},
    "dict": {"estimator": TwoInputs, "max_epochs": 4},
    "dataset": {"max_epochs": 4},
    "averaged_and_pruned": {"weight_averaging": "exponential", "prune": 0.4}
    | {"max_epochs": 8},
    "soup": {"aggregation": "uniform_soup", "max_epochs": 4},
}
DATA = {
    "augmented_images": pictures,
    "dict": lambda: as_dict(*small_data()),
    "dataset": lambda: as_dataset(*small_data()),
}


def make(folder, **params):
    return estimator(folder, **FEW | params)


def without_time(history):
    return [
        [{k: v for k, v in row.items() if k != "dur"} for row in rows]
        for rows in history
    ]


VARIANTS = {
    "adam",
    "dataset",
    "look_sam",
    "look_sam_members",
    "look_sam_stacked",
    "momentum_sam",
    "momentum_sam_adam",
    "momentum_sam_stacked",
    "scheduler",
    "soup",
}


@pytest.mark.parametrize("checkpoints", rest_slow(["middle", "all"]))
@pytest.mark.parametrize("case", rest_slow(CASES, CASES.keys() - VARIANTS))
def test_resuming_from_every_checkpoint_gives_the_same_result(
    case, checkpoints, tmp_path, snapshots
):
    params = CASES[case]
    X, y = DATA.get(case, small_data)()
    whole = make(tmp_path / "whole", **params).fit(X, y)
    want, n_written = weights(whole), len(snapshots)
    assert n_written > 4
    middle = [snapshots[n_written // 2]]
    for folder in snapshots[:n_written] if checkpoints == "all" else middle:
        clf = make(folder, **params).fit(X, y)
        assert_bitwise(weights(clf), want)
        assert without_time(clf.history_) == without_time(whole.history_)
        assert clf.n_iter_ == whole.n_iter_
        np.testing.assert_array_equal(clf.sam_masks_, whole.sam_masks_)
        np.testing.assert_array_equal(clf.sharpness_, whole.sharpness_)
        np.testing.assert_array_equal(clf.train_indices_, whole.train_indices_)
        np.testing.assert_array_equal(clf.predict_proba(X), whole.predict_proba(X))


def test_checkpoints_change_nothing(tmp_path, snapshots, monkeypatch):
    X, y = small_data()
    plain = make(None, memory=str(tmp_path / "memory")).fit(X, y)  # whole phases
    for shortest, n_written in ((1, 7), (4, 4), (10, 3)):
        snapshots.clear()
        monkeypatch.setattr(plan, "SHORTEST_SEGMENT", shortest)
        kept = make(tmp_path / str(shortest)).fit(X, y)
        assert_bitwise(weights(kept), weights(plain))
        assert len(snapshots) == n_written
        for copy in snapshots:
            shutil.rmtree(copy)


@pytest.mark.parametrize("kind", [estimator, DeepEnsembleClassifier])
def test_finished_fit_is_loaded(kind, tmp_path, monkeypatch):
    X, y = small_data()
    params = {"checkpoint_dir": tmp_path, "max_epochs": 4, "random_state": 0}
    first = kind(**params).fit(X, y)
    monkeypatch.setattr("sklearn_sharpbalance.training.trainer.train_segment", None)
    again = kind(**params).fit(X, y)
    assert_bitwise(weights(again), weights(first))
    assert again.history_ == first.history_


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a finished fit and copies of its folder, one after every write."""
    folder = tmp_path_factory.mktemp("written")
    with copied_writes(folder) as copies:
        return make(folder / "whole").fit(*small_data()), copies


def test_resuming_with_another_engine(tmp_path, written):
    X, y = small_data()
    shutil.copytree(written[1][3], tmp_path / "copy")
    other = {"verbose": 0, "engine": "skorch"}
    clf = make(tmp_path / "copy", **other).fit(X, y)
    assert clf.n_iter_ == 6


X, Y = small_data()
OTHERS = {
    "rho": ({"rho": 0.2}, X, Y, "rho was None and is 0.2"),
    "max_epochs": ({"max_epochs": 8}, X, Y, "max_epochs was 6 and is 8"),
    "seed": ({"random_state": 4}, X, Y, "random_state was 3 and is 4"),
    "width": (
        {"estimator__module__hidden": (9,)},
        X,
        Y,
        r"estimator__module__hidden was \(8\) and is \(9\)",
    ),
    "function": (
        {"lr_schedule": lambda p: 1 - p},
        X,
        Y,
        r"lr_schedule was None and is .*<lambda>",
    ),
    "samples": ({}, X + 1, Y, r"X was float32 \(96, 5\) \w+ and is float32 \(96, 5\)"),
    "labels": ({}, X, Y[::-1], r"y was int64 \(96,\)"),
    "names": ({}, X, Y + 5, r"classes was \[0, 1, 2\] and is \[5, 6, 7\]"),
    "weights": ({"class_weight": "balanced"}, X, Y, "sample weights was none and is"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_settings_or_data_raise(other, written):
    params, X, y, message = OTHERS[other]
    with pytest.raises(CheckpointMismatchError, match=message):
        make(written[0].checkpoint_dir, **params).fit(X, y)


def test_generators_are_distinguished_by_their_state(tmp_path, monkeypatch):
    def fit(random_state):
        return make(tmp_path, random_state=random_state, max_epochs=2).fit(X, Y)

    first = fit(np.random.RandomState(1))
    with pytest.raises(CheckpointMismatchError, match="random_state was RandomState"):
        fit(np.random.RandomState(2))
    used = np.random.RandomState(1)
    used.normal()
    with pytest.raises(CheckpointMismatchError, match="random_state was RandomState"):
        fit(used)
    monkeypatch.setattr("sklearn_sharpbalance.training.trainer.train_segment", None)
    assert_bitwise(weights(fit(np.random.RandomState(1))), weights(first))


def test_fits_of_a_search_have_separate_folders(tmp_path, monkeypatch):
    X, y = small_data()
    grid = {"rho": [0.01, 0.1]}
    clf = make(tmp_path / "{fit}", max_epochs=2, warmup_epochs=1)
    search = GridSearchCV(clf, grid, cv=2).fit(X, y)
    assert len(list(tmp_path.iterdir())) == 5  # two radii, two folds, one refit
    monkeypatch.setattr("sklearn_sharpbalance.training.trainer.train_segment", None)
    again = GridSearchCV(clf, grid, cv=2).fit(X, y)
    scores = "split0_test_score"
    np.testing.assert_array_equal(again.cv_results_[scores], search.cv_results_[scores])


def test_old_checkpoints_are_deleted(written):
    names = [sorted(p.name for p in folder.iterdir()) for folder in written[1]]
    assert names[0] == ["epoch-000000.safetensors"]
    assert names[3] == ["epoch-000002.safetensors", "epoch-000003.safetensors"]
    assert names[-1] == ["epoch-000006.safetensors"]


# Files --------------------------------------------------------------------------------


def test_concurrent_writers(tmp_path):
    folder = CheckpointFolder(tmp_path)

    def write(number):
        for epoch in range(1, 10):
            folder.write(epoch, {"number": number})
            assert folder.latest() is not None

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert all(NAME.fullmatch(path.name) for path in tmp_path.iterdir())


def test_checkpoint_written_during_a_read_is_found(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path)
    folder.write(1, {"number": 1})
    read, overtaken = checkpoint.read_archive, []

    def overtake(path, kind):
        if not overtaken:
            overtaken.append(path)
            folder.write(5, {"number": 5}, last=True)
        return read(path, kind)

    monkeypatch.setattr(checkpoint, "read_archive", overtake)
    assert folder.latest() == {"number": 5}
    assert [path.name for path in overtaken] == ["epoch-000001.safetensors"]


def test_only_old_temporary_files_are_deleted(tmp_path):
    old, new = (tmp_path / f".epoch-000001.safetensors.{i}.tmp" for i in (1, 2))
    old.touch()
    new.touch()
    os.utime(old, 2 * (time.time() - MAX_AGE - 60,))
    CheckpointFolder(tmp_path).write(3, {})
    assert not old.exists()
    assert new.exists()


@pytest.fixture
def full_disk():
    """Limit the size of files of this process to 4096 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk_raises_before_training(tmp_path, full_disk):
    with pytest.raises(CheckpointError, match=r"Cannot write .*too large"):
        make(tmp_path).fit(*small_data())
    assert list(tmp_path.iterdir()) == []  # no incomplete file


class FillsTheDisk(Callback):
    """Let no file grow after the second epoch."""

    def on_epoch_end(self, net, **kwargs):
        if len(net.history) == 2:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))


def test_disk_that_fills_up_during_a_fit_loses_no_training(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    clf = make(tmp_path, callbacks=[FillsTheDisk()])
    try:
        with pytest.warns(SharpBalanceWarning, match="The fit continues"):
            clf.fit(*small_data())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_bitwise(weights(clf), weights(make(None).fit(*small_data())))


@pytest.mark.parametrize("folder", ["/proc/sharpbalance", "{tmp}/file/sub"])
def test_folder_that_cannot_be_written(folder, tmp_path):
    (tmp_path / "file").write_text("no folder")
    folder = folder.format(tmp=tmp_path)
    with pytest.raises(CheckpointError, match=re.escape(folder)):
        make(folder).fit(*small_data())


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_damaged_checkpoint_is_skipped(tmp_path, written):
    whole, copies = written
    folder = shutil.copytree(copies[4], tmp_path / "copy")
    damage(max(folder.iterdir()))
    with pytest.warns(SharpBalanceWarning, match=r"skipped.*is damaged"):
        clf = make(folder).fit(*small_data())
    assert_bitwise(weights(clf), weights(whole))


def test_only_damaged_checkpoints_raise(tmp_path, written):
    folder = shutil.copytree(written[1][4], tmp_path / "copy")
    for path in folder.iterdir():
        damage(path)
    with (
        pytest.warns(SharpBalanceWarning, match="skipped"),
        pytest.raises(CheckpointError, match="Delete the folder to start again"),
    ):
        make(folder).fit(*small_data())


@pytest.mark.parametrize("n", rest_slow([50, 200]))
def test_mutated_checkpoints_never_crash(n, tmp_path, written):
    folder = shutil.copytree(written[1][-1], tmp_path, dirs_exist_ok=True)
    path = folder / "epoch-000006.safetensors"
    content, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(n):
        mutated = bytearray(content)
        for place in rng.integers(len(content), size=rng.integers(1, 4)):
            mutated[place] = rng.integers(256)
        path.write_bytes(mutated[: rng.choice([len(mutated), rng.integers(5000)])])
        if path.read_bytes() != content:
            with pytest.warns(SharpBalanceWarning), pytest.raises(SharpBalanceError):
                CheckpointFolder(tmp_path).latest()


# Interruptions ------------------------------------------------------------------------


class Interrupting(torch.nn.Module):
    """Send SIGINT in the middle of an epoch."""

    # An object of a standard class is not part of the code's identity.
    plan = SimpleNamespace(press_at=None, calls=0)

    def __init__(self, n_features, n_classes):
        super().__init__()
        self.last = torch.nn.Linear(n_features, n_classes)

    def forward(self, x):
        self.plan.calls += self.training
        if self.training and self.plan.calls == self.plan.press_at:
            signal.raise_signal(signal.SIGINT)
        return self.last(x)


def press_ctrl_c(monkeypatch, at):
    """Send SIGINT in this call of the module, counted from now; never for None."""
    monkeypatch.setattr(Interrupting.plan, "press_at", at)
    monkeypatch.setattr(Interrupting.plan, "calls", 0)


class Raising(Callback):
    """Fail depending on the environment, since other settings are another fit."""

    def on_epoch_end(self, net, **kwargs):
        if os.environ["SERVER"] == "lost" and len(net.history) == 4:
            raise OSError("the logger lost its server")


class Keeps(Callback):
    """Has attributes that cannot be stored or created again."""

    def on_train_begin(self, net, **kwargs):
        self.count_ = 0
        self.seen_ = iter(())

    def on_epoch_end(self, net, **kwargs):
        self.count_ += 1
        self.seen_ = partial(print, self.count_)


@pytest.mark.parametrize("how", rest_slow(["ctrl_c", "callback"]))
@pytest.mark.usefixtures("ctrl_c")
def test_interrupted_fit_keeps_the_old_model_and_the_checkpoint(
    how, tmp_path, monkeypatch
):
    X, y = small_data()
    if how == "ctrl_c":
        params, error = {"estimator": Interrupting}, KeyboardInterrupt
        stop = partial(press_ctrl_c, monkeypatch)
        inactive, active = None, 35
    else:
        params, error = {"callbacks": [("raising", Raising())]}, OSError
        stop = partial(monkeypatch.setenv, "SERVER")
        inactive, active = "up", "lost"
    stop(inactive)
    clf = make(None, **params).fit(X, y)
    before, proba = weights(clf), clf.predict_proba(X)
    clf.set_params(checkpoint_dir=tmp_path / "interrupted", random_state=7)
    stop(active)
    with pytest.raises(error):
        clf.fit(X, y)
    assert_bitwise(weights(clf), before)
    np.testing.assert_array_equal(clf.predict_proba(X), proba)
    stop(inactive)
    assert list((tmp_path / "interrupted").iterdir())
    clf.fit(X, y)  # resumes
    whole = make(None, random_state=7, **params).fit(X, y)
    assert_bitwise(weights(clf), weights(whole))
    assert len(clf.history_[0]) == 6


@pytest.mark.usefixtures("ctrl_c")
def test_interrupt_in_the_first_epoch_leaves_no_model(tmp_path, monkeypatch):
    press_ctrl_c(monkeypatch, at=9)
    clf = make(tmp_path, estimator=Interrupting)
    with pytest.raises(KeyboardInterrupt):
        clf.fit(*small_data())
    assert not hasattr(clf, "estimators_")


@pytest.mark.parametrize("with_checkpoints", rest_slow([True, False]))
@pytest.mark.usefixtures("ctrl_c")
def test_interrupted_first_fit_keeps_the_last_common_epoch(
    with_checkpoints, tmp_path, monkeypatch
):
    """The last epoch that all members finished is the end of the warm-up here."""
    X, y = small_data()
    folder = tmp_path if with_checkpoints else None
    clf = make(folder, estimator=Interrupting)
    press_ctrl_c(monkeypatch, at=35)
    with (
        pytest.warns(SharpBalanceWarning, match="usable in its state after epoch 2"),
        pytest.raises(KeyboardInterrupt),
    ):
        clf.fit(X, y)
    assert clf.n_iter_ == 2
    assert [len(history) for history in clf.history_] == [2] * len(clf.estimators_)
    assert clf.predict_proba(X).shape == (len(X), len(clf.classes_))
    press_ctrl_c(monkeypatch, at=None)
    clf.fit(X, y)
    whole = make(None, estimator=Interrupting).fit(X, y)
    assert_bitwise(weights(clf), weights(whole))


@pytest.mark.parametrize("engine", rest_slow(["auto", "skorch"]))
@pytest.mark.usefixtures("ctrl_c")
def test_interrupted_long_phase_keeps_its_last_segment(engine, monkeypatch):
    """Without checkpoints members are synchronised every few epochs."""
    X, y = small_data()
    long = {"max_epochs": 14, "warmup_epochs": 0}
    clf = make(None, estimator=Interrupting, engine=engine, **long)
    press_ctrl_c(monkeypatch, at=None)
    whole = clone(clf).fit(X, y)
    press_ctrl_c(monkeypatch, at=Interrupting.plan.calls * 13 // 14)
    with (
        pytest.warns(SharpBalanceWarning, match="usable in its state after epoch 10"),
        pytest.raises(KeyboardInterrupt),
    ):
        clf.fit(X, y)
    assert clf.n_iter_ == 10
    for got, want in zip(clf.history_, whole.history_):
        losses = [row["train_loss"] for row in want]
        assert [row["train_loss"] for row in got] == losses[:10]


def test_lost_attributes_of_callbacks_are_named(tmp_path, snapshots):
    params = {"callbacks": [("keeps", Keeps())], "engine": "skorch"}
    params |= {"max_epochs": 4, "n_estimators": 1}
    make(tmp_path / "whole", **params).fit(*small_data())
    with pytest.warns(SharpBalanceWarning, match=r"'keeps' \(Keeps\).* seen_\."):
        clf = make(snapshots[3], **params).fit(*small_data())
    assert clf.n_iter_ == 4


class Records(Callback):
    def on_epoch_end(self, net, **kwargs):
        net.history.record("object", object())


def test_history_that_cannot_be_stored_is_named(tmp_path):
    with pytest.warns(SharpBalanceWarning, match=r"members\.0\.history\.0\.object"):
        make(tmp_path, callbacks=[Records()]).fit(*small_data())
