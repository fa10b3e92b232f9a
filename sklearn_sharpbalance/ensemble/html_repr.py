"""HTML summary of a fitted ensemble for notebooks."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

__all__ = ["fitted_summary_html"]

MAX_MEMBERS = 12  # rows; only the first members of a larger ensemble are shown
MAX_REASON = 300  # characters
TOGETHER = ("stacked", "graph", "modules")  # engines in which members share an epoch

# Inline, because scikit-learn's style applies to the ids of its own diagram only.
BOX = (
    "max-width:100%;overflow-x:auto;font-family:monospace;font-size:0.9em;"
    "line-height:1.4;margin-top:0.4em"
)
CELL = "text-align:right;padding:0.1em 0.8em 0.1em 0"
TEXT = "max-width:60em;white-space:normal;overflow-wrap:anywhere;margin:0.2em 0"


def fitted_summary_html(estimator: Any) -> str:
    """Return the state of a fitted ensemble as a small table; "" if it is not fitted.

    It has a line on the ensemble, on its engine and on its settings, a row per member,
    and no script. It is as wide as the page at most.
    """
    history = getattr(estimator, "history_", None)
    if not history:
        return ""
    shown = history[:MAX_MEMBERS]
    lines = [_ensemble_line(estimator), _engine_line(estimator)]
    lines.append(_settings_text(estimator.settings_))
    if len(shown) < len(history):
        lines.append(f"The first {len(shown)} of {len(history)} members:")
    text = "".join(f'<p style="{TEXT}">{escape(line)}</p>' for line in lines if line)
    table = _table_html(_columns(estimator, shown))
    return (
        f'<details open class="sharpbalance-fitted" style="{BOX}">'
        f"<summary>Fitted ensemble</summary>{text}{table}</details>"
    )


def _ensemble_line(estimator) -> str:
    parts = [
        f"{len(estimator.history_)} members",
        f"{len(estimator.classes_)} classes",
        f"{len(estimator.train_indices_)} training samples",
        f"{estimator.n_iter_} epochs",
    ]
    scores = getattr(estimator, "validation_scores_", None)
    if scores is not None and len(scores):
        kept = max(map(len, estimator.history_))  # epochs
        score = scores[kept - 1]
        parts.append(f"ensemble {score:.4f} on held-out samples in epoch {kept}")
    return ", ".join(parts)


def _engine_line(estimator) -> str:
    choice = getattr(estimator, "engine_", None)
    if choice is None:
        return ""
    why = choice.reason
    why = why if len(why) <= MAX_REASON else why[: MAX_REASON - 1] + "…"
    together = choice.name in TOGETHER and len(estimator.history_) > 1
    note = "; members train at once and share their seconds" if together else ""
    return f"engine {choice.name!r}: {why}{note}"


def _columns(estimator, history) -> dict[str, list[str]]:
    """Return the texts of the table by column, without empty columns."""
    masks = getattr(estimator, "sam_masks_", ())
    columns = {
        "member": [str(member) for member in range(len(history))],
        "SAM share": [f"{mask.mean():.1%}" for mask in masks],
        "epochs": [str(len(records)) for records in history],
        "seconds": [_seconds(records) for records in history],
        "train loss": _last(history, "train_loss", "{:.4g}".format),
        "diversity loss": _last(history, "diversity_loss", "{:.4g}".format),
        "valid loss": _last(history, "valid_loss", "{:.4g}".format),
        "valid acc": _last(history, "valid_acc", "{:.4f}".format),
    }
    return {
        name: texts[: len(history)] for name, texts in columns.items() if any(texts)
    }


def _seconds(records: Sequence[dict]) -> str:
    seconds = [record["dur"] for record in records if "dur" in record]
    return f"{sum(seconds):.3g}" if seconds else ""


def _last(history, key: str, to_text: Callable[[float], str]) -> list[str]:
    """Return the last record of each member as text, "" if there is none."""
    return [
        to_text(records[-1][key]) if records and key in records[-1] else ""
        for records in history
    ]


def _table_html(columns: dict[str, list[str]]) -> str:
    head = "".join(f'<th style="{CELL}">{escape(name)}</th>' for name in columns)
    rows = "".join(
        "<tr>"
        + "".join(f'<td style="{CELL}">{escape(text)}</td>' for text in row)
        + "</tr>"
        for row in zip(*columns.values())
    )
    return f'<table style="border-collapse:collapse"><tr>{head}</tr>{rows}</table>'


def _settings_text(settings: dict[str, Any]) -> str:
    """Return the settings in one line."""
    parts = []
    for name, value in settings.items():
        text = f"{value:g}" if isinstance(value, float) else str(value)
        parts.append(f"{name} {text}")
    return ", ".join(parts)
