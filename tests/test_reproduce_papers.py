"""Runs of the papers on SED and on sharpness under controls: data, tables, figures."""

import argparse
import json
import runpy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from sklearn_sharpbalance import metrics
from sklearn_sharpbalance.metrics import (
    bma_score,
    ood_auroc,
    predictive_diversity_score,
    unique_predictions,
)
from tests.cases import rest_slow

BENCHMARKS = Path(__file__).parent.parent / "examples" / "benchmarks"


@pytest.fixture
def report(monkeypatch):
    """The module beside the script, which is no package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _reproduce_report

    return _reproduce_report


@pytest.fixture
def options(tmp_path):
    """Options of a short run on random pictures of ten classes."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 256, (90, 16, 16, 3), dtype=np.uint8)
    labels = np.tile(np.arange(10), 9)
    np.savez(
        tmp_path / "pictures.npz",
        x_train=drawn[:60],
        y_train=labels[:60],
        x_test=drawn[60:],
        y_test=labels[60:],
    )
    return argparse.Namespace(
        run="sed",
        data=str(tmp_path / "pictures.npz"),
        work=str(tmp_path / "work"),
        out=str(tmp_path),
        only=".*",
        images=None,
        members=2,
        width=4,
        epochs=1,
        head_epochs=1,
        trunk_share=0.5,
        corrupted=10,
        checkpoint_every=None,
        shared_gpu=False,
    )


@pytest.mark.usefixtures("two_kinds")
def test_heads_are_trained_and_measured(report, options, monkeypatch):
    import reproduce

    tasks = []
    prepare = reproduce.prepare_heads
    monkeypatch.setattr(
        reproduce,
        "prepare_heads",
        lambda given: lambda seed: tasks.append(prepare(given)(seed)) or tasks[-1],
    )
    fitted = []
    train = reproduce.fit_heads
    monkeypatch.setattr(
        reproduce, "fit_heads", lambda clf, task: fitted.append(clf) or train(clf, task)
    )
    monkeypatch.setattr(
        "_reproduce_methods.N_HEADS", (2,)
    )  # the other groups train the same methods
    options.only = "SED-A2D, lambda 0.1|naive A2D|diverse.*"
    assert reproduce.run_seed(options, 13) == []
    (task,), (clf, _, deep) = tasks, fitted
    assert set(task.y) == set(range(8))  # the last two classes are foreign
    assert len(task.y) == len(task.of_trunk[1]) == 24
    assert task.foreign["digits"].shape[1:] == (16, 16, 3)
    assert len(task.unlabeled) == 48
    assert (clf.engine_.name, clf.trunk_ is None) == ("stacked", False)
    assert len({each["lr"] for each in deep.member_params_}) == 2
    settings = reproduce.settings_of(options)
    found = reproduce.records_beside(Path(options.out), settings)
    records = reproduce.merged(settings, found)
    assert [record["method"] for record in records] == [
        "SED-A2D, lambda 0.1",
        "naive A2D",
        "diverse hyper-parameters",
    ]
    check_against_the_estimator(records[0], clf, task)
    # What was trained is not trained again.
    assert reproduce.run_seed(options, 13) == []
    assert len(fitted) == 3
    text = report.markdown(records)
    assert "| SED-A2D, lambda 0.1, PDS |" in text
    assert "\n| 2 | SED-A2D, lambda 0.1 |" in text


def check_against_the_estimator(record, clf, task):
    """Numbers of a record, from the predictions of the estimator for pictures."""
    images, labels = task.test
    logits = clf.member_decision_function(images)
    known = softmax(logits.astype(float), axis=-1)
    right = logits.argmax(-1) == labels  # the classes are 0 to 7
    assert record["accuracy"] == pytest.approx(
        (logits.mean(0).argmax(-1) == labels).mean()
    )
    assert record["oracle_accuracy"] == pytest.approx(right.mean(1).max())
    assert record["unique"] == pytest.approx(unique_predictions(known))
    soup = clf.__class__(**clf.get_params() | {"aggregation": "uniform_soup"})
    soup.fit(task.X, task.y)
    assert record["soup_accuracy"] == pytest.approx(soup.score(images, labels))
    foreign = clf.member_predict_proba(task.foreign["classes"])
    assert record["classes_pds_auroc"] == pytest.approx(
        ood_auroc(*map(predictive_diversity_score, (known, foreign))), abs=1e-6
    )
    assert record["classes_bma_auroc"] == pytest.approx(
        ood_auroc(-bma_score(known), -bma_score(foreign)), abs=1e-6
    )
    five = {
        kind: task.corrupted[kind, 5]
        for kind, severity in task.corrupted
        if severity == 5
    }
    accuracies = [clf.score(*pair) for pair in five.values()]
    assert len(five) == 2
    assert record["severity_5_accuracy"] == pytest.approx(np.mean(accuracies))


