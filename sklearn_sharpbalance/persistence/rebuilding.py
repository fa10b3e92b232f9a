"""Make a fitted ensemble from the content of a model file."""

import math
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from sklearn_sharpbalance.aggregation.nets import member_logits
from sklearn_sharpbalance.aggregation.rules import AGGREGATIONS
from sklearn_sharpbalance.data.columns import (
    COLUMN_KINDS,
    MAX_CATEGORIES,
    Column,
    TableColumns,
)
from sklearn_sharpbalance.data.inputs import InputFormat
from sklearn_sharpbalance.engine import EngineChoice
from sklearn_sharpbalance.exceptions import InvalidInputError, ModelFileError
from sklearn_sharpbalance.members import MemberModule, MemberState, restore
from sklearn_sharpbalance.members.member_params import member_settings
from sklearn_sharpbalance.members.module import OWN_ARGUMENTS
from sklearn_sharpbalance.members.net import ensemble_callbacks, joined_callbacks
from sklearn_sharpbalance.members.own_settings import (
    give_settings,
    own_net,
    own_settings,
)
from sklearn_sharpbalance.members.shared_trunk import as_trunk
from sklearn_sharpbalance.persistence.allowed_names import (
    OF_MACHINE,
    check_setting,
    name_of,
    shown,
)
from sklearn_sharpbalance.runtime.devices import resolve_devices
from sklearn_sharpbalance.runtime.rng import random_stream

__all__ = ["rebuild"]

# Parameters that depend on the machine that opens a file.
SETTABLE = ("device", *OF_MACHINE, "verbose")
# Parameters of the user's net by those of a member's net that wrap them.
OF_NET = {"module__module": "module", "optimizer__base_optimizer": "optimizer"}
# Base classes required of the classes that a file names, by parameter of the net.
KINDS: dict[str, tuple[type, str]] = {
    "criterion": (nn.modules.loss._Loss, "a loss"),
    "module": (nn.Module, "a network"),
    "module__module": (nn.Module, "a network"),
    "optimizer": (torch.optim.Optimizer, "an optimizer"),
    "optimizer__base_optimizer": (torch.optim.Optimizer, "an optimizer"),
}
INPUT_KINDS = ("table", "frame", "images", "array", "dict", "dataset")
PRECISIONS = ("float32", "tf32", "bf16", "fp16")
LARGEST_TRIED = 2**18  # numbers of a sample that members are tried with
SPARE_LAYERS = 128  # layers without weights that a network may have


def rebuild(tree: dict[str, Any], passed: dict[str, Any], base: type):
    """Return the estimator that a file describes.

    Parameters
    ----------
    tree : dict
        Content of the file.
    passed : dict
        Values that the user passes for what the file could only name.
    base : type
        Base class of all ensembles.
    """
    cls = _ensemble_class(tree["class"], base)
    objects = _Objects(passed)
    params = {name: objects.get(name, entry) for name, entry in tree["params"].items()}
    # The rule of the fit: the parameter may have been changed since.
    entry = tree.get("rule", tree["params"]["aggregation"])
    rule = objects.get("aggregation", entry)
    objects.check(cls)
    params |= {name: passed[name] for name in SETTABLE if name in passed}
    estimator = cls(**params)
    estimator._validate_params()
    has_own_params = "value" in tree.get("rule", {})
    nested = {} if has_own_params else estimator._nested("aggregation")
    estimator.aggregation_ = _aggregation(rule, nested, tree["aggregation"])
    net = _net(tree, params, objects)
    if net.classes != list(range(len(tree["fitted"]["classes_"]))):
        raise ModelFileError("its classes_ are not those of its members.")
    _set_fitted(estimator, tree, net)
    _try_out(estimator)
    return estimator


def _try_out(estimator):
    """Raise if the members do not predict the classes of the file for zeros."""
    fmt = estimator.input_format_
    if fmt.shape is None or math.prod(fmt.shape) > LARGEST_TRIED:
        return  # types of a dictionary's arrays are not known
    X = np.zeros((1, *fmt.shape), dtype=fmt.dtype)
    with warnings.catch_warnings(), random_stream("cpu", seed=0):
        warnings.simplefilter("ignore")  # of logits that are not finite
        if getattr(estimator, "trunk_", None) is not None:
            X = estimator.trunk_.features(X)
        estimator._aggregate(member_logits(estimator.predictors_, X))


