"""Runs on pictures over rho, sparsity, members and methods: numbers of the page."""

import inspect
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.ensemble.settings import settings_in_force
from sklearn_sharpbalance.optim import LookSAM, MomentumSAM
from tests.cases import pictures

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "examples" / "benchmarks"
BASELINE = "deep ensemble"
RADII = (0.05, 0.1, 0.2)  # of the run over sparsity
BOTH = ("accuracy", "corrupted_accuracy")
TEMPERED = "corrupted_nll_after_temperature"
SEVERITIES = tuple(f"severity_{k}_corrupted_accuracy" for k in range(1, 6))
MOMENTUM = "flattest, Momentum-SAM, rho 0.3"  # SharpBalance at one pass per sample


@pytest.fixture
def report(monkeypatch):
    """The module beside the script, which is no package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _reproduce_report

    return _reproduce_report


@pytest.fixture
def page():
    """The page with the results, with single spaces."""
    return " ".join((BENCHMARKS / "RESULTS.md").read_text().split())


def listed(numbers):
    """Join numbers with commas, and the last one with "and"."""
    return ", ".join(numbers[:-1]) + " and " + numbers[-1]


def shown_slope(methods):
    """Slope of log DER on log sharpness with half of its interval."""
    from _reproduce_records import log_slope

    slope, half = log_slope(methods)
    return f"{slope:.2f} ± {half:.2f}"


def result_of(run):
    """Return the stored result of a run."""
    return json.loads((BENCHMARKS / f"results/reproduce_{run}.json").read_text())


@pytest.fixture
def tradeoff(report):
    """Records of the run over ``rho`` on pictures, and the two groups of methods."""
    result = result_of("tradeoff")
    assert result["complete"]
    records = result["records"]
    sam = report.by_method(records, "SAM")
    flattest = report.by_method(records, "flattest")
    return records, sam, flattest


def gains_over_sam(tradeoff, report, metric):
    """``flattest`` minus SAM for every ``rho``, in the order of the radii."""
    records, sam, flattest = tradeoff
    return [
        report.difference(
            records, flattest[f"flattest, rho {rho}"], sam[f"SAM, rho {rho}"], metric
        )
        for rho in (0.05, 0.1, 0.2, 0.4)
    ]


def test_the_rule_is_compared_with_sam_at_every_rho_on_pictures(report, tradeoff, page):
    gains = gains_over_sam(tradeoff, report, "der")
    shown = listed([f"{gain.mean:.3f} ± {gain.half:.3f}" for gain in gains])
    assert f"DER is ahead by {shown} for `rho` 0.05" in page
    smallest, *larger = gains_over_sam(tradeoff, report, "corrupted_accuracy")
    shown = listed([report.signed(gain).lstrip("+") for gain in larger])
    assert f"is ahead of SAM by {shown} points for `rho` 0.1" in page
    assert all(gain.mean > gain.half for gain in larger)
    clean = gains_over_sam(tradeoff, report, "accuracy")[0]
    assert abs(smallest.mean) < smallest.half
    assert abs(clean.mean) < clean.half
    level, level_clean = report.signed(smallest), report.signed(clean)
    assert f"it is not: {level}, and {level_clean} on clean pictures" in page
    assert f"it is not ahead of SAM ({level})" in page
    readme = (ROOT / "README.md").read_text()
    assert f"on corrupted pictures (with `rho` 0.05: {level})" in readme
    which = (ROOT / "docs" / "which_method.md").read_text()
    assert f"it is not ahead of SAM ([{level}]" in " ".join(which.split())


def test_the_smallest_radius_has_the_best_mean_on_pictures(tradeoff):
    from _reproduce_records import mean

    for methods in tradeoff[1:]:
        for metric in BOTH:
            means = [mean(runs, metric) for runs in methods.values()]
            assert max(means) == means[0]  # that of rho 0.05


def test_sam_makes_members_flatter_and_more_alike_on_pictures(tradeoff, page):
    from _reproduce_records import mean

    _, sam, _ = tradeoff
    ends = sam["SAM, rho 0.05"], sam["SAM, rho 0.4"]
    text = "sharpness falls from {:.2f} to {:.2f}, DER from {:.2f} to {:.2f} and EIR"
    pairs = [mean(runs, name) for name in ("sharpness", "der") for runs in ends]
    assert text.format(pairs[0], pairs[1], pairs[2], pairs[3]) in page
    first, last = (mean(runs, "eir") for runs in ends)
    assert f"and EIR from {first:.2f} to {last:.2f}" in page


def test_seven_gains_over_sam_on_pictures_are_beyond_chance(report, tradeoff, page):
    """By Holm's adjustment over all differences at equal ``rho``."""
    from _reproduce_records import holm

    names = ("sharpness", "der", "accuracy", "corrupted_accuracy")
    p_values = [
        gain.p_value
        for name in names
        for gain in gains_over_sam(tradeoff, report, name)
    ]
    beyond_chance = (holm(p_values) < 0.05).reshape(4, 4)
    assert beyond_chance.tolist() == [
        [False, False, True, False],
        [False, True, True, True],
        [False, False, False, False],
        [False, True, True, True],
    ]
    assert "over these 16 differences, seven are beyond chance" in page


