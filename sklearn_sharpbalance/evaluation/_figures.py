"""The figures of a report, as PNG files in memory."""

import base64
from collections.abc import Iterator, Sequence
from io import BytesIO
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from sklearn_sharpbalance._validation import needing
from sklearn_sharpbalance.evaluation.ranking import with_interval
from sklearn_sharpbalance.plotting import (
    CorruptionDisplay,
    ReliabilityDisplay,
    TradeoffDisplay,
)
from sklearn_sharpbalance.plotting._base import (
    SEQUENTIAL,
    colour,
    legend_above,
    marker,
    text_colour,
    tidy,
    wrapped,
)
from sklearn_sharpbalance.plotting.reliability import FEW, is_sparse

__all__ = ["Picture", "figures"]

DPI = 170
WIDTH = 5.4  # inches: text of 10 points is still readable on the width of a phone

# Section, caption and matplotlib figure; None if the report lacks the numbers.
Drawn = tuple[str, str, Any] | None


class Picture(NamedTuple):
    """A figure of the page."""

    section: str
    caption: str
    data: str  # base64 of a PNG file


class Dot(NamedTuple):
    """A value and its interval, on a horizontal line."""

    at: float  # vertical position
    value: float
    low: float
    high: float


def _dot(at: float, row: Any) -> Dot:
    """Return the dot of a row of a report."""
    return Dot(at=at, value=row["mean"], low=row["low"], high=row["high"])


def figures(report: Any) -> list[Picture]:
    """Return all figures that the report has numbers for."""
    drawn = [
        draw_ranking(report),
        draw_accuracy(report),
        draw_reliability(report),
        draw_diversity(report),
        draw_tradeoff(report),
        draw_severities(report),
        draw_kinds(report),
        draw_foreign(report),
    ]
    return [
        Picture(section, caption, _png(figure))
        for section, caption, figure in filter(None, drawn)
    ]


def _png(figure: Any) -> str:
    """Return a figure as the base64 text of a PNG file."""
    buffer = BytesIO()
    # Leave out the version of matplotlib, so that equal reports are equal files.
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _interval_text(report: Any) -> str:
    return f"{100 * report.confidence:g} % bootstrap intervals over samples"


def draw_accuracy(report: Any) -> Drawn:
    """Draw the accuracy of members and ensembles."""
    figure, ax = _axes(_height(report.methods))
    members = list(_row_dots(report, "accuracy", "members", shift=0.14))
    ensembles = list(_row_dots(report, "accuracy", "ensemble", shift=-0.14))
    handles = {}
    if members:
        dots = _draw_dots(ax, members, colour(0, ax), filled=False)
        handles["mean of the members"] = dots
    handles["ensemble"] = _draw_dots(ax, ensembles, colour(0, ax))
    _name_lines(ax, report.methods)
    ax.set_xlabel("Accuracy")
    legend_above(ax, list(handles.values()), list(handles))
    caption = f"Accuracy of members and ensemble, with {_interval_text(report)}."
    return "accuracy", caption, figure


def draw_reliability(report: Any) -> Drawn:
    """Draw the reliability of the ensembles."""
    if not report.calibration:
        return None
    figure, ax = _axes(5.0)
    lowest = 1.0
    for method, bins in report.calibration.items():
        sparse = is_sparse(bins.counts)
        drawn = (bins.counts > 0) & ~sparse
        values = np.concatenate([bins.confidence[drawn], bins.accuracy[drawn]])
        lowest = min(lowest, values.min())
        ReliabilityDisplay(
            confidence=bins.confidence,
            accuracy=bins.accuracy,
            counts=np.where(sparse, 0, bins.counts),
            edges=bins.edges,
            ece=report.row(method, "ece")["mean"],
            name=method,
        ).plot(ax, kind="line")
    # Confident predictions would fill a corner of the axes only.
    low = min(np.floor(10 * lowest) / 10, 0.9)
    ax.set(xlim=(low, 1), ylim=(low, 1))
    caption = (
        "Reliability of the ensembles: a calibrated one is on the diagonal, an "
        f"over-confident one below it. Bins of fewer than {FEW} samples are left out."
    )
    return "accuracy", caption, figure


