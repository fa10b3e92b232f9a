"""Records of a reproduction: by group and method, with differences and intervals.

A run of ten seeds or more has paired Student intervals: they allow each pair of methods
a noise of its own. A run of fewer seeds pools the noise of all its methods, since two
degrees of freedom estimate no standard deviation.
"""

import re
from typing import NamedTuple

import numpy as np
from _reproduce_methods import BASELINE, CONTEST, SAME_COST, radii_to_try, with_rho
from scipy import stats
from sklearn.preprocessing import OneHotEncoder

__all__ = [
    "FEW_SEEDS",
    "Difference",
    "Noise",
    "are_controls",
    "are_heads",
    "are_sizes",
    "at_equal_cost",
    "by_method",
    "chosen_on_other_seeds",
    "chosen_radii",
    "difference",
    "distinct",
    "groups",
    "has_costs",
    "holm",
    "interval",
    "is_contest",
    "is_sweep",
    "jackknife",
    "level",
    "log_slope",
    "mean",
    "noise_of",
    "seeds_of_run",
]

FEW_SEEDS = 10  # from here on intervals are paired
FEWEST_DOF = 4  # with fewer degrees of freedom there are no intervals


class Difference(NamedTuple):
    """A mean difference, half of its interval, and the p-value of no difference."""

    mean: float
    half: float
    p_value: float


class Noise(NamedTuple):
    """Standard deviation of an ensemble about method + seed, with its freedom."""

    sd: float
    dof: int


def groups(records):
    return list(dict.fromkeys(record["group"] for record in records))


def by_method(records, group):
    """{method: {seed: record}} in the order of training."""
    table = {}
    for record in records:
        if record["group"] == group:
            table.setdefault(record["method"], {})[record["seed"]] = record
    return table


def seeds_of_run(records):
    return sorted({record["seed"] for record in records})


def distinct(records):
    """{(group, method): {seed: record}} without the second name of an ensemble."""
    rows, seen = {}, {}
    for record in records:
        own = {k: v for k, v in record.items() if k not in ("group", "method")}
        of_seed = seen.setdefault(record["seed"], [])
        if own not in of_seed:
            of_seed.append(own)
            name = record["group"], record["method"]
            rows.setdefault(name, {})[record["seed"]] = record
    return rows


def noise_of(records, metric):
    """Pooled noise of a run: residuals of method + seed, over all its ensembles.

    A least-squares fit, since methods may lack seeds. An ensemble with a name in two
    groups counts once.
    """
    methods, seeds, values = [], [], []
    for i, runs in enumerate(distinct(records).values()):
        for seed, record in runs.items():
            if metric in record:
                methods.append(i)
                seeds.append(seed)
                values.append(record[metric])
    if not values:
        return Noise(np.nan, 0)
    design = OneHotEncoder(sparse_output=False).fit_transform(
        np.column_stack([methods, seeds])
    )  # (ensembles, methods + seeds)
    effects, _, rank, _ = np.linalg.lstsq(design, np.array(values), rcond=None)
    dof = len(values) - int(rank)
    if dof < FEWEST_DOF:
        return Noise(np.nan, 0)
    residuals = values - design @ effects
    return Noise(float(np.sqrt((residuals**2).sum() / dof)), dof)


def interval(values, confidence=0.95):
    """Mean and half of its interval (Student); nan where there are too few."""
    if len(values) == 0:
        return np.nan, np.nan
    if len(values) == 1:
        return float(values[0]), np.nan
    spread = values.std(ddof=1) / np.sqrt(len(values))
    return values.mean(), stats.t.ppf((1 + confidence) / 2, len(values) - 1) * spread


def student(values, confidence=0.95):
    """Difference from paired values alone."""
    center, half = interval(values, confidence)
    if np.isnan(half):
        return Difference(center, half, np.nan)
    dof = len(values) - 1
    error = half / stats.t.ppf((1 + confidence) / 2, dof)
    with np.errstate(divide="ignore", invalid="ignore"):
        p_value = 2 * stats.t.sf(np.abs(np.float64(center) / error), dof)
    return Difference(float(center), float(half), float(p_value))


