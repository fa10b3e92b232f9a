"""ONNX models that take the columns of a DataFrame, and encode them.

The nodes are written here: skl2onnx has no infrequent categories, and the fitted
columns are plain values, not an estimator that it could convert.
"""

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, compose
from onnx.helper import make_graph, make_model, make_node, make_opsetid
from onnx.helper import make_tensor_value_info as value_info

from sklearn_sharpbalance.data.columns import Column, TableColumns
from sklearn_sharpbalance.exceptions import InvalidInputError

TAKEN = ("", "probabilities")  # names that a column must not have
ML, ML_VERSION = "ai.onnx.ml", 4  # in which NaN is a key like any other


def check_columns(columns: TableColumns) -> None:
    """Raise if ONNX cannot name a column, or tell its values apart."""
    for column in columns.columns:
        if reason := _refusal(column):
            raise InvalidInputError(
                f"Column {column.name!r} of X cannot be exported to ONNX: {reason}, "
                "and fit again."
            )


def _refusal(column):
    if column.name in TAKEN:
        return "its name is taken. Rename it"
    if column.has_missing and "" in column.categories:
        return (
            "the empty string stands for a missing value, but fit had both. Replace "
            "the empty strings, for example by 'none'"
        )
    if not _is_text(column):
        numbers = np.array(column.categories, dtype=np.float32)
        if len(set(numbers.tolist())) < len(numbers):
            return "some categories are equal as float32. Convert them to text"
    return None


def with_columns(model: ModelProto, columns: TableColumns) -> ModelProto:
    """Return a model with one input (batch, 1) for each column instead of ``X``.

    Numbers are float32 and text is strings. NaN and the empty string are missing.
    """
    inputs, nodes, encoded = [], [], []
    for column in columns.columns:
        if column.kind == "ignored":
            continue
        kind = TensorProto.STRING if _is_text(column) else TensorProto.FLOAT
        inputs.append(value_info(column.name, kind, ("batch", 1)))
        nodes += _number(column) if column.kind == "number" else _category(column)
        encoded.append(nodes[-1].output[0])
    nodes.append(make_node("Concat", encoded, ["/X"], axis=1))
    X = value_info("/X", TensorProto.FLOAT, ("batch", columns.width))
    encoder = make_model(
        make_graph(nodes, "columns", inputs, [X]),
        opset_imports=[*model.opset_import, make_opsetid(ML, ML_VERSION)],
        ir_version=model.ir_version,
    )
    # Names of the ensemble must differ from those of columns.
    ensemble = compose.add_prefix(model, "/ensemble/", rename_outputs=False)
    return compose.merge_models(encoder, ensemble, io_map=[("/X", "/ensemble/X")])


def _number(column: Column) -> list[NodeProto]:
    """Replace missing values by the median, and mark them if training had some."""
    filled, missing, mark, both = (
        f"/{column.name}/{part}" for part in ("filled", "missing", "mark", "both")
    )
    median = {"imputed_value_floats": [column.fill], "replaced_value_float": np.nan}
    nodes = [_ml_node("Imputer", column.name, filled, **median)]
    if column.has_missing:
        nodes += [
            make_node("IsNaN", [column.name], [missing]),
            make_node("Cast", [missing], [mark], to=TensorProto.FLOAT),
            make_node("Concat", [filled, mark], [both], axis=1),
        ]
    return nodes


def _category(column: Column) -> list[NodeProto]:
    """Encode the codes of categories; other values are rare, or without a code."""
    code, one_hot, flat = (
        f"/{column.name}/{part}" for part in ("code", "one hot", "flat")
    )
    is_text = _is_text(column)
    rare = len(column.categories) if column.has_rare else -1
    missing = column.n_codes - 1 if column.has_missing else rare
    codes = {"" if is_text else np.nan: missing}
    codes |= {category: i for i, category in enumerate(column.categories)}
    to_code = {
        "keys_strings" if is_text else "keys_floats": list(codes),
        "values_int64s": list(codes.values()),
        "default_int64": rare,
    }
    every = {"cats_int64s": list(range(column.n_codes)), "zeros": 1}
    return [
        _ml_node("LabelEncoder", column.name, code, **to_code),
        _ml_node("OneHotEncoder", code, one_hot, **every),  # (N, 1, n_codes)
        make_node("Flatten", [one_hot], [flat]),
    ]


def _ml_node(kind, given, result, **settings):
    return make_node(kind, [given], [result], domain=ML, **settings)


def _is_text(column: Column) -> bool:
    if column.kind == "number":
        return False
    return not column.categories or isinstance(column.categories[0], str)
