"""Model files: one file that any machine can open and that never runs code.

Weights and arrays are stored as safetensors, all else as JSON. What a user wrote
(module classes, functions, callbacks) is stored by name only and passed again to
:func:`load`.
"""

import inspect
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from skorch import NeuralNet, NeuralNetClassifier

from sklearn_sharpbalance._validation import printable
from sklearn_sharpbalance.aggregation.rules import FunctionAggregation
from sklearn_sharpbalance.exceptions import (
    InvalidInputError,
    ModelFileError,
    SharpBalanceError,
)
from sklearn_sharpbalance.members.state import state_of, to_cpu
from sklearn_sharpbalance.persistence.allowed_names import (
    PARTS,
    SPECIAL_TAGS,
    is_left_out,
    is_passed_again,
    name_of,
    shown,
    special_value,
)
from sklearn_sharpbalance.persistence.archive import (
    check_folder,
    read_archive,
    write_archive,
    writing,
)
from sklearn_sharpbalance.persistence.encoding import NotPlainError, encode
from sklearn_sharpbalance.persistence.fingerprint import describe
from sklearn_sharpbalance.persistence.rebuilding import rebuild
from sklearn_sharpbalance.runtime.process import own_torch_modes


def save(estimator, path, *, optimizer=True) -> None:
    """Write a fitted ensemble to one file.

    An existing file is replaced when the new one is complete. With ``optimizer`` the
    file has the momentum with which ``partial_fit`` continues, and about twice the
    size.
    """
    check_is_fitted(estimator)
    path = check_folder(path)
    try:
        tree = _tree(estimator, optimizer)
        with writing(path):
            write_archive(path, "model", tree, special=special_value)
    except NotPlainError as error:
        raise InvalidInputError(
            f"{type(estimator).__name__} cannot be saved: {error}, which a file "
            "without pickle cannot store. Set it to numbers, strings or arrays, or use "
            "joblib.dump."
        ) from error


def load_model(path, params: dict[str, Any], base: type):
    """Return an ensemble that :func:`save` wrote; ``base`` is the class of them all.

    The user passes as ``params`` what the file could only name.
    """
    if Path(path).is_dir():
        raise ModelFileError(f"{path} is a folder. Pass the file that save wrote.")
    with own_torch_modes():
        tree = read_archive(path, "model", SPECIAL_TAGS)
    try:
        with own_torch_modes():
            return rebuild(tree, params, base)
    except SharpBalanceError as error:
        text = printable(str(error))
        raise type(error)(f"{path}: {text}") from error.__cause__
    except Exception as error:  # of any kind, if the file was crafted
        raise ModelFileError(
            f"{path} does not describe a model: {type(error).__name__}: "
            f"{printable(str(error))}"
        ) from error


def _tree(estimator, optimizer) -> dict[str, Any]:
    params = estimator.get_params(deep=False)
    nets, trunk = estimator.heads_, estimator.trunk_
    fitted = {
        name: value
        for name, value in vars(estimator).items()
        if name.endswith("_") and not name.startswith("_") and name not in PARTS
    }
    rule = estimator.aggregation_
    learned = {k: v for k, v in vars(rule).items() if k.endswith("_")}
    if trunk is not None:
        trunk = {**to_cpu(trunk.state()), "precision": trunk.precision}
    if (trunk is None) != (estimator.shared_trunk is None):
        raise InvalidInputError(
            "The ensemble cannot be saved: shared_trunk is "
            f"{shown(estimator.shared_trunk)}, which was set after the fit. "
            "Restore it, or fit again."
        )
    if isinstance(params["random_state"], np.random.RandomState):
        params["random_state"] = None  # its state is of this process
    entries = {k: _param(k, v) for k, v in params.items() if not is_left_out(k)}
    of_members = _net(estimator.net_)
    _check_names(of_members, entries, params["estimator"])
    if "missing" in of_members["params"].get("module__member_params", {}):
        fitted.pop("member_params_")  # load makes them from the user's member_params
    return {
        "class": f"{type(estimator).__module__}.{type(estimator).__qualname__}",
        "versions": {"torch": str(torch.__version__), "numpy": np.__version__},
        "params": entries,
        "net": of_members,
        "input_format": asdict(estimator.input_format_),
        "engine": list(estimator.engine_),
        "rule": _param("aggregation", _value_of(rule)),
        "aggregation": learned,
        "members": [_member(net, optimizer) for net in nets],
        "predictors": [_predictor(net, nets) for net in estimator.predictors_],
        "trunk": trunk,
        "fitted": fitted,
    }


def _value_of(rule):
    return rule.func if isinstance(rule, FunctionAggregation) else rule


def _check_names(net, entries, estimator):
    """Raise if ``load`` could not ask for an object that the members were made of."""
    named = [entries]
    if isinstance(estimator, NeuralNetClassifier):
        named.append(_net(estimator)["params"])
    known = {entry.get("missing") for part in named for entry in part.values()}
    for name, entry in net["params"].items():
        label = entry.get("missing")
        if label not in known and name not in ("callbacks", "module__member_params"):
            raise InvalidInputError(
                f"The ensemble cannot be saved: its members have {name} ({label}), "
                "which is no longer a parameter of the ensemble. Set the parameters "
                "of the fit again, or use joblib.dump."
            )


def _member(net, optimizer):
    state = state_of(net)
    kept = state.optimizer if optimizer else None
    stored = {"module": state.module, "optimizer": kept}
    if state.extra:
        stored["extra"] = state.extra
    return stored


def _predictor(net, nets):
    """Return the number of a member, or the weights of a net of its own (a soup)."""
    for i, member in enumerate(nets):
        if net is member:
            return i
    return _member(net, optimizer=False)


def _param(name, value):
    """Return the entry for a parameter: its value, its net, or only a label."""
    if isinstance(value, NeuralNetClassifier) and name_of(type(value)):
        return {"net": _net(value)}
    if is_passed_again(name, value):
        return {"missing": _label(value)}
    try:
        encode(value, {}, special_value)
    except NotPlainError:
        return {"missing": _label(value)}
    return {"value": value}


def _net(net):
    """Return the class of a skorch net and the settings that are not defaults."""
    defaults = {
        name: parameter.default
        for cls in (NeuralNet, NeuralNetClassifier)
        for name, parameter in inspect.signature(cls).parameters.items()
    }
    is_named = name_of(type(net)) is not None
    params = {}
    for name, value in net.get_params(deep=False).items():
        full_name = f"estimator__{name}"
        if name.startswith("_") or value is defaults.get(name, defaults):
            continue
        if not is_left_out(full_name):
            params[name] = _param(full_name, value)
        elif not is_named and name != "module__compile":
            # The user passes the whole net again.
            params[name] = {"missing": _label(value)}
    params.pop("train_split", None)  # the ensemble splits off validation samples
    cls = {"value": type(net)} if is_named else {"missing": _label(type(net))}
    return {"class": cls, "params": params}


def _label(value):
    if isinstance(value, type):
        return f"class {describe(value)}"
    return f"{'function' if inspect.isroutine(value) else 'object'} {describe(value)}"
