"""Reports as tables, DataFrames, Markdown and HTML pages."""

import base64
import builtins
import pickle
import re
from html.parser import HTMLParser
from io import BytesIO
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from sklearn_sharpbalance.evaluation import evaluate
from sklearn_sharpbalance.evaluation._figures import (
    draw_accuracy,
    draw_diversity,
    draw_foreign,
    draw_kinds,
    draw_ranking,
    draw_reliability,
    draw_severities,
)
from sklearn_sharpbalance.evaluation._table import Table
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests.cases import rest_slow
from tests.evaluation.browser import CHROMIUM, DESKTOP, IMAGES, PHONE, WIDTHS, Browser
from tests.evaluation.fake import Fake, Single, made_up

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NAMES = ["plain", "a|b", "<i>lone</i> & co"]
# Ranking, accuracy, reliability, diversity, trade-off, two of corruption, OOD.
N_FIGURES = 8


@pytest.fixture(scope="module")
def report():
    """Return a report with every kind of number, of methods with awkward names."""
    p, y, X = made_up(0, n_samples=80)
    q = made_up(1, n_samples=80)[0]
    methods = {
        NAMES[0]: [Fake(p, logits=np.log(p)), Fake(q, logits=np.log(q))],
        NAMES[1]: [Fake(q, logits=np.log(q)), Fake(q, logits=np.log(q))],
        NAMES[2]: [Single(p[0]), Single(q[0])],
    }
    sets = {("fog", s): (X[::-1], y) for s in (1, 2)}
    sets |= {("snow", s): (X, y) for s in (1, 2)}
    report = evaluate(
        methods,
        X[:60],
        y[:60],
        ood=X[60:],
        corruptions=sets,
        severities=(1, 2),
        sharpness=lambda e, X, y: e.predict_proba(X).max(),
        n_bootstrap=60,
    )
    report.ranking = report.rank("nll")
    return report


@pytest.fixture(scope="module")
def html(report):
    return report.to_html(title="A < B")


def parse_markdown(text):
    """Return the header and rows of a Markdown table."""
    lines = text.splitlines()
    cut = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    clean = [[c.strip().replace("\\|", "|") for c in row] for row in cut]
    return clean[0], clean[2:]


def test_markdown_parses_back_to_the_numbers(report):
    header, rows = parse_markdown(report.to_markdown(digits=10))
    assert header == ["metric", "of", *NAMES]
    assert len(rows) == len(report.keys_)
    checked = 0
    for key, (name, part, *cells) in zip(report.keys_, rows):
        assert part == key.part
        assert key.detail in name
        for method, cell in zip(NAMES, cells):
            if cell == "–":
                assert not report.has(method, *key)
                continue
            mean, std = map(float, cell.split(" ± "))
            row = report.row(method, *key)
            assert mean == pytest.approx(row["mean"], abs=1e-8)
            assert std == pytest.approx(row["std"], abs=1e-8)
            checked += 1
    assert checked == report.n_rows


def test_markdown_shows_the_chosen_spread(report):
    cell = parse_markdown(report.to_markdown(spread="interval", digits=9))[1][0][2]
    mean, low, high = map(float, re.findall(r"[\d.]+", cell))
    row = report.row("plain", "accuracy", "members")
    expected = [row["mean"], row["low"], row["high"]]
    assert [mean, low, high] == pytest.approx(expected, abs=1e-7)
    assert " " not in parse_markdown(report.to_markdown(spread=None))[1][0][2]
    with pytest.raises(InvalidInputError, match="spread must be 'auto'"):
        report.to_markdown(spread="range")


def test_small_numbers_keep_their_digits():
    y = np.zeros(50, dtype=int)
    probas = np.tile([0.999, 0.001], (2, 50, 1))
    report = evaluate(Fake(probas), np.arange(50.0)[:, None], y, n_bootstrap=0)
    assert "| NLL ↓ | ensemble | 0.00100 |" in report.to_markdown()
    assert "-0.0" not in report.to_markdown()


