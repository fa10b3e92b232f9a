"""The demo, on small settings."""

import runpy
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split

from sklearn_sharpbalance import DeepEnsembleClassifier
from sklearn_sharpbalance.__main__ import draw, load, main, print_table
from sklearn_sharpbalance.plotting import TradeoffDisplay

METHODS = ("deep ensemble", "SAM ensemble", "SharpBalance")
COLUMNS = ("members", "ensemble", "NLL", "ECE", "DER", "EIR", "sharpness", "s")


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch):
    """Eighty columns hold the table without cutting anything."""
    monkeypatch.setenv("COLUMNS", "80")


def rows_of(printed):
    """Numbers of the printed table by method."""
    rows = {}
    for line in printed.splitlines():
        for method in METHODS:
            if line.strip().startswith(method) and "→" in line:
                members, numbers = line.strip().removeprefix(method).split("→")
                values = [float(members) / 100, *map(float, numbers.split())]
                values[1] /= 100
                rows[method] = dict(zip(COLUMNS, values))
    return rows


def check_picture(path):
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 5000


def test_the_demo_compares_three_ensembles(tmp_path, capsys):
    plot = tmp_path / "plot.png"
    main(["iris", "--epochs", "6", "--members", "2", "--plot", str(plot)])
    printed = capsys.readouterr().out
    rows = rows_of(printed)
    assert list(rows) == list(METHODS)
    for row in rows.values():
        assert list(row) == list(COLUMNS)
        assert 0 <= row["members"] <= 1
        assert row["NLL"] > 0
    check_picture(plot)
    assert str(plot) in printed


def test_the_numbers_are_those_of_the_ensembles(tmp_path, capsys):
    plot = str(tmp_path / "plot.png")
    small = ["--epochs", "4", "--members", "2"]
    main(["iris", "--seed", "3", "--plot", plot, *small])
    rows = rows_of(capsys.readouterr().out)
    X, y = load_iris(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.25, stratify=y, random_state=3
    )
    clf = DeepEnsembleClassifier(n_estimators=2, max_epochs=4, random_state=3)
    clf.fit(X_train, y_train)
    row = rows["deep ensemble"]
    assert row["ensemble"] == pytest.approx(clf.score(X_test, y_test), abs=1e-4)
    likely = clf.predict_proba(X_test)[np.arange(len(y_test)), y_test]
    assert row["NLL"] == pytest.approx(-np.log(likely).mean(), abs=1e-4)


