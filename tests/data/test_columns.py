"""Columns of a DataFrame as numbers, against scikit-learn's encoders."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from sklearn_sharpbalance.data import columns as columns_module
from sklearn_sharpbalance.data.columns import TableColumns, read_columns
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning

pl = pytest.importorskip("polars")

NAN = float("nan")


def encoded(frame, other=None):
    """Return the columns of a frame, learned from it, of another frame or itself."""
    fitted = TableColumns.fit(as_numbers(read_columns(frame)))
    return fitted.transform(read_columns(frame if other is None else other))


def as_numbers(columns):
    return {
        name: values if values.dtype == object else values.astype(np.float32)
        for name, values in columns.items()
    }


def frame_of(values, **options):
    return pd.DataFrame({"a": pd.Series(values, **options)})


# Reading ------------------------------------------------------------------------------

NUMBERS = {
    "int": pd.Series([1, 2, 0]),
    "uint8": pd.Series([1, 2, 0], dtype="uint8"),
    "float16": pd.Series([1, 2, 0], dtype="float16"),
    "bool": pd.Series([True, True, False]),
    "sparse": pd.Series(pd.arrays.SparseArray([1.0, 2.0, 0.0])),
    "objects": pd.Series([1, 2.0, np.int8(0)], dtype=object),
    "booleans as objects": pd.Series([True, np.True_, False], dtype=object),
    "decimals": pd.Series([Decimal(1), Decimal(2), Decimal(0)]),
    "polars int": pl.Series([1, 2, 0]),
    "polars bool": pl.Series([True, True, False]),
    "polars decimal": pl.Series([1, 2, 0], dtype=pl.Decimal(10, 2)),
}


def as_frame(series):
    if isinstance(series, pl.Series):
        return pl.DataFrame({"a": series})
    return pd.DataFrame({"a": series})


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_all_types_are_read(kind):
    values = read_columns(as_frame(NUMBERS[kind]))["a"]
    want = [1, 1, 0] if "bool" in kind else [1, 2, 0]
    assert values.dtype.kind in "biuf"
    np.testing.assert_array_equal(values.astype(float), want)


MISSING_NUMBERS = {
    "float": pd.Series([1.0, NAN, 0.0]),
    "Int64": pd.Series([1, None, 0], dtype="Int64"),
    "boolean": pd.Series([True, None, False], dtype="boolean"),
    "Float32": pd.Series([1, None, 0], dtype="Float32"),
    "objects": pd.Series([1, pd.NA, 0], dtype=object),
    "booleans as objects": pd.Series([True, None, False], dtype=object),
    "polars int": pl.Series([1, None, 0]),
    "polars nan": pl.Series([1.0, NAN, 0.0]),
    "polars bool": pl.Series([True, None, False]),
}


@pytest.mark.parametrize("kind", MISSING_NUMBERS)
def test_missing_numbers_of_all_types_are_nan(kind):
    values = read_columns(as_frame(MISSING_NUMBERS[kind]))["a"]
    np.testing.assert_array_equal(values.astype(float), [1, NAN, 0])


TEXT = {
    "str": pd.Series(["x", None, "y"]),
    "object": pd.Series(["x", NAN, np.str_("y")], dtype=object),
    "string": pd.Series(["x", pd.NA, "y"], dtype="string"),
    "category": pd.Series(["x", None, "y"], dtype="category"),
    "ordered": pd.Series(pd.Categorical(["x", None, "y"], ["y", "x"], ordered=True)),
    "polars": pl.Series(["x", None, "y"]),
    "polars Categorical": pl.Series(["x", None, "y"], dtype=pl.Categorical),
    "polars Enum": pl.Series(["x", None, "y"], dtype=pl.Enum(["y", "x"])),
}


@pytest.mark.parametrize("kind", TEXT)
def test_text_of_all_types_is_read_as_categories(kind):
    values = read_columns(as_frame(TEXT[kind]))["a"]
    assert values.dtype == object
    assert values.tolist() == ["x", None, "y"]


def test_arrow_columns_are_read():
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {
            "n": pd.array([1, None], dtype="int64[pyarrow]"),
            "s": pd.array(["x", None], dtype="string[pyarrow]"),
        }
    )
    columns = read_columns(frame)
    np.testing.assert_array_equal(columns["n"], [1, NAN])
    assert columns["s"].tolist() == ["x", None]


def test_categories_may_be_numbers():
    series = pd.Series([3, None, 7], dtype="category")
    values = read_columns(as_frame(series))["a"]
    assert values.tolist() == [3, None, 7]
    assert type(values[0]) is int
    truth = pd.Series(pd.Categorical([True, False, None]))
    assert read_columns(as_frame(truth))["a"].tolist() == [True, False, None]


DATE = datetime.date(2020, 1, 1)
BAD = {
    "datetime": (pd.Series(pd.to_datetime(["2020-01-01"])), "dates or times"),
    "timedelta": (pd.Series(pd.to_timedelta([1])), "dates or times"),
    "date objects": (pd.Series([DATE], dtype=object), r"dates or times \(date\)"),
    "dates as categories": (
        pd.Series(pd.to_datetime(["2020-01-01"])).astype("category"),
        r"dates or times \(Timestamp\)",
    ),
    "polars date": (pl.Series([DATE]), "dates or times .*TableVectorizer"),
    "polars duration": (pl.Series([datetime.timedelta(1)]), "dates or times"),
    "mixed": (pd.Series(["x", 1], dtype=object), r"text and numbers \(int, str\)"),
    "mixed categories": (
        pd.Series(pd.Categorical(["x", 1])),
        r"text and numbers .*astype\(str\)",
    ),
    "lists": (pd.Series([[1], [2]]), "objects of type list"),
    "polars lists": (pl.Series([[1], [2]]), "objects of type list"),
    "polars structs": (pl.Series([{"x": 1}]), "objects of type dict"),
    "intervals": (pd.Series(pd.cut([1, 2, 3], 2)), "objects of type Interval"),
    "periods": (pd.Series(pd.period_range("2020", periods=2)), "type Period"),
    "complex": (pd.Series([1j, 2]), "objects of type complex"),
}


@pytest.mark.parametrize("kind", BAD)
def test_other_columns_raise_with_their_name(kind):
    series, message = BAD[kind]
    with pytest.raises(
        InvalidInputError, match=f"Column 'a' of X contains .*{message}"
    ):
        read_columns(as_frame(series))


def test_reading_changes_nothing():
    frame = pd.DataFrame({"a": pd.Series(["x", NAN], dtype=object), "b": [1.0, NAN]})
    before = frame.copy(deep=True)
    encoded(pd.concat([frame] * 3, ignore_index=True), frame)
    pd.testing.assert_frame_equal(frame, before)


# Numbers ------------------------------------------------------------------------------


def test_missing_numbers_as_in_simple_imputer():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3)).astype(np.float32)
    X[rng.random((50, 3)) < [0.3, 0.0, 0.6]] = np.nan
    names = list("abc")
    imputer = SimpleImputer(strategy="median", add_indicator=True).fit(X)
    got = encoded(pd.DataFrame(X, columns=names))
    np.testing.assert_array_equal(got[:, [0, 2, 3, 1, 4]], imputer.transform(X))
    other = X[::-1].copy()
    other[:5, 1] = np.nan  # complete in training: the median, and no mark
    got = encoded(pd.DataFrame(X, columns=names), pd.DataFrame(other, columns=names))
    np.testing.assert_array_equal(got[:, [0, 2, 3]], imputer.transform(other)[:, :3])


def test_a_column_without_a_value_is_ignored():
    nothing = {"n": [NAN] * 3, "o": [None] * 3, "c": pd.Categorical([None] * 3)}
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], **nothing})
    fitted = TableColumns.fit(read_columns(frame))
    assert fitted.ignored == ["n", "o", "c"]
    with pytest.warns(SharpBalanceWarning, match="'n', 'o', 'c'"):
        fitted.warn(read_columns(frame))
    later = read_columns(frame.assign(n="text"), ignored=fitted.ignored)
    np.testing.assert_array_equal(fitted.transform(later), [[1], [2], [3]])


# Categories ---------------------------------------------------------------------------


def one_hot(X, other):
    """Return the columns of scikit-learn's encoder: categories, then rare ones."""
    encoder = OneHotEncoder(
        handle_unknown="infrequent_if_exist",
        max_categories=columns_module.MAX_CATEGORIES,
        sparse_output=False,
        dtype=np.float32,
    )
    return encoder.fit(X).transform(other)


