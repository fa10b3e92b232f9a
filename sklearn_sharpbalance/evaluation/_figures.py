"""The figures of a report, as PNG files in memory."""

import base64
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np

from sklearn_sharpbalance.evaluation._dots import (
    Dot,
    axes,
    draw_dots,
    height,
    method_axis,
    row_dots,
)
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
    wrapped,
)

__all__ = ["Picture", "figures"]

DPI = 170
FEW = 10  # samples of a bin, below which its accuracy is mostly chance


class Picture(NamedTuple):
    """A figure of the page."""

    section: str
    caption: str
    data: str  # base64 of a PNG file


def figures(report: Any) -> list[Picture]:
    """All figures that the report has numbers for."""
    makers: list[Callable[[Any], Any]] = [
        _ranking,
        _accuracy,
        _reliability,
        _diversity,
        _tradeoff,
        _severities,
        _kinds,
        _foreign,
    ]
    pictures = []
    for make in makers:
        made = make(report)
        if made is not None:
            section, caption, figure = made
            pictures.append(Picture(section, caption, _png(figure)))
    return pictures


def _png(figure: Any) -> str:
    buffer = BytesIO()
    # Without the date and version, equal reports are equal files.
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _interval_text(report: Any) -> str:
    return f"{100 * report.confidence:g} % bootstrap intervals over samples"


def _accuracy(report: Any) -> Any:
    figure, ax = axes(height(report.methods))
    members = list(row_dots(report, "accuracy", "members", "", 0.14))
    ensembles = list(row_dots(report, "accuracy", "ensemble", "", -0.14))
    handles = [draw_dots(ax, ensembles, colour(0, ax))]
    if members:
        handles.insert(0, draw_dots(ax, members, colour(0, ax), filled=False))
    method_axis(ax, report.methods)
    ax.set_xlabel("Accuracy")
    legend_above(ax, handles, ["mean of the members", "ensemble"][-len(handles) :])
    caption = f"Accuracy of members and ensemble, with {_interval_text(report)}."
    return "accuracy", caption, figure


def _reliability(report: Any) -> Any:
    if not report.calibration:
        return None
    figure, ax = axes(5.0)
    for method, bins in report.calibration.items():
        enough = bins.counts >= min(FEW, bins.counts.max())
        ReliabilityDisplay(
            bins.confidence,
            bins.accuracy,
            np.where(enough, bins.counts, 0),
            bins.edges,
            ece=report.row(method, "ece")["mean"],
            name=method,
        ).plot(ax, kind="line")
    caption = (
        "Reliability of the ensembles: a calibrated one lies on the diagonal, an "
        f"over-confident one below it. Bins of fewer than {FEW} samples are left out."
    )
    return "accuracy", caption, figure


def _diversity(report: Any) -> Any:
    if not any(report.has(method, "der") for method in report.methods):
        return None
    figure, panels = axes(height(report.methods), 2)
    names = {"der": "Disagreement over error (DER)", "eir": "Improvement (EIR)"}
    for ax, (metric, name) in zip(panels, names.items()):
        draw_dots(ax, list(row_dots(report, metric, "ensemble", "")), colour(2, ax))
        method_axis(ax, report.methods)
        ax.set_xlabel(wrapped(name, 18), fontsize=9)
    caption = (
        "Diversity of the members, and the share of their error that it removes, with "
        f"{_interval_text(report)}."
    )
    return "diversity", caption, figure


def _tradeoff(report: Any) -> Any:
    names = [
        m
        for m in report.methods
        if report.has(m, "sharpness", "members") and report.has(m, "der")
    ]
    if len(names) < 2:
        return None
    figure, ax = axes(4.0)
    TradeoffDisplay(
        [report.row(m, "sharpness", "members")["mean"] for m in names],
        [report.row(m, "der")["mean"] for m in names],
        color=[report.row(m, "accuracy")["mean"] for m in names],
        labels=names,
        sharpness_name="Sharpness of a member",
        diversity_name="Disagreement-error ratio (DER)",
        color_name="Accuracy of the ensemble",
    ).plot(ax, fit=False)
    caption = "The trade-off: flat members are to the left, diverse ones at the top."
    return "diversity", caption, figure


