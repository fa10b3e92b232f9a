"""Memory maps train the same members as arrays, and stay on disk."""

import json
import resource
import threading
import time
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from sklearn_sharpbalance import (
    MLP,
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SmallCNN,
)
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.autodiff import per_sample
from sklearn_sharpbalance.data import statistics, training_data
from sklearn_sharpbalance.data.training_data import ArrayRows
from sklearn_sharpbalance.engine.stacked import engine as stacked_engine
from sklearn_sharpbalance.sharpness import LossScorer
from tests.cases import rest_slow
from tests.data.test_huge_input import Coarse
from tests.training.killing import MB, call_in_child

N = 48
FEW = {"n_estimators": 2, "max_epochs": 2, "device": "cpu", "random_state": 0}


def values(kind, n=N):
    rng = np.random.default_rng(0)
    if kind == "table":
        return rng.normal(size=(n, 6)).astype(np.float32)
    if kind == "sequences":
        return rng.normal(size=(n, 5, 4)).astype(np.float32)
    channels = 1 if kind == "grey" else 3
    X = rng.integers(0, 255, (n, 17, 16, channels), dtype=np.uint8)
    return X / np.float32(255) if kind == "floats" else X


def on_disk(X, folder):
    path = folder / f"{len(list(folder.iterdir()))}.npy"
    np.save(path, X)
    return np.load(path, mmap_mode="r")


class OwnScorer(LossScorer):
    """A scorer of a user, who reads X as a tensor."""

    def score_samples(self, net, X, y):
        return X.flatten(1).float().mean(1)


NARROW, SIMPLE = {"estimator__module__width": 4}, {"estimator": Coarse}
AUGMENTED = NARROW | {"estimator": SmallCNN, "train_transform": "crop_flip"}
CASES = {
    "images": (SharpBalance, "images", AUGMENTED),
    "own scorer": (SharpBalance, "images", {"sharpness": OwnScorer(), **SIMPLE}),
    "floats": (SharpBalance, "floats", NARROW),
    "grey": (SharpBalance, "grey", NARROW),
    "joint": (DiversifiedEnsembleClassifier, "images", NARROW),
    "sequences": (SharpBalance, "sequences", {}),
    "table": (SharpBalance, "table", {}),
    "table, skorch": (SharpBalance, "table", {"engine": "skorch"}),
}


@pytest.mark.parametrize("held_out", [None, 0.25])
@pytest.mark.parametrize("case", rest_slow(CASES, ["images", "own scorer", "table"]))
@pytest.mark.filterwarnings("ignore:The default network flattens")
def test_a_map_gives_the_same_members_as_an_array(
    case, held_out, tmp_path, monkeypatch
):
    monkeypatch.setattr(stacked_engine, "MAX_STANDARDIZED", 0)  # small maps, too
    make, kind, params = CASES[case]
    X, y = values(kind), np.arange(N) % 3
    clf = make(**FEW, batch_size=16, validation_fraction=held_out, **params)
    want = clf.fit(X, y).predict_proba(X)
    mapped = on_disk(X, tmp_path)
    np.testing.assert_array_equal(clf.fit(mapped, y).predict_proba(mapped), want)


ORDERS = {
    "fortran": lambda X, folder: on_disk(np.asfortranarray(X), folder),
    "view": lambda X, folder: np.moveaxis(on_disk(X, folder), -1, 1),
    "mirrored": lambda X, folder: on_disk(X[:, ::-1], folder)[:, ::-1],
}


@pytest.mark.parametrize("order", ORDERS)
def test_maps_in_any_order_of_axes_are_read(order, tmp_path):
    X, y = values("images"), np.arange(N) % 3
    clf = DeepEnsembleClassifier(**FEW, **SIMPLE)
    want = clf.fit(X, y).predict_proba(X)
    mapped = ORDERS[order](X, tmp_path)
    np.testing.assert_array_equal(clf.fit(mapped, y).predict_proba(mapped), want)


