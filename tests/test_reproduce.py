"""The reproduction script: training, reports and resuming."""

import argparse
import io
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from sklearn.datasets import load_digits

from sklearn_sharpbalance.evaluation import gradient_passes
from sklearn_sharpbalance.networks import SmallResNet

BENCHMARKS = Path(__file__).parent.parent / "examples" / "benchmarks"


@pytest.fixture
def modules(monkeypatch):
    """Return the modules next to the script, which are not a package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _reproduce_methods as methods
    import _reproduce_report as report

    return methods, report


def command(*arguments):
    script = str(BENCHMARKS / "reproduce.py")
    return subprocess.run(
        [sys.executable, script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=BENCHMARKS.parent.parent,
    )


@pytest.fixture
def in_process(modules, monkeypatch, capfd):
    """Return a function that runs the command in this process."""
    import reproduce

    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)  # for other tests

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["reproduce.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            reproduce.main()
        output, errors = capfd.readouterr()
        code = end.value.code
        if isinstance(code, str):  # a message that Python prints
            code, errors = 1, errors + code
        return subprocess.CompletedProcess(arguments, code or 0, output, errors)

    return run


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Return a folder with the corrupted digits."""
    return tmp_path_factory.mktemp("drawn")


@pytest.fixture
def few_digits(modules, monkeypatch):
    """Use only the first 300 pictures of digits."""
    import _reproduce_measure as measuring

    images, labels = measuring.digits()
    monkeypatch.setattr(measuring, "digits", lambda: (images[:300], labels[:300]))


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
    radii=AnyRadius(),
)


@pytest.mark.parametrize(
    "run",
    [
        *("headline", "ablation", "recipe"),
        *("defaults", "defaults_few", "small_cnn"),
        *("defaults_step", "defaults_step_few"),
        *("contest_rho", "contest", "contest_wide"),
        *("tradeoff", "widths", "sparsity", "picture_sizes", "sed", "rethinking"),
        *("digits", "confirm", "sizes"),
        *("digits_tradeoff", "digits_widths", "digits_sparsity"),
    ],
)
def test_names_of_methods_are_unique(run, modules):
    jobs = list(modules[0].RUNS[run](OPTIONS, 13))
    names = [(group, method) for group, method, _ in jobs]
    assert len(names) == len(set(names)) > 2
    assert all(clf.random_state == 13 for *_, clf in jobs)


@pytest.mark.parametrize(
    ("run", "least"),
    [
        ("headline", 3),
        ("ablation", 4),
        ("contest", 8),
        ("contest_wide", 3),
        ("digits", 11),
    ],
)
def test_methods_of_equal_cost_have_equal_passes(run, least, modules):
    jobs = list(modules[0].RUNS[run](OPTIONS, 13))
    passes = {m: gradient_passes(c) for group, m, c in jobs if group == "same cost"}
    assert len(passes) >= least
    np.testing.assert_allclose(
        list(passes.values()), passes["deep ensemble"], rtol=0.04
    )


def test_deep_ensembles_of_the_ablation_enclose_the_cost_of_the_others(modules):
    jobs = list(modules[0].RUNS["ablation"](OPTIONS, 13))
    passes = {(group, m): gradient_passes(c) for group, m, c in jobs}
    cheapest = passes["same epochs", "deep ensemble"]
    assert passes["same cost", "deep ensemble"] == 2 * cheapest
    assert all(cheapest <= n <= 2 * cheapest for n in passes.values())


def test_fit_with_only_a_warm_up_is_the_deep_ensemble(modules):
    methods, _ = modules
    made = methods.Methods(methods.digits_recipe, OPTIONS, 13)
    X, y = load_digits(return_X_y=True)
    plain, deep = (
        clf.set_params(max_epochs=2).fit(X[:200], y[:200])
        for clf in (made.plain(), made.deep())
    )
    np.testing.assert_array_equal(plain.predict_proba(X), deep.predict_proba(X))


def test_methods_are_compared_with_deep_ensembles_of_equal_cost(modules):
    _, report = modules
    rows = (("a", "deep ensemble", 10, 0.5), ("b", "deep ensemble", 20, 0.6))
    rows += (("a", "between", 15, 0.58), ("a", "dearer", 21, 0.9))
    names = ("group", "method", "passes", "corrupted_accuracy")
    records = [
        dict(zip(names, (group, method, passes, value + shift))) | {"seed": seed}
        for seed, shift in enumerate((0, 0.1, 0.2))
        for group, method, passes, value in rows
    ]
    methods = report.by_method(records, "a")
    found = report.at_equal_cost(records, methods["between"], "corrupted_accuracy")
    assert report.signed(found) == "+3.00 ± 0.00"  # 0.58 over 0.55, in all seeds
    found = report.at_equal_cost(records, methods["dearer"], "corrupted_accuracy")
    assert report.signed(found) == ""
    column = report.ACCURACY_AT_EQUAL_COST["at equal cost"]
    cells = report.equal_cost_columns(records, methods, {"it": column})
    assert cells == {"it": {"between": "+3.00 ± 0.00 *", "dearer": ""}}
    assert report.has_costs(records)
    assert not report.has_costs(records[:1])


def test_momentum_sam_takes_the_passes_of_a_default_deep_ensemble(modules):
    methods, _ = modules
    passes = {methods.SAME_EPOCHS: {}, methods.SAME_COST: {}}
    for group, method, clf in methods.RUNS["defaults_step"](OPTIONS, 13):
        passes[group][method] = gradient_passes(clf)
    for found in passes.values():
        assert found["flattest, Momentum-SAM, rho 0.3"] == found["deep ensemble"]
        assert found["flattest"] > found["deep ensemble"]
    same_epochs, same_cost = (found["deep ensemble"] for found in passes.values())
    assert same_cost == pytest.approx(1.8 * same_epochs, rel=0.1)


def test_methods_do_not_depend_on_the_default_step(modules):
    methods, _ = modules
    for run in methods.RUNS.values():
        for _, _, clf in run(OPTIONS, 13):
            assert getattr(clf, "sam", "none") is not None


def test_groups_with_a_dearer_method_are_drawn_against_their_own_baseline(modules):
    import _reproduce_figures as figures

    def record(group, method, passes, accuracy, seed):
        values = {"accuracy": accuracy, "corrupted_accuracy": accuracy}
        names = {"group": group, "method": method, "seed": seed}
        return names | values | {"passes": passes}

    records = []
    for seed in (13, 17):
        shift = 0.001 * (seed == 17)
        for group, passes in (("same epochs", 150.0), ("same cost", 270.0)):
            records.append(record(group, "deep ensemble", passes, 0.5, seed))
            records.append(record(group, "flattest", 285.0, 0.48 + shift, seed))
    drawn = figures.panels(records)
    assert list(drawn) == ["same epochs", "same cost"]
    names, differences = drawn["same cost"]
    assert names == ["flattest"]
    np.testing.assert_allclose(differences("accuracy")[:, 0], -0.0195)


