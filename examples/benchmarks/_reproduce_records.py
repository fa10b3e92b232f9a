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
    "has_costs",
    "interval",
    "is_sweep",
    "mean",
    "over_its_cost",
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


def at_its_cost(records, record, metric):
    """What deep ensembles of a record's seed reach for as many passes.

    Between one that costs less and one that costs more it is a straight line; nan if
    there are no two such.
    """
    found = {
        other["passes"]: other[metric]
        for other in records
        if other["method"] == BASELINE and other["seed"] == record["seed"]
    }
    cheapest, dearest = min(found, default=0), max(found, default=0)
    # The passes of the selections vary by some of a thousand from seed to seed.
    if cheapest == dearest or not 0.99 * cheapest <= record["passes"] <= 1.01 * dearest:
        return np.nan
    passes = sorted(found)
    return float(np.interp(record["passes"], passes, [found[p] for p in passes]))


def over_its_cost(records, runs, metric):
    """Mean difference to deep ensembles of the same cost, and half of its interval."""
    gains = [run[metric] - at_its_cost(records, run, metric) for run in runs.values()]
    return interval(np.array(gains)[~np.isnan(gains)])


def has_costs(records):
    """Whether deep ensembles of several costs were trained."""
    costs = {record["passes"] for record in records if record["method"] == BASELINE}
    return len(costs) > 1


def mean(runs, name):
    """Over seeds; nan where a record lacks it, as older ones do."""
    return float(np.mean([record.get(name, np.nan) for record in runs.values()]))


def are_sizes(records):
    return all(record["group"].endswith(" members") for record in records)


def is_sweep(records):
    return all(re.search(r", rho [\d.]+$", record["method"]) for record in records)