@pytest.mark.parametrize("most", [511, 5])
@pytest.mark.parametrize("text", [True, False])
def test_categories_as_in_one_hot_encoder(most, text, monkeypatch):
    monkeypatch.setattr(columns_module, "MAX_CATEGORIES", most)
    rng = np.random.default_rng(0)
    numbers = rng.geometric(0.25, size=(200, 1))
    other = np.arange(0, 40)[:, None]  # with unknown ones
    if text:
        numbers, other = numbers.astype(str), other.astype(str)
    X, Z = pd.DataFrame(numbers, columns=["a"]), pd.DataFrame(other, columns=["a"])
    want = one_hot(X, Z)
    got = encoded(X.astype("category"), Z.astype("category"))
    np.testing.assert_array_equal(got, want)
    assert want.shape[1] <= most


def test_unknown_categories_are_zeros_if_none_is_rare():
    frame = frame_of(["x", "y"] * 3)
    got = encoded(frame, frame_of(["y", "z", None]))
    np.testing.assert_array_equal(got, [[0, 1], [0, 0], [0, 0]])


def test_missing_categories_have_a_code_if_training_had_some():
    known = frame_of(["x", "y", None, "x", None, "x"])
    got = encoded(known, frame_of(["x", "y", None, "z"]))
    np.testing.assert_array_equal(got, [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]])