def test_sharpbalance_lies_on_the_curve_of_sam_on_pictures(tradeoff, page):
    from _reproduce_records import jackknife, seeds_of_run

    records, sam, flattest = tradeoff
    slopes = [shown_slope(group) for group in (sam, flattest)]
    assert f"of {slopes[0]} with SAM and {slopes[1]} with `flattest`" in page

    def offset(seeds):
        """Of log DER at equal sharpness, with one slope for both groups."""
        points = [
            (1, group is flattest, np.log(runs[seed]["sharpness"]), runs[seed]["der"])
            for group in (sam, flattest)
            for runs in group.values()
            for seed in seeds
        ]
        points = np.array(points, dtype=float)
        return np.linalg.lstsq(points[:, :3], np.log(points[:, 3]), rcond=None)[0][1]

    found = jackknife(offset, seeds_of_run(records))
    assert abs(found.mean) < found.half
    text = f"its DER is {np.exp(found.mean):.2f} ± {found.half:.2f} times that of SAM"
    assert text in page


@pytest.fixture
def sparsity(report):
    """Records of the run over sparsity, and the methods of each sparsity."""
    result = result_of("sparsity")
    assert result["complete"]
    records = result["records"]
    groups = {s: report.by_method(records, f"sparsity {s}") for s in (0, 0.8, 0.95)}
    return records, groups


def over_dense(sparsity, report, pruned, metric):
    """Sparse minus dense nets for every ``rho``, in the order of the radii."""
    records, groups = sparsity
    return [
        report.difference(
            records,
            groups[pruned][f"SAM, sparsity {pruned}, rho {rho}"],
            groups[0][f"SAM, sparsity 0, rho {rho}"],
            metric,
        )
        for rho in RADII
    ]


def test_sam_makes_sparse_members_more_alike_too(sparsity, report, page):
    records, groups = sparsity
    falls = []
    for pruned, methods in groups.items():
        ends = [methods[f"SAM, sparsity {pruned}, rho {rho}"] for rho in (0.05, 0.2)]
        fall = report.difference(records, ends[0], ends[1], "der")
        assert fall.mean > fall.half
        falls.append(f"{fall.mean:.3f} ± {fall.half:.3f}")
    assert f"to 0.2 DER falls by {listed(falls)} with none, 80 %" in page


def test_slopes_over_sparsity_are_not_told_apart(sparsity, page):
    from _reproduce_records import jackknife, log_slope, seeds_of_run

    records, groups = sparsity
    slopes = [shown_slope(group) for group in groups.values()]
    assert f"to the power of {listed(slopes)} with none, 80 % and" in page

    def steeper(seeds):
        """Slope with 95 % of the weights pruned minus that with none."""
        kept = [
            {name: {s: runs[s] for s in seeds} for name, runs in groups[g].items()}
            for g in (0.95, 0)
        ]
        return log_slope(kept[0])[0] - log_slope(kept[1])[0]

    found = jackknife(steeper, seeds_of_run(records))
    assert abs(found.mean) < found.half
    assert f"95 % minus none is {found.mean:.2f} ± {found.half:.2f}" in page


def test_sparse_nets_are_sharper_and_little_more_diverse(sparsity, report, page):
    sharpness, der = (
        over_dense(sparsity, report, 0.95, metric) for metric in ("sharpness", "der")
    )
    text = listed([f"{each.mean:.2f} ± {each.half:.2f}" for each in sharpness])
    assert f"sharpness is higher by {text} for `rho` 0.05, 0.1 and 0.2, DER" in page
    text = listed([f"{each.mean:.3f} ± {each.half:.3f}" for each in der])
    assert f"DER by {text}. On digits" in page


@pytest.mark.parametrize(
    ("text", "pruned", "metric"),
    [
        ("80 % of the weights costs {} points on clean", 0.8, "accuracy"),
        ("radii and {} on corrupted ones", 0.8, "corrupted_accuracy"),
        ("95 % costs {}, and", 0.95, "accuracy"),
        (", and {}. The smallest", 0.95, "corrupted_accuracy"),
    ],
)
def test_pruning_costs_accuracy(text, pruned, metric, sparsity, report, page):
    found = over_dense(sparsity, report, pruned, metric)
    assert text.format(listed([report.signed(d).lstrip("-") for d in found])) in page
    assert all(difference.mean < -difference.half for difference in found)