def _ensemble_class(name, base):
    kinds = [base]
    for kind in kinds:  # grows during the loop: subclasses of subclasses
        kinds += kind.__subclasses__()
    found = [kind for kind in kinds if f"{kind.__module__}.{kind.__qualname__}" == name]
    if not found:
        raise ModelFileError(
            f"it has a {name!r}, and no ensemble of that name is imported here."
        )
    return found[-1]  # the last one that a notebook has defined


class _Objects:
    """Values of parameters, from the file or, if it only names them, from the user.

    Parameters
    ----------
    passed : dict
        Values by name of the parameter; "module" is the user's network.
    """

    def __init__(self, passed):
        self.passed = passed
        self.needed: dict[str, str] = {}
        self.known: dict[str, Any] = {}

    def get(self, name: str, entry: dict[str, Any]) -> Any:
        """Return the value of one parameter."""
        check_setting(name, entry)
        if "value" in entry:
            return entry["value"]
        if "net" in entry and name == "estimator":
            net = entry["net"]
            params = {k: self.get(f"{name}__{k}", v) for k, v in net["params"].items()}
            return _make_net(net["class"]["value"], params)
        label = entry["missing"]
        is_module = name in ("estimator", "estimator__module")
        for key in ("module", name) if is_module else (name,):
            if key in self.passed:
                self.known[label] = self.passed[key]
        if label not in self.known:
            self.needed["module" if is_module else name] = label
        return self.known.get(label)

    def of_net(self, name: str, entry: dict[str, Any], estimator) -> Any:
        """Return one setting of the members' net; call it after :meth:`get`."""
        if "value" in entry:
            check_setting(f"estimator__{name}", entry)
            return entry["value"]
        label = entry["missing"]
        if label in self.known:
            return self.known[label]
        return getattr(estimator, OF_NET.get(name, name))  # of a net passed as a whole

    def check(self, cls) -> None:
        """Raise if a value is missing, or if one was passed that the file has."""
        if self.needed:
            listed = ", ".join(f"{name} ({what})" for name, what in self.needed.items())
            call = ", ".join(f"{name}=..." for name in self.needed)
            raise InvalidInputError(
                f"the file names what it cannot store: {listed}. Pass it again: "
                f"load(path, {call})."
            )
        for name, value in self.passed.items():
            if name in SETTABLE or any(value is one for one in self.known.values()):
                continue
            raise InvalidInputError(
                f"{name} is a setting that the file has itself. Leave it out and use "
                f"set_params on the loaded {cls.__name__}."
            )


def _make_net(cls, params):
    if not issubclass(cls, NeuralNetClassifier) or "module" not in params:
        raise ModelFileError("it describes a net without a module.")
    for name, (kind, label) in KINDS.items():
        value = params.get(name)
        # An instance comes from the user, who has passed it again.
        found = value if isinstance(value, type) else type(value)
        if name_of(found) is not None and not issubclass(found, kind):
            raise ModelFileError(f"it takes {found.__name__} for {label}.")
    return cls(**params)


def _net(tree, params, objects):
    """Return the net that every member is a copy of."""
    estimator, entries = params["estimator"], tree["net"]["params"]
    # Callbacks are made below from those that the user passed.
    left_out = {"callbacks"}
    is_named = "missing" in entries.get("module__member_params", {})
    if is_named:
        left_out.add("module__member_params")
    settings = {
        name: objects.of_net(name, entry, estimator)
        for name, entry in entries.items()
        if name not in left_out
    }
    if settings.get("module") is not MemberModule:
        raise ModelFileError("its members are not of this package.")
    is_net = isinstance(estimator, NeuralNetClassifier)
    of_net = estimator.callbacks if is_net else None
    callbacks = joined_callbacks(of_net, ensemble_callbacks(params))
    own = {"device": _device(params), "train_split": None, "callbacks": callbacks}
    cls = tree["net"]["class"].get("value", type(estimator))
    net = _make_net(cls, {**settings, **own})
    if is_named:
        seeds = tree["fitted"]["member_seeds_"]
        of_members = member_settings(params["member_params"], net, seeds)
        give_settings(net, of_members or [])
    return net