def heads_records(seeds=(13, 113)):
    """Made-up records of heads; PDS detects better the larger lambda is."""
    import _reproduce_methods as methods

    options = argparse.Namespace(members=5, width=4, head_epochs=1)
    rng, records = np.random.default_rng(0), []
    for seed in seeds:
        for group, method, _ in methods.sed(options, seed):
            weight = float(method.rpartition(" ")[2]) if "lambda" in method else 0.0
            record = {"group": group, "method": method, "seed": seed}
            record |= {"n_heads": int(group.split()[0]), "step_ms": 1.0}
            prefixes = ("", "corrupted_", "severity_1_", "severity_5_")
            for prefix in (*prefixes, "classes_", "digits_"):
                record |= {
                    f"{prefix}unique": 1 + weight,
                    f"{prefix}pds": 0.2,
                    f"{prefix}accuracy": 0.9 + rng.normal() * 0.01,
                    f"{prefix}oracle_accuracy": 0.9,
                    f"{prefix}soup_accuracy": 0.8,
                    f"{prefix}bma_auroc": 0.7 + 0.01 * seed / 113,
                    f"{prefix}member_auroc": 0.65,
                    f"{prefix}pds_auroc": 0.6 + 0.02 * weight + 0.01 * seed / 113,
                }
            scores = {"clean": [0.1, 0.2, 0.3], "classes": [0.2, 0.3, 0.5]}
            records.append(record | {"bma_quantiles": scores, "pds_quantiles": scores})
    return records


def test_tables_of_heads_compare_methods_and_scores(report):
    text = report.markdown(heads_records())
    assert "**5 heads**, 2 ensembles a row; pooled standard deviation" in text
    rows = {line.split(" | ")[0][2:]: line for line in text.splitlines()}
    last = rows["SED-A2D, lambda 10, PDS"]  # 0.6 + 0.2 against 0.7
    assert last.endswith("| 0.806 |  | +0.100 ± 0.000 * | +0.100 ± 0.000 * |")
    assert "| 0.706 | 0.650 |  |" in rows["SED-A2D, lambda 10, BMA"]
    assert "| 1 | SED" not in text
    assert text.count("SED-A2D, lambda 0.1 | 1.10 | 0.706 | 0.608 | 1.00 |") == 6


@pytest.mark.slow
def test_figures_of_heads_show_what_was_recorded(report):
    figures = report.figures(heads_records())
    assert list(figures) == ["", "_members", "_scores"]
    area = figures[""].axes[0]
    pds = area.containers[1].lines[0].get_ydata()
    np.testing.assert_allclose(np.diff(pds), 0.02 * np.diff([0, 0.01, 0.1, 1, 10]))
    assert [t.get_text() for t in area.get_xticklabels()] == [
        "0",
        "0.01",
        "0.1",
        "1",
        "10",
    ]
    sizes = figures["_members"].axes[0].containers[0].lines[0].get_xdata()
    assert list(sizes) == [2, 3, 5, 8, 12, 20]


@pytest.mark.parametrize("n_records", rest_slow([1, 4, 2]))
def test_a_run_of_heads_that_was_cut_short_is_reported(report, n_records):
    records = heads_records(seeds=(13,))[:n_records]
    text = report.markdown(records)
    assert "±" not in text  # one seed
    assert "| shallow ensemble, PDS |" in text
    assert list(report.figures(records))[-1] == "_scores"