def test_the_smallest_radius_has_the_best_mean_at_every_sparsity(sparsity):
    from _reproduce_records import mean

    for pruned, methods in sparsity[1].items():
        for metric in BOTH:
            means = [
                mean(methods[f"SAM, sparsity {pruned}, rho {rho}"], metric)
                for rho in RADII
            ]
            assert max(means) == means[0]


def test_nineteen_differences_to_dense_nets_are_beyond_chance(sparsity, report, page):
    """By Holm's adjustment over all of them."""
    from _reproduce_records import holm

    p_values = [
        difference.p_value
        for metric in ("sharpness", "der", "eir", *BOTH)
        for pruned in (0.8, 0.95)
        for difference in over_dense(sparsity, report, pruned, metric)
    ]
    beyond_chance = (holm(p_values) < 0.05).reshape(5, 6).tolist()
    assert beyond_chance[0] == [True, False, True, True, True, True]
    assert beyond_chance[1] == [False, False, False, False, True, True]
    assert beyond_chance[2] == [False] * 6
    assert beyond_chance[3] == beyond_chance[4] == [True] * 6
    assert "over these 30 differences 19 are beyond chance" in page


@pytest.fixture
def sizes(report):
    """Records of the run over the number of members, and the methods of each."""
    records = result_of("picture_sizes")["records"]
    groups = {n: report.by_method(records, f"{n} members") for n in (2, 3, 5)}
    return records, groups


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("minus SAM is {} points with two members and {} with three", "SAM"),
        ("with deep ensembles of as many members ({} and {})", BASELINE),
    ],
)
def test_the_lead_is_compared_over_the_members(text, other, sizes, report, page):
    records, groups = sizes
    shown = []
    for n in (2, 3):
        pair = groups[n]["flattest"], groups[n][other]
        found = report.difference(records, pair[0], pair[1], "corrupted_accuracy")
        shown.append(report.signed(found))
    places = 2 if other == "SAM" else 1  # also in the first table of the page
    assert page.count(text.format(shown[0], shown[1])) == places


@pytest.mark.parametrize(
    ("text", "method", "metric", "scale"),
    [
        ("reach {} points more on clean pictures and", "SAM", "accuracy", -100),
        ("and {} on corrupted ones; for those", "SAM", "corrupted_accuracy", -100),
        ("of `flattest` {} and", "flattest", "accuracy", -100),
        ("and {} (on a line between", "flattest", "corrupted_accuracy", -100),
        ("with SAM by {} and with", "SAM", "corrupted_nll", -1),
        ("with `flattest` by {}. After", "flattest", "corrupted_nll", -1),
        ("higher by {}, and", "SAM", "corrupted_nll_after_temperature", 1),
    ],
)
def test_two_members_at_equal_cost(text, method, metric, scale, sizes, report, page):
    records, groups = sizes
    found = report.at_equal_cost(records, groups[2][method], metric)
    assert np.sign(scale) * found.mean > found.half
    digits = 3 if abs(scale) == 1 else 2
    number = report.signed(found, abs(scale), digits).lstrip("+-")
    assert text.format(number) in page


def test_two_members_are_level_in_nll_after_a_temperature(sizes, report, page):
    records, groups = sizes
    name = "corrupted_nll_after_temperature"
    found = report.at_equal_cost(records, groups[2]["flattest"], name)
    assert abs(found.mean) < found.half
    assert f"and level ({report.signed(found, 1, 3)})" in page


def test_five_plain_members_are_ahead_of_three(sizes, tradeoff, report, page):
    from _reproduce_records import mean

    records, groups = sizes
    plain, flattest = groups[5][BASELINE], groups[3]["flattest"]
    assert mean(plain, "passes") < mean(flattest, "passes")
    found = [report.difference(records, plain, flattest, metric) for metric in BOTH]
    assert all(difference.mean > difference.half for difference in found)
    text = "(342) by {} and {}."
    shown = [report.signed(difference).lstrip("+") for difference in found]
    assert text.format(shown[0], shown[1]) in page
    small = tradeoff[2]["flattest, rho 0.05"]
    levels = [100 * mean(runs, name) for runs in (small, plain) for name in BOTH]
    text = "reach {:.2f} and {:.2f} % [above](#flat-or-diverse-on-pictures), "
    text += "five plain members {:.2f} and {:.2f} %."
    assert text.format(levels[0], levels[1], levels[2], levels[3]) in page


def test_deep_ensembles_of_three_of_two_runs(sizes, report, page):
    """Same settings and seeds, trained by different commands."""
    from _reproduce_records import mean

    records = result_of("ablation")["records"]
    methods = report.by_method(records, "same epochs")
    own, other = sizes[1][3][BASELINE], methods[BASELINE]
    means = [100 * mean(runs, "corrupted_accuracy") for runs in (other, own)]
    text = "{} points behind those of the ablation, which have the same settings and "
    text += "seeds and reach {:.2f} instead of {:.2f} %"
    name = "corrupted_accuracy"
    behind = report.difference(records, other, methods["flattest"], name)
    shown = report.signed(behind).lstrip("+")
    assert text.format(shown, means[0], means[1]) in page


