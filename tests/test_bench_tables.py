"""The comparison on tables: its report, and the page that shows it."""

import inspect
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_wine

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance.evaluation import gradient_passes
from sklearn_sharpbalance.optim import LookSAM

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "user_guide" / "tables.md"
RESULTS = ROOT / "examples" / "benchmarks" / "results"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples" / "benchmarks")
    import bench_tables

    yield bench_tables
    for name in [*sys.modules]:
        if name.startswith(("bench_tables", "_reproduce", "_tables", "_machine")):
            del sys.modules[name]


def part_of_page(name):
    text = PAGE.read_text()
    _, _, rest = text.partition(f"<!-- {name} of bench_tables.py -->\n")
    part, end, _ = rest.partition(f"\n<!-- end of {name} -->")
    assert end
    return part


def test_the_page_shows_the_records(bench):
    records = bench.Records(RESULTS / "tables.json").read()
    assert part_of_page("results") == bench.report(records)


def test_the_page_shows_the_ablation(bench):
    import bench_tables_ablation

    records = bench.Records(RESULTS / "tables_ablation.json").read()
    assert part_of_page("ablation") == bench_tables_ablation.report(records)


def test_the_page_shows_the_contest(bench):
    import bench_tables_contest as contest

    of_radii, records = (
        bench.Records(RESULTS / f"{name}.json").read()
        for name in ("tables_contest_rho", "tables_contest")
    )
    names = [*contest.PLAIN, *contest.chosen(of_radii)]
    wanted = {(t, s, n) for t in bench.EVALUATION for s in range(5) for n in names}
    assert records.keys() == wanted
    assert part_of_page("contest") == contest.report(of_radii, records)


def test_no_method_is_better_than_a_deep_ensemble_for_its_cost(bench):
    rows = part_of_page("contest").splitlines()[2:]
    assert len(rows) == 12  # "of twelve methods none ..."
    for row in rows:
        high = float(row.split(" to ")[1].split(")")[0])
        assert high > 1


def test_the_alpha_of_the_paper_has_a_higher_log_loss_than_the_default(bench):
    """What the default of LookSAM rests on, alone and in SharpBalance."""
    records = bench.Records(RESULTS / "tables_contest.json").read()
    default = inspect.signature(LookSAM).parameters["alpha"].default
    shown = []
    for name in ("LookSAM", "flattest, LookSAM"):
        pair = [f"{name}, alpha {alpha}, rho 0.05" for alpha in (default, 0.7)]
        losses, kept = bench.means(records, bench.EVALUATION, pair, "log_loss")
        assert len(kept) == 13
        ratios = np.log(losses[:, 1] / losses[:, 0])
        mean, low, high = np.exp(bench.interval(ratios))
        assert low > 1
        assert np.sum(ratios > 0) == 11
        shown.append(f"{mean:.2f} ({low:.2f} to {high:.2f})")
    page = " ".join(PAGE.read_text().split())
    assert f"on 11 of 13 tables, in the geometric mean {shown[0]} times" in page
    assert f"in SharpBalance it is higher on 11, {shown[1]} times" in page


def test_methods_of_the_contest_take_the_passes_of_a_deep_ensemble(bench):
    import bench_tables_contest as contest

    X, y = load_wine(return_X_y=True)
    passes = gradient_passes(DeepEnsembleClassifier(), X, y)
    for name in (
        "SharpBalance, rho 0.05",
        "LookSAM, alpha 0.7, rho 0.1",
        contest.TWICE,
    ):
        fitted = contest.candidates()[name](0).fit(X, y)
        assert gradient_passes(fitted) == pytest.approx(passes, rel=0.1)


def test_the_default_is_first_among_peers_on_all_tables(bench):
    """Five splits; the interval of its mean rank is below that of all others."""
    records = bench.Records(RESULTS / "tables.json").read()
    peers = ["SharpBalance", *list(bench.SCIKIT_LEARN)[:4]]
    for table in (*bench.REAL, *bench.SYNTHETIC):
        for method in peers:
            assert {split for t, split, m in records if (t, m) == (table, method)} == {
                *range(5)
            }
    losses, kept = bench.means(records, bench.EVALUATION, peers, "log_loss")
    assert len(kept) == 13
    rank, low, high = bench.interval(bench.ranks(losses))
    assert high[0] < low[1:].min()
    readme = (ROOT / "README.md").read_text()
    assert f"the mean rank in log-loss is {rank[0]:.2f};" in readme
    assert f"have {rank[1:].min():.2f} to {rank[1:].max():.2f}." in readme


def test_means_use_common_splits(bench):
    values = {("t", 0, "a"): 1.0, ("t", 1, "a"): 9.0, ("t", 0, "b"): 2.0}
    records = {key: {"log_loss": value} for key, value in values.items()}
    losses, kept = bench.means(records, ["t", "other"], ["a", "b"], "log_loss")
    assert kept == ["t"]
    np.testing.assert_array_equal(losses, [[1.0, 2.0]])