@pytest.fixture
def csv(tmp_path):
    """A table of two numeric columns and a name, the label in the middle."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 60)).round(3)
    lines = [f"{x},{'high' if x > 0 else 'low'},{z}" for x, z in zip(a, b)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["a,kind,b", *lines]))
    return path


def test_a_table_of_the_users_own(csv, tmp_path, capsys):
    plot = tmp_path / "plot.png"
    small = ["--epochs", "8", "--members", "2"]
    main([str(csv), "--target", "kind", "--plot", str(plot), *small])
    printed = capsys.readouterr().out
    assert "45 samples, 2 features" in printed
    assert rows_of(printed)["deep ensemble"]["ensemble"] > 0.8
    check_picture(plot)


def test_columns_of_a_table(csv):
    X, y = load(str(csv), "kind")
    assert X.shape == (60, 2)
    np.testing.assert_array_equal(y == "high", X[:, 0] > 0)


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("nowhere.csv", None, "No such data: 'nowhere.csv'.*digits"),
        (None, "sort", "has no column 'sort'.*'kind'"),
        (None, "b", "but 'b' must be numeric, and 'kind' is not: .*'(high|low)'"),
        ("iris", "kind", "--target names a column of a CSV file; iris has"),
    ],
)
def test_what_it_cannot_read_it_says(csv, name, target, message):
    with pytest.raises(SystemExit, match=message):
        load(name or str(csv), target)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows below a header"),
        ("a,b,label\n", "no rows below a header"),
        ("a,b,label\n\n1,2,x\n3,4\n", "line 4 has 2 values, its header 3"),
        (
            "a,label\n1,x\n2,y\n3,z\n4,w\n",
            "split by class: 4 of its 4 classes",
        ),
        ("a,price\n" + "1,2.5\n" * 8 + "2,3\n", "1 of its 2 .* such as '3'.*--target"),
        ("a;b;label\n1;2;x\n3;4;y\n", "one column, 'a;b;label'.*separated by commas"),
        ("a,label\n1,x\n ,y\n" * 2, "and 'a' is not: it has empty cells"),
        ("a,label\n" + "1,x\n2,\n" * 4, "4 of 8 rows have nothing in column 'label'"),
        ("a,label\n" + "nan,x\n1,y\n" * 8, "table.csv: Input X contains NaN"),
        ("a,label\n" + "1,x\n" * 8, "table.csv: .*one class"),
        ("a,label\n" + "1,\xe9\n2,y\n" * 8, "table.csv is not encoded as UTF-8"),
    ],
)
def test_tables_that_are_none(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(SystemExit, match=message):
        main([str(path), "--epochs", "1", "--plot", str(tmp_path / "plot.png")])


def test_a_picture_that_could_not_be_written_is_refused_before_the_work(
    tmp_path, capsys
):
    plot = tmp_path / "nowhere" / "plot.png"
    with pytest.raises(SystemExit, match=r"--plot.*no folder.*nowhere"):
        main(["iris", "--epochs", "1", "--plot", str(plot)])
    assert "samples" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("plot", "message"),
    [("plot.foo", "--plot.*'foo'.*png"), (".", "--plot.*is a folder")],
)
def test_a_picture_of_no_known_kind_is_refused_before_the_work(
    plot, message, tmp_path, capsys
):
    with pytest.raises(SystemExit, match=message):
        main(["iris", "--epochs", "1", "--plot", str(tmp_path / plot)])
    assert "samples" not in capsys.readouterr().out


def test_the_ending_that_a_picture_gets_is_told(tmp_path, capsys):
    small = ["--epochs", "1", "--members", "2"]
    main(["iris", *small, "--plot", str(tmp_path / "plot")])
    assert f"drawn in {tmp_path / 'plot.png'}" in capsys.readouterr().out
    check_picture(tmp_path / "plot.png")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--rho", "-1", "at least 0"),
        ("--rho", "nan", "at least 0"),
        ("--members", "0", "at least 1"),
        ("--epochs", "0", "at least 1"),
        ("--seed", "-3", "at least 0"),
        ("--seed", "4294967296", "at most 4294967295"),
    ],
)
def test_numbers_out_of_range_are_refused_before_the_work(
    option, value, message, capsys
):
    with pytest.raises(SystemExit, match="2"):
        main(["iris", option, value])
    printed = capsys.readouterr()
    assert f"argument {option}: must be {message}, got {value}" in printed.err
    assert not printed.out


@pytest.mark.filterwarnings("ignore:.*give no finite logits")
def test_training_that_diverges_is_told(tmp_path):
    wild = ["--epochs", "1", "--rho", "1e30", "--plot", str(tmp_path / "plot.png")]
    with pytest.raises(SystemExit, match="no finite predictions"):
        main(["iris", *wild])


def test_a_narrow_terminal_cuts_off_no_digits(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    row = dict.fromkeys(COLUMNS, -0.25) | {"members": 1.0, "ensemble": 1.0, "s": 1234.5}
    print_table(dict.fromkeys(METHODS, row))
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert all(rows_of(printed)[m] == row for m in METHODS)


def test_seconds_of_the_first_method_are_those_of_its_training(tmp_path):
    """In a process of its own: torch imports its compiler once, in some seconds."""
    code = (
        "import sys; import sklearn_sharpbalance.__main__ as demo\n"
        "fit, there = demo.DeepEnsembleClassifier.fit, []\n"
        "def watched(clf, *args):\n"
        "    there.append('torch._dynamo' in sys.modules)\n"
        "    return fit(clf, *args)\n"
        "demo.DeepEnsembleClassifier.fit = watched\n"
        "demo.main(['iris', '--epochs', '1', '--members', '2'])\n"
        "assert there == [True]"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_the_picture_tells_methods_of_equal_accuracy_apart(monkeypatch, tmp_path):
    displays = []

    def keep(display, *args, **kwargs):
        displays.append(display)
        return drawn(display, *args, **kwargs)

    drawn = TradeoffDisplay.plot
    monkeypatch.setattr(TradeoffDisplay, "plot", keep)
    row = {"sharpness": 0.2, "DER": 0.6, "ensemble": 1.0}
    rows = {m: row | {"DER": 0.1 * i} for i, m in enumerate(METHODS, 5)}
    draw(rows, tmp_path / "plot.png")
    (display,) = displays
    legend = display.ax_.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == list(METHODS)
    assert not display.lines_  # three methods are no curve
    low, high = display.colorbar_.mappable.get_clim()
    assert 0 <= low < high <= 100  # an accuracy, in per cent


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_the_module_can_be_run(monkeypatch, capsys):
    """As ``python -m`` does it; the help needs no training."""
    monkeypatch.setattr(sys, "argv", ["sklearn_sharpbalance", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("sklearn_sharpbalance", run_name="__main__")
    printed = capsys.readouterr().out
    assert "python -m sklearn_sharpbalance" in printed
    assert "--target" in printed
    assert "``" not in printed
    for default in ("digits", "the last", "50", "0.05", "0", "sharpbalance_tradeoff"):
        assert f"default: {default}" in " ".join(printed.split())
