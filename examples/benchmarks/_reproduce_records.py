"""Records of a reproduction: by group and method, with paired differences."""

import re

import numpy as np
from _reproduce_methods import BASELINE
from scipy import stats

__all__ = [
    "are_sizes",
    "by_method",
    "differences",
    "groups",
    "interval",
    "is_sweep",
    "mean",
]


def groups(records):
    return list(dict.fromkeys(record["group"] for record in records))


def by_method(records, group):
    """{method: {seed: record}} in the order of training."""
    table = {}
    for record in records:
        if record["group"] == group:
            table.setdefault(record["method"], {})[record["seed"]] = record
    return table


def differences(methods, method, metric, other=BASELINE, confidence=0.95):
    """Mean paired difference to another method, and half of its interval.

    The interval is Student's over the seeds that both have; nan for a single one.
    """
    both = sorted(methods[method].keys() & methods.get(other, {}).keys())
    values = np.array(
        [methods[method][s][metric] - methods[other][s][metric] for s in both]
    )
    return interval(values, confidence)


def interval(values, confidence=0.95):
    """Mean and half of its interval (Student); nan where there are too few."""
    if len(values) == 0:
        return np.nan, np.nan
    if len(values) == 1:
        return float(values[0]), np.nan
    spread = values.std(ddof=1) / np.sqrt(len(values))
    return values.mean(), stats.t.ppf((1 + confidence) / 2, len(values) - 1) * spread


def mean(runs, name):
    return float(np.mean([record[name] for record in runs.values()]))


def are_sizes(records):
    return all(record["group"].endswith(" members") for record in records)


def is_sweep(records):
    return all(re.search(r", rho [\d.]+$", record["method"]) for record in records)