def _device(params):
    """Return the device that the file names if it exists here, else the CPU."""
    try:
        return resolve_devices(params["device"])[0]
    except InvalidInputError:
        return "cpu"


def _set_fitted(estimator, tree, net):
    for name, value in tree["fitted"].items():
        setattr(estimator, name, value)
    if hasattr(estimator, "member_params") and "member_params_" not in tree["fitted"]:
        estimator.member_params_ = [dict(settings) for settings in own_settings(net)]
    estimator.net_ = net
    name, reason, threads = tree["engine"]
    estimator.engine_ = EngineChoice(name=name, reason=reason, threads=threads)
    estimator.input_format_ = _input_format(tree["input_format"])
    _check_n_features(estimator)
    seeds, histories = estimator.member_seeds_, estimator.history_
    members = [
        MemberState(i, seed, **member, history=history)
        for i, (member, seed, history) in enumerate(
            zip(tree["members"], seeds, histories, strict=True)
        )
    ]
    shape = estimator.input_format_.shape
    for member in members:
        check_weights(own_net(net, member.index), member.module, member.seed)
        _check_pieces(member.module.get("pieces"), shape)
    nets = [restore(net, member) for member in members]
    estimator.predictors_ = [
        nets[one] if isinstance(one, int) else _restore_weights(net, shape, **one)
        for one in tree["predictors"]
    ]
    _set_nets(estimator, nets, tree["trunk"])


def _check_n_features(estimator):
    shape = estimator.input_format_.given_shape or (None,)
    n_features = getattr(estimator, "n_features_in_", None)
    if n_features not in (None, shape[0]):
        raise ModelFileError(f"it has {n_features} features in samples of {shape}.")


def _restore_weights(net, shape, module, **more):
    check_weights(own_net(net, 0), module)
    _check_pieces(module.get("pieces"), shape)
    return restore(net, MemberState(0, 0, module, **more))


def _check_pieces(pieces, shape):
    """Raise if the encoding of a table names columns that samples do not have."""
    if pieces is None:
        return
    is_valid = pieces.ndim == 2 and len(pieces) == 3 and len(shape or ()) == 1
    if is_valid:
        is_valid = bool(((pieces[0] >= 0) & (pieces[0] < shape[0])).all())
    if not is_valid:
        raise ModelFileError("its encoding of columns does not fit its samples.")


def _set_nets(estimator, nets, trunk):
    """Set the members of an ensemble; with a shared trunk, the nets are its heads."""
    if not hasattr(estimator, "_whole_members"):
        estimator.estimators_ = nets
        return
    estimator.heads_, estimator.trunk_ = nets, None
    if (trunk is None) != (estimator.shared_trunk is None):
        raise ModelFileError("its trunk does not belong to its shared_trunk.")
    if trunk is not None:
        precision = trunk["precision"]
        if precision not in PRECISIONS:
            raise ModelFileError(
                f"it sets the precision of its trunk to {precision!r}."
            )
        estimator.trunk_ = as_trunk(
            estimator.shared_trunk, seed=0, device=nets[0].device, precision=precision
        )
        estimator.trunk_.load_state(trunk)
    estimator.estimators_ = estimator._whole_members()


def _aggregation(rule, nested, fitted):
    aggregation = AGGREGATIONS.resolve(rule).set_params(**nested)
    for name, value in fitted.items():
        setattr(aggregation, name, value)
    return aggregation