@pytest.mark.parametrize("rows", [None, np.array([5, 1, 1])])
def test_blocks_are_copied_to_another_device(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(training_data, "BLOCK_BYTES", 700)
    X = np.moveaxis(on_disk(values("images"), tmp_path), -1, 1)
    given = X if rows is None else ArrayRows(X, rows)
    copied = training_data._copy_from_disk(given, "cpu")
    assert copied.is_contiguous()
    np.testing.assert_array_equal(copied, X if rows is None else X[rows])


# Memory -------------------------------------------------------------------------------


SHAPES = {
    "channels last": (84_000, 64, 64, 3),
    "channels first": (84_000, 3, 64, 64),
    "table": (50_000, 5000),
}


@pytest.mark.parametrize("held_out", rest_slow([0.25, None]))
@pytest.mark.parametrize("shape", [(1000, 48, 48, 3), (1000, 3, 48, 48)])
def test_numpy_copies_no_map(shape, held_out, tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "BLOCK_SIZE", 2**14)
    X = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    mapped, y = on_disk(X, tmp_path), np.arange(len(X)) % 2
    params = {**FEW, "max_epochs": 1, "batch_size": 64, "train_transform": None}
    clf = DeepEnsembleClassifier(Coarse, **params, validation_fraction=held_out)
    clf.fit(X[:64], y[:64])  # imports
    tracemalloc.start()
    clf.fit(mapped, y).predict(mapped)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < X.nbytes / 10


def anonymous(name="RssAnon"):
    """Return the anonymous memory of this process in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition(f"{name}:")[2].split()[0])


def of_engine(engine, layout):
    """Return an ensemble of one epoch that trains through an engine."""
    few = {**FEW, "n_estimators": 1, "max_epochs": 1, "batch_size": 128}
    net = {"estimator": Coarse}
    if engine == "stacked" or layout == "table":
        net = {"estimator": MLP, "estimator__module__hidden": (8,)}
    if engine == "joint":
        return DiversifiedEnsembleClassifier(**few | net | {"n_estimators": 2})
    if engine == "graph":
        few["device"] = "cuda"
    if (engine, layout) == ("skorch", "channels last"):  # all samples are scored
        few |= {"n_estimators": 2, "warmup_epochs": 0}
        return SharpBalance(**few, **net, engine=engine)
    return DeepEnsembleClassifier(**few, **net, engine=engine)


def fit_and_predict(layout, engine, path):
    """Write peaks without and with validation samples; runs in the child process."""
    torch.set_num_threads(1)
    training_data.MAX_BATCH_BYTES, statistics.BLOCK_SIZE = MB, 2**17
    per_sample.ROOM_ON_CPU = 2**21
    dtype = np.float32 if layout == "table" else np.uint8
    file = f"{path}.npy"
    X = np.lib.format.open_memmap(file, "w+", dtype, SHAPES[layout])
    X[:] = np.random.default_rng(0).integers(0, 9, X.shape[1:])
    X[::2] += 1
    X.flush()
    X, y = np.load(file, mmap_mode="r"), np.arange(len(X)) % 2
    clf = of_engine(engine, layout)
    clf.fit(np.array(X[:64]), y[:64]).predict_proba(np.array(X[:64]))  # libraries
    if engine != "graph":  # CUDA reserves memory
        limit = anonymous("VmData") + X.nbytes // 10
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    peaks = {}
    for held_out in (None, 0.1):
        clf.set_params(validation_fraction=held_out)
        peaks[f"fit, validation {held_out}"] = peak_of(partial(clf.fit, X, y))
        peaks[f"predict after {held_out}"] = peak_of(partial(clf.predict, X))
    assert engine in ("joint", clf.engine_.name)
    path.write_text(json.dumps({what: p / X.nbytes for what, p in peaks.items()}))


def peak_of(run):
    before, peaks, done = anonymous(), [], threading.Event()

    def watch():
        while not done.is_set():
            peaks.append(anonymous())
            time.sleep(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    run()
    done.set()
    thread.join()
    return max(peaks) - before


@pytest.mark.slow
@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize(
    "engine",
    ["skorch", "stacked", "joint", pytest.param("graph", marks=pytest.mark.gpu)],
)
def test_a_map_of_1_gb_stays_on_disk(engine, layout, tmp_path):
    path = tmp_path / "peaks"
    call_in_child(fit_and_predict, layout, engine, path, patience=900)
    fractions = json.loads(path.read_text())
    assert len(fractions) == 4
    assert max(fractions.values()) < 0.1, fractions
