"""Reports as DataFrames and figures, and the ranking of their methods."""

import numpy as np
import pytest
from scipy.stats import rankdata

from sklearn_sharpbalance.evaluation import evaluate
from sklearn_sharpbalance.evaluation.report import rank_methods
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.evaluation.fake import Fake, Single, made_up

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NAMES = ["plain", "a|b", "lone"]


@pytest.fixture(scope="module")
def report():
    """Return a report with every kind of number."""
    p, y, X = made_up(0, n_samples=80)
    q = made_up(1, n_samples=80)[0]
    methods = {
        NAMES[0]: [Fake(p, logits=np.log(p)), Fake(q, logits=np.log(q))],
        NAMES[1]: [Fake(q, logits=np.log(q)), Fake(q, logits=np.log(q))],
        NAMES[2]: [Single(p[0]), Single(q[0])],
    }
    sets = {(kind, s): (X[::-1], y) for kind in ("fog", "snow") for s in (1, 2)}
    return evaluate(
        methods,
        X[:60],
        y[:60],
        ood=X[60:],
        corruptions=sets,
        severities=(1, 2),
        sharpness=lambda e, X, y: e.predict_proba(X).max(),
        n_bootstrap=60,
    )


def test_frame_has_one_row_for_each_number(report):
    frame = report.to_frame()
    key = ["method", "metric", "part", "detail"]
    assert list(frame) == [*key, "mean", "std", "low", "high", "n_runs"]
    assert not frame.duplicated(key).any()
    for row in frame.to_dict("records"):
        at = (row["method"], row["metric"], row["part"], row["detail"])
        assert report.row(*at) == pytest.approx(row, nan_ok=True)
        assert report.run_values(*at).mean() == pytest.approx(row["mean"])


def test_wide_frame_has_a_column_for_each_method(report):
    wide = report.to_frame(wide=True)
    assert list(wide.columns) == NAMES
    at = ("corrupted_accuracy", "members", "severity 2")
    assert wide.loc[at, "a|b"] == report.row("a|b", *at)["mean"]
    assert np.isnan(wide.loc[("der", "ensemble", ""), "lone"])
    assert repr(report) == repr(wide)
    assert report._repr_html_() == wide._repr_html_()


def test_missing_numbers_raise(report):
    with pytest.raises(InvalidInputError, match=r"method 'x'.*'plain'"):
        report.row("x", "accuracy")
    with pytest.raises(InvalidInputError, match=r"'recall' .*'plain'.*'accuracy'"):
        report.run_values("plain", "recall")
    with pytest.raises(InvalidInputError, match="'recall'"):
        report.plot("recall")


def test_plot_shows_values_and_intervals(report):
    ax = report.plot("nll")
    assert ax.get_xlabel() == "NLL ↓"
    assert [text.get_text() for text in ax.get_yticklabels()] == NAMES
    for container in ax.containers:
        part = container.get_label()
        line, _, (bars,) = container.lines
        names = NAMES[:2] if part == "members" else NAMES
        rows = [report.row(name, "nll", part) for name in names]
        drawn = line.get_xdata().astype(float)
        np.testing.assert_allclose(drawn, [row["mean"] for row in rows])
        ends = [segment[:, 0] for segment in bars.get_segments()]
        np.testing.assert_allclose(ends, [(row["low"], row["high"]) for row in rows])
    assert len(ax.containers) == 2
    detail = "severity 2"
    assert report.plot("corrupted_nll", detail=detail, ax=ax) is ax
    assert detail in ax.get_xlabel()


VALUES = np.array([[0.5, 0.7, 0.6], [0.7, 0.7, 0.4], [0.9, 0.8, 0.7]])


def test_ranking_equals_values_by_hand():
    ranking = rank_methods(["a", "b", "c"], VALUES)
    assert ranking.index.tolist() == ["c", "a", "b"]
    # Run by run: a is 3, 2.5, 2; b is 2, 2.5, 3; c is always first.
    np.testing.assert_allclose(ranking["rank"], [1.0, 2.5, 2.5])
    np.testing.assert_allclose(ranking["mean"], [0.8, 0.6, 0.6])
    np.testing.assert_allclose(ranking["difference"], [0.0, -0.2, -0.2])
    smaller = rank_methods(["a", "b"], np.array([[0.3, 0.4], [0.1, 0.2]]), better=-1)
    assert smaller.index.tolist() == ["b", "a"]
    np.testing.assert_allclose(smaller["difference"], [0.0, 0.2])


def test_intervals_equal_a_loop_over_runs_and_samples():
    rng = np.random.default_rng(0)
    draws = VALUES[:, :, None] + rng.normal(scale=0.1, size=(3, 3, 100))
    ranking = rank_methods(["a", "b", "c"], VALUES, draws, random_state=5)
    runs = np.random.default_rng([5, 3]).integers(3, size=(3, 100))
    differences, ranks, firsts = [], [], []
    for b in range(100):
        chosen = [[draws[k, r, b] for r in runs[:, b]] for k in range(3)]
        means = np.mean(chosen, axis=1)
        differences.append(means - means[2])
        firsts.append(means.argmax())
        ranks.append(rankdata(-np.array(chosen), axis=0).mean(axis=1))
    order = [["a", "b", "c"].index(name) for name in ranking.index]
    for name, drawn in (("difference", differences), ("rank", ranks)):
        columns = np.sort(drawn, axis=0)[:, order]
        np.testing.assert_allclose(ranking[f"{name}_low"], columns[2])  # 2.5 of 100
        np.testing.assert_allclose(ranking[f"{name}_high"], columns[97])
    fractions = np.bincount(firsts, minlength=3)[order] / 100
    np.testing.assert_allclose(ranking["best_fraction"], fractions)


def test_equal_methods_share_ranks():
    probas, y, X = made_up(0)
    report = evaluate({"a": Fake(probas), "b": Fake(probas)}, X, y, n_bootstrap=50)
    ranking = report.rank("nll")
    np.testing.assert_array_equal(ranking["rank"], [1.5, 1.5])
    np.testing.assert_array_equal(ranking["difference_high"], [0, 0])
    np.testing.assert_array_equal(ranking["best_fraction"], [0.5, 0.5])


@pytest.mark.parametrize("metric", ["der", "beauty"])
def test_metrics_without_a_direction_cannot_rank(report, metric):
    with pytest.raises(InvalidInputError, match=f"'{metric}'.*'accuracy'"):
        report.rank(metric)


@pytest.mark.filterwarnings("error")
def test_equal_infinities_differ_by_zero():
    """The EIR is -inf if no member errs but the ensemble does, such as a soup."""
    draws = np.array([[[-np.inf, 0.5]], [[-np.inf, 0.25]]])
    ranking = rank_methods(["a", "b"], np.full((2, 1), -np.inf), draws)
    np.testing.assert_array_equal(ranking["difference"], 0)
    np.testing.assert_array_equal(ranking["difference_low"], [0, -0.25])
    np.testing.assert_array_equal(ranking["difference_high"], 0)
