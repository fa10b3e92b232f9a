"""A report as one self-contained HTML page."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from sklearn_sharpbalance.evaluation._figures import Picture, figures
from sklearn_sharpbalance.evaluation._measures import METRICS, Key
from sklearn_sharpbalance.evaluation._table import (
    decimals,
    format_number,
    format_spread,
)
from sklearn_sharpbalance.evaluation.ranking import with_interval

__all__ = ["fragment", "page"]

DIGITS = 3
# Heading, and the metrics of each of its tables.
SECTIONS: dict[str, tuple[str, list[tuple[str, ...]]]] = {
    "accuracy": (
        "Accuracy and calibration",
        [("accuracy", "nll", "brier", "ece", "aurc")],
    ),
    "diversity": (
        "Diversity and flatness",
        [("eir", "der", "disagreement", "variance", "kl", "sharpness")],
    ),
    "corruption": (
        "Corruptions",
        [("corrupted_accuracy",), ("corrupted_nll",), ("corrupted_ece",)],
    ),
    "ood": ("Foreign samples", [("ood_auroc",)]),
    "cost": ("Cost", [("epochs", "gradient_passes")]),
}
# Set all colours: a notebook may be dark, and styles its tables itself.
STYLE = """
.evaluation { font: 16px/1.5 system-ui, sans-serif; padding: .5rem 1rem; }
.evaluation, .evaluation :is(h1, h2, th, td) { color: #1b1f24; }
.evaluation, .evaluation :is(tr, th, td) { background: #fff; color-scheme: light; }
.evaluation h1 { font-size: 1.6rem; margin: 0 0 .3rem; }
.evaluation h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
.evaluation p { max-width: 44rem; margin: .4rem 0; }
.evaluation .quiet { color: #57606a; font-size: .9rem; }
.evaluation .scroll { overflow-x: auto; margin: .8rem 0; }
.evaluation table { border-collapse: collapse; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
.evaluation th, .evaluation td { padding: .35rem .6rem; text-align: right;
  border-bottom: 1px solid #d8dee4; vertical-align: top; white-space: nowrap; }
.evaluation thead th { border-bottom: 2px solid #57606a; text-align: center; }
.evaluation th.method { position: sticky; left: 0;
  text-align: left; white-space: normal; min-width: 6.5rem; }
.evaluation td.first { border-left: 1px solid #d8dee4; }
.evaluation td small { display: block; color: #57606a; }
.evaluation td.best { background: #e7f3ea; font-weight: 600; }
.evaluation td.best small { font-weight: 400; }
.evaluation .figures { display: grid; gap: 1.2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.evaluation figure { margin: 0; max-width: 34rem; }
.evaluation img { width: 100%; height: auto; display: block; }
.evaluation figcaption { font-size: .85rem; color: #57606a; }
.evaluation dt { font-weight: 600; margin-top: .5rem; }
.evaluation dd { margin: 0; max-width: 44rem; }
"""
PAGE_STYLE = "body { margin: 0 auto; max-width: 74rem; background: #fff; }"


def page(report: Any, title: str) -> str:
    """Return the whole page."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{PAGE_STYLE}{STYLE}</style>",
            "</head>",
            "<body>",
            '<main class="evaluation">',
            f"<h1>{escape(title)}</h1>",
            f'<p class="quiet">{_summary(report)}</p>',
            *_sections(report, figures(report)),
            *_glossary(report),
            "</main>",
            "</body>",
            "</html>\n",
        ]
    )


def fragment(report: Any) -> str:
    """Return tables without figures, for a notebook."""
    parts = [f'<p class="quiet">{_summary(report)}</p>', *_sections(report, [])]
    return f'<div class="evaluation"><style>{STYLE}</style>{"".join(parts)}</div>'


def _summary(report: Any) -> str:
    """Return a sentence on the methods, and on what the tables show."""
    n_runs = [len(runs) for runs in report.runs.values()]
    low, high = min(n_runs), max(n_runs)
    if high == 1:
        runs = "1 run"
        spread = (
            f"In brackets: {100 * report.confidence:g} % bootstrap interval over "
            "samples."
        )
    else:
        runs = f"{high} runs" if low == high else f"{low} to {high} runs"
        spread = "Below a mean: the standard deviation over runs."
    n_methods = len(report.methods)
    methods = "1 method" if n_methods == 1 else f"{n_methods} methods"
    return (
        f"{methods}, {runs} of each, {report.n_samples} test samples. {spread} The "
        "best value of a column is shaded."
    )


def _sections(report: Any, pictures: Sequence[Picture]) -> Iterable[str]:
    """Yield the HTML of each section that the report has numbers for."""
    if report.ranking is not None:
        yield "<section>"
        yield f"<h2>Ranking by {escape(report.ranking.metric)}</h2>"
        yield _figures([p for p in pictures if p.section == "ranking"])
        yield _ranking_table(report.ranking)
        yield "</section>"
    for name, (heading, tables) in SECTIONS.items():
        of_tables = [[k for k in report.keys_ if k.metric in table] for table in tables]
        if not any(of_tables):
            continue
        yield "<section>"
        yield f"<h2>{escape(heading)}</h2>"
        yield _figures([p for p in pictures if p.section == name])
        yield from (_table(report, keys) for keys in of_tables if keys)
        yield "</section>"


def _figures(pictures: Sequence[Picture]) -> str:
    if not pictures:
        return ""
    items = [
        f'<figure><img alt="{escape(p.caption)}" src="data:image/png;base64,{p.data}">'
        f"<figcaption>{escape(p.caption)}</figcaption></figure>"
        for p in pictures
    ]
    return f'<div class="figures">{"".join(items)}</div>'


def _table(report: Any, keys: Sequence[Key]) -> str:
    """Return a table: a row per method, members and ensemble side by side."""
    groups: dict[tuple[str, str], list[Key]] = {}
    for key in keys:
        groups.setdefault((key.metric, key.detail), []).append(key)
    top, below = ['<th rowspan="2" scope="col" class="method">Method</th>'], []
    for (metric, detail), of_group in groups.items():
        heading = escape(_heading(metric, detail))
        top.append(f'<th colspan="{len(of_group)}" scope="colgroup">{heading}</th>')
        below += [f'<th scope="col">{key.part}</th>' for key in of_group]
    rows = []
    firsts = {of_group[0] for of_group in groups.values()}
    best = {key: _best(report, key) for key in keys}
    digits = {key: _digits(report, key) for key in keys}
    for method in report.methods:
        cells = [
            _cell(
                report,
                method,
                key,
                digits=digits[key],
                is_first=key in firsts,
                is_best=method in best[key],
            )
            for key in keys
        ]
        rows.append(_row(method, cells))
    head = f"<thead><tr>{''.join(top)}</tr><tr>{''.join(below)}</tr></thead>"
    body = f"<tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll" tabindex="0"><table>{head}{body}</table></div>'


def _row(method: str, cells: Iterable[str]) -> str:
    name = f'<th scope="row" class="method">{escape(method)}</th>'
    return f"<tr>{name}{''.join(cells)}</tr>"


def _heading(metric: str, detail: str) -> str:
    """Return the heading of a column: the detail, or else the metric."""
    name = detail[:1].upper() + detail[1:] if detail else METRICS[metric].label
    return name + METRICS[metric].arrow


def _cell(
    report: Any, method: str, key: Key, *, digits: int, is_first: bool, is_best: bool
) -> str:
    classes = []
    if is_first:
        classes.append("first")
    if is_best:
        classes.append("best")
    attribute = f' class="{" ".join(classes)}"' if classes else ""
    if not report.has(method, **key._asdict()):
        return f"<td{attribute}>–</td>"
    row = report.row(method, **key._asdict())
    spread = format_spread(row, digits, "auto")
    small = f"<small>{escape(spread)}</small>" if spread else ""
    return f"<td{attribute}>{format_number(row['mean'], digits)}{small}</td>"


def _digits(report: Any, key: Key) -> int:
    """Return the number of decimals of a column."""
    methods = [
        method for method in report.methods if report.has(method, **key._asdict())
    ]
    rows = [report.row(method, **key._asdict()) for method in methods]
    return decimals([row["mean"] for row in rows], DIGITS)


def _best(report: Any, key: Key) -> set[str]:
    """Return the methods with the best value of a column; none if all are equal."""
    better = METRICS[key.metric].better
    methods = [
        method for method in report.methods if report.has(method, **key._asdict())
    ]
    if better == 0 or len(methods) < 2:
        return set()
    scores = {m: better * report.row(m, **key._asdict())["mean"] for m in methods}
    top = np.max(list(scores.values()))  # NaN, and so no best method, if one is NaN
    best = {method for method, score in scores.items() if score == top}
    return best if len(best) < len(methods) else set()


def _ranking_table(ranking: Any) -> str:
    heads = ["Mean", "Mean rank", "Difference to the best", "Best in"]
    digits = decimals(ranking["mean"], DIGITS)
    rows = []
    for i in range(ranking.n_rows):
        rank = _number_and_interval(with_interval(ranking, "rank", i), 2)
        difference = "–"
        if i > 0:
            row = with_interval(ranking, "difference", i)
            difference = _number_and_interval(row, digits)
        share = ranking["best_share"][i]
        best = "–" if np.isnan(share) else f"{100 * share:.0f} % of draws"
        mean = format_number(ranking["mean"][i], digits)
        cells = [f"<td>{text}</td>" for text in (mean, rank, difference, best)]
        rows.append(_row(str(ranking["method"][i]), cells))
    head = '<th scope="col" class="method">Method</th>'
    head += "".join(f'<th scope="col">{name}</th>' for name in heads)
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _number_and_interval(row: dict[str, float], digits: int) -> str:
    number = format_number(row["mean"], digits)
    interval = format_spread(row, digits, "interval")
    return f"{number}<small>{interval}</small>" if interval else number


def _glossary(report: Any) -> Iterable[str]:
    yield "<section><h2>What the numbers mean</h2><dl>"
    for name in dict.fromkeys(key.metric for key in report.keys_):
        metric = METRICS[name]
        better = {1: " Larger is better.", -1: " Smaller is better.", 0: ""}
        text = escape(metric.meaning + better[metric.better])
        yield f"<dt>{escape(metric.label)}</dt><dd>{text}</dd>"
    yield (
        "</dl><p>Members: the mean of their own values. Intervals come from draws of "
        "the test samples with replacement, the same for all methods. They do not "
        "account for other trainings; the standard deviation over runs does.</p>"
        "</section>"
    )
