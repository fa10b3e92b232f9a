"""The command-line demo, with small settings."""

import io
import runpy
import subprocess
import sys
from contextlib import redirect_stdout

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
    """The table fits into 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")


def rows_of(printed):
    """Return the numbers of the printed table by method."""
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


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Run the demo once; return what it prints and the file without its suffix."""
    plot = tmp_path_factory.mktemp("demo") / "plot"
    arguments = ["iris", "--seed", "3", "--epochs", "4", "--members", "2"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
        patch.setenv("COLUMNS", "80")
        main([*arguments, "--plot", str(plot)])
    return out.getvalue(), plot


def test_the_demo_compares_three_ensembles(demo):
    printed, _ = demo
    rows = rows_of(printed)
    assert list(rows) == list(METHODS)
    for row in rows.values():
        assert list(row) == list(COLUMNS)
        assert 0 <= row["members"] <= 1
        assert row["NLL"] > 0


def test_printed_numbers_equal_those_of_the_ensembles(demo):
    rows = rows_of(demo[0])
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
    """A table of two numeric columns, with the label between them."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 60)).round(3)
    lines = [f"{x},{'high' if x > 0 else 'low'},{z}" for x, z in zip(a, b)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["a,kind,b", *lines]))
    return path


def test_a_csv_file_is_trained_on(csv, tmp_path, capsys):
    plot = tmp_path / "plot.png"
    small = ["--epochs", "8", "--members", "2"]
    main([str(csv), "--target", "kind", "--plot", str(plot), *small])
    printed = capsys.readouterr().out
    assert f"is in {plot}" in printed
    assert "45 samples, 2 features" in printed
    assert rows_of(printed)["deep ensemble"]["ensemble"] > 0.8
    check_picture(plot)


def test_the_label_may_be_any_column(csv):
    X, y = load(str(csv), "kind")
    assert X.shape == (60, 2)
    np.testing.assert_array_equal(y == "high", X[:, 0] > 0)


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("nowhere.csv", None, "No such data: 'nowhere.csv'.*digits"),
        (None, "sort", "has no column 'sort'.*'kind'"),
        (None, "b", "except 'b' must be numeric, but 'kind' is not: .*'(high|low)'"),
        ("iris", "kind", "--target is for CSV files only; iris has"),
    ],
)
def test_unknown_data_or_columns_exit_with_a_message(csv, name, target, message):
    with pytest.raises(SystemExit, match=message):
        load(name or str(csv), target)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows below a header"),
        ("a,b,label\n", "no rows below a header"),
        ("a,b,label\n\n1,2,x\n3,4\n", "line 4 has 2 values, the header has 3"),
        (
            "a,label\n1,x\n2,y\n3,z\n4,w\n",
            "split by class: 4 of its 4 classes",
        ),
        ("a,price\n" + "1,2.5\n" * 8 + "2,3\n", "1 of its 2 .* such as '3'.*--target"),
        ("a;b;label\n1;2;x\n3;4;y\n", "one column, 'a;b;label'.*separated by commas"),
        ("a,label\n" + "1,x\n ,y\n" * 2, "the column 'a' is empty in 2 of 4 rows"),
        ("a,label\n" + "1,x\n2,\n" * 4, "column 'label' is empty in 4 of 8 rows"),
        ("a,label\n" + "nan,x\n1,y\n" * 8, "table.csv: Input X contains NaN"),
        ("a,label\n" + "1,x\n" * 8, "table.csv: .*one class"),
        ("a,label\n" + "1,\xe9\n2,y\n" * 8, "table.csv is not encoded as UTF-8"),
    ],
)
def test_bad_csv_files_exit_with_a_message(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(SystemExit, match=message):
        main([str(path), "--epochs", "1", "--plot", str(tmp_path / "plot.png")])


def test_a_missing_plot_folder_exits_before_training(tmp_path, capsys):
    plot = tmp_path / "nowhere" / "plot.png"
    with pytest.raises(SystemExit, match=r"--plot.*no folder.*nowhere"):
        main(["iris", "--epochs", "1", "--plot", str(plot)])
    assert "samples" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("plot", "message"),
    [("plot.foo", "--plot.*'foo'.*png"), (".", "--plot.*is a folder")],
)
def test_an_unsupported_plot_file_exits_before_training(
    plot, message, tmp_path, capsys
):
    with pytest.raises(SystemExit, match=message):
        main(["iris", "--epochs", "1", "--plot", str(tmp_path / plot)])
    assert "samples" not in capsys.readouterr().out


def test_a_plot_without_a_suffix_is_a_png(demo):
    printed, plot = demo
    assert f"is in {plot.with_suffix('.png')}" in printed
    check_picture(plot.with_suffix(".png"))


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
def test_numbers_out_of_range_exit_before_training(option, value, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["iris", option, value])
    printed = capsys.readouterr()
    assert f"argument {option}: must be {message}, got {value}" in printed.err
    assert not printed.out


@pytest.mark.filterwarnings("ignore:.*give no finite logits")
def test_diverged_training_exits_with_a_message(tmp_path):
    wild = ["--epochs", "1", "--rho", "1e30", "--plot", str(tmp_path / "plot.png")]
    with pytest.raises(SystemExit, match="predictions are not finite"):
        main(["iris", *wild])


def test_a_narrow_terminal_shows_all_digits(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    row = dict.fromkeys(COLUMNS, -0.25) | {"members": 1.0, "ensemble": 1.0, "s": 1234.5}
    print_table(dict.fromkeys(METHODS, row))
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert all(rows_of(printed)[m] == row for m in METHODS)


@pytest.mark.slow
def test_the_time_of_the_first_method_excludes_imports(tmp_path):
    """In its own process: modules are imported only once."""
    code = (
        "import sys; import sklearn_sharpbalance.__main__ as demo\n"
        "from sklearn_sharpbalance import DeepEnsembleClassifier\n"
        "fit, added = DeepEnsembleClassifier.fit, []\n"
        "def watched(clf, *args):\n"
        "    before = set(sys.modules)\n"
        "    fit(clf, *args)\n"
        "    added.extend(set(sys.modules) - before)\n"
        "DeepEnsembleClassifier.fit = watched\n"
        "demo.main(['iris', '--epochs', '1', '--members', '2'])\n"
        "assert len(added) < 50, added"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_the_plot_names_methods_of_equal_accuracy(monkeypatch, tmp_path):
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
    assert not display.lines_
    low, high = display.colorbar_.mappable.get_clim()
    assert 0 <= low < high <= 100  # an accuracy in per cent


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_the_module_can_be_run(monkeypatch, capsys):
    """As ``python -m`` runs it, with --help."""
    monkeypatch.setattr(sys, "argv", ["sklearn_sharpbalance", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("sklearn_sharpbalance", run_name="__main__")
    printed = capsys.readouterr().out
    assert "python -m sklearn_sharpbalance" in printed
    assert "--target" in printed
    assert "``" not in printed
    for default in ("digits", "the last", "50", "0.05", "0", "sharpbalance_tradeoff"):
        assert f"default: {default}" in " ".join(printed.split())