def nets_records(seeds=(13, 113)):
    """Made-up records: sharper is better between controls, and worse within each."""
    import _reproduce_methods as methods
    from _reproduce_rethinking import OUTCOMES, SHARPNESS

    options = argparse.Namespace(members=3, width=4, epochs=1, rho=0.05, flat_ratio=0.4)
    records = []
    for seed in seeds:
        for i, (group, method, _) in enumerate(methods.rethinking(options, seed)):
            control, optimizer = divmod(i, 3)
            shift = np.arange(3) * 1e-3 + seed * 1e-5
            nets = dict.fromkeys(SHARPNESS, 1 + control - 0.1 * optimizer + shift)
            good = 0.5 + 0.1 * control + 0.01 * optimizer - shift / 100
            nets |= dict.fromkeys(OUTCOMES, good)
            record = {"group": group, "method": method, "seed": seed}
            record |= {"sharpness": 1 + i, "der": 0.5 + i, "eir": 0.1 * i}
            record |= {f"net_{name}": value.mean() for name, value in nets.items()}
            record |= {name: nets[name].mean() for name in OUTCOMES}
            record |= {"nets": {name: value.tolist() for name, value in nets.items()}}
            records.append(record)
    return records


def test_rank_correlations_within_and_between(report):
    import _reproduce_report_rethinking as rethinking

    records = nets_records()
    points = rethinking.of_nets(records, "fisher_rao", "accuracy")
    assert len(points) == 2 * 12 * 3
    assert rethinking.rank_correlation(points, "within") == pytest.approx(-1)
    assert rethinking.rank_correlation(points, "between") > 0.8
    ensembles = rethinking.of_ensembles(records, "worst_case", "ece")
    assert len(ensembles) == 24
    assert rethinking.rank_correlation(ensembles, "within") == pytest.approx(-1)
    text = report.markdown(records)
    assert "**rank correlations, single nets**, 72 of them" in text
    assert "| Fisher-Rao norm |" in text
    assert "-1.00 ± 0.00" in text
    assert "**both, ensembles**" in text
    assert text.count("| SAM 0.05 |") == 8


@pytest.mark.slow
def test_figures_of_controls_show_every_net(report):
    figures = report.figures(nets_records())
    assert list(figures) == ["", "_tradeoff"]
    axes = figures[""].axes
    assert len(axes) == 16
    assert len(axes[1].lines) == 72


@pytest.mark.parametrize("n_records", rest_slow([1, 4, 2]))
def test_a_run_of_controls_that_was_cut_short_is_reported(report, n_records):
    records = nets_records(seeds=(13,))[:n_records]
    text = report.markdown(records)
    assert f"ensembles**, {n_records} of them" in text
    assert len(report.figures(records)) == 2


def test_controls_differ_in_augmentation_and_weight_decay(report):
    import _reproduce_methods as methods

    options = argparse.Namespace(members=3, width=4, epochs=1, rho=0.05, flat_ratio=0.4)
    found = {
        (group, method): clf.get_params()
        for group, method, clf in methods.rethinking(options, 13)
    }
    assert len(found) == 12
    decay = "estimator__optimizer__weight_decay"
    for (group, method), params in found.items():
        assert (params["train_transform"] is None) == (
            group in ("no control", "weight decay")
        )
        assert (params.get(decay) == 0) == (group in ("no control", "augmentation"))
        assert ("selection" in params) == method.startswith("SAM")


@pytest.mark.usefixtures("two_kinds")
def test_nets_are_measured_one_by_one(report, options, monkeypatch):
    import reproduce

    few = partial(metrics.sam_sharpness, n_draws=3)
    monkeypatch.setattr(metrics, "sam_sharpness", few)
    vars(options).update(
        run="rethinking", images=20, rho=0.05, flat_ratio=0.4, sharpness_batches=1
    )
    del options.head_epochs, options.trunk_share
    options.only = "no control/SAM 0.2"
    assert reproduce.run_seed(options, 13) == []
    settings = reproduce.settings_of(options)
    (record,) = reproduce.records_beside(Path(options.out), settings)
    nets = record["nets"]
    assert all(len(values) == 2 for values in nets.values())
    assert np.mean(nets["accuracy"]) == pytest.approx(record["member_accuracy"])
    assert np.mean(nets["ece"]) == pytest.approx(record["member_ece"])
    assert np.mean(nets["corrupted_accuracy"]) == pytest.approx(
        record["member_corrupted_accuracy"]
    )
    assert nets["disagreement"] == pytest.approx([record["disagreement"]] * 2)
    assert record["net_worst_case"] == pytest.approx(record["sharpness"])


