"""The command-line demo and the tables that it reads."""

import runpy
import sys
from contextlib import redirect_stdout
from functools import partial
from io import StringIO

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import train_test_split

from sklearn_sharpbalance import DeepEnsembleClassifier, metrics
from sklearn_sharpbalance.__main__ import CORRUPTIONS, METHODS, corrupted, load, main

SMALL = ["--epochs", "2", "--members", "2", "--seeds", "2"]
FEW_STEPS = partial(metrics.adaptive_sharpness, n_iter=2)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Run the demo once; return what it prints and the file without its suffix."""
    plot = tmp_path_factory.mktemp("demo") / "plot"
    with redirect_stdout(StringIO()) as out, pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "adaptive_sharpness", FEW_STEPS)
        main(["iris", "--seed", "3", *SMALL, "--plot", str(plot)])
    return out.getvalue(), plot


def test_the_demo_compares_the_methods_on_clean_and_corrupted_rows(demo):
    printed, plot = demo
    assert printed.count("(50)") == 3  # rows of each class
    rows = [line for line in printed.splitlines() if "±" in line and "by" not in line]
    for row, method in zip(rows, METHODS, strict=True):
        assert row.startswith(method)
        passes, seconds, clean, _, _, corrupt, *_ = row.removeprefix(method).split()
        assert float(passes) >= 4
        assert float(seconds) > 0
        assert 0 <= float(clean) <= 100
        assert 0 <= float(corrupt) <= 100
    assert plot.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_printed_accuracies_are_those_of_the_ensembles(demo):
    X, y = load("iris", None)
    scores = []
    for seed in (3, 4):
        X_train, X_test, y_train, y_test = train_test_split(
            X, y, test_size=0.5, stratify=y, random_state=seed
        )
        clf = DeepEnsembleClassifier(n_estimators=2, max_epochs=2, random_state=seed)
        scores.append(clf.fit(X_train, y_train).score(X_test, y_test))
    assert f" {100 * np.mean(scores):.1f} ± " in demo[0]


@pytest.fixture(scope="module")
def table():
    """A table of numbers, text and empty cells; the label is its last column."""
    rng = np.random.default_rng(0)
    size = rng.normal(size=60).round(3)
    city = rng.choice(["Köln", "Jena"], size=60)
    kind = np.where(size > 0, "high", "low")
    frame = pd.DataFrame({"größe": size, "city": city, "kind": kind})
    frame.loc[::9, "größe"] = None
    frame.loc[::7, "city"] = None
    return frame


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("t.csv", {}),
        ("t.csv.gz", {}),
        ("t.tsv", {"sep": "\t"}),
        ("t.csv", {"sep": ";"}),
        ("t.csv", {"sep": "|", "encoding": "utf-8-sig"}),
    ],
)
def test_separators_and_compressed_files_are_read(name, options, table, tmp_path):
    table.to_csv(tmp_path / name, index=False, **options)
    X, y = load(str(tmp_path / name), None)
    pd.testing.assert_frame_equal(X, table[["größe", "city"]], check_dtype=False)
    assert y.tolist() == table["kind"].tolist()


def test_text_and_empty_cells_are_trained_on(table, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(metrics, "adaptive_sharpness", FEW_STEPS)
    path = tmp_path / "t.csv"
    table.to_csv(path, index=False)
    plot = ["--plot", str(tmp_path / "plot.pdf")]
    main([str(path), "--target", "kind", *SMALL, "--seeds", "1", "--rows", "50", *plot])
    assert "50 rows" in capsys.readouterr().out
    assert (tmp_path / "plot.pdf").exists()


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_corruptions_change_numbers_and_keep_the_columns(kind, table):
    X = table[["größe", "city"]]
    before = X.copy()
    found = corrupted(X, X, kind, np.random.default_rng(0))
    pd.testing.assert_frame_equal(X, before)  # the caller's table
    assert list(found) == list(X)
    assert (found["größe"] != X["größe"])[X["größe"].notna()].any()
    assert found["city"].equals(X["city"]) == (kind != "missing")


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [("nowhere.csv", None, "nowhere.csv.*digits"), ("iris", "kind", "--target")],
)
def test_unknown_data_exit_with_a_message(name, target, message):
    with pytest.raises(SystemExit, match=message):
        load(name, target)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("a,b,label\n", "and 0 rows"),
        ("a\n1\n2\n", r"the columns \['a'\]"),
        ("a,b,label\n1,2,x\n1,2,3,4,y\n", "line 3"),
        ("a,label\n1,x\n2,y\n3,z\n4,w\n", "4 of 4 classes"),
        ("a,price\n" + "1,2.5\n3,4.25\n" * 4, "'price' is continuous.*--target"),
        ("a,label\n" + "1,x\n2,\n" * 4, "'label' is empty in 4 of 8"),
        ("a,label\n" + "1,x\n" * 8, "one class"),
    ],
)
def test_bad_files_exit_with_a_message(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(SystemExit, match=message):
        main([str(path), *SMALL, "--plot", str(tmp_path / "plot.png")])


@pytest.mark.parametrize(
    ("plot", "message"), [("plot.foo", "'.foo'.*png"), ("no/plot.png", "no folder")]
)
def test_an_impossible_plot_file_exits_before_training(plot, message, tmp_path, capsys):
    with pytest.raises(SystemExit, match=f"--plot.*{message}"):
        main(["iris", "--plot", str(tmp_path / plot)])
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value"), [("--rho", "-1"), ("--rho", "nan"), ("--members", "0")]
)
def test_numbers_out_of_range_exit_before_training(option, value, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["iris", option, value])
    printed = capsys.readouterr()
    assert option in printed.err
    assert value in printed.err
    assert not printed.out


@pytest.mark.filterwarnings("ignore:.*give no finite logits")
def test_diverged_training_exits_with_a_message(tmp_path):
    wild = ["--rho", "1e30", "--plot", str(tmp_path / "plot.png")]
    with pytest.raises(SystemExit, match="rho"):
        main(["iris", *SMALL, *wild])


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_the_module_can_be_run(monkeypatch, capsys):
    """As ``python -m`` runs it, with --help."""
    monkeypatch.setattr(sys, "argv", ["sklearn_sharpbalance", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("sklearn_sharpbalance", run_name="__main__")
    printed = capsys.readouterr().out
    assert "--target" in printed
    assert "default: digits" in " ".join(printed.split())