def test_eight_differences_over_members_are_beyond_chance(sizes, report, page):
    """By Holm's adjustment over all of them."""
    from _reproduce_records import holm

    records, groups = sizes
    pairs = [
        (groups[n][method], groups[n][other])
        for n in (2, 3)
        for method, other in (
            ("SAM", BASELINE),
            ("flattest", BASELINE),
            ("flattest", "SAM"),
        )
    ]
    pairs += [(groups[5][BASELINE], groups[3][m]) for m in ("SAM", "flattest")]
    found = [
        report.difference(records, pair[0], pair[1], metric)
        for pair in pairs
        for metric in BOTH
    ]
    found += [
        report.at_equal_cost(records, groups[2][method], metric)
        for method in ("SAM", "flattest")
        for metric in BOTH
    ]
    beyond_chance = holm([difference.p_value for difference in found]) < 0.05
    clean, corrupted = beyond_chance.reshape(10, 2).T.tolist()
    two, three = [False, False, False], [True, True, False]
    assert clean == [*two, *three, True, True, True, True]
    assert corrupted == [*two, *two, True, False, True, False]
    assert "over the 20 differences in accuracy" in page
    assert "eight are beyond chance" in page


def over_deep_ensemble(report, run, metrics, group="same cost"):
    """Methods of a group minus its deep ensemble, by metric and name."""
    return gains_over_deep_ensemble(report, result_of(run)["records"], metrics, group)


def gains_over_deep_ensemble(report, records, metrics, group="same cost"):
    """The same from records."""
    methods = report.by_method(records, group)
    plain = methods.pop(BASELINE)
    return {
        metric: {
            name: report.difference(records, runs, plain, metric)
            for name, runs in methods.items()
        }
        for metric in metrics
    }


def adjusted(gains):
    """P-values of methods after Holm's adjustment."""
    from _reproduce_records import holm

    return dict(zip(gains, holm([gain.p_value for gain in gains.values()])))


@pytest.fixture
def of_radii(report):
    """The search over radii, in both accuracies."""
    return over_deep_ensemble(report, "contest_rho", BOTH)


def test_late_sam_is_lower_with_every_radius(of_radii, page):
    names = ("SAM, last 25%", "SAM, last 10%", "SAM, last 5%", "flattest, late")
    beyond_chance = {}
    for metric, gains in of_radii.items():
        starred = [name for name, p in adjusted(gains).items() if p < 0.05]
        beyond_chance[metric] = sum(name.startswith(names) for name in starred)
        for name in names:
            means = [gains[f"{name}, rho {rho}"].mean for rho in RADII]
            assert 0 > means[0] > means[1] > means[2]
    assert "on clean and on corrupted pictures (24 differences);" in page
    assert beyond_chance == {"accuracy": 4, "corrupted_accuracy": 1}
    assert "of the table four are beyond chance on clean pictures and one on" in page


def test_settings_far_behind_widen_the_intervals(report, page):
    from _reproduce_records import noise_of

    records = result_of("contest_rho")["records"]
    wide = re.compile("LookSAM, alpha 0.7.*|.*Momentum-SAM, rho 3")
    others = [r for r in records if not wide.fullmatch(r["method"])]
    clean, corrupted = (100 * noise_of(others, metric).sd for metric in BOTH)
    assert clean < 100 * noise_of(records, "accuracy").sd
    assert corrupted < 100 * noise_of(records, "corrupted_accuracy").sd
    assert f"is {clean:.2f} points on clean and {corrupted:.2f} on corrupted" in page


def test_momentum_sam_is_level_with_radii_up_to_one(of_radii, page):
    ranges = []
    for gains in of_radii.values():
        names = [name for name in gains if "Momentum-SAM" in name]
        found = [gains[name] for name in names if not name.endswith("rho 3")]
        assert len(found) == 6
        assert all(abs(gain.mean) < gain.half for gain in found)
        means = [100 * gain.mean for gain in found]
        ranges.append(f"from {min(means):+.2f} to {max(means):+.2f}")
    text = f"{ranges[0]} points on clean and {ranges[1]} on corrupted pictures"
    assert text in page


def test_momentum_sam_is_far_behind_with_a_radius_of_three(of_radii, report, page):
    shown = []
    for name in ("Momentum-SAM, rho 3", "flattest, Momentum-SAM, rho 3"):
        for gains in of_radii.values():
            shown.append(report.signed(gains[name]).lstrip("-"))
    assert f"far behind: by {shown[0]} and {shown[1]} points" in page
    assert f"in SharpBalance by {shown[2]} and {shown[3]}." in page