def _severities(report: Any) -> Any:
    if not report.corruption:
        return None
    methods = list(report.corruption)
    runs = [report.corruption[method] for method in methods]
    figure, ax = axes(4.0)
    CorruptionDisplay(
        [np.mean([run.by_severity for run in rs], axis=0) for rs in runs],
        member_accuracy=[
            np.mean([run.member_by_severity for run in rs], axis=0) for rs in runs
        ],
        severities=runs[0][0].severities,
        names=methods,
    ).plot(ax)
    caption = "Accuracy by severity of the corruption, mean over its kinds."
    return "corruption", caption, figure


def _kinds(report: Any) -> Any:
    if (
        not report.corruption
        or len(next(iter(report.corruption.values()))[0].kinds) < 2
    ):
        return None
    methods = list(report.corruption)
    kinds = report.corruption[methods[0]][0].kinds
    table = np.stack(
        [
            np.mean([run.by_kind for run in report.corruption[method]], axis=0)
            for method in methods
        ],
        axis=1,
    )  # (K, methods)
    figure, ax = axes(1.4 + 0.33 * len(kinds))
    image = ax.imshow(table, aspect="auto", cmap=SEQUENTIAL)
    for i, j in np.ndindex(table.shape):
        light = image.norm(table[i, j]) > 0.6
        look = {"color": "black" if light else "white", "fontsize": 9}
        ax.text(j, i, f"{100 * table[i, j]:.1f}", ha="center", va="center", **look)
    ax.set_yticks(range(len(kinds)), labels=[kind.replace("_", " ") for kind in kinds])
    turned = max(map(len, methods)) * len(methods) > 36
    turn = {"rotation": 35, "ha": "left", "rotation_mode": "anchor"} if turned else {}
    names = [m if len(m) <= 30 else f"{m[:29]}…" for m in methods]
    ax.set_xticks(range(len(methods)), labels=names, fontsize=9, **turn)
    ax.tick_params(top=True, bottom=False, labeltop=True, labelbottom=False)
    caption = (
        "Accuracy (%) of the ensembles by kind of corruption, mean over severities."
    )
    return "corruption", caption, figure


def _foreign(report: Any) -> Any:
    details = list(
        dict.fromkeys(k.detail for k in report.keys_ if k.metric == "ood_auroc")
    )
    if not details:
        return None
    figure, ax = axes(height(details, least=0.16 * (1 + len(report.methods))))
    n, handles = len(report.methods), []
    for k, method in enumerate(report.methods):
        shift = 0.7 * ((k + 0.5) / n - 0.5)
        members = _score_dots(report, method, "members", details, shift)
        draw_dots(ax, members, colour(k, ax), marker(k), filled=False)
        ensemble = _score_dots(report, method, "ensemble", details, shift)
        handles.append(draw_dots(ax, ensemble, colour(k, ax), marker(k)))
    method_axis(ax, details)
    ax.set_xlabel("AUROC")
    legend_above(ax, handles, report.methods)
    caption = (
        "Telling foreign samples from known ones by each score: ensembles filled, with "
        f"{_interval_text(report)}; the mean of their members hollow."
    )
    return "ood", caption, figure


def _score_dots(
    report: Any, method: str, part: str, details: Sequence[str], shift: float
) -> list[Dot]:
    """AUROC of each score; intervals for the ensemble only, or lines would overlap."""
    found = []
    for i, detail in enumerate(details):
        if report.has(method, "ood_auroc", part, detail):
            row = report.row(method, "ood_auroc", part, detail)
            hidden = np.nan if part == "members" else 0.0
            low, high = row["low"] + hidden, row["high"] + hidden
            found.append(Dot(i + shift, row["mean"], low, high))
    return found


def _ranking(report: Any) -> Any:
    ranking = report.ranking
    if ranking is None or ranking.n_rows < 2:
        return None
    methods = ranking["method"].tolist()
    figure, panels = axes(height(methods), 2)
    names = {"rank": "Mean rank", "difference": "Difference to the best"}
    for ax, (column, name) in zip(panels, names.items()):
        ends = (ranking[column], ranking[f"{column}_low"], ranking[f"{column}_high"])
        rows = [Dot(i, *row) for i, row in enumerate(zip(*ends))]
        if column == "difference":
            ax.axvline(0, color="0.6", lw=1)
        draw_dots(ax, rows, colour(3, ax))
        method_axis(ax, methods)
        ax.set_xlabel(wrapped(name, 14), fontsize=9)  # a power of ten stands beside it
    caption = (
        f"Methods by {ranking.metric}: mean rank over runs, and paired difference to "
        f"the best, with {100 * report.confidence:g} % intervals over runs and samples."
    )
    return "ranking", caption, figure
