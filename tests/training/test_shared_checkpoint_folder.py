"""Fits that begin in one checkpoint folder at once: the same goes on, another ends."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from sklearn_sharpbalance.exceptions import CheckpointMismatchError
from sklearn_sharpbalance.training import checkpoint
from sklearn_sharpbalance.training.checkpoint import CheckpointFolder, FitCheckpoints
from sklearn_sharpbalance.training.state import EnsembleState, Seeds
from tests.training.killing import assert_bitwise, estimator, small_data, weights

FEW = {"max_epochs": 4, "warmup_epochs": 2, "reselect_every": 2}
SEEDS = Seeds((1, 2), 3, 4)


@pytest.fixture
def at_once(monkeypatch):
    """Nobody writes before both have looked into the folder."""
    both, look = Barrier(2), CheckpointFolder.latest

    def latest(folder):
        found = look(folder)
        both.wait(timeout=60)
        return found

    monkeypatch.setattr(CheckpointFolder, "latest", latest)
    return monkeypatch.undo


def fit(clf):
    try:
        return clf.fit(*small_data())
    except CheckpointMismatchError as error:
        return error


def test_of_two_fits_at_once_one_is_told_and_one_is_kept(tmp_path, at_once):
    pair = [estimator(tmp_path, rho=rho, **FEW) for rho in (0.05, 0.2)]
    with ThreadPoolExecutor(2) as threads:
        ends = list(threads.map(fit, pair))
    at_once()
    (kept,) = [end for end in ends if end in pair]
    (refused,) = [end for end in ends if end not in pair]
    radii = r"rho was 0\.05 and is 0\.2|rho was 0\.2 and is 0\.05"
    message = rf"Another fit writes to .* at the same time: ({radii})\. Pass"
    with pytest.raises(CheckpointMismatchError, match=message):
        raise refused
    alone = estimator(None, rho=kept.rho, **FEW).fit(*small_data())
    again = estimator(tmp_path, rho=kept.rho, **FEW).fit(*small_data())
    assert_bitwise(weights(kept), weights(alone))
    assert_bitwise(weights(again), weights(alone))


def test_the_same_fit_twice_at_once_disturbs_nobody(tmp_path, at_once):
    pair = [estimator(tmp_path, **FEW) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        ends = list(threads.map(fit, pair))
    assert ends == pair
    alone = estimator(None, **FEW).fit(*small_data())
    for clf in pair:
        assert_bitwise(weights(clf), weights(alone))


def test_the_file_of_another_fit_is_known_by_any_name(tmp_path):
    """Also where it has taken the place of one's own, or an older one is removed."""
    first = FitCheckpoints.open(tmp_path, {"rho": "0.05"}, SEEDS)
    second = FitCheckpoints.open(tmp_path, {"rho": "0.2"}, SEEDS)
    first.write(EnsembleState([]))
    tree = CheckpointFolder(tmp_path).latest() | {"fingerprint": second.fingerprint}
    for epoch in (0, 3):
        second.folder.write(epoch, tree)
        second.write(EnsembleState([], epoch=epoch))  # goes on
        with pytest.raises(CheckpointMismatchError, match=r"rho was 0\.2 and is 0\.05"):
            first.write(EnsembleState([], epoch=epoch + 1))
    assert CheckpointFolder(tmp_path).latest()["fingerprint"] == second.fingerprint


def test_ones_own_checkpoints_are_not_read_again(tmp_path, monkeypatch):
    FitCheckpoints.open(tmp_path, {"rho": "0.05"}, SEEDS).write(EnsembleState([]))
    resumed = FitCheckpoints.open(tmp_path, {"rho": "0.05"}, SEEDS)
    monkeypatch.setattr(checkpoint, "read_archive", None)
    for epoch in range(1, 4):
        resumed.write(EnsembleState([], epoch=epoch))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["epoch-000002.safetensors", "epoch-000003.safetensors"]