def test_contest_reports_paired_differences_and_relative_seconds(modules):
    _, report = modules
    rng = np.random.default_rng(0)
    metrics = ("accuracy", "corrupted_accuracy", "nll_after_temperature", "der")
    metrics += ("corrupted_nll_after_temperature", "severity_1_corrupted_accuracy")
    records = []
    for seed in range(6000, 6010):
        easy = rng.normal()  # of the seed: pairs do not depend on it
        for method, lead, seconds in (
            ("deep ensemble", 0.0, 10 + seed % 3),
            ("LookSAM, rho 0.1", 0.02, 2.5 * (10 + seed % 3)),
        ):
            record = {"group": "same cost", "method": method, "seed": seed}
            record |= {"passes": 180.0, "epoch_seconds": seconds}
            for name in metrics:
                value = easy + lead + 0.001 * (seed % 2) * (lead > 0)
                record |= {name: value, f"member_{name}": value}
            records.append(record)
    del records[-1]["epoch_seconds"]  # trained beside another command
    table = report.markdown(records)
    half = 100 * 2.262157 * np.std([0, 0.001] * 5, ddof=1) / np.sqrt(10)  # t(0.975, 9)
    cell = f"+2.05 ± {half:.2f}"
    head, _, deep, look = table.split("\n\n")[1].splitlines()
    cells = dict(zip(head.split(" | "), look.split(" | ")))
    assert cells["clean over deep ensemble"] == f"{cell} *"
    assert cells["over deep ensemble"] == f"{cell} *"
    assert look.endswith(" | 2.50 |")
    assert deep.endswith(" | 1.00 |")
    head, _, _, look = table.split("\n\n")[2].splitlines()
    cells = dict(zip(head.strip("| ").split(" | "), look.strip("| ").split(" | ")))
    for name in ("NLL, tempered,", "corrupted NLL, tempered,"):
        assert cells[f"{name} over deep ensemble"] == "+0.021 ± 0.000 *"
    assert cells["DER over deep ensemble"] == "+0.02 ± 0.00 *"
    assert f"| LookSAM, rho 0.1 | {cell} |" in table  # by severity
    fewer = [r | {"group": "same epochs"} for r in records]
    assert "seconds" not in report.markdown(fewer)  # tables of other runs


def test_sizes_are_plotted_up_to_the_size_of_each_method(modules):
    _, report = modules
    names = ("corrupted_accuracy", "eir", "corrupted_nll", "corrupted_ece")
    records = [
        {"group": f"{n} members", "method": method, "seed": seed}
        | {name: n + seed + i for i, name in enumerate(names)}
        for n, methods in ((2, ("deep ensemble", "SAM")), (4, ("deep ensemble",)))
        for method in methods
        for seed in (0, 2)
    ]
    figure = report.draw(records)
    for i, ax in enumerate(figure.axes):
        deep, sam = (bars.lines[0].get_ydata() for bars in ax.containers)
        factor = 100 if i == 0 else 1  # accuracy in percent
        np.testing.assert_allclose(deep, factor * np.array([3 + i, 5 + i]))
        np.testing.assert_allclose(sam, [factor * (3 + i)])


def test_an_older_record_has_no_point_for_what_it_lacks(modules):
    _, report = modules
    names = ("corrupted_accuracy", "eir", "corrupted_nll", "corrupted_ece")
    records = [
        {"group": f"{n} members", "method": "deep ensemble", "seed": seed}
        | {name: n + seed for name in names}
        for n in (2, 3)
        for seed in range(3)
    ]
    for record in records:
        if record["group"] == "2 members":
            del record["corrupted_nll"]
    curves = [ax.containers[0].lines[0] for ax in report.draw(records).axes]
    np.testing.assert_allclose(curves[2].get_ydata(), [np.nan, 4])
    np.testing.assert_allclose(curves[3].get_ydata(), [3, 4])


def test_rows_of_all_sizes_have_the_columns_of_the_head(modules):
    """Where there are deep ensembles alone, differences are blank."""
    _, report = modules
    path = BENCHMARKS / "results" / "reproduce_sizes.json"
    table = report.markdown(json.loads(path.read_text())["records"])
    head, _, *rows = table.split("\n\n")[1].splitlines()
    at = head.split("|").index(" NLL ")
    assert len(rows) == 15
    for row in rows:
        cells = row.split("|")
        assert len(cells) == len(head.split("|"))
        assert 0.1 < float(cells[at]) < 0.3


def test_curves_go_from_left_to_right_with_the_noise_of_the_run(modules):
    """Records of a run in parts come in any order; three seeds share their noise."""
    from _reproduce_records import noise_of

    _, report = modules
    names = ("sharpness", "der", "eir", "corrupted_accuracy")
    noise = {0.05: (0.0, 0.0, 0.0), 0.1: (0.3, 0.0, -0.3), 0.2: (-0.3, 0.3, 0.0)}
    records = [
        {"group": group, "method": f"{group}, rho {rho:g}", "seed": seed}
        | {name: 10 * rho + noise[rho][seed] for name in names}
        for group in ("SAM", "flattest")
        for rho in (0.05, 0.2, 0.1)
        for seed in range(3)
    ]
    for record in records:  # two groups with the same numbers are two ensembles
        record["sharpness"] += record["group"] == "SAM"
    bars = report.draw(records).axes[1].containers[0]
    np.testing.assert_allclose(bars.lines[0].get_xdata(), [0.05, 0.1, 0.2])
    np.testing.assert_allclose(bars.lines[0].get_ydata(), [0.5, 1.0, 2.0])
    (segments,) = bars.lines[2]
    halves = [np.ptp(line[:, 1]) / 2 for line in segments.get_segments()]
    expected = noise_of(records, "der")
    half = stats.t.ppf(0.975, expected.dof) * expected.sd / np.sqrt(3)
    np.testing.assert_allclose(halves, half)  # the first point would have none


def test_results_equal_the_records(modules):
    _, report = modules
    page = (BENCHMARKS / "RESULTS.md").read_text()
    names = re.findall(r"<!-- table: (\w+) -->", page)
    runs = ("digits", "confirm", "sizes", "headline", "ablation", "small_cnn")
    runs += ("digits_tradeoff", "digits_widths", "digits_sparsity")
    runs += ("recipe", "defaults", "defaults_few", "sed", "rethinking", "tradeoff")
    runs += ("sparsity", "picture_sizes", "contest_rho", "contest", "defaults_step")
    runs += ("contest_wide", "defaults_step_few")
    of_runs = {f"reproduce_{run}" for run in runs}
    assert of_runs | {"beside_the_paper", "boost_over_sam"} == set(names)
    headline, ablation = (
        json.loads((BENCHMARKS / f"results/reproduce_{run}.json").read_text())
        for run in ("headline", "ablation")
    )
    assert report.beside_the_paper(headline["records"]) in page
    assert report.boost_over_sam(headline["records"], ablation["records"]) in page
    for name in of_runs:
        result = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())
        table = report.markdown(result["records"])
        assert table in page
        assert report.with_table(page, name, table) == page
        assert f"{result['minutes']:.1f} minutes" in page


def test_sharpbalance_is_compared_with_sam_at_every_rho(modules):
    path = BENCHMARKS / "results" / "reproduce_digits_tradeoff.json"
    records = json.loads(path.read_text())["records"]
    methods = {}
    for record in records:
        methods.setdefault(record["method"], {})[record["seed"]] = record
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    for rho, text in ((0.1, "at 0.1 its DER is ahead by"), (0.2, "at 0.2 behind by")):
        pair = f"sharpest, rho {rho:g}", f"SAM, rho {rho:g}"
        runs = [methods[name] for name in pair]
        difference, half, _ = modules[1].difference(records, *runs, "der")
        assert f"{text} {abs(difference):.3f} ± {half:.3f}" in page


BOOST, RANDOM = "flattest", "random"
DEEP, LATE = "deep ensemble", "flattest, late"
COSINE, LATE_COSINE = f"{BOOST}, cosine", f"{LATE}, cosine"
DEEP_COSINE, HALF = f"{DEEP}, cosine", f"{BOOST}, half of rho"
DROP, SGD = f"{BOOST}, after the drop", f"{BOOST}, SGD warm-up"
LATE_HALF = f"{LATE}, half of rho"
RESULTS = BENCHMARKS / "RESULTS.md"
FAITHFUL = BENCHMARKS.parent.parent / "docs" / "faithful.md"
CNN, R18 = f"{DEEP}, SmallCNN", f"{DEEP}, ResNet-18 of width 16"
PLAIN, BOOST_PLAIN = f"{DEEP}, no augmentation", f"{BOOST}, no augmentation"
SMOOTH, BOOST_SMOOTH = f"{DEEP}, smoothed labels", f"{BOOST}, smoothed labels"
CLEAN, CORRUPTED = "accuracy", "corrupted_accuracy"
TEMPERED = "nll_after_temperature"