def test_default_radius_of_momentum_sam_was_the_best_in_sharpbalance(of_radii, page):
    default = inspect.signature(MomentumSAM).parameters["rho"].default
    gains = of_radii["corrupted_accuracy"]
    names = [name for name in gains if name.startswith("flattest, Momentum-SAM")]
    assert len(names) == 4
    best = max(names, key=lambda name: gains[name].mean)
    assert best == f"flattest, Momentum-SAM, rho {default:g}"
    assert f"With Momentum-SAM `rho` is {default:g}, the radius with the" in page


def test_look_sam_is_behind_with_every_radius(of_radii, report, page):
    shown = {"0.7": [], "0.2": []}
    beyond_chance = {"0.7": [], "0.2": []}
    for gains in of_radii.values():
        p_values = adjusted(gains)
        for alpha, texts in shown.items():
            names = [f"LookSAM, alpha {alpha}, rho {rho}" for rho in RADII]
            means = [gains[name].mean for name in names]
            assert 0 > means[0] > means[1] > means[2]
            texts.append(report.signed(gains[names[0]]).lstrip("-"))
            beyond_chance[alpha].append(p_values[names[0]] < 0.05)
    clean, corrupted = shown["0.7"]
    assert f"is {clean} points behind on clean and {corrupted} on" in page
    clean, corrupted = shown["0.2"]
    assert f"it is {clean} and {corrupted} points behind with its best radius" in page
    assert beyond_chance == {"0.7": [True, True], "0.2": [True, False]}
    assert "the second is not beyond chance after Holm's adjustment. At this" in page


def test_the_alpha_of_the_paper_has_a_lower_accuracy_than_the_default(report, page):
    records = result_of("contest_rho")["records"]
    methods = report.by_method(records, "same cost")
    default = inspect.signature(LookSAM).parameters["alpha"].default
    shown = []
    for metric in BOTH:
        gains = []
        for rho in RADII:
            pair = [f"LookSAM, alpha {alpha}, rho {rho}" for alpha in (default, 0.7)]
            runs = [methods[name] for name in pair]
            gains.append(report.difference(records, runs[0], runs[1], metric))
        assert all(gain.mean > gain.half for gain in gains)
        shown.append(report.signed(gains[0]).lstrip("+"))
    assert f"ahead of 0.7 by {shown[0]} and {shown[1]} points" in page


@pytest.fixture
def contest(report):
    """The contest on pictures, in accuracies, NLL and diversity."""
    metrics = (*BOTH, TEMPERED, "der", *SEVERITIES)
    return over_deep_ensemble(report, "contest", metrics)


def test_sharpbalance_with_momentum_sam_is_ahead_at_equal_cost(contest, report, page):
    """On corrupted pictures; on clean ones it is level."""
    gains = (gains[MOMENTUM] for gains in contest.values())
    clean, corrupted, nll, der, *severities = gains
    assert corrupted.mean > corrupted.half
    assert abs(clean.mean) < clean.half
    assert nll.mean < -nll.half
    assert abs(der.mean) < der.half
    assert adjusted(contest["corrupted_accuracy"])[MOMENTUM] < 0.05
    assert len(contest["corrupted_accuracy"]) == 7
    assert "is beyond chance after Holm's adjustment for the seven methods" in page
    shown = report.signed(corrupted).lstrip("+")
    assert f"is {shown} points ahead of the deep ensemble on corrupted" in page
    assert f"level on clean ones ({report.signed(clean)})" in page
    assert f"for each, too ({nll.mean:+.3f} ± {nll.half:.3f})" in page
    assert f"(DER {der.mean:+.2f} ± {der.half:.2f})" in page
    assert f"as a deep ensemble does, and is {shown} points ahead of it" in page
    assert f"it is level ({report.signed(clean)}; [contest]" in page
    seconds = json.loads((BENCHMARKS / "results" / "gpu.json").read_text())
    before = f"{seconds['momentum_sam_epoch_over_sgd']:.2f} times the seconds of SGD"
    after = f"{seconds['momentum_balanced_epoch_over_sgd']:.2f} times after it"
    assert f"takes {before} before the selection and {after}" in page
    means = [gain.mean for gain in severities]
    assert means == sorted(means)
    assert all(gain.mean > gain.half for gain in severities)
    low, high = report.signed(severities[0]), report.signed(severities[-1])
    assert f"from {low} points at severity 1 to {high} at severity 5" in page


def test_momentum_sam_for_all_samples_at_equal_cost(contest, report, page):
    name = "Momentum-SAM, rho 1"
    clean, corrupted, nll, der, *_ = (gains[name] for gains in contest.values())
    assert adjusted(contest["accuracy"])[name] < 0.05
    assert clean.mean < 0 < corrupted.mean
    assert adjusted(contest["corrupted_accuracy"])[name] > 0.05
    assert nll.mean < -nll.half
    assert der.mean < -der.half
    behind, ahead = (report.signed(gain).lstrip("+-") for gain in (clean, corrupted))
    assert f"is {behind} points behind on clean pictures. On" in page
    assert f"its lead of {ahead} points is not beyond chance after Holm's" in page
    assert f"NLL is lower there ({nll.mean:+.3f} ± {nll.half:.3f})" in page
    assert f"more alike (DER {der.mean:+.2f} ± {der.half:.2f})" in page


