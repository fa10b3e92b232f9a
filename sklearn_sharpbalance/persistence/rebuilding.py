"""Make a fitted ensemble from the content of a model file."""

import math
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils.data import TensorDataset

from sklearn_sharpbalance.aggregation.rules import AGGREGATIONS
from sklearn_sharpbalance.data.columns import MAX_CATEGORIES, Column, TableColumns
from sklearn_sharpbalance.data.inputs import InputFormat, check_X
from sklearn_sharpbalance.engine import EngineChoice
from sklearn_sharpbalance.engine.choice import choose_threads
from sklearn_sharpbalance.exceptions import InvalidInputError, ModelFileError
from sklearn_sharpbalance.members import MemberModule, MemberState, restore
from sklearn_sharpbalance.members.member_params import (
    give_settings,
    member_settings,
    own_net,
    own_settings,
)
from sklearn_sharpbalance.members.module import OWN_ARGUMENTS
from sklearn_sharpbalance.members.net import ensemble_callbacks, joined_callbacks
from sklearn_sharpbalance.members.shared_trunk import as_trunk
from sklearn_sharpbalance.persistence.allowed_names import (
    OF_MACHINE,
    PARTS,
    check_setting,
    name_of,
)
from sklearn_sharpbalance.runtime.devices import resolve_devices
from sklearn_sharpbalance.runtime.rng import random_stream

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
# Types of fitted attributes that training reads; predictions show the others.
TYPES: dict[str, Any] = {
    "classes_": np.ndarray,
    "history_": list,
    "member_params_": list,
    "member_seeds_": list,
    "n_iter_": int,
    "n_passes_": int | float,
    "settings_": dict,
}
FITTED = re.compile(r"[^\W\d_]\w*_")  # names of fitted attributes
LARGEST_COUNT = 10**15  # epochs, passes
LARGEST_TRIED = 2**18  # numbers of a sample that members are tried with
ESCAPES = {chr(0x1B), chr(0x9B)}  # scikit-learn prints names of columns as they are
SPARE_LAYERS = 128  # layers without weights that a network may have