@pytest.mark.parametrize(
    ("text", "method", "other"),
    [
        ("behind `flattest` ({} points)", BOOST, "sharpest"),
        ("random sets ({})", RANDOM, "sharpest"),
        ("SAM on everything ({})", "all", "sharpest"),
        ("SAM on nothing ({})", "none", "sharpest"),
        ("set for all by {} points", RANDOM, "same"),
        ("SAM on everything by {}.", BOOST, "all"),
        ("`flattest` is {} ahead of SAM on corrupted", BOOST, "all"),
        ("and {} behind a deep ensemble of as many", "deep ensemble", BOOST),
        ("`flattest` by {} points on corrupted and", "deep ensemble", BOOST),
        ("*random* sets is not shown (+{})", BOOST, RANDOM),
        ("is ahead of random sets by {}", BOOST, RANDOM),
        ("and of `flattest_union` by {}", BOOST, "flattest_union"),
        ("random sets of its own size ({})", RANDOM, "sharpest"),
        ("with narrow nets by {})", "all", "sharpest"),
        ("`flattest` by {}, `random`", f"{BOOST}, SGD warm-up", BOOST),
        ("`random` by {})", f"{RANDOM}, SGD warm-up", RANDOM),
        ("changes `flattest` by {} and", f"{BOOST}, T_d 0.75", BOOST),
        ("and {}. After plain", f"{BOOST}, T_d 0.875", BOOST),
        ("changes it by {}", f"{BOOST}, late", f"{BOOST}, SGD warm-up"),
        ("It was {} points ahead on corrupted", f"{BOOST}, late", BOOST),
        ("ahead of all samples by {},", f"{BOOST}, late", "all, late"),
    ],
)
def test_ablation_equals_the_records(text, method, other, modules):
    _, report = modules
    result = json.loads((BENCHMARKS / "results/reproduce_ablation.json").read_text())
    methods = report.by_method(result["records"], "same epochs")
    pair = methods[method], methods[other]
    found = report.difference(result["records"], *pair, "corrupted_accuracy")
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    assert text.format(report.signed(found).lstrip("+")) in page


def change_in_recipe(report, method, other, metric):
    """What the run ``recipe`` has for the difference of two of its methods."""
    result = json.loads((BENCHMARKS / "results/reproduce_recipe.json").read_text())
    records = result["records"]
    methods = report.by_method(records, "same epochs")
    return report.difference(records, methods[method], methods[other], metric)


@pytest.mark.parametrize(
    ("text", "method", "other"),
    [
        ("for `flattest` by {} points on clean and {} on corrupted p", COSINE, BOOST),
        ("for `flattest` by {} points on clean and {} on corrupted o", COSINE, BOOST),
        ("for `flattest` late by {} and {},", LATE_COSINE, LATE),
        ("for a deep ensemble by {} and {}.", DEEP_COSINE, DEEP),
        ("0.05, is {} points better on clean and {} on corrupted", HALF, BOOST),
    ],
)
def test_recipe_has_the_schedule_and_the_radius(text, method, other, modules):
    """Evidence for the cosine schedule and ``rho=0.05``."""
    _, report = modules
    clean = change_in_recipe(report, method, other, CLEAN)
    corrupted = change_in_recipe(report, method, other, CORRUPTED)
    assert clean.mean > clean.half
    assert corrupted.mean > corrupted.half
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    shown = [report.signed(found).lstrip("+") for found in (clean, corrupted)]
    assert text.format(shown[0], shown[1]) in page


@pytest.mark.parametrize(
    ("page", "text", "method", "other", "metric"),
    [
        (RESULTS, "it changes `flattest` by {} points on clean", DROP, BOOST, CLEAN),
        (RESULTS, "and {} on corrupted pictures. Both are", DROP, BOOST, CORRUPTED),
        (FAITHFUL, "[{} points]", DROP, BOOST, CORRUPTED),
        (RESULTS, "beyond chance ({} and", LATE_HALF, LATE, CLEAN),
        (RESULTS, "and {}). - **Plain descent", LATE_HALF, LATE, CORRUPTED),
        (RESULTS, "changes `flattest` by {} points on corr", SGD, BOOST, CORRUPTED),
        (RESULTS, "*Late* changes it by {}, with the", LATE, BOOST, CORRUPTED),
        (RESULTS, "cosine schedule by {}, for two", LATE_COSINE, COSINE, CORRUPTED),
        (RESULTS, "at {} on corrupted ones, for 1.9", COSINE, DEEP_COSINE, CORRUPTED),
        (RESULTS, "`flattest` late is at {} points", LATE_COSINE, DEEP_COSINE, CLEAN),
        (
            RESULTS,
            "{} on corrupted pictures, for 1",
            LATE_COSINE,
            DEEP_COSINE,
            CORRUPTED,
        ),
        (RESULTS, "passes it is at {} on clean", LATE_COSINE, DEEP_COSINE, CLEAN),
        (RESULTS, "{} on corrupted pictures ([ta", LATE_COSINE, DEEP_COSINE, CORRUPTED),
    ],
)
def test_recipe_shows_no_other_difference(page, text, method, other, metric, modules):
    """Among them the moment of selection of the released code."""
    _, report = modules
    found = change_in_recipe(report, method, other, metric)
    assert abs(found.mean) < found.half
    assert text.format(report.signed(found)) in " ".join(page.read_text().split())


def test_seven_changes_of_recipe_are_beyond_chance(modules):
    """By Holm's adjustment over all pairs that the results compare."""
    from _reproduce_records import holm

    _, report = modules
    compared = [
        (method, other, metric)
        for method, other in (
            (COSINE, BOOST),
            (LATE_COSINE, LATE),
            (DEEP_COSINE, DEEP),
            (DROP, BOOST),
            (HALF, BOOST),
            (LATE_HALF, LATE),
            (SGD, BOOST),
            (LATE, BOOST),
            (LATE_COSINE, COSINE),
            (COSINE, DEEP_COSINE),
            (LATE_COSINE, DEEP_COSINE),
        )
        for metric in (CLEAN, CORRUPTED)
    ]
    p_values = [
        change_in_recipe(report, method, other, metric).p_value
        for method, other, metric in compared
    ]
    adjusted = dict(zip(compared, holm(p_values)))
    beyond_chance = {pair for pair, p_value in adjusted.items() if p_value < 0.05}
    schedules = [(COSINE, BOOST), (LATE_COSINE, LATE), (DEEP_COSINE, DEEP)]
    assert beyond_chance == {
        (method, other, metric)
        for method, other in schedules
        for metric in (CLEAN, CORRUPTED)
    } | {(HALF, BOOST, CORRUPTED)}
    page = " ".join(RESULTS.read_text().split())
    assert "over these 22 differences, seven are beyond chance" in page


def test_results_repeat_changes_of_recipe(modules):
    _, report = modules
    page = " ".join(RESULTS.read_text().split())
    behind = change_in_recipe(report, DEEP_COSINE, COSINE, CLEAN)
    assert behind.mean > behind.half
    text = "`flattest` is behind by {} points on clean pictures"
    assert text.format(report.signed(behind).lstrip("+")) in page
    warmup = change_in_recipe(report, SGD, BOOST, CORRUPTED)
    text = "on other seeds `flattest` ends {} higher"
    assert text.format(report.signed(warmup).lstrip("+")) in page
    radius = change_in_recipe(report, HALF, BOOST, CORRUPTED)
    text = "0.05 is {} points better on corrupted pictures than 0.1"
    assert text.format(report.signed(radius).lstrip("+")) in page


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("corrupted pictures is lower by {}, and", "corrupted_nll"),
        ("and by {} after a temperature", "corrupted_nll_after_temperature"),
    ],
)
def test_late_sam_has_the_lower_loss_on_corrupted_pictures(text, metric, modules):
    _, report = modules
    found = change_in_recipe(report, DEEP_COSINE, LATE_COSINE, metric)
    assert found.mean > found.half
    page = " ".join(RESULTS.read_text().split())
    assert text.format(f"{found.mean:.3f} ± {found.half:.3f}") in page