def draw_diversity(report: Any) -> Drawn:
    """Draw diversity and improvement of the ensembles."""
    if not any(report.has(method, "der") for method in report.methods):
        return None
    figure, panels = _axes(_height(report.methods), n_columns=2)
    names = {"der": "Disagreement over error (DER)", "eir": "Improvement (EIR)"}
    for ax, (metric, name) in zip(panels, names.items()):
        dots = list(_row_dots(report, metric, "ensemble"))
        _draw_dots(ax, dots, colour(2, ax))
        _name_lines(ax, report.methods)
        ax.set_xlabel(wrapped(name, 18), fontsize=9)
    caption = (
        "Diversity of the members, and the share of their error that it removes, with "
        f"{_interval_text(report)}."
    )
    return "diversity", caption, figure


def draw_tradeoff(report: Any) -> Drawn:
    """Draw sharpness against diversity."""
    names = [
        m
        for m in report.methods
        if report.has(m, "sharpness", "members") and report.has(m, "der")
    ]
    if len(names) < 2:
        return None
    figure, ax = _axes(4.0)
    TradeoffDisplay(
        [report.row(m, "sharpness", "members")["mean"] for m in names],
        [report.row(m, "der")["mean"] for m in names],
        color=[report.row(m, "accuracy")["mean"] for m in names],
        labels=names,
        sharpness_name="Sharpness of a member",
        diversity_name="Disagreement-error ratio (DER)",
        color_name="Accuracy of the ensemble",
        sharpness_interval=_intervals(report, names, "sharpness", "members"),
        diversity_interval=_intervals(report, names, "der"),
    ).plot(ax, fit=False)
    caption = (
        "The trade-off: flat members are to the left, diverse ones at the top; with "
        f"{_interval_text(report)}."
    )
    return "diversity", caption, figure


def _intervals(report: Any, methods: Sequence[str], *key: str) -> list[tuple]:
    """Return the interval of a number of each method; NaN if it has none."""
    rows = [report.row(method, *key) for method in methods]
    return [(row["low"], row["high"]) for row in rows]


def draw_severities(report: Any) -> Drawn:
    """Draw the accuracy by severity of the corruption."""
    if not report.corruption:
        return None
    accuracy, member_accuracy = [], []
    for runs in report.corruption.values():
        accuracy.append(np.mean([run.by_severity for run in runs], axis=0))
        of_members = [run.member_by_severity for run in runs]
        member_accuracy.append(np.mean(of_members, axis=0))
    figure, ax = _axes(4.0)
    CorruptionDisplay(
        accuracy,
        member_accuracy=member_accuracy,
        severities=_first_run(report).severities,
        names=list(report.corruption),
    ).plot(ax)
    caption = "Accuracy by severity of the corruption, mean over its kinds."
    return "corruption", caption, figure


def _first_run(report: Any) -> Any:
    """Return one run on corrupted samples; all have the same kinds and severities."""
    return next(iter(report.corruption.values()))[0]


def draw_kinds(report: Any) -> Drawn:
    """Draw a matrix of the accuracy by kind of corruption and method."""
    if not report.corruption or len(_first_run(report).kinds) < 2:
        return None
    methods, kinds = list(report.corruption), _first_run(report).kinds
    columns = [
        np.mean([run.by_kind for run in runs], axis=0)
        for runs in report.corruption.values()
    ]
    accuracy = np.stack(columns, axis=1)  # (K, methods)
    figure, ax = _axes(1.4 + 0.33 * len(kinds))
    image = ax.imshow(accuracy, aspect="auto", cmap=SEQUENTIAL)
    for (i, j), value in np.ndenumerate(accuracy):
        ax.text(
            j,
            i,
            f"{100 * value:.1f}",
            ha="center",
            va="center",
            fontsize=9,
            color=text_colour(image, value),
        )
    ax.set_yticks(range(len(kinds)), labels=[kind.replace("_", " ") for kind in kinds])
    look: dict[str, Any] = {"fontsize": 9}
    if max(map(len, methods)) * len(methods) > 36:
        look |= {"rotation": 35, "ha": "left", "rotation_mode": "anchor"}
    names = [m if len(m) <= 30 else f"{m[:29]}…" for m in methods]
    ax.set_xticks(range(len(methods)), labels=names, **look)
    ax.tick_params(top=True, bottom=False, labeltop=True, labelbottom=False)
    caption = (
        "Accuracy (%) of the ensembles by kind of corruption, mean over severities."
    )
    return "corruption", caption, figure