def pooled(values, squares, noise, confidence=0.95):
    """Difference by a run's noise; ``squares`` is the sum of the squared weights."""
    if len(values) == 0 or noise.dof == 0:
        center = float(np.mean(values)) if len(values) else np.nan
        return Difference(center, np.nan, np.nan)
    error = noise.sd * np.sqrt(squares / len(values))
    half = stats.t.ppf((1 + confidence) / 2, noise.dof) * error
    center = float(np.mean(values))
    with np.errstate(divide="ignore", invalid="ignore"):
        p_value = 2 * stats.t.sf(np.abs(np.float64(center) / error), noise.dof)
    return Difference(center, float(half), float(p_value))


def difference(records, runs, others, metric):
    """``runs`` minus ``others``, both {seed: record}, over the seeds they share."""
    shared = [
        seed
        for seed in sorted(runs.keys() & others.keys())
        if metric in runs[seed] and metric in others[seed]
    ]
    values = np.array([runs[seed][metric] - others[seed][metric] for seed in shared])
    if len(seeds_of_run(records)) >= FEW_SEEDS:
        return student(values)
    return pooled(values, 2, noise_of(records, metric))


def level(records, runs, metric):
    """Mean of ``runs``, {seed: record}; the half of its interval as of a difference.

    Records without the metric, as older ones are, do not count; nan where none has it.
    """
    values = np.array([run[metric] for run in runs.values() if metric in run])
    if len(seeds_of_run(records)) >= FEW_SEEDS:
        return student(values)
    return pooled(values, 1, noise_of(records, metric))


def at_its_cost(records, record, metric):
    """What deep ensembles of a record's seed reach for as many passes.

    Between one that costs less and one that costs more it is a straight line. Returns
    the value and the sum of the squared weights of the two; nan if there are no two.
    """
    found = {
        other["passes"]: other[metric]
        for other in records
        if other["method"] == BASELINE
        and other["seed"] == record["seed"]
        and metric in other
    }
    cheapest, dearest = min(found, default=0), max(found, default=0)
    # The passes of the selections vary by some of a thousand from seed to seed.
    if cheapest == dearest or not 0.99 * cheapest <= record["passes"] <= 1.01 * dearest:
        return np.nan, np.nan
    passes = sorted(found)
    value = np.interp(record["passes"], passes, [found[p] for p in passes])
    weights = [np.interp(record["passes"], passes, row) for row in np.eye(len(passes))]
    return float(value), float(np.sum(np.square(weights)))


def at_equal_cost(records, runs, metric):
    """``runs`` {seed: record} minus deep ensembles of the same seeds and costs."""
    found = [
        (run[metric] - value, 1 + squares)
        for run in runs.values()
        if metric in run
        for value, squares in [at_its_cost(records, run, metric)]
        if not np.isnan(value)
    ]
    values, squares = np.reshape(found, (-1, 2)).T
    if len(seeds_of_run(records)) >= FEW_SEEDS:
        return student(values)
    squares = squares.mean() if len(squares) else np.nan
    return pooled(values, squares, noise_of(records, metric))


def holm(p_values):
    """Holm's adjusted p-values of one family; nan stays nan and is not counted."""
    p_values = np.asarray(p_values, dtype=float)
    adjusted = np.full(p_values.shape, np.nan)
    order = [i for i in np.argsort(p_values) if not np.isnan(p_values[i])]
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, (len(order) - rank) * p_values[i])
        adjusted[i] = min(largest, 1.0)
    return adjusted