@pytest.mark.parametrize(
    ("text", "method", "metric", "sign"),
    [
        ("is {} points better on clean", "no augmentation", "accuracy", 1),
        ("clean and {} on corrupted", "no augmentation", "corrupted_accuracy", 1),
        ("is {} points better on clean pictures than the", "steps", "accuracy", -1),
    ],
)
def test_settings_of_a_small_network(text, method, metric, sign, modules):
    """Evidence for ``train_transform`` of ``SmallCNN`` and the cosine schedule."""
    _, report = modules
    path = BENCHMARKS / "results/reproduce_small_cnn.json"
    records = json.loads(path.read_text())["records"]
    methods = report.by_method(records, "same epochs")
    pair = [methods[f"deep ensemble, {method}"], methods["deep ensemble"]]
    found = report.difference(records, *pair[::sign], metric)
    assert found.mean > found.half
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    assert text.format(report.signed(found).lstrip("+")) in page


@pytest.mark.parametrize(
    ("run", "text", "pair", "metric", "digits"),
    [
        ("defaults", "is {} points ahead of one of", (DEEP, CNN), CLEAN, 2),
        ("defaults", "and {} on corrupted ones, for", (DEEP, CNN), CORRUPTED, 2),
        ("defaults_few", "with 5,000 pictures {} and", (DEEP, CNN), CLEAN, 2),
        ("defaults", "a deep ensemble {} points on", (DEEP, PLAIN), CLEAN, 2),
        ("defaults", "they are worth {} points", (DEEP, PLAIN), CLEAN, 2),
        ("defaults", "clean and {} on corrupted", (DEEP, PLAIN), CORRUPTED, 2),
        ("defaults_few", "and {}. - **Sharp", (DEEP, PLAIN), CORRUPTED, 2),
        (
            "defaults",
            "000 pictures `flattest` is {}",
            (BOOST, "SAM"),
            CORRUPTED,
            2,
        ),
        ("defaults", "`flattest` is {} points ahead", (BOOST, "SAM"), CORRUPTED, 2),
        ("defaults", "and {} ahead of a deep ensemble", (BOOST, DEEP), CORRUPTED, 2),
        ("defaults", "ensembles it is {} points ahead", (BOOST, "SAM"), CORRUPTED, 2),
        ("defaults", "of SAM and {} ahead of a deep", (BOOST, DEEP), CORRUPTED, 2),
        ("defaults_few", "few pictures is higher by {}", (LATE, BOOST), "nll", 3),
        (
            "defaults",
            "{} points behind on corrupted ones; with",
            (DEEP, R18),
            CORRUPTED,
            2,
        ),
        ("defaults_few", "it is {} points behind on clean ones", (DEEP, R18), CLEAN, 2),
        ("defaults", "the default rule {} and", (BOOST, BOOST_PLAIN), CLEAN, 2),
        ("defaults", "higher with them by {},", (BOOST_SMOOTH, BOOST), "nll", 3),
        ("defaults", "a temperature by {};", (BOOST_SMOOTH, BOOST), TEMPERED, 3),
        ("defaults", "of a deep ensemble by {} and", (SMOOTH, DEEP), "nll", 3),
        ("defaults", "and {}. The accuracy", (SMOOTH, DEEP), TEMPERED, 3),
        ("defaults_few", "of a deep ensemble by {} and", (DEEP, SMOOTH), "nll", 3),
        ("defaults_few", "rule by {}; after", (BOOST, BOOST_SMOOTH), "nll", 3),
    ],
)
def test_defaults_for_pictures_equal_the_records(
    run, text, pair, metric, digits, modules
):
    """Evidence for the network, the augmentation, the rule and the warm-up."""
    _, report = modules
    path = BENCHMARKS / f"results/reproduce_{run}.json"
    records = json.loads(path.read_text())["records"]
    methods = report.by_method(records, "same epochs")
    found = report.difference(records, *[methods[name] for name in pair], metric)
    assert found.mean > found.half
    scale = 100 if digits == 2 else 1
    mean, half = scale * found.mean, scale * found.half
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    assert text.format(f"{mean:.{digits}f} ± {half:.{digits}f}") in page


def test_late_warm_ups_are_compared_with_the_default_one(modules):
    _, report = modules
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    cosine = "{} (`recipe` with the cosine schedule)"
    for run, text, late, early in (
        ("recipe", "{} (`recipe`)", LATE, BOOST),
        ("recipe", cosine, LATE_COSINE, COSINE),
        ("small_cnn", "{} (`small_cnn`)", LATE, BOOST),
        ("defaults_few", "{} (`defaults_few`)", LATE, BOOST),
        ("defaults", "{} (`defaults`), none of them larger than i", LATE, BOOST),
    ):
        path = BENCHMARKS / f"results/reproduce_{run}.json"
        records = json.loads(path.read_text())["records"]
        methods = report.by_method(records, "same epochs")
        found = report.difference(records, methods[late], methods[early], CORRUPTED)
        assert abs(found.mean) < found.half
        assert text.format(f"{100 * found.mean:+.2f}") in page


def test_time_and_accuracy_of_the_default_network():
    """The time in the results, and the accuracy in the docstring."""
    path = BENCHMARKS / "results/reproduce_defaults.json"
    records = json.loads(path.read_text())["records"]
    means = {
        (method, key): np.mean([r[key] for r in records if r["method"] == method])
        for method in (DEEP, CNN)
        for key in (CLEAN, "fit_seconds")
    }
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    ratio = means[DEEP, "fit_seconds"] / means[CNN, "fit_seconds"]
    assert f"for {ratio:.1f} times the training time" in page
    docstring = " ".join(SmallResNet.__doc__.split())
    large, small = (f"{100 * means[method, CLEAN]:.1f} %" for method in (DEEP, CNN))
    assert f"reaches {large} on CIFAR-10 after 50 epochs" in docstring
    assert f"one of :class:`SmallCNN` {small}" in docstring


def test_accuracy_of_the_default_networks():
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    for run, text in (
        (
            "defaults",
            "of it reaches {:.2f} % on CIFAR-10, one of `SmallCNN` (95,000) {}",
        ),
        ("defaults_few", "with 5,000 pictures {:.2f} and {}"),
    ):
        path = BENCHMARKS / f"results/reproduce_{run}.json"
        records = json.loads(path.read_text())["records"]
        large, small = (
            100 * np.mean([r["accuracy"] for r in records if r["method"] == method])
            for method in (DEEP, CNN)
        )
        assert text.format(large, f"{small:.2f} %") in page