def test_late_sam_is_behind_at_equal_cost(contest, report, page):
    last = {share: f"SAM, last {share}%, rho 0.05" for share in (25, 10, 5)}
    shown = []
    for metric in BOTH:
        gains, p_values = contest[metric], adjusted(contest[metric])
        for share in (25, 10):
            assert gains[last[share]].mean < 0
            assert p_values[last[share]] < 0.05
            shown.append(report.signed(gains[last[share]]).lstrip("-"))
    text = "is {} and {} points behind on clean and {} and {} on corrupted pictures"
    assert f"{text}, all four".format(shown[0], shown[1], shown[2], shown[3]) in page
    clean, corrupted = (contest[metric][last[5]] for metric in BOTH)
    assert clean.mean < 0
    assert adjusted(contest["accuracy"])[last[5]] < 0.05
    assert adjusted(contest["corrupted_accuracy"])[last[5]] > 0.05
    behind = report.signed(clean).lstrip("-")
    text = f"In the last 5 % it is {behind} points behind on clean pictures"
    assert f"{text}, also beyond chance after the adjustment" in page
    text = f"its difference of {report.signed(corrupted)} is not beyond chance after"
    assert text in page


def test_late_selection_at_equal_cost(contest, report, page):
    name = "flattest, late, rho 0.05"
    clean, corrupted = (contest[metric][name] for metric in BOTH)
    assert clean.mean < 0
    assert adjusted(contest["accuracy"])[name] < 0.05
    assert abs(corrupted.mean) < corrupted.half
    behind, level = report.signed(clean), report.signed(corrupted)
    assert f"late** is {behind.lstrip('-')} points behind on clean pictures" in page
    assert f"the difference is within its interval ({level})" in page
    assert f"in ten ensembles, at {behind} and {level} ([contest]" in page


def test_look_sam_is_behind_at_equal_cost(contest, report, page):
    name, shown = "LookSAM, alpha 0.2, rho 0.05", []
    for metric in BOTH:
        assert adjusted(contest[metric])[name] < 0.05
        shown.append(report.signed(contest[metric][name]))
    clean, corrupted = (text.removeprefix("-") for text in shown)
    assert [f"-{clean}", f"-{corrupted}"] == shown
    text = f"is {clean} points behind on clean and {corrupted} on corrupted pictures"
    assert f"**LookSAM** {text}, both beyond chance after Holm's" in page


def test_the_contest_has_ten_ensembles_of_each_method(page):
    result = result_of("contest")
    counts = Counter(record["method"] for record in result["records"])
    assert result["complete"]
    assert len(counts) == 8
    assert set(counts.values()) == {10}
    assert "Ten ensembles a row (seeds 6000 to 6009); intervals are paired" in page


def test_wide_nets_train_the_best_two_of_the_contest(contest):
    from _reproduce_methods import BEST_OF_CONTEST

    gains = contest["corrupted_accuracy"]
    best = sorted(gains, key=lambda name: gains[name].mean)[-2:]
    assert [name.split(", rho")[0] for name in best] == list(BEST_OF_CONTEST)


OF_WIDE = (*BOTH, "corrupted_nll", TEMPERED, "der")


@pytest.fixture
def contest_wide(report):
    """The contest with wide networks."""
    return over_deep_ensemble(report, "contest_wide", OF_WIDE)


def test_the_contest_with_wide_nets_has_four_ensembles_of_each_method(page):
    result = result_of("contest_wide")
    seeds = {}
    for record in result["records"]:
        seeds.setdefault(record["method"], []).append(record["seed"])
    assert result["complete"]
    assert list(seeds.values()) == 3 * [[6000, 6001, 6002, 6003]]
    assert "Four ensembles a row (seeds 6000 to 6003)" in page


def test_no_method_differs_in_accuracy_with_wide_nets(contest_wide, report, page):
    shown = []
    for metric in BOTH:
        gains = contest_wide[metric]
        assert all(abs(gain.mean) < gain.half for gain in gains.values())
        assert min(adjusted(gains).values()) > 0.05
        shown.append({name: report.signed(gain) for name, gain in gains.items()})
    clean, corrupted = shown
    name = "Momentum-SAM, rho 1"
    text = f"{clean[MOMENTUM]} points on clean and {corrupted[MOMENTUM]} on corrupted"
    assert f"`flattest` with Momentum-SAM is at {text}" in page
    assert f"for all samples at {clean[name]} and {corrupted[name]}" in page
    assert f"({text.replace(' points', '')} pictures; [table]" in page
    assert all(gain.mean > 0 for gain in contest_wide["corrupted_accuracy"].values())


