"""Numbers of a report as text."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sklearn_sharpbalance.evaluation._measures import METRICS, Key
from sklearn_sharpbalance.evaluation._table import number

__all__ = ["decimals", "format_cell", "label", "spread_of"]


def label(key: Key) -> str:
    """Name of a number, with the better direction."""
    metric = METRICS[key.metric]
    if not key.detail:
        return metric.arrow
    return metric._replace(label=f"{metric.label}, {key.detail}").arrow


def decimals(means: Iterable[float], digits: int) -> int:
    """Decimals that show the smallest of some numbers with so many digits.

    Examples
    --------
    >>> decimals([0.95, 0.9], 3), decimals([0.0123], 3), decimals([150.0], 3)
    (3, 4, 1)
    """
    sizes = [abs(mean) for mean in means if np.isfinite(mean) and mean != 0]
    if not sizes:
        return digits
    wanted = digits - 1 - int(np.floor(np.log10(min(sizes))))
    return min(max(wanted, 1), digits + 2)


def format_cell(row: Mapping[str, Any], places: int, spread: str | None) -> str:
    """Mean and spread as text."""
    mean = number(row["mean"], places)
    beside = spread_of(row, places, spread)
    return f"{mean} {beside}" if beside else mean


def spread_of(row: Mapping[str, Any], places: int, spread: str | None) -> str:
    """The spread alone; empty where there is none."""
    if spread == "auto":
        spread = "std" if row["n_runs"] > 1 else "interval"
    if spread == "std" and not np.isnan(row["std"]):
        return f"± {number(row['std'], places)}"
    if spread == "interval" and not np.isnan(row["low"]):
        return f"[{number(row['low'], places)}, {number(row['high'], places)}]"
    return ""