@pytest.mark.parametrize("other", ["sharpest", "all"])
def test_the_default_rule_is_ahead_of_the_text_and_of_sam(other, modules):
    """The evidence for ``selection="flattest"``: corrupted pictures, three seeds."""
    from sklearn_sharpbalance import SharpBalanceEnsembleClassifier

    default = SharpBalanceEnsembleClassifier().selection
    _, report = modules
    path = BENCHMARKS / "results/reproduce_ablation.json"
    records = json.loads(path.read_text())["records"]
    methods = report.by_method(records, "same epochs")
    assert len(methods[default]) >= 3
    pair = methods[default], methods[other]
    found = report.difference(records, *pair, "corrupted_accuracy")
    assert found.mean > found.half


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("Late SAM is level on corrupted pictures (+{})", f"{BOOST}, late"),
        ("late, is level on corrupted pictures (+{})", f"{BOOST}, late"),
        ("narrow nets in three ensembles (+{})", f"{BOOST}, late"),
        ("SAM on everything is {} points behind", "all, late"),
        ("over the last quarter {}.", f"{BOOST}, late, averaged"),
        ("either: {} points behind those that are", "deep ensemble, averaged"),
        ("60 epochs are {} points behind", "deep ensemble, twice the members"),
        ("six with late SAM {} (", f"{BOOST}, late, twice the members"),
        ("half of `rho` {},", f"{BOOST}, late, half of rho"),
        ("every five epochs {},", f"{BOOST}, late, reselected"),
        ("ASAM {},", f"{BOOST}, late, ASAM"),
    ],
)
def test_late_variants_are_compared_at_equal_cost(text, method, modules):
    _, report = modules
    result = json.loads((BENCHMARKS / "results/reproduce_ablation.json").read_text())
    methods = report.by_method(result["records"], "same cost")
    methods |= report.by_method(result["records"], "same epochs")
    runs = methods[method]
    found = report.at_equal_cost(result["records"], runs, "corrupted_accuracy")
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    assert text.format(report.signed(found).lstrip("+-")) in page


@pytest.mark.parametrize(
    ("text", "method", "other", "metric", "factor"),
    [
        ("(`flattest` over `sharpest`: {})", BOOST, "sharpest", "", 100),
        ("and {} on clean pictures", "deep ensemble", BOOST, "", 100),
        ("behind on clean ones (-{})", f"{BOOST}, late", None, "", 100),
        ("behind by {} with narrow nets", f"{BOOST}, late", None, "", 100),
        ("which is {} higher", f"{BOOST}, late", None, "nll_after_temperature", 1),
        ("pictures NLL is {} lower", f"{BOOST}, late", None, "corrupted_nll", 1),
    ],
)
def test_clean_accuracy_and_likelihood_are_reported(
    text, method, other, metric, factor, modules
):
    _, report = modules
    path = BENCHMARKS / "results/reproduce_ablation.json"
    records = json.loads(path.read_text())["records"]
    methods = report.by_method(records, "same epochs")
    metric = metric or "accuracy"
    if other is None:
        found = report.at_equal_cost(records, methods[method], metric)
    else:
        found = report.difference(records, methods[method], methods[other], metric)
    number = report.signed(found, factor, 2 if factor == 100 else 3).lstrip("+-")
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    assert text.format(number) in page


@pytest.mark.parametrize(
    ("text", "method", "metric"),
    [
        ("lowers NLL by {}", "SAM", "nll"),
        ("(ASAM by {})", "ASAM", "nll"),
        ("ahead of the deep ensemble by {}", "SAM", "nll_after_temperature"),
        ("and ASAM by {}", "ASAM", "nll_after_temperature"),
        (
            "as many plain members by {}",
            "deep ensemble, twice the members",
            "nll_after_temperature",
        ),
    ],
)
def test_temperature_is_reported_with_the_likelihood(text, method, metric, modules):
    _, report = modules
    path = BENCHMARKS / "results/reproduce_confirm.json"
    records = json.loads(path.read_text())["records"]
    methods = report.by_method(records, "same cost")
    pair = methods[method], methods["deep ensemble"]
    found = report.difference(records, *pair, metric)
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    assert text.format(report.signed(found, 1, 3).lstrip("-")) in page


def test_slopes_of_figure_5_were_fitted_to_logarithms(modules):
    from _reproduce_records import log_slope

    def slopes(run):
        path = BENCHMARKS / f"results/reproduce_{run}.json"
        records = json.loads(path.read_text())["records"]
        every = [modules[1].by_method(records, g) for g in modules[1].groups(records)]
        return ["{:.2f} ± {:.2f}".format(*log_slope(methods)) for methods in every]

    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    assert "{}, {}, {} and {} for 16".format(*slopes("digits_widths")) in page
    assert "{}, {} and {} with none".format(*slopes("digits_sparsity")) in page
    text = "{} for SAM and {} for SharpBalance".format(*slopes("digits_tradeoff"))
    assert text in page


# Rows of the ablation that used a cached warm-up.
WARM_UPS = (
    ("sharpest", BOOST, "all", RANDOM, "flattest_union"),
    ("none", "same", f"{BOOST}, T_d 0.75", f"{BOOST}, T_d 0.875"),
    (
        *("deep ensemble", f"{BOOST}, SGD warm-up"),
        *(f"{RANDOM}, SGD warm-up", f"{BOOST}, late"),
    ),
    (
        *("all, late", f"{BOOST}, late, half of rho"),
        *(f"{BOOST}, late, ASAM", f"{BOOST}, late, reselected"),
    ),
    (f"{BOOST}, late, averaged", "deep ensemble, averaged"),
)


def test_warm_ups_were_shared_as_reported(modules):
    path = BENCHMARKS / "results/reproduce_ablation.json"
    methods = modules[1].by_method(
        json.loads(path.read_text())["records"], "same epochs"
    )
    assert sorted(methods) == sorted(name for names in WARM_UPS for name in names)
    for names in WARM_UPS:
        for runs in (methods[name] for name in names):
            own = [r["fit_seconds"] > r["epoch_seconds"] for r in runs.values()]
            assert all(own) or not any(own)
        trained = [
            name
            for name in names
            if all(
                r["fit_seconds"] > r["epoch_seconds"] for r in methods[name].values()
            )
        ]
        assert trained == [names[0]]  # the others used its warm-up
    pairs = {True: [], False: []}
    group = {name: i for i, names in enumerate(WARM_UPS) for name in names}
    for one, other in itertools.combinations(methods, 2):
        gaps = [
            methods[one][s]["corrupted_accuracy"]
            - methods[other][s]["corrupted_accuracy"]
            for s in methods[one]
        ]
        pairs[group[one] == group[other]].append(np.var(gaps, ddof=1))
    within, between = (100 * np.sqrt(np.mean(pairs[key]) / 2) for key in (True, False))
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    assert f"{within:.2f} points by pairs of rows from one warm-up" in page
    assert f"and {between:.2f} by other pairs" in page


def test_best_row_is_scored_on_other_seeds(modules):
    from _reproduce_records import chosen_on_other_seeds, seeds_of_run

    path = BENCHMARKS / "results/reproduce_ablation.json"
    records = json.loads(path.read_text())["records"]
    gains, names = chosen_on_other_seeds(records, "corrupted_accuracy")
    assert set(names) == {f"{BOOST}, late"}
    by_seed = dict(zip(seeds_of_run(records), 100 * gains))
    text = "it is at {:+.2f}, {:+.2f} and {:+.2f}."
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    assert text.format(*(by_seed[seed] for seed in (13, 113, 43))) in page


@pytest.mark.parametrize("method", ["deep ensemble", f"{BOOST}, late"])
def test_the_temperature_of_the_headline_was_fitted(method):
    result = json.loads((BENCHMARKS / "results/reproduce_headline.json").read_text())
    row = next(r for r in result["records"] if r["method"] == method)
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    for name, where in (("nll", "clean pictures"), ("corrupted_nll", "corrupted")):
        after = row[f"{name}_after_temperature"]
        assert f"from {row[name]:.3f} to {after:.3f} on {where}" in page


def test_the_temperature_of_more_members_was_fitted(modules):
    result = json.loads((BENCHMARKS / "results/reproduce_ablation.json").read_text())
    methods = modules[1].by_method(result["records"], "same cost")
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    for method, text in (
        ("deep ensemble, twice the members", "from {:.3f} to {:.3f}, below"),
        (f"{BOOST}, late, twice the members", "({:.3f} without, {:.3f} with it)"),
    ):
        names = "corrupted_nll", "corrupted_nll_after_temperature"
        rows = methods[method].values()
        means = [np.mean([row[name] for row in rows]) for name in names]
        assert text.format(*means) in page


