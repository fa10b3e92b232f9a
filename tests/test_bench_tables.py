"""The comparison on tables: its report, and the page that shows it."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "user_guide" / "tables.md"
RESULTS = ROOT / "examples" / "benchmarks" / "results"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples" / "benchmarks")
    import bench_tables

    yield bench_tables
    for name in ("bench_tables", "bench_tables_ablation", "_tables", "_machine"):
        sys.modules.pop(name, None)


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