def test_missing_categories_are_unknown_if_training_had_none():
    got = encoded(frame_of(["x", "y"] * 3), frame_of(["x", None]))
    np.testing.assert_array_equal(got, [[1, 0], [0, 0]])


def test_text_of_distinct_values_has_one_code():
    names = frame_of([f"n{i}" for i in range(20)])
    np.testing.assert_array_equal(encoded(names), np.ones((20, 1)))


def test_rare_categories_share_a_code_if_most_rows_have_one():
    names = frame_of([*"xxxyy", *(f"n{i}" for i in range(20))])
    got = encoded(names, frame_of(["x", "y", "n3", "z", None]))
    np.testing.assert_array_equal(got, [[1, 0], [0, 1], [0, 1], [0, 1], [0, 1]])


def test_numbers_may_be_categories_later_and_the_reverse():
    numbers, codes = frame_of([1, 2] * 3), frame_of(pd.Categorical([1, 2] * 3))
    np.testing.assert_array_equal(encoded(numbers, codes), encoded(numbers))
    np.testing.assert_array_equal(encoded(codes, numbers), encoded(codes))
    later = frame_of([2.0, NAN, 7.0])
    np.testing.assert_array_equal(encoded(codes, later), [[0, 1], [0, 0], [0, 0]])
    np.testing.assert_array_equal(encoded(codes, frame_of([None])), [[0, 0]])


# Columns that teach little ------------------------------------------------------------

DAYS = [f"2020-{1 + i % 12:02}-{1 + i // 12:02}" for i in range(100)]
SUSPECTS = {
    "numbers": [f"{i}.5" for i in range(100)],
    "few numbers": [str(i % 25) for i in range(100)],
    "dates": DAYS,
    "polars dates": pl.Series(DAYS),
    "identifiers": [f"user {i}" for i in range(100)],
}


@pytest.mark.parametrize("kind", SUSPECTS)
def test_text_that_is_no_category_is_named(kind):
    values = read_columns(as_frame(pl.Series(SUSPECTS[kind], strict=False)))
    with pytest.warns(SharpBalanceWarning, match=f"'a'.*{kind.split()[-1]}"):
        TableColumns.fit(values).warn(values)


@pytest.mark.parametrize("values", [["x", "y"] * 50, ["1", "2"] * 50, ["a", "b", "c"]])
def test_categories_do_not_warn(values, recwarn):
    columns = read_columns(frame_of(values))
    TableColumns.fit(columns).warn(columns)
    assert not recwarn


def test_many_inputs_are_told():
    codes = [f"v{i // 3}" for i in range(600)]
    values = read_columns(pd.DataFrame({f"c{j}": codes for j in range(12)}))
    with pytest.warns(SharpBalanceWarning, match="2400 inputs.*'c0'"):
        TableColumns.fit(values).warn(values)