def test_headline_is_compared_with_the_paper():
    result = json.loads((BENCHMARKS / "results/reproduce_headline.json").read_text())
    page = (BENCHMARKS / "RESULTS.md").read_text()
    rows = {}
    for record in result["records"]:
        of_method = rows.setdefault(record["method"], {})
        of_method[record["seed"]] = record  # the deep ensemble has two groups
    for runs in rows.values():
        records = runs.values()
        names = ["accuracy", "corrupted_accuracy"]
        names += [f"severity_{i}_corrupted_accuracy" for i in range(1, 6)]
        means = [np.mean([record[name] for record in records]) for name in names]
        values = [f"{100 * mean:.2f}" for mean in means]
        assert f"| {' / '.join(values[:2])} |" in page
        assert f"| {' '.join(values[2:])} |" in page
    assert f"# {result['minutes']:.1f} minutes" in page
    records = [r for r in result["records"] if r["seed"] == 13]
    by_name = {(r["group"], r["method"]): r for r in records}
    deep = by_name["same epochs", "deep ensemble"]
    assert by_name["same cost", "deep ensemble"] == deep | {"group": "same cost"}
    whole = by_name["same epochs", "SAM"]
    seconds = whole["fit_seconds"], whole["measure_seconds"]
    assert f"{sum(seconds) / 60:.1f} minutes for SAM ({seconds[0]:.0f} s" in page
    assert f"{seconds[1]:.0f} s of evaluation" in page


def test_sentences_about_the_headline(modules):
    """Numbers of the paragraphs below its table."""
    path = BENCHMARKS / "results/reproduce_headline.json"
    records = json.loads(path.read_text())["records"]
    seeds = {13: {}, 113: {}, 43: {}}
    for record in records:
        seeds[record["seed"]][record["method"]] = record
    deep, late, union = "deep ensemble", f"{BOOST}, late", f"{BOOST}_union"
    both = "accuracy", "corrupted_accuracy"
    lowest, highest = (f"severity_{i}_corrupted_accuracy" for i in (1, 5))
    before, after = "corrupted_nll", "corrupted_nll_after_temperature"

    def leads(method, other, name="corrupted_accuracy"):
        """Of a method over another, one for each seed that both have."""
        rows = [rows for rows in seeds.values() if {method, other} <= rows.keys()]
        return [100 * (row[method][name] - row[other][name]) for row in rows]

    def lead(method, other, name="corrupted_accuracy"):
        """In points, with its interval."""
        runs, others = (
            {seed: rows[each] for seed, rows in seeds.items() if each in rows}
            for each in (method, other)
        )
        return modules[1].signed(modules[1].difference(records, runs, others, name))

    def ahead(method, other, name="corrupted_accuracy"):
        return lead(method, other, name).removeprefix("+")

    def mean(method, name):
        return np.mean(
            [rows[method][name] for rows in seeds.values() if method in rows]
        )

    def percent(method, name):
        return 100 * mean(method, name)

    mixed = [
        100 * abs(record[name] - record[f"mean_proba_{name}"])
        for record in records
        for name in both
        if f"mean_proba_{name}" in record
    ]
    over_sam, over_deep = leads(BOOST, "SAM"), leads(BOOST, deep)
    sam, sam_clean = leads("SAM", deep), leads("SAM", deep, "accuracy")
    behind = leads("SAM", "sharpest")
    expected = [
        f"by {ahead('SAM', deep, 'accuracy')} points on clean and "
        f"{ahead('SAM', deep)} on corrupted pictures (three seeds; the paper: 0.48",
        f"the mean is within its interval ({ahead('SAM', deep)})",
        "by {:.2f}, {:.2f} and {:.2f} points on clean".format(*sam_clean),
        "and by {:.2f}, {:.2f} and {:.2f} on corrupted".format(*sam),
        f"changes accuracies by {max(mixed):.2f} points or less, over all seeds",
        f"ends {ahead('SAM', 'sharpest')} points behind SAM on corrupted pictures "
        f"({behind[0]:.2f} with seed 13, {behind[1]:.2f} with 113, "
        f"{behind[2]:.2f} with 43)",
        f"from {ahead('SAM', 'sharpest', lowest)} at the lowest severity to "
        f"{ahead('SAM', 'sharpest', highest)} at the highest, and does not differ from "
        f"it beyond chance on clean ones ({lead('sharpest', 'SAM', 'accuracy')})",
        f"with the paper's recipe {ahead(BOOST, 'sharpest')} and "
        f"{ahead(BOOST, 'SAM')} (three ensembles, width 64)",
        f"with three seeds each (by {ahead('SAM', 'sharpest')} points;",
        f"neither on clean ({lead(union, BOOST, 'accuracy')}) nor on corrupted "
        f"pictures ({lead(union, BOOST)}). Its lead over SAM on corrupted pictures is "
        f"within its interval ({lead(union, 'SAM')})",
        f"{lead(late, deep, 'accuracy')} points on clean and "
        f"{lead(late, deep)} on corrupted pictures, from",
        f"in one ({lead(late, deep)}); on clean",
        f"with the paper's nets the difference is {lead(late, deep, 'accuracy')}.",
        f"SAM's on corrupted pictures is "
        f"{lead(BOOST, 'SAM', 'member_corrupted_accuracy')} points, that of its "
        f"ensembles {lead(BOOST, 'SAM')}",
        f"{over_sam[0]:.2f} with seed 13, {over_sam[1]:.2f} with 113 and "
        f"{over_sam[2]:.2f} with 43",
        f"from {ahead(BOOST, 'SAM', lowest)} to "
        f"{ahead(BOOST, 'SAM', highest)} points (the",
        f"by {ahead(BOOST, deep)} points, {over_deep[0]:.2f}, {over_deep[1]:.2f} and "
        f"{over_deep[2]:.2f} with these seeds",
        f"from {ahead(BOOST, deep, lowest)} at the lowest severity to "
        f"{ahead(BOOST, deep, highest)} at the",
        f"is ahead of SAM on corrupted pictures by {ahead(BOOST, 'SAM')} points (three "
        f"seeds; the paper: 1.00) and of a deep ensemble by {ahead(BOOST, deep)} "
        "(three seeds; the paper: 1.49)",
        f"{lead(late, deep, lowest)} at the lowest severity to "
        f"{lead(late, deep, highest)} at the highest. Its",
        f"({percent('SAM', 'member_accuracy'):.2f} against "
        f"{percent(deep, 'member_accuracy'):.2f} % clean, "
        f"{percent('SAM', 'member_corrupted_accuracy'):.2f} against "
        f"{percent(deep, 'member_corrupted_accuracy'):.2f} % corrupted, m",
        f"less than half the sharpness ({mean('SAM', 'sharpness'):.2f} against "
        f"{mean(deep, 'sharpness'):.2f})",
        f"(DER {mean('SAM', 'der'):.2f} against {mean(deep, 'der'):.2f})",
        f"flatness ({mean(BOOST, 'sharpness'):.2f}) for diversity (DER "
        f"{mean(BOOST, 'der'):.2f} on clean and {mean(BOOST, 'corrupted_der'):.2f} "
        f"against {mean('SAM', 'corrupted_der'):.2f} on",
        f"({mean(BOOST, before):.3f} against {mean('SAM', before):.3f}, means",
        f"({mean(BOOST, after):.3f} against {mean('SAM', after):.3f}), with each seed",
        f"({mean(deep, before):.3f} before, {mean(deep, after):.3f} after)",
        f"from {mean(deep, before):.3f} to "
        f"{mean(deep, f'mean_proba_{before}'):.3f}), hardly after it (from "
        f"{mean(deep, after):.3f} to {mean(deep, f'mean_proba_{after}'):.3f})",
    ]
    page = " ".join((BENCHMARKS / "RESULTS.md").read_text().split())
    assert not [each for each in expected if each not in page]
    assert min(leads(BOOST, "SAM", before)) > 0  # behind in NLL before a temperature
    assert max(leads(BOOST, "SAM", after)) < 0
    table = (BENCHMARKS / "results/reproduce_headline.md").read_text()
    for other in ("SAM", deep, "sharpest"):
        assert f"| {lead(BOOST, other)} * |" in table
    assert f"| {lead(BOOST, deep, 'accuracy')} * |" in table