def draw_foreign(report: Any) -> Drawn:
    """Draw the AUROC of each out-of-distribution score."""
    of_ood = [key for key in report.keys_ if key.metric == "ood_auroc"]
    details = list(dict.fromkeys(key.detail for key in of_ood))
    if not details:
        return None
    figure, ax = _axes(_height(details, least=0.16 * (1 + len(report.methods))))
    n, handles = len(report.methods), []
    for k, method in enumerate(report.methods):
        shift = 0.7 * ((k + 0.5) / n - 0.5)
        look: dict[str, Any] = {"color": colour(k, ax), "shape": marker(k)}
        members = _score_dots(
            report, method, part="members", details=details, shift=shift
        )
        # Intervals of the members would cover those of the ensemble.
        members = [dot._replace(low=np.nan, high=np.nan) for dot in members]
        _draw_dots(ax, members, filled=False, **look)
        ensemble = _score_dots(
            report, method, part="ensemble", details=details, shift=shift
        )
        handles.append(_draw_dots(ax, ensemble, **look))
    _name_lines(ax, details)
    ax.set_xlabel("AUROC")
    legend_above(ax, handles, report.methods)
    caption = (
        "Detection of foreign samples by each score: ensembles filled, with "
        f"{_interval_text(report)}; the mean of their members hollow."
    )
    return "ood", caption, figure


def _score_dots(
    report: Any, method: str, part: str, details: Sequence[str], *, shift: float
) -> list[Dot]:
    """Return the AUROC of each score that a method has."""
    dots = []
    for i, detail in enumerate(details):
        if report.has(method, "ood_auroc", part=part, detail=detail):
            row = report.row(method, "ood_auroc", part=part, detail=detail)
            dots.append(_dot(i + shift, row))
    return dots


def draw_ranking(report: Any) -> Drawn:
    """Draw mean ranks and differences to the best method."""
    ranking = report.ranking
    if ranking is None or ranking.n_rows < 2:
        return None
    methods = ranking["method"].tolist()
    figure, panels = _axes(_height(methods), n_columns=2)
    names = {"rank": "Mean rank", "difference": "Difference to the best"}
    for ax, (column, name) in zip(panels, names.items()):
        rows = [with_interval(ranking, column, i) for i in range(len(methods))]
        dots = [_dot(i, row) for i, row in enumerate(rows)]
        if column == "difference":
            ax.axvline(0, color="0.6", lw=1)
        _draw_dots(ax, dots, colour(3, ax))
        _name_lines(ax, methods)
        ax.set_xlabel(wrapped(name, 14), fontsize=9)  # leave room for a power of ten
    caption = (
        f"Methods by {ranking.metric}: mean rank over runs, and paired difference to "
        f"the best, with {100 * report.confidence:g} % intervals over runs and samples."
    )
    return "ranking", caption, figure


def _axes(height: float, n_columns: int = 1) -> tuple[Any, Any]:
    """Return a new figure and its axes, without changing the state of pyplot."""
    with needing("matplotlib", "A figure of a report"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(1, n_columns, sharey=n_columns > 1)


def _height(names: Sequence[str], least: float = 0.42) -> float:
    """Return the height in inches of a figure with a line of dots for each name."""
    n_lines = max(_wrapped(name).count("\n") + 1 for name in names)  # of text
    return 1.3 + len(names) * max(least, 0.08 + 0.17 * n_lines)


def _draw_dots(
    ax: Any, dots: Sequence[Dot], color: str, *, shape: str = "o", filled: bool = True
) -> Any:
    """Draw values with their intervals, and return the scatter of the values."""
    for dot in dots:
        if not np.isnan(dot.low):
            ax.plot([dot.low, dot.high], [dot.at] * 2, color=color, lw=1.6, alpha=0.7)
    return ax.scatter(
        [dot.value for dot in dots],
        [dot.at for dot in dots],
        s=48,
        marker=shape,
        facecolors=color if filled else "white",
        edgecolors=color,
        linewidths=1.4,
        zorder=3,
    )


def _row_dots(
    report: Any, metric: str, part: str, *, shift: float = 0.0
) -> Iterator[Dot]:
    """Yield one number of each method that has it."""
    for i, method in enumerate(report.methods):
        if report.has(method, metric, part):
            row = report.row(method, metric, part)
            yield _dot(i + shift, row)


def _name_lines(ax: Any, names: Sequence[str]) -> None:
    """Write the names of the lines on the vertical axis, the first at the top."""
    ax.set_yticks(range(len(names)), labels=[_wrapped(name) for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)
    tidy(ax, grid="x")


def _wrapped(name: str) -> str:
    """Return a name in short lines; words as long as a class name stay whole."""
    if "$" in name:
        return name
    short = fill(name, 18, break_long_words=False)
    return short if max(map(len, short.split("\n"))) <= 30 else fill(name, 30)