def test_the_interval_with_wide_nets_is_wider_than_the_lead_with_narrow_ones(
    contest, contest_wide, page
):
    wide, narrow = (
        gains["corrupted_accuracy"][MOMENTUM] for gains in (contest_wide, contest)
    )
    assert wide.half > narrow.mean
    assert "cannot tell a lead as large as the one there from none" in page
    assert "the interval on corrupted pictures is wider than the lead with nar" in page


def test_likelihood_and_diversity_with_wide_nets(contest_wide, page):
    everywhere = "Momentum-SAM, rho 1"
    untempered, nll, der = (contest_wide[name] for name in OF_WIDE[2:])
    shown = []
    for gains in (untempered, nll):
        gain = gains[everywhere]
        assert gain.mean < 0
        assert adjusted(gains)[everywhere] < 0.05
        shown.append(f"{gain.mean:+.3f} ± {gain.half:.3f}")
    text = f"NLL {shown[0]}, after a temperature for each {shown[1]}, both beyond"
    assert f"{text} chance after Holm's adjustment for the two methods" in page
    assert abs(nll[MOMENTUM].mean) < nll[MOMENTUM].half
    assert der[MOMENTUM].mean > 0
    assert adjusted(der)[MOMENTUM] < 0.05
    assert abs(der[everywhere].mean) < der[everywhere].half
    shown = f"{nll[MOMENTUM].mean:+.3f} ± {nll[MOMENTUM].half:.3f}"
    assert f"pictures does not differ beyond its interval ({shown})" in page
    gains = {name: f"{gain.mean:+.2f} ± {gain.half:.2f}" for name, gain in der.items()}
    assert f"does not differ beyond its interval ({gains[everywhere]})" in page
    assert f"more diverse members (DER {gains[MOMENTUM]}, beyond chance" in page


def test_what_three_ensembles_with_wide_nets_show(report, page):
    records = [
        record
        for record in result_of("contest_wide")["records"]
        if record["seed"] in (6000, 6001, 6002)
    ]
    gains = gains_over_deep_ensemble(report, records, OF_WIDE)
    p_values = {metric: adjusted(gains[metric]) for metric in OF_WIDE}
    everywhere = "Momentum-SAM, rho 1"
    for metric in BOTH:
        assert min(p_values[metric].values()) > 0.05
    untempered = p_values["corrupted_nll"][everywhere]
    tempered, der = p_values[TEMPERED][everywhere], p_values["der"][MOMENTUM]
    assert untempered < 0.05 < min(tempered, der)
    assert f"adjustment (p {untempered:.3f}); tempered NLL (p {tempered:.3f})" in page
    assert f"and DER (p {der:.3f}) do not reach it" in page


OF_DEFAULTS = (*BOTH, "nll", "nll_after_temperature", "corrupted_nll", TEMPERED)


@pytest.fixture
def without_settings(report):
    """Ensembles without other settings on pictures, of as many epochs."""
    return over_deep_ensemble(report, "defaults_step", OF_DEFAULTS, group="same epochs")


@pytest.fixture
def of_more_epochs(report):
    """The same with more epochs for those that pass a sample once."""
    return over_deep_ensemble(report, "defaults_step", OF_DEFAULTS)


def over_sam(report, run):
    """Momentum-SAM with more epochs minus SAM, by metric."""
    records = result_of(run)["records"]
    methods = report.by_method(records, "same cost")
    momentum, sam = methods[MOMENTUM], methods["flattest"]
    passes = [{run["passes"] for run in runs.values()} for runs in (momentum, sam)]
    assert max(passes[0]) < min(passes[1])
    return {
        metric: report.difference(records, momentum, sam, metric)
        for metric in OF_DEFAULTS
    }


def test_sam_is_ahead_of_a_deep_ensemble_of_as_many_epochs(
    without_settings, report, page
):
    gains = {metric: gains["flattest"] for metric, gains in without_settings.items()}
    clean, corrupted = (gains[metric] for metric in BOTH)
    nll, tempered = gains["nll"], gains[TEMPERED]
    assert adjusted(without_settings["corrupted_accuracy"])["flattest"] < 0.05
    assert abs(clean.mean) < clean.half
    assert nll.mean < -nll.half
    assert tempered.mean < -tempered.half
    ahead = report.signed(corrupted).lstrip("+")
    assert f"is {ahead} points ahead of a deep ensemble of as many epochs on" in page
    assert f"level on clean ones ({report.signed(clean)}). Its NLL" in page
    assert f"NLL is lower by {-nll.mean:.3f} ± {nll.half:.3f}, on" in page
    assert f"for each by {-tempered.mean:.3f} ± {tempered.half:.3f}." in page