def test_warm_ups_of_the_headline():
    """With a warm-up from the cache a fit takes less time than its epochs took."""
    path = BENCHMARKS / "results/reproduce_headline.json"
    shared = {
        (record["method"], record["seed"])
        for record in json.loads(path.read_text())["records"]
        if record["fit_seconds"] < record.get("epoch_seconds", 0)
    }
    ours = {(BOOST, 13), (BOOST, 113), (BOOST, 43)}  # 43: with sharpest
    unions = {("flattest_union", 13), ("flattest_union", 113)}  # with sharpest
    assert shared == ours | unions


def test_cost_of_scoring_is_compared_with_the_paper(modules):
    results = BENCHMARKS / "results"
    scoring = json.loads((results / "scoring.json").read_text())
    headline = json.loads((results / "reproduce_headline.json").read_text())
    ours = next(r for r in headline["records"] if r["method"] == BOOST)
    seconds = 3 * scoring["kernel"]["seconds"]["4096"]
    whole = ours["epoch_seconds"]
    text = f"{seconds:.1f} s, {100 * seconds / whole:.1f} % of the {whole:.0f} s"
    assert text in (BENCHMARKS / "RESULTS.md").read_text()


@pytest.mark.usefixtures("few_digits", "two_kinds")
def test_digits_run_and_are_not_run_again(tmp_path, in_process, drawn):
    small = ["digits", "--seeds", 1, "--epochs", 2, "--only", "deep ensemble|random"]
    small += ["--sharpness-batches", 1, "--out", tmp_path, "--work", drawn]
    small += ["--members", 2]
    first = in_process(*small)
    assert first.returncode == 0, first.stderr
    path = tmp_path / "reproduce_digits.json"
    result = json.loads(path.read_text())
    methods = [(r["group"], r["method"]) for r in result["records"]]
    assert methods == [
        ("same epochs", "random"),
        ("same epochs", "deep ensemble"),
        ("same cost", "deep ensemble"),
    ]
    assert len(result["records"][0]["by_members"]) == 2
    assert result["records"][0]["epoch_seconds"] > 0
    assert not result["complete"]  # the other methods were not run
    once, again = (r | {"group": ""} for r in result["records"][1:])
    assert once == again  # trained once, whatever the cost
    assert path.with_suffix(".png").exists()
    assert "| random | " in path.with_suffix(".md").read_text()

    again = in_process(*small)
    assert again.returncode == 0
    assert "fit_seconds" not in again.stdout
    assert json.loads(path.read_text())["records"] == result["records"]

    other = in_process(*small, "--rho", 0.3)
    assert other.returncode != 0
    assert "Move it away" in other.stderr


@pytest.mark.usefixtures("few_digits", "two_kinds")
def test_an_ensemble_of_another_run_is_not_trained_again(tmp_path, in_process, drawn):
    small = ["--seeds", 1, "--epochs", 2, "--members", 2, "--first-seed", 5]
    small += ["--sharpness-batches", 1, "--out", tmp_path, "--work", drawn]
    first = in_process("digits", *small, "--only", "all")
    assert first.returncode == 0, first.stderr
    (trained,) = json.loads((tmp_path / "reproduce_digits.json").read_text())["records"]
    next_ = in_process("digits_tradeoff", *small, "--only", "SAM, rho 0.(1|2)")
    assert next_.returncode == 0, next_.stderr
    assert next_.stdout.count("fit_seconds") == 1  # that of rho 0.2
    result = json.loads((tmp_path / "reproduce_digits_tradeoff.json").read_text())
    copied, own = result["records"]
    assert copied.pop("of_run") == "digits"
    assert copied == trained | {"group": "SAM", "method": "SAM, rho 0.1"}
    assert "of_run" not in own
    seconds = own["fit_seconds"] + own["measure_seconds"]
    assert result["minutes"] == pytest.approx(seconds / 60)
    assert (tmp_path / "reproduce_digits_tradeoff_tradeoff.png").exists()

    only = ["--only", "SAM, sparsity 0, rho 0.1", "--corrupted", 9]
    done = in_process("digits_sparsity", *small, *only)
    assert done.stdout.count("fit_seconds") == 1  # measured on other samples


@pytest.mark.usefixtures("few_digits", "two_kinds")
def test_seeds_can_be_trained_one_after_the_other(
    tmp_path, in_process, drawn, monkeypatch
):
    """A command for one seed keeps the records of the others."""
    import reproduce

    of_run = reproduce.RUNS["digits"]

    def two_methods(options, seed):
        return itertools.islice(of_run(options, seed), 2)

    monkeypatch.setitem(reproduce.RUNS, "digits", two_methods)
    small = ["digits", "--seeds", 1, "--epochs", 2, "--members", 2]
    small += ["--sharpness-batches", 1, "--out", tmp_path, "--work", drawn]

    def run(*options):
        done = in_process(*small, *options)
        assert done.returncode == 0, done.stderr
        result = json.loads((tmp_path / "reproduce_digits.json").read_text())
        records = [(r["seed"], r["method"]) for r in result["records"]]
        return records, result["complete"]

    rules = "sharpest", "flattest"
    part = [(43, rules[0])]
    assert run("--first-seed", 43, "--only", rules[0]) == (part, False)
    whole = [(13, rule) for rule in rules]
    assert run("--first-seed", 13) == ([*whole, *part], False)
    part.append((43, rules[1]))
    assert run("--first-seed", 43) == ([*whole, *part], True)
    assert not list((tmp_path / "records").iterdir())
    last = [(113, rule) for rule in rules]
    assert run("--first-seed", 113) == ([*whole, *last, *part], True)


@pytest.mark.usefixtures("few_digits", "two_kinds")
def test_a_method_that_fails_does_not_stop_the_others(tmp_path, in_process, drawn):
    few = ["digits", "--seeds", 1, "--epochs", 2, "--only", "all|deep ensemble"]
    few += ["--sharpness-batches", 1, "--out", tmp_path, "--work", drawn]
    few += ["--members", 2]
    done = in_process(*few, "--rho", 1e30)
    assert done.returncode == 1, done.stderr
    assert "DivergenceError" in done.stderr
    assert "Some methods failed" in done.stdout
    result = json.loads((tmp_path / "reproduce_digits.json").read_text())
    assert not result["complete"]
    assert {record["method"] for record in result["records"]} == {"deep ensemble"}


@pytest.fixture
def pictures(tmp_path, request):
    """Return a file of random pictures, and options for a short run."""
    rng = np.random.default_rng(0)
    side = getattr(request, "param", 16)
    drawn = rng.integers(0, 256, (120, side, side, 3), dtype=np.uint8)
    labels = np.tile(np.arange(10), 12)
    data = tmp_path / "pictures.npz"
    np.savez(
        data,
        x_train=drawn[:100],
        y_train=labels[:100],
        x_test=drawn[100:],
        y_test=labels[100:],
    )
    small = ["--data", data, "--width", 4, "--sharpness-batches", 1]
    return [*small, "--out", tmp_path, "--work", tmp_path / "work"]