def test_settings_of_other_runs_have_no_options_of_heads(report, monkeypatch):
    import reproduce

    for run, members in (("ablation", 3), ("sed", 5)):
        command = ["reproduce.py", run, "--data", __file__]
        monkeypatch.setattr("sys.argv", command)
        settings = reproduce.settings_of(reproduce.parse())
        assert settings["members"] == members
        assert ("head_epochs" in settings) == (run == "sed")
    path = BENCHMARKS / "results" / "reproduce_ablation.json"
    recorded = json.loads(path.read_text())["settings"]
    monkeypatch.setattr("sys.argv", ["reproduce.py", "ablation", "--data", __file__])
    assert reproduce.settings_of(reproduce.parse()).keys() == recorded.keys()


def test_sentences_about_heads_equal_the_records():
    folder = BENCHMARKS / "results"
    reader = runpy.run_path(str(BENCHMARKS.parents[1] / "docs/_ext/measured.py"))
    tables = reader["read_tables"]((folder / "reproduce_sed.md").read_text())
    heads, sizes = tables["5 heads"], tables["All sizes"]
    plain, term = heads["shallow ensemble"], heads["SED-A2D, lambda 1"]
    areas = {name: row["mean"] for name, row in heads.items() if "mean" in row}
    over_bma = [row["mean, PDS over BMA"] for row in heads.values() if "mean" in row]
    gaps = sorted(filter(None, over_bma), key=lambda cell: float(cell.split()[0]))
    rows = (folder / "reproduce_sed.md").read_text().splitlines()
    steps = {
        tuple(cells[1:3]): float(cells[-2])
        for cells in ([each.strip() for each in row.split("|")] for row in rows)
        if len(cells) == 8 and cells[2].startswith("SED-A2D")
    }
    assert len(sizes) == 6
    two, twenty = (
        [steps[n, f"SED-A2D, lambda {weight}"] for weight in ("0.1", "0")]
        for n in ("2", "20")
    )
    fifty = json.loads((folder / "sed_heads.json").read_text())["rows"]
    gain = term["ensemble, corrupted, over shallow ensemble"]
    random = heads["diverse hyper-parameters"]
    classes = [
        heads[f"SED-A2D, lambda 0.1, {score}"]["held-out classes"]
        for score in ("PDS", "BMA")
    ]
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    for text in (
        f"{term['severity 5']} of five predictions differ",
        f"instead of {plain['severity 5']} in the shallow ensemble ({term['clean']} on",
        f"{plain['oracle member, clean']} to {term['oracle member, clean']} %",
        f"to {heads['SED-A2D, lambda 10']['oracle member, clean']} % with lambda 10",
        f"the ensemble is {gain[1:]} points ahead of the shallow one",
        f"give {random['ensemble, corrupted, over shallow ensemble'][1:]} and leave",
        f"between {gaps[0][1:]} below and {gaps[-1][1:]} above that of BMA",
        "({} instead of {} with 0.1)".format(*classes),
        f"{areas['SED-A2D, lambda 0.1, PDS']} with lambda 0.1 and",
        f"{areas['SED-A2D, lambda 1, PDS']} with lambda 1, instead of",
        f"instead of {areas['shallow ensemble, BMA']}. What helps",
        f"naive A2D reaches {areas['naive A2D, BMA']} and DivDis",
        f"DivDis {areas['naive DivDis, BMA']}.",
        f"{two[0]:.1f} ms with two heads and {twenty[0]:.1f} ms with twenty",
        f"and {two[1]:.1f} and {twenty[1]:.1f} ms without the term",
        f"take {fifty['50 heads, lambda 0.1']['fit_s']:.0f} s for ten epochs",
    ):
        assert text in page, text
    assert fifty["50 heads, lambda 0.1"]["fit_s"] < 60


@pytest.fixture(scope="module")
def tables_of_nets():
    reader = runpy.run_path(str(BENCHMARKS.parents[1] / "docs/_ext/measured.py"))
    path = BENCHMARKS / "results" / "reproduce_rethinking.md"
    return reader["read_tables"](path.read_text())