def test_momentum_sam_without_other_settings_is_level_in_fifty_epochs(
    without_settings, report, page
):
    gains = [without_settings[metric][MOMENTUM] for metric in BOTH]
    assert all(abs(gain.mean) < gain.half for gain in gains)
    clean, corrupted = (report.signed(gain) for gain in gains)
    assert f"intervals: {clean} points on clean and {corrupted} on corrupted" in page
    assert f"within their intervals ({clean} and {corrupted})" in page


def test_default_is_ahead_of_a_deep_ensemble_of_its_cost(of_more_epochs, report, page):
    gains = [of_more_epochs[metric][MOMENTUM] for metric in BOTH]
    assert all(adjusted(of_more_epochs[metric])[MOMENTUM] < 0.05 for metric in BOTH)
    clean, corrupted = (report.signed(gain) for gain in gains)
    assert clean.startswith("+")
    assert corrupted.startswith("+")
    text = f"by {clean} points on clean and {corrupted} on corrupted pictures"
    assert f"ahead of a deep ensemble {text}, both beyond chance after" in page
    assert f"in 90 epochs {text}; in 50 epochs the" in page
    behind = of_more_epochs["accuracy"]["flattest"]
    assert behind.mean < -behind.half
    shown = report.signed(behind).lstrip("-")
    assert f"SAM is {shown} points behind the deep ensemble on clean pictures" in page


def test_step_and_epochs_of_the_default_on_pictures(report, page):
    """Momentum-SAM: for fewer passes it is more accurate than SAM."""
    from _reproduce_records import holm

    clf = SharpBalanceEnsembleClassifier(random_state=0, device="cpu")
    assert clf.sam is clf.max_epochs is None
    X, y = pictures(24)
    used = settings_in_force(clf._prepare(X, y, None, checkpoints=True))
    records = result_of("defaults_step")["records"]
    runs = report.by_method(records, "same cost")[MOMENTUM]
    assert {run["epochs"] for run in runs.values()} == {used["max_epochs"]}
    assert used["sam"] == "momentum_sam"
    assert f"flattest, Momentum-SAM, rho {used['rho']:g}" == MOMENTUM
    gains = over_sam(report, "defaults_step")
    accuracies = [gains[metric] for metric in BOTH]
    assert all(gain.mean > 0 for gain in accuracies)
    assert max(holm([gain.p_value for gain in accuracies])) < 0.05
    clean, corrupted = (report.signed(gain) for gain in accuracies)
    assert f"and of SAM by {clean} and {corrupted}. SAM is" in page
    text = f"ahead of it by {clean} points on clean and {corrupted} on corrupted"
    assert f"in 50 epochs it is {text} pictures" in page


def test_probabilities_of_the_default_on_pictures(report, page):
    """More confident than with SAM; better on clean pictures after a temperature."""
    gains = over_sam(report, "defaults_step")
    tempered, corrupted = gains["nll_after_temperature"], gains[TEMPERED]
    assert tempered.mean < -tempered.half
    assert abs(corrupted.mean) < corrupted.half
    shown = f"{-tempered.mean:.3f} ± {tempered.half:.3f} on clean pictures"
    assert f"the NLL of Momentum-SAM is lower than that of SAM by {shown}" in page
    assert f"interval ({corrupted.mean:+.3f} ± {corrupted.half:.3f}). Without" in page
    plain, harder = gains["nll"], gains["corrupted_nll"]
    assert abs(plain.mean) < plain.half
    assert harder.mean > harder.half
    assert f"on clean pictures ({plain.mean:+.3f} ± {plain.half:.3f})" in page
    assert f"on corrupted ones ({harder.mean:+.3f} ± {harder.half:.3f})" in page


def test_default_with_few_pictures(report, page):
    gains = over_sam(report, "defaults_step_few")
    clean, corrupted = (report.signed(gains[metric]) for metric in BOTH)
    text = f"ahead of SAM by {clean} points on clean and {corrupted} on corrupted"
    assert f"90 epochs is {text} pictures" in page
    assert all(gains[metric].mean > gains[metric].half for metric in BOTH)
    of_deep = over_deep_ensemble(report, "defaults_step_few", BOTH)
    gain, harder = (of_deep[metric][MOMENTUM] for metric in BOTH)
    assert abs(gain.mean) < gain.half
    assert harder.mean > 0
    assert adjusted(of_deep["corrupted_accuracy"])[MOMENTUM] < 0.05
    shown = f"by {report.signed(harder)} on corrupted ones, beyond chance after Holm's"
    assert f"of a deep ensemble of 90 epochs {shown} adjustment for the two" in page
    assert result_of("defaults_step_few")["complete"]
    shown = report.signed(gain)
    assert f"to the deep ensemble is within its interval ({shown})" in page
    plain, tempered = gains["nll"], gains["nll_after_temperature"]
    assert plain.mean > plain.half
    assert tempered.mean < -tempered.half
    assert f"by {plain.mean:.3f} ± {plain.half:.3f} on clean pictures, after" in page
    assert f"lower by {-tempered.mean:.3f} ± {tempered.half:.3f}." in page