@pytest.mark.usefixtures("two_kinds")
def test_pictures_are_trained_and_measured(pictures, tmp_path, in_process):
    few = ["--epochs", 1, "--images", 20, "--corrupted", 3, "--only", "sharpest"]
    done = in_process("headline", *pictures, *few, "--members", 2, "--shared-gpu")
    assert done.returncode == 0, done.stderr
    (record,) = json.loads((tmp_path / "reproduce_headline.json").read_text())[
        "records"
    ]
    for name in ("corrupted_accuracy", "corrupted_nll", "sharpness"):
        assert 0 <= record[name] < np.inf
    assert "epoch_seconds" not in record  # the GPU was shared
    # One temperature for all sets, and that of the clean pictures: near log(10).
    assert record["corrupted_nll_after_temperature"] == pytest.approx(2.3, abs=0.1)
    assert -1 <= record["rank_correlation"] <= 1


def records_of_radii(methods, best):
    """Return records of contest_rho in which these radii are best in the mean."""
    records = []
    for name in methods.CONTEST:
        for rho in methods.radii_to_try(name):
            for seed, value in ((5000, 0.5), (5001, 0.8)):
                record = {"group": "same cost", "method": f"{name}, rho {rho:g}"}
                record |= {"seed": seed, "corrupted_accuracy": value}
                if rho == best[name]:
                    record["corrupted_accuracy"] += 0.1
                records.append(record)
    return records


def best_radii(methods):
    """Return the first, the second and the third radius in turn."""
    return {
        name: methods.radii_to_try(name)[i % 3]
        for i, name in enumerate(methods.CONTEST)
    }


def test_radius_with_the_highest_corrupted_accuracy_is_chosen(modules):
    from _reproduce_records import chosen_radii

    methods, _ = modules
    best = best_radii(methods)
    records = records_of_radii(methods, best)
    assert chosen_radii(records) == best
    first = next(iter(methods.CONTEST))
    of_first = [r for r in records if r["method"].startswith(first)]
    for record in of_first:
        record["corrupted_accuracy"] = 0.7
    records.reverse()
    assert chosen_radii(records)[first] == 0.05  # of equal ones, the smallest
    only_one = of_first[-1] | {"seed": 5002, "corrupted_accuracy": 1.0}
    assert chosen_radii([*records, only_one])[first] == 0.05  # not compared on 5002
    of_first[0]["seed"] = of_first[1]["seed"] = 5003  # no seed is shared any more
    with pytest.raises(ValueError, match=first):
        chosen_radii(records)


@pytest.mark.slow
@pytest.mark.usefixtures("two_kinds")
def test_contest_trains_with_the_chosen_radii(pictures, tmp_path, in_process, modules):
    methods, _ = modules
    best = best_radii(methods)
    name = "flattest, Momentum-SAM"
    few = ["--epochs", 2, "--images", 20, "--corrupted", 3, "--members", 2]
    few += ["--seeds", 1, "--only", f"deep ensemble|{name}.*"]
    result = {"settings": {}, "records": records_of_radii(methods, best)}
    path = tmp_path / "reproduce_contest_rho.json"
    path.write_text(json.dumps(result))
    done = in_process("contest", *pictures, *few)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "reproduce_contest.json").read_text())
    assert result["settings"]["radii"] == best
    names = [(r["seed"], r["group"], r["method"]) for r in result["records"]]
    assert names == [
        (6000, "same cost", "deep ensemble"),
        (6000, "same cost", f"{name}, rho {best[name]:g}"),
    ]
    table = (tmp_path / "reproduce_contest.md").read_text()
    assert "seconds, deep ensemble = 1" in table
    path.unlink()
    done = in_process("report", "--out", tmp_path)  # does not need the radii again
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "reproduce_contest.md").read_text() == table


@pytest.mark.parametrize("run", ["contest", "contest_wide"])
def test_contest_without_radii_exits_with_advice(
    run, pictures, tmp_path, in_process, modules
):
    done = in_process(run, *pictures)
    assert done.returncode == 2
    assert "run contest_rho first" in done.stderr
    assert "No such file" in done.stderr
    methods, _ = modules
    records = records_of_radii(methods, best_radii(methods))
    others = [r for r in records if not r["method"].startswith("LookSAM")]
    path = tmp_path / "reproduce_contest_rho.json"
    path.write_text(json.dumps({"records": others}))
    done = in_process(run, *pictures)
    assert done.returncode == 2
    assert "run contest_rho first" in done.stderr
    assert "'LookSAM, alpha 0.2'" in done.stderr


def test_packed_pictures_are_read_in_a_fixed_order(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from _reproduce_measure import read

    streams = []
    for value in range(6):
        buffer = io.BytesIO()
        Image.new("RGB", (8, 8), (40 * value,) * 3).save(buffer, "JPEG")
        streams.append(np.frombuffer(buffer.getvalue(), np.uint8))
    np.savez(
        tmp_path / "packed.npz",
        jpeg=np.concatenate(streams),
        offsets=np.cumsum([0, *map(len, streams)]),
        labels=np.arange(6),
        is_test=[0, 0, 1, 0, 1, 0],
    )
    order = np.random.default_rng(0).permutation(6)
    for split, rows in (("train", {0, 1, 3, 5}), ("test", {2, 4})):
        images, labels = read(tmp_path / "packed.npz", split)
        assert labels.tolist() == [row for row in order if row in rows]
        assert images.shape == (len(rows), 8, 8, 3)
        np.testing.assert_allclose(images[:, 0, 0, 0], 40 * labels, atol=1)


@pytest.mark.usefixtures("few_digits")
def test_training_stops_if_measuring_fails(drawn, monkeypatch):
    import reproduce

    arguments = ["digits", "--seeds", 1, "--epochs", 1, "--work", drawn]
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *map(str, arguments)])
    fitted = []
    monkeypatch.setattr(reproduce, "fit", lambda *call: fitted.append(call[-1]))
    monkeypatch.setattr(reproduce, "measure", lambda *_: 1 / 0)
    assert reproduce.run_seed(reproduce.parse(), 13) == ["sharpest"]
    assert fitted == ["same epochs_sharpest_13"]


def test_time_of_corrupted_copies_is_counted(tmp_path, modules, monkeypatch):
    import reproduce

    arguments = ["digits", "--seeds", 1, "--minutes", 1, "--out", tmp_path]
    arguments += ["--work", tmp_path]
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *map(str, arguments)])
    clock, deadlines = [1000.0], []
    monkeypatch.setattr(reproduce.time, "time", lambda: clock[0])
    monkeypatch.setattr(reproduce, "prepare", lambda _: clock.__setitem__(0, 1050.0))
    monkeypatch.setattr(reproduce, "run_all", lambda *call: deadlines.append(call[-1]))
    monkeypatch.setattr(reproduce, "write_report", lambda *_: None)
    with pytest.raises(SystemExit):
        reproduce.main()
    assert deadlines == [1060.0]


@pytest.mark.slow
@pytest.mark.parametrize("pictures", [32], indirect=True)
def test_run_on_pictures_resumes_after_a_time_limit(pictures, tmp_path):
    small = ["headline", *pictures, "--epochs", 4, "--corrupted", 5]
    stopped = command(*small, "--minutes", 0.25)
    assert stopped.returncode == 3, stopped.stderr
    finished = command(*small)
    assert finished.returncode == 0, finished.stderr
    records = json.loads((tmp_path / "reproduce_headline.json").read_text())["records"]
    methods = ["SAM", "sharpest", "flattest", "flattest_union", "deep ensemble"]
    at_equal_cost = ["deep ensemble", "flattest, late", "SAM"]
    assert [r["method"] for r in records] == methods + at_equal_cost


def test_missing_pictures_exit_with_advice(in_process):
    done = in_process("headline")
    assert done.returncode == 2
    assert "--data" in done.stderr
