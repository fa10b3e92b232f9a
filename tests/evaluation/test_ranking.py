"""Ranks and paired differences, compared with values by hand and by a loop."""

import numpy as np
import pytest
from scipy.stats import rankdata

from sklearn_sharpbalance.evaluation import evaluate, rank_methods
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.evaluation.fake import Fake, made_up

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

VALUES = [[0.5, 0.7, 0.6], [0.7, 0.7, 0.4], [0.9, 0.8, 0.7]]


def test_ranks_and_differences_by_hand():
    ranking = rank_methods(["a", "b", "c"], VALUES)
    assert ranking["method"].tolist() == ["c", "a", "b"]
    # Run by run: a is 3, 2.5, 2; b is 2, 2.5, 3; c is always first.
    np.testing.assert_allclose(ranking["rank"], [1.0, 2.5, 2.5])
    np.testing.assert_allclose(ranking["mean"], [0.8, 0.6, 0.6])
    np.testing.assert_allclose(ranking["difference"], [0.0, -0.2, -0.2])
    assert ranking.best == "c"
    np.testing.assert_allclose(ranking["best_share"], [1.0, 0.0, 0.0])


def test_ranking_in_markdown():
    values, draws = [[0.25], [0.5]], [[[0.125, 0.25]], [[0.5, 0.75]]]
    ranking = rank_methods(["a", "b"], values, draws, metric="Accuracy ↑")
    assert str(ranking).splitlines() == [
        "| method | Accuracy ↑ | mean rank | difference | best in |",
        "|:--|--:|--:|--:|--:|",
        "| b | 0.500 | 1.00 [1.00, 1.00] | 0.000 [0.000, 0.000] | 100 % |",
        "| a | 0.250 | 2.00 [2.00, 2.00] | -0.250 [-0.500, -0.375] | 0 % |",
    ]


def test_ranking_with_smaller_values_better():
    ranking = rank_methods(["a", "b"], [[0.3, 0.4], [0.1, 0.2]], better=-1)
    assert ranking["method"].tolist() == ["b", "a"]
    np.testing.assert_allclose(ranking["difference"], [0.0, 0.2])
    np.testing.assert_allclose(ranking["rank"], [1.0, 2.0])


def test_intervals_equal_a_loop_over_runs_and_samples():
    rng = np.random.default_rng(0)
    values = np.asarray(VALUES)
    draws = values[:, :, None] + rng.normal(scale=0.1, size=(3, 3, 100))
    ranking = rank_methods(["a", "b", "c"], values, draws, random_state=5)
    runs = np.random.default_rng([5, 3]).integers(3, size=(3, 100))
    differences, ranks, firsts = [], [], []
    for b in range(100):
        chosen = [[draws[k, r, b] for r in runs[:, b]] for k in range(3)]
        means = np.mean(chosen, axis=1)
        differences.append(means - means[2])
        firsts.append(means.argmax())
        ranks.append(rankdata(-np.array(chosen), axis=0).mean(axis=1))
    order = [["a", "b", "c"].index(name) for name in ranking["method"]]
    for name, drawn in (("difference", differences), ("rank", ranks)):
        columns = np.sort(drawn, axis=0)[:, order]
        np.testing.assert_allclose(ranking[f"{name}_low"], columns[2])  # 2.5 of 100
        np.testing.assert_allclose(ranking[f"{name}_high"], columns[97])
    shares = np.bincount(firsts, minlength=3)[order] / 100
    np.testing.assert_allclose(ranking["best_share"], shares)


def test_equal_methods_share_ranks():
    probas, y, X = made_up(0)
    report = evaluate({"a": Fake(probas), "b": Fake(probas)}, X, y, n_bootstrap=50)
    ranking = report.rank("nll")
    np.testing.assert_array_equal(ranking["rank"], [1.5, 1.5])
    np.testing.assert_array_equal(ranking["difference_high"], [0, 0])
    np.testing.assert_array_equal(ranking["best_share"], [0.5, 0.5])


def test_paired_differences_have_narrower_intervals():
    """Methods that err on nearly the same samples differ by less than each varies."""
    probas, y, X = made_up(0, n_samples=200)
    other = probas.copy()
    other[:, :6] = np.roll(other[:, :6], 1, axis=-1)
    report = evaluate({"a": Fake(probas), "b": Fake(other)}, X, y, n_bootstrap=300)
    row, ranking = report.row("a", "accuracy"), report.rank("accuracy")
    width = ranking["difference_high"][1] - ranking["difference_low"][1]
    assert width < 0.5 * (row["high"] - row["low"])


def test_one_exact_run_has_no_interval():
    ranking = rank_methods(["a", "b"], [[0.1], [0.2]])
    assert np.isnan(ranking["rank_low"]).all()
    assert np.isnan(ranking["best_share"]).all()


def test_invalid_rankings_raise():
    with pytest.raises(InvalidInputError, match=r"Ranking 2 methods.*shape \(1, 2\)"):
        rank_methods(["a", "b"], [[0.1, 0.2]])
    with pytest.raises(InvalidInputError, match="with NaN"):
        rank_methods(["a"], [[np.nan]])
    probas, y, X = made_up(0)
    report = evaluate({"a": Fake(probas)}, X, y, n_bootstrap=0)
    with pytest.raises(InvalidInputError, match="ranked by 'der': it has no better"):
        report.rank("der")
    with pytest.raises(InvalidInputError, match="cannot be ranked by 'beauty'"):
        report.rank("beauty")
    for values in (np.zeros((0, 2)), np.zeros((1, 0))):
        with pytest.raises(InvalidInputError, match="one value for each of them"):
            rank_methods(["a"] * len(values), values)
    with pytest.raises(InvalidInputError, match="better must be 1 or -1, got 0"):
        rank_methods(["a", "b"], [[0.1], [0.2]], better=0)


@pytest.mark.filterwarnings("error")
def test_equal_infinities_differ_by_zero():
    """The EIR is -inf if no member errs but the ensemble does, such as a soup."""
    draws = [[[-np.inf, 0.5]], [[-np.inf, 0.25]]]
    ranking = rank_methods(["a", "b"], [[-np.inf], [-np.inf]], draws)
    np.testing.assert_array_equal(ranking["difference"], 0)
    np.testing.assert_array_equal(ranking["difference_low"], [0, -0.25])
    np.testing.assert_array_equal(ranking["difference_high"], 0)
