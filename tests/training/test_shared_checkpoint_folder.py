"""Two fits with one checkpoint folder: the same fit is shared, another one raises."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from sklearn_sharpbalance.exceptions import CheckpointMismatchError
from sklearn_sharpbalance.training.checkpoint import CheckpointFolder, FitCheckpoints
from sklearn_sharpbalance.training.plan import EnsembleState, Seeds
from tests.training.killing import assert_bitwise, estimator, small_data, weights

FEW = {"max_epochs": 4, "warmup_epochs": 2}
SEEDS = Seeds((1, 2), 3, 4)


@pytest.fixture
def at_once(monkeypatch):
    """Let both fits read the folder before one of them writes."""
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


def test_one_of_two_different_fits_raises(tmp_path, at_once):
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


def test_the_same_fit_twice_at_the_same_time(tmp_path, at_once):
    pair = [estimator(tmp_path, **FEW) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        ends = list(threads.map(fit, pair))
    assert ends == pair
    alone = estimator(None, **FEW).fit(*small_data())
    for clf in pair:
        assert_bitwise(weights(clf), weights(alone))


def test_file_of_another_fit_is_recognised_by_its_content(tmp_path):
    """Also if it replaced a file of this fit, or an older one is deleted."""
    first = FitCheckpoints(tmp_path, {"rho": "0.05"}, SEEDS)
    second = FitCheckpoints(tmp_path, {"rho": "0.2"}, SEEDS)
    first.write(EnsembleState([]))
    tree = CheckpointFolder(tmp_path).latest() | {"fingerprint": second.fingerprint}
    for epoch in (0, 3):
        second.folder.write(epoch, tree)
        second.write(EnsembleState([], epoch=epoch))  # resumes
        with pytest.raises(CheckpointMismatchError, match=r"rho was 0\.2 and is 0\.05"):
            first.write(EnsembleState([], epoch=epoch + 1))
    assert CheckpointFolder(tmp_path).latest()["fingerprint"] == second.fingerprint