ON_ACCURACY, ON_CORRUPTED = "clean accuracy", "corrupted accuracy"


@pytest.mark.parametrize(
    ("text", "sharpness", "outcome", "way"),
    [
        ("Fisher-Rao norm is {} and", "Fisher-Rao norm", ON_ACCURACY, "all nets"),
        ("relative flatness {}: the", "relative flatness", ON_ACCURACY, "all nets"),
        ("corrupted pictures ({} and", "Fisher-Rao norm", ON_CORRUPTED, "all nets"),
        ("and {}) and a lower ECE", "relative flatness", ON_CORRUPTED, "all nets"),
        ("a lower ECE ({} and", "Fisher-Rao norm", "ECE", "all nets"),
        ("and {}), as in the paper", "relative flatness", "ECE", "all nets"),
        ("to accuracy ({})", "worst-case sharpness", ON_ACCURACY, "all nets"),
        ("{} with clean", "worst-case sharpness", ON_ACCURACY, "within controls"),
        ("do not ({} and", "Fisher-Rao norm", ON_ACCURACY, "within controls"),
        ("and {}). - **Cal", "relative flatness", ON_ACCURACY, "within controls"),
        ("lower ECE ({}) and dis", "worst-case sharpness", "ECE", "within controls"),
        ("less ({})", "worst-case sharpness", "disagreement", "within controls"),
    ],
)
def test_rank_correlations_in_the_text(text, sharpness, outcome, way, tables_of_nets):
    cell = tables_of_nets["rank correlations, single nets"][sharpness]
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    assert text.format(cell[f"{outcome}, {way}"]) in page


@pytest.mark.parametrize(
    ("text", "group", "method", "column"),
    [
        ("nets by {} points on", "no control", "SAM 0.2", "clean over SGD"),
        ("and {} with weight decay", "weight decay", "SAM 0.2", "clean over SGD"),
        (
            "ensembles by {} and",
            "no control, ensembles",
            "SAM 0.2",
            "clean over SGD",
        ),
        ("and {}. With", "weight decay, ensembles", "SAM 0.2", "clean over SGD"),
        (
            "are {} points behind",
            "augmentation, ensembles",
            "SAM 0.2",
            "clean over SGD",
        ),
        ("both controls {}, and", "both, ensembles", "SAM 0.2", "clean over SGD"),
        ("corrupted pictures {} and", "augmentation, ensembles", "SAM 0.2", "over SGD"),
        ("and {}. With `rho` 0.05", "both, ensembles", "SAM 0.2", "over SGD"),
        ("nets are {} points ahead", "both", "SAM 0.05", "clean over SGD"),
        ("from {} to 86.37", "no control", "SGD", "accuracy"),
        ("to {} %. Nets", "augmentation", "SGD", "accuracy"),
        ("falls from {} to", "both, ensembles", "SGD", "DER"),
        ("to {}. - **SAM-sharpness", "both, ensembles", "SAM 0.05", "DER"),
    ],
)
def test_effects_of_sam_in_the_text(text, group, method, column, tables_of_nets):
    cell = tables_of_nets[group][method][column]
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    assert text.format(cell.lstrip("+-")) in page


def test_other_sentences_about_nets_equal_the_records(tables_of_nets):
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    level = tables_of_nets["both, ensembles"]["SAM 0.05"]["clean over SGD"]
    assert f"ensembles level ({level})" in page
    result = json.loads((BENCHMARKS / "results/reproduce_rethinking.json").read_text())
    rises = np.concatenate([r["nets"]["sam_sharpness"] for r in result["records"]])
    assert f"falls for {(rises < 0).sum()} of the {len(rises)} nets" in page
    norms = {
        group: float(tables_of_nets[group]["SGD"]["Fisher-Rao norm"])
        for group in ("no control", "augmentation")
    }
    low, high = norms.values()
    assert f"from {low:.2f} to {high:.0f} and the accuracy" in page
    for group in ("no control", "augmentation", "weight decay", "both"):
        worst = [
            float(tables_of_nets[group][method]["worst-case sharpness"])
            for method in ("SGD", "SAM 0.05", "SAM 0.2")
        ]
        assert worst == sorted(worst, reverse=True)  # flatter under every control