def _input_format(tree):
    found = InputFormat(**{**tree, "columns": _columns(tree.get("columns"))})
    shapes = (found.given_shape, found.shape, *(found.shapes or ()))
    is_valid = (
        found.kind in INPUT_KINDS
        and found.dtype in ("float32", "uint8")
        and (found.largest is None or type(found.largest) is float)
        and all(shape is None or _is_tuple(shape, int) for shape in shapes)
        and (found.keys is None or _is_tuple(found.keys, str))
        and (found.shapes is None or isinstance(found.shapes, tuple))
        and len(found.keys or ()) == len(found.shapes or ())
        and (found.kind == "dict") == (found.shape is None)
        and (found.kind == "frame") == (found.columns is not None)
    )
    if is_valid and found.columns is not None:
        n_columns, width = len(found.columns.columns), found.columns.width
        is_valid = found.given_shape == (n_columns,) and found.shape == (width,)
    if not is_valid:
        raise ModelFileError(f"it sets its input format to {shown(tree)}.")
    return found


def _columns(tree):
    """Return how a DataFrame is encoded; raise unless it is as a fit leaves it."""
    if tree is None:
        return None
    columns = tuple(Column(**column) for column in tree["columns"])
    if tree.keys() != {"columns"} or not all(map(_is_column, columns)):
        raise ModelFileError(f"it sets the columns of its input to {shown(tree)}.")
    return TableColumns(columns)


def _is_column(column):
    """Return whether the attributes of a column are plain values of the right types."""
    categories = column.categories
    are_plain = _is_tuple(categories, str) or (
        isinstance(categories, tuple)
        and all(type(category) in (bool, int, float) for category in categories)
    )
    return (
        type(column.name) is str
        and column.kind in COLUMN_KINDS
        and type(column.fill) is float
        and math.isfinite(column.fill)
        and are_plain
        and len(categories) <= MAX_CATEGORIES
        and len(set(categories)) == len(categories)
        and type(column.has_rare) is bool
        and type(column.has_missing) is bool
        and (column.kind == "category" or not (categories or column.has_rare))
        and (column.kind != "ignored" or not column.has_missing)
    )


def _is_tuple(value, kind):
    return isinstance(value, tuple) and all(type(item) is kind for item in value)


def check_weights(net, state, seed=0) -> None:
    """Raise if the weights are not those of the network, before memory is allocated.

    A crafted file can ask for a network of any size. The network is built on the meta
    device first, and with memory only if the file has all its weights. Random numbers
    that a network draws while it is built come from the member's seed.
    """
    module = net.module__module
    if isinstance(module, nn.Module):
        return  # a prototype that the user passed
    kwargs = net.get_params_for("module")
    kwargs = {k: v for k, v in kwargs.items() if k not in OWN_ARGUMENTS}
    limit = SPARE_LAYERS + 4 * len(state)
    lengths = [
        len(value) for value in kwargs.values() if isinstance(value, list | tuple)
    ]
    if name_of(module) is not None and max(lengths, default=0) > limit:
        raise ModelFileError("it describes more layers than it has weights for.")
    try:
        with random_stream(seed=seed), _bounded(limit), torch.device("meta"):
            inner = module(**kwargs)
    except ModelFileError:
        raise
    except Exception:
        if name_of(module) is not None:
            raise
        return  # a user's network may read values, which meta tensors do not have
    for key, value in inner.state_dict().items():
        if not isinstance(value, torch.Tensor):
            continue  # the result of get_extra_state
        stored = state.get(f"module.{key}")
        lazy = nn.parameter.is_lazy(value)
        if stored is None or (not lazy and stored.shape != value.shape):
            found = None if stored is None else tuple(stored.shape)
            raise ModelFileError(
                f"its weights are not those of {type(inner).__name__}: {key!r} has "
                f"shape {found} in place of {tuple(value.shape)}."
            )


@contextmanager
def _bounded(limit: int) -> Iterator[None]:
    """Raise if a block registers more than ``limit`` layers and parameters."""
    count, thread = 0, threading.get_ident()

    def hook(module, name, value):
        nonlocal count
        count += threading.get_ident() == thread
        if count > limit:
            raise ModelFileError("it describes more layers than it has weights for.")

    handles = [
        register_module_module_registration_hook(hook),
        register_module_parameter_registration_hook(hook),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