def chosen_on_other_seeds(records, metric):
    """Choose the best row at equal cost on all seeds but one, judge it on that one.

    Returns the gains of the chosen rows, one a seed, and their names.
    """
    seeds = seeds_of_run(records)
    gains = {}
    for (_, method), runs in distinct(records).items():
        if method != BASELINE and set(seeds) <= runs.keys():
            row = [
                runs[s][metric] - at_its_cost(records, runs[s], metric)[0]
                for s in seeds
            ]
            if not np.isnan(row).any():
                gains[method] = np.array(row)
    names = [
        max(gains, key=lambda name: np.delete(gains[name], i).mean())
        for i in range(len(seeds))
    ]
    return np.array([gains[name][i] for i, name in enumerate(names)]), names


def chosen_radii(records):
    """Choose a radius for each method of the contest, by records of ``contest_rho``.

    It has the highest mean corrupted accuracy over the seeds that all measured radii of
    the method share. Of equal ones it is the smallest.

    Parameters
    ----------
    records : list of dict

    Returns
    -------
    radii : dict of str to float
        By the name of the method, without the radius.

    Raises
    ------
    ValueError
        If a method has no records, or none of shared seeds.
    """
    methods = by_method(records, SAME_COST)
    radii = {}
    for name in CONTEST:
        runs = {}
        for rho in radii_to_try(name):
            if with_rho(name, rho) in methods:
                runs[rho] = methods[with_rho(name, rho)]
        seeds = set.intersection(*map(set, runs.values())) if runs else set()
        if not seeds:
            raise ValueError(f"no records to choose the radius of {name!r} from")
        means = {
            rho: np.mean(
                [by_seed[seed]["corrupted_accuracy"] for seed in sorted(seeds)]
            )
            for rho, by_seed in runs.items()
        }
        radii[name] = max(means, key=lambda rho: (means[rho], -rho))
    return radii


def log_slope(methods, metric="der", confidence=0.95):
    """Slope of log ``metric`` on log sharpness over all ensembles of a group.

    Returns it with half of its interval, by a jackknife over seeds: ensembles of a seed
    share their data.
    """
    seeds = sorted(set.intersection(*(set(runs) for runs in methods.values())))

    def slope(kept):
        points = [runs[seed] for runs in methods.values() for seed in kept]
        x, y = (np.log([p[name] for p in points]) for name in ("sharpness", metric))
        return np.polyfit(x, y, 1)[0]

    found = jackknife(slope, seeds, confidence)
    return found.mean, found.half


def jackknife(statistic, seeds, confidence=0.95):
    """``statistic(seeds)`` with half of its interval; nan where there is one seed."""
    n = len(seeds)
    value = float(statistic(seeds))
    if n < 2:
        return Difference(value, np.nan, np.nan)
    left = np.array([statistic([s for s in seeds if s != out]) for out in seeds])
    error = np.sqrt((n - 1) / n * ((left - left.mean()) ** 2).sum())
    half = stats.t.ppf((1 + confidence) / 2, n - 1) * error
    return Difference(value, float(half), np.nan)


def has_costs(records):
    """Whether deep ensembles of several costs were trained."""
    costs = {record["passes"] for record in records if record["method"] == BASELINE}
    return len(costs) > 1


def mean(runs, name):
    """Over seeds; nan where a record lacks it, as older ones do."""
    return float(np.mean([record.get(name, np.nan) for record in runs.values()]))


def are_sizes(records):
    return all(record["group"].endswith(" members") for record in records)


def are_heads(records):
    """Whether they are of heads on a frozen trunk."""
    return all("n_heads" in record for record in records)


def are_controls(records):
    """Whether they have the values of single nets, under controls."""
    return all("nets" in record for record in records)


def is_sweep(records):
    return all(re.search(r", rho [\d.]+$", record["method"]) for record in records)


def is_contest(records):
    """Whether they compare methods, named with their radii, with a deep ensemble."""
    others = [record for record in records if record["method"] != BASELINE]
    if not 0 < len(others) < len(records):
        return False
    return is_sweep(others) and all(r["group"] == SAME_COST for r in records)
