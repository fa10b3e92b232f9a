"""Each kind of run trains, measures, resumes and writes its table."""

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sklearn_sharpbalance import metrics
from sklearn_sharpbalance.evaluation import gradient_passes

pytestmark = pytest.mark.slow
RESULTS = Path(__file__).parent / "results"
TABLES = sorted(RESULTS.glob("reproduce_*.json"))
SMALL = ["--members", 2, "--sharpness-batches", 1]


class AnyRadius(dict):
    """Radii for all methods of a contest."""

    def __missing__(self, name):
        return 0.2


OPTIONS = argparse.Namespace(
    width=8,
    members=3,
    epochs=40,
    rho=0.1,
    flat_ratio=0.4,
    head_epochs=2,
    seconds=1.2,
    radii=AnyRadius(),
)


@pytest.fixture
def few_digits(monkeypatch):
    """Use only the first 300 images of digits."""
    import _reproduce_measure as measuring

    images, labels = measuring.digits()
    monkeypatch.setattr(measuring, "digits", lambda: (images[:300], labels[:300]))


@pytest.fixture
def images(tmp_path):
    """Return options that name a file of random images."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 256, (120, 16, 16, 3), dtype=np.uint8)
    labels = np.tile(np.arange(10), 12)
    data = tmp_path / "images.npz"
    train, test = slice(100), slice(100, None)
    np.savez(
        data,
        x_train=drawn[train],
        y_train=labels[train],
        x_test=drawn[test],
        y_test=labels[test],
    )
    small = ["--data", data, "--width", 4, "--epochs", 1, "--corrupted", 3]
    return [*SMALL, *small, "--out", tmp_path, "--work", tmp_path / "work"]


def records_of(folder, run):
    return json.loads((folder / f"reproduce_{run}.json").read_text())["records"]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_runs_have_unique_methods_with_the_seed_of_the_command(path):
    import _reproduce_methods as methods

    run = path.stem.removeprefix("reproduce_")
    jobs = list(methods.RUNS[run](OPTIONS, 13))
    names = [(group, method) for group, method, _ in jobs]
    assert len(names) == len(set(names)) > 2
    assert all(clf.random_state == 13 for *_, clf in jobs)


@pytest.mark.parametrize("run", ["headline", "ablation", "contest", "digits"])
def test_methods_of_equal_cost_have_equal_passes(run):
    import _reproduce_methods as methods

    jobs = list(methods.RUNS[run](OPTIONS, 13))
    passes = {m: gradient_passes(c) for group, m, c in jobs if group == "same cost"}
    assert len(passes) >= 3
    np.testing.assert_allclose(
        list(passes.values()), passes["deep ensemble"], rtol=0.04
    )


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_tables_are_those_of_the_records(path):
    import _reproduce_report as report

    table = report.markdown(json.loads(path.read_text())["records"])
    assert table in path.with_suffix(".md").read_text()


@pytest.mark.usefixtures("few_digits", "two_kinds")
def test_digits_run_and_are_not_run_again(tmp_path, run, capfd):
    small = ["digits", *SMALL, "--seeds", 1, "--epochs", 2]
    small += ["--only", "deep ensemble|random", "--out", tmp_path, "--work", tmp_path]
    assert run(*small) == 0
    records = records_of(tmp_path, "digits")
    assert [(r["group"], r["method"]) for r in records] == [
        ("same epochs", "random"),
        ("same epochs", "deep ensemble"),
        ("same cost", "deep ensemble"),
    ]
    assert (tmp_path / "reproduce_digits.png").exists()
    assert "| random | " in (tmp_path / "reproduce_digits.md").read_text()
    assert "fit_seconds" in capfd.readouterr().out
    assert run(*small) == 0
    assert "fit_seconds" not in capfd.readouterr().out
    assert records_of(tmp_path, "digits") == records
    assert "Move it away" in run(*small, "--rho", 0.3)


@pytest.mark.usefixtures("few_digits", "two_kinds")
def test_a_method_that_fails_does_not_stop_the_others(tmp_path, run):
    few = ["digits", *SMALL, "--seeds", 1, "--epochs", 2, "--rho", 1e30]
    few += ["--only", "all|deep ensemble", "--out", tmp_path, "--work", tmp_path]
    assert run(*few) == 1
    methods = {record["method"] for record in records_of(tmp_path, "digits")}
    assert methods == {"deep ensemble"}


@pytest.mark.usefixtures("two_kinds")
def test_images_are_trained_and_measured(images, tmp_path, run):
    few = ["--images", 20, "--only", "sharpest", "--shared-gpu"]
    assert run("headline", *images, *few) == 0
    (record,) = records_of(tmp_path, "headline")
    for name in ("corrupted_accuracy", "corrupted_nll", "sharpness"):
        assert 0 <= record[name] < np.inf
    assert "epoch_seconds" not in record  # the GPU was shared
    assert "| sharpest |" in (tmp_path / "reproduce_headline.md").read_text()


@pytest.mark.usefixtures("two_kinds")
def test_heads_are_trained_and_measured(images, tmp_path, run, monkeypatch):
    monkeypatch.setattr("_reproduce_methods.N_HEADS", (2,))
    few = ["--head-epochs", 1, "--seeds", 1, "--only", "SED-A2D, lambda 0.1|naive A2D"]
    assert run("sed", *images, *few) == 0
    records = records_of(tmp_path, "sed")
    assert [r["method"] for r in records] == ["SED-A2D, lambda 0.1", "naive A2D"]
    assert all(0 <= record["classes_pds_auroc"] <= 1 for record in records)
    table = (tmp_path / "reproduce_sed.md").read_text()
    assert "| SED-A2D, lambda 0.1, PDS |" in table


@pytest.mark.usefixtures("two_kinds")
def test_nets_are_measured_one_by_one(images, tmp_path, run, monkeypatch):
    few_draws = partial(metrics.sam_sharpness, n_draws=3)
    monkeypatch.setattr(metrics, "sam_sharpness", few_draws)
    few = ["--images", 20, "--seeds", 1, "--only", "no control/SAM 0.2"]
    assert run("rethinking", *images, *few) == 0
    (record,) = records_of(tmp_path, "rethinking")
    nets = record["nets"]
    assert all(len(values) == 2 for values in nets.values())
    for name in ("accuracy", "ece", "corrupted_accuracy"):
        assert np.mean(nets[name]) == pytest.approx(record[f"member_{name}"])
    assert (
        "ensembles**, 1 of them" in (tmp_path / "reproduce_rethinking.md").read_text()
    )


def test_radius_with_the_highest_corrupted_accuracy_is_chosen():
    import _reproduce_methods as methods
    from _reproduce_records import chosen_radii

    best = {
        name: methods.radii_to_try(name)[i % 3]
        for i, name in enumerate(methods.CONTEST)
    }
    records = [
        {"group": "same cost", "method": f"{name}, rho {rho:g}", "seed": seed}
        | {"corrupted_accuracy": value + 0.1 * (rho == best[name])}
        for name in methods.CONTEST
        for rho in methods.radii_to_try(name)
        for seed, value in ((5000, 0.5), (5001, 0.8))
    ]
    assert chosen_radii(records) == best
    first = next(iter(methods.CONTEST))
    others = [r for r in records if not r["method"].startswith(first)]
    with pytest.raises(ValueError, match=first):
        chosen_radii(others)