def test_frame_has_the_columns_of_the_report(report):
    assert list(report) == [
        "method",
        "metric",
        "part",
        "detail",
        "mean",
        "std",
        "low",
        "high",
        "n_runs",
    ]
    frame = report.to_frame()
    assert len(frame) == report.n_rows
    assert not frame.duplicated(["method", "metric", "part", "detail"]).any()
    for name, column in report.items():
        np.testing.assert_array_equal(frame[name], column)
    wide = report.to_frame(wide=True)
    assert list(wide.columns) == NAMES
    at = ("corrupted_accuracy", "members", "severity 2")
    row = report.row("a|b", *at)
    assert wide.loc[at, "a|b"] == row["mean"]


def test_entries_of_a_table_may_be_sequences():
    for values in ([(4,), (8,)], [(4,), (8, 4)]):
        table = Table({"hidden": values, "rho": [0.1, 0.2]})
        assert table["hidden"].tolist() == values
        assert table.to_frame()["hidden"].tolist() == values


def test_to_frame_without_pandas_says_what_to_install(report, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "pandas":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="to_frame needs pandas: pip install pandas"):
        report.to_frame()


def test_missing_numbers_raise(report):
    with pytest.raises(InvalidInputError, match=r"Unknown method .x.\. The report has"):
        report.row("x", "accuracy")
    with pytest.raises(
        InvalidInputError, match="no 'recall' of the ensemble of 'plain'"
    ):
        report.row("plain", "recall")
    with pytest.raises(InvalidInputError, match="one length"):
        Table({"a": [1], "b": [1, 2]})


def test_pickled_report_is_equal(report):
    again = pickle.loads(pickle.dumps(report))
    assert again.to_markdown() == report.to_markdown()
    np.testing.assert_array_equal(again.rank()["rank_low"], report.rank()["rank_low"])


# The page ---------------------------------------------------------------------------


class Page(HTMLParser):
    """Elements and texts of a page; asserts that elements are closed in order."""

    VOID = {"meta", "img", "br"}

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.texts = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.found if name == tag]


def test_page_is_self_contained(html):
    page = Page(html)
    for tag in ("script", "link", "iframe", "object", "embed", "source", "base"):
        assert page.all(tag) == []
    for _, attrs in page.found:
        for name, value in attrs.items():
            assert not name.startswith("on")
            if name in ("src", "href", "srcset", "poster", "data", "action", "style"):
                assert value.startswith("data:")
    bare = re.sub(r'src="data:[^"]*"', "", html)
    assert "//" not in bare
    assert "url(" not in bare
    assert "@import" not in bare


def test_every_picture_is_a_png_with_alt_text(html):
    pictures = Page(html).all("img")
    assert len(pictures) == N_FIGURES
    for attrs in pictures:
        kind, _, data = attrs["src"].partition(",")
        assert kind == "data:image/png;base64"
        with Image.open(BytesIO(base64.b64decode(data, validate=True))) as image:
            pixels = np.asarray(image.convert("L"))
        assert pixels.shape[1] > 800
        assert pixels.min() < 100  # something is drawn
        assert len(attrs["alt"]) > 20


def test_page_has_every_number_and_escapes_names(report, html):
    page = Page(html)
    words = " ".join(page.texts)
    assert page.all("i") == []
    for name in (*NAMES, "A < B"):
        assert name in words
    rows = [row for row in zip(report["method"], report["metric"]) if row[1] == "nll"]
    assert len(rows) == 5  # one for the single classifier
    parts = [(m, p) for m in NAMES for p in ("members", "ensemble")]
    for method, part in parts[:4] + parts[5:]:
        assert f"{report.row(method, 'nll', part)['mean']:.2f}" in words
    assert page.all("meta")[1]["name"] == "viewport"


def test_best_values_are_shaded(report, html):
    head = html.index("Accuracy and calibration")
    body = html[head : html.index("</table>", head)].split("<tbody>")[1]
    rows = [re.findall(r"<td([^>]*)>", row) for row in body.split("</tr>")[:3]]
    nll = [report.row(name, "nll")["mean"] for name in NAMES]
    marked = ["best" in row[3] for row in rows]  # accuracy, NLL: members, ensemble
    assert marked == [value == min(nll) for value in nll]


def test_page_is_written_without_changing_pyplot(report, html, tmp_path):
    import matplotlib.pyplot as plt

    before, backend = plt.get_fignums(), mpl.get_backend()
    path = tmp_path / "report.html"
    text = report.to_html(path, title="A < B")
    assert path.read_text(encoding="utf-8") == text
    assert text == html  # the page does not depend on the time
    assert (plt.get_fignums(), mpl.get_backend()) == (before, backend)