def rebuild(tree: dict[str, Any], passed: dict[str, Any], base: type):
    """Return the estimator that the tree of a file describes; may raise any error.

    The user has ``passed`` what the file could only name; ``base`` is the base class of
    all ensembles.
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
    nested = {} if "value" in tree.get("rule", {}) else estimator._nested("aggregation")
    _check_fitted(tree["fitted"])
    _check_fitted(tree["aggregation"])
    estimator.aggregation_ = AGGREGATIONS.resolve(rule).set_params(**nested)
    vars(estimator.aggregation_).update(tree["aggregation"])
    vars(estimator).update(tree["fitted"])
    net = _net(tree, params, objects)
    if net.classes != list(range(len(estimator.classes_))):
        raise ModelFileError("its classes_ are not those of its members.")
    if hasattr(estimator, "member_params") and "member_params_" not in tree["fitted"]:
        estimator.member_params_ = [dict(settings) for settings in own_settings(net)]
    name, reason, threads = tree["engine"]
    if threads not in (None, 1):
        raise ModelFileError(f"it asks for {threads} threads.")
    estimator.net_ = net
    if threads is None:  # of a GPU, and members may now predict on a CPU
        threads = choose_threads(net, net.batch_size, len(estimator.member_seeds_))
    estimator.engine_ = EngineChoice(name=name, reason=reason, threads=threads)
    estimator.input_format_ = _input_format(**tree["input_format"])
    _set_members(estimator, tree)
    _try_out(estimator)
    return estimator


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

    The name "module" is the user's network.
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
            if name not in SETTABLE and not any(
                value is v for v in self.known.values()
            ):
                raise InvalidInputError(
                    f"{name} is a setting that the file has itself. Leave it out and "
                    f"use set_params on the loaded {cls.__name__}."
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
    estimator, entries = params["estimator"], dict(tree["net"]["params"])
    entries.pop("callbacks", None)  # made below from those that the user passed
    own = entries.get("module__member_params", {})
    if "missing" in own:
        del entries["module__member_params"]
    settings = {k: objects.of_net(k, v, estimator) for k, v in entries.items()}
    if settings.get("module") is not MemberModule:
        raise ModelFileError("its members are not of this package.")
    is_net = isinstance(estimator, NeuralNetClassifier)
    of_net = estimator.callbacks if is_net else None
    settings["callbacks"] = joined_callbacks(of_net, ensemble_callbacks(params))
    settings |= {"device": _device(params), "train_split": None}
    net = _make_net(tree["net"]["class"].get("value", type(estimator)), settings)
    if "missing" in own:
        n_members = len(tree["fitted"]["member_seeds_"])
        of_members = member_settings(params["member_params"], n_members, net)
        give_settings(net, of_members or [])
    return net


def _device(params):
    """Return the device that the file names if it exists here, else the CPU."""
    try:
        return resolve_devices(params["device"])[0]
    except InvalidInputError:
        return "cpu"


def _check_fitted(fitted):
    """Raise if a file sets an attribute that no fit sets, or an absurd count."""
    for name, value in fitted.items():
        if not FITTED.fullmatch(name) or name in PARTS:
            raise ModelFileError(f"it sets {name!r}, which no fit does.")
        if not isinstance(value, TYPES.get(name, object)):
            raise ModelFileError(f"it sets {name} to a {type(value).__name__}.")
        if name in ("n_iter_", "n_passes_") and not 0 <= value < LARGEST_COUNT:
            raise ModelFileError(f"it sets {name} to a number that no fit reaches.")
        if name == "feature_names_in_" and ESCAPES & set("".join(map(str, value))):
            raise ModelFileError("it has names of columns that control a terminal.")


def _input_format(columns=None, **values):
    if columns is not None:
        columns = TableColumns(tuple(Column(**each) for each in columns["columns"]))
        for each in columns.columns:
            if type(each.name) is not str or len(each.categories) > MAX_CATEGORIES:
                raise ModelFileError("it has a column that no fit keeps.")
    return InputFormat(columns=columns, **values)


def _set_members(estimator, tree):
    """Set the members, the nets that predict, and a shared trunk."""
    net = estimator.net_
    seeds, histories = estimator.member_seeds_, estimator.history_
    nets: list[NeuralNetClassifier] = []
    for seed, stored, history in zip(seeds, tree["members"], histories, strict=True):
        state = MemberState(len(nets), int(seed), **stored, history=history)
        nets.append(_restored(net, state))
    estimator.predictors_ = [
        nets[one] if isinstance(one, int) else _restored(net, MemberState(0, 0, **one))
        for one in tree["predictors"]
    ]
    if not nets or not estimator.predictors_:
        raise ModelFileError("it has no members.")
    _set_nets(estimator, nets, tree["trunk"])


def _restored(net, state):
    check_weights(own_net(net, state.index), state.module, state.seed)
    pieces = state.module.get("pieces")
    n_columns = len(state.module.get("mean", ()))
    if pieces is not None and not ((pieces[0] >= 0) & (pieces[0] < n_columns)).all():
        raise ModelFileError("its encoding of columns does not fit its samples.")
    return restore(net, state, from_file=True)


def _set_nets(estimator, nets, trunk):
    """Set the heads, the trunk that they share, and the members made of both."""
    if (trunk is None) != (estimator.shared_trunk is None):
        raise ModelFileError("its trunk does not belong to its shared_trunk.")
    estimator.heads_, estimator.trunk_ = nets, None
    if trunk is not None:
        estimator.trunk_ = as_trunk(
            estimator.shared_trunk,
            estimator.input_format_,
            device=nets[0].device,
            precision=trunk["precision"],
            stored=trunk,
        )
    estimator.estimators_ = estimator._whole_members()


def _try_out(estimator):
    """Raise if the ensemble does not predict its classes for a sample of zeros."""
    fmt = estimator.input_format_
    shapes = fmt.shapes or (fmt.given_shape,)
    if sum(map(math.prod, shapes)) > LARGEST_TRIED:
        return
    with warnings.catch_warnings(), random_stream("cpu", seed=0):
        warnings.simplefilter("ignore")  # of names, of logits that are not finite
        if fmt.kind == "frame":
            X = _encoded_sample(fmt)
            is_same = fmt.given_shape == (len(fmt.columns.names),)
        else:
            X, found = check_X(estimator, _sample(fmt), reset=False, fitted=fmt)
            is_same = replace(found, largest=fmt.largest) == fmt
        if not is_same:
            raise ModelFileError(f"its input format is {fmt}.")
        if fmt.kind == "dict":
            return  # a module may need integers
        if estimator.trunk_ is not None:
            X = estimator.trunk_.features(X, fmt.shape)
        estimator._aggregate(estimator._logits_of(estimator.predictors_, X))


def _sample(fmt):
    """Return a sample of zeros as a user would pass it."""
    if fmt.kind == "dict":
        pairs = zip(fmt.keys, fmt.shapes, strict=True)
        return {key: np.zeros((1, *shape), np.float32) for key, shape in pairs}
    zeros = np.zeros((1, *fmt.given_shape), dtype=fmt.dtype)
    return TensorDataset(torch.from_numpy(zeros)) if fmt.kind == "dataset" else zeros


def _encoded_sample(fmt):
    """Return a row without values, as the columns of a DataFrame encode it."""
    missing = {"category": np.array([None]), "number": np.array([np.nan])}
    missing["ignored"] = missing["category"]
    columns = fmt.columns.columns
    X = fmt.columns.transform({each.name: missing[each.kind] for each in columns})
    return X.reshape(1, *fmt.shape)


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
    lengths = [len(v) for v in kwargs.values() if isinstance(v, list | tuple)]
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
        if not isinstance(value, torch.Tensor) or nn.parameter.is_lazy(value):
            continue  # the result of get_extra_state
        found = getattr(state.get(f"module.{key}"), "shape", None)
        if found != value.shape:
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