def test_page_of_a_small_report():
    probas, y, X = made_up(0)
    page = Page(evaluate(Single(probas[0]), X, y, n_bootstrap=0).to_html())
    assert len(page.all("img")) == 2  # accuracy and reliability
    fragment = evaluate(Fake(probas), X, y, n_bootstrap=0)._repr_html_()
    assert Page(fragment).all("img") == []
    assert "DER" in fragment


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_page_in_a_real_browser(html, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(html, encoding="utf-8")
    with Browser() as browser:
        for screen in (PHONE, DESKTOP):
            browser.open(path, screen)
            assert browser.complaints() == []
            assert browser.requests() == [path.as_uri()]
            images = browser.evaluate(IMAGES)
            assert len(images) == N_FIGURES
            for image in images:
                assert image["loaded"]
                assert image["shown"]
                assert 300 < image["width"] <= screen["width"]
                assert image["height"] > 100
            wide, window = browser.evaluate(WIDTHS)
            assert wide <= window  # the page is not wider than the screen


def test_long_names_stay_inside_the_figures():
    p, y, X = made_up(0, n_samples=80)
    names = [
        f"SharpBalanceEnsembleClassifier(rho=0.05, flat_ratio=0.{i})" for i in "12"
    ]
    sets = {(kind, 1): (X, y) for kind in ("fog", "snow")}
    found = evaluate(
        {name: Fake(p) for name in names},
        X,
        y,
        corruptions=sets,
        severities=1,
        n_bootstrap=20,
    )
    found.ranking = found.rank("nll")
    for draw in (
        draw_ranking,
        draw_accuracy,
        draw_reliability,
        draw_diversity,
        draw_severities,
        draw_kinds,
    ):
        figure = draw(found)[2]
        figure.draw_without_rendering()
        tight = figure.get_tightbbox()  # of everything drawn, in inches
        assert tight.x0 > -0.02
        assert tight.x1 < figure.get_figwidth() + 0.02
        labels = [ax.xaxis.label.get_window_extent() for ax in figure.axes]
        assert all(a.x1 < b.x0 for a, b in pairwise(labels[:2]) if a.width and b.width)


def test_reliability_fills_its_axes():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=400)
    confidence = rng.uniform(0.82, 1, size=400)
    right = rng.random(400) < 0.93
    label = np.where(right, y, 1 - y)
    p = np.where(np.arange(2) == label[:, None], confidence[:, None], 0)
    p[np.arange(400), 1 - label] = 1 - confidence
    X = np.arange(400.0)[:, None]
    found = evaluate({"a": Fake(p[None])}, X, y, n_bootstrap=20)
    (ax,) = draw_reliability(found)[2].axes
    low, high = ax.get_xlim()
    assert (low, high) == ax.get_ylim()
    assert low >= 0.6
    assert high == 1
    for line in ax.lines:
        if line.get_gid() == "reliability":
            assert (line.get_xydata() >= low).all()


@pytest.mark.parametrize("n_methods", rest_slow([3, 1]))
def test_names_of_several_lines_do_not_overlap(n_methods):
    p, y, X = made_up(0, n_samples=80)
    long = "An ensemble whose settings are all listed, one after another, number"
    found = evaluate(
        {f"{long} {i}": Fake(p) for i in range(n_methods)},
        X,
        y,
        ood={"test pictures of another kind": X[:9], "noise": X[9:]},
        n_bootstrap=20,
    )
    found.ranking = found.rank("nll")
    functions = [draw_accuracy, draw_diversity, draw_foreign]
    if n_methods > 1:
        functions.append(draw_ranking)
    for draw in functions:
        figure = draw(found)[2]
        figure.draw_without_rendering()
        names = figure.axes[0].get_yticklabels()  # from the top
        boxes = [name.get_window_extent() for name in names]
        assert all(above.y0 > below.y1 for above, below in pairwise(boxes))


def test_numbers_missing_from_a_run_are_left_out():
    p, y, X = made_up(0)
    report = evaluate({"mixed": [Fake(p), Single(p[0])]}, X, y, n_bootstrap=0)
    wide = report.to_frame(wide=True)
    assert wide["mixed"].notna().all()
    assert len(wide) == report.n_rows
    assert "–" not in report.to_markdown()
    assert "members" not in report["part"]
