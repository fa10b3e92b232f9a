"""From the content of a model file back to a fitted ensemble."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sklearn import config_context
from skorch import NeuralNetClassifier
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from sklearn_sharpbalance.engine import EngineChoice
from sklearn_sharpbalance.ensemble.aggregation import AGGREGATIONS
from sklearn_sharpbalance.ensemble.base import BaseDeepEnsemble
from sklearn_sharpbalance.ensemble.devices import resolve_devices
from sklearn_sharpbalance.ensemble.fitting import ensemble_callbacks
from sklearn_sharpbalance.ensemble.inputs import InputFormat
from sklearn_sharpbalance.ensemble.naming import name_of
from sklearn_sharpbalance.ensemble.trunk import as_trunk
from sklearn_sharpbalance.exceptions import InvalidInputError, ModelFileError
from sklearn_sharpbalance.members import MemberModule, MemberState, restore
from sklearn_sharpbalance.members.module import OWN_ARGUMENTS
from sklearn_sharpbalance.members.net import joined_callbacks
from sklearn_sharpbalance.members.own_settings import own_net
from sklearn_sharpbalance.members.state import own_draws

__all__ = ["ROUTED", "rebuild"]

ROUTED = ("fit", "partial_fit", "score")  # methods that take metadata

# What may be set for the machine that opens a file.
SETTABLE = ("device", "n_jobs", "memory", "checkpoint_dir", "verbose")
# Where a net of one's own has what a member's net has wrapped.
OF_NET = {"module__module": "module", "optimizer__base_optimizer": "optimizer"}
SPARE_LAYERS = 128  # layers without weights that a network may have


def rebuild(tree: dict[str, Any], passed: dict[str, Any]):
    """The estimator that a file describes.

    Parameters
    ----------
    tree : dict
        Content of the file.
    passed : dict
        What the user passes for what the file could only name.
    """
    cls = _ensemble_class(tree["class"])
    objects = _Objects(passed)
    params = {name: objects.get(name, entry) for name, entry in tree["params"].items()}
    # That of the fit: the parameter may have been set anew since.
    entry = tree.get("rule", tree["params"]["aggregation"])
    rule = objects.get("aggregation", entry)
    objects.check(cls)
    params |= {name: passed[name] for name in SETTABLE if name in passed}
    estimator = cls(**params)
    estimator._validate_params()
    _set_requests(estimator, tree.get("requests", {}))
    whole = "value" in tree.get("rule", {})  # with what was nested then
    nested = {} if whole else estimator._nested("aggregation")
    estimator.aggregation_ = _aggregation(rule, nested, tree["aggregation"])
    _set_fitted(estimator, tree, _net(tree["net"], params, objects, _device(params)))
    return estimator


def _set_requests(estimator, requests):
    """Let methods ask for metadata again, whether or not it is routed here."""
    with config_context(enable_metadata_routing=True):
        for name in ROUTED:
            if requests.get(name):
                getattr(estimator, f"set_{name}_request")(**requests[name])


def _ensemble_class(name):
    kinds = [BaseDeepEnsemble]
    for kind in kinds:  # grows while it is read: children of children
        kinds += kind.__subclasses__()
    found = [kind for kind in kinds if f"{kind.__module__}.{kind.__qualname__}" == name]
    if not found:
        raise ModelFileError(
            f"it holds a {name!r}, and no ensemble of that name is imported here."
        )
    return found[-1]  # a notebook may have defined it more than once


class _Objects:
    """Values of a file's parameters; what it only names comes from the user.

    Parameters
    ----------
    passed : dict
        By name of the parameter; "module" stands for the network wherever it is.
    """

    def __init__(self, passed):
        self.passed = passed
        self.needed: dict[str, str] = {}
        self.known: dict[str, Any] = {}

    def get(self, name: str, entry: dict[str, Any]) -> Any:
        """Value of one parameter."""
        if "value" in entry:
            return entry["value"]
        if "net" in entry:
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
        """One setting of the members' net, once all parameters are there."""
        if "value" in entry:
            return entry["value"]
        label = entry["missing"]
        if label in self.known:
            return self.known[label]
        return getattr(estimator, OF_NET.get(name, name))  # of a net passed as a whole

    def check(self, cls) -> None:
        """Raise if something is missing, or was passed that has no place."""
        if self.needed:
            listed = ", ".join(f"{name} ({what})" for name, what in self.needed.items())
            call = ", ".join(f"{name}=..." for name in self.needed)
            raise InvalidInputError(
                f"the file names what it cannot hold: {listed}. Pass it again: "
                f"load(path, {call})."
            )
        for name, value in self.passed.items():
            if name in SETTABLE or any(value is one for one in self.known.values()):
                continue
            raise InvalidInputError(
                f"{name} is a setting that the file holds itself. Leave it out and use "
                f"set_params on the loaded {cls.__name__}."
            )


def _make_net(cls, params):
    criterion = params.get("criterion", nn.NLLLoss)
    if not issubclass(cls, NeuralNetClassifier) or "module" not in params:
        raise ModelFileError("it describes a net without a module.")
    # An object is the user's own, who has passed it again.
    kind = criterion if isinstance(criterion, type) else type(criterion)
    if kind.__module__.startswith("torch.nn") and not issubclass(
        kind, nn.modules.loss._Loss
    ):
        raise ModelFileError(f"it takes {kind.__name__} for a loss.")
    return cls(**params)


def _net(tree, params, objects, device):
    """The net that every member is a copy of."""
    estimator = params["estimator"]
    settings = {
        name: objects.of_net(name, entry, estimator)
        for name, entry in tree["params"].items()
        if name != "callbacks"  # made anew below, from what the user passed
    }
    if settings.get("module") is not MemberModule:
        raise ModelFileError("its members are not of this package.")
    is_net = isinstance(estimator, NeuralNetClassifier)
    of_net = estimator.callbacks if is_net else None
    callbacks = joined_callbacks(of_net, ensemble_callbacks(params))
    own = {"device": device, "train_split": None, "callbacks": callbacks}
    return _make_net(tree["class"].get("value", type(estimator)), {**settings, **own})


def _device(params):
    """The device of the file where it exists, else the CPU."""
    try:
        return resolve_devices(params["device"])[0]
    except InvalidInputError:
        return "cpu"


def _set_fitted(estimator, tree, net):
    for name, value in tree["fitted"].items():
        if not name.isidentifier() or name.startswith("_") or not name.endswith("_"):
            raise ModelFileError(f"it sets {name!r}, which no fit does.")
        setattr(estimator, name, value)
    estimator.net_ = net
    estimator.engine_ = EngineChoice(*tree["engine"])
    estimator.input_format_ = _input_format(tree["input_format"])
    seeds, histories = estimator.member_seeds_, estimator.history_
    members = [
        MemberState(i, seed, **member, history=history)
        for i, (member, seed, history) in enumerate(
            zip(tree["members"], seeds, histories, strict=True)
        )
    ]
    for member in members:
        check_weights(own_net(net, member.index), member.module, member.seed)
    nets = [restore(net, member) for member in members]
    estimator.predictors_ = [
        nets[one] if isinstance(one, int) else _restore_weights(net, **one)
        for one in tree["predictors"]
    ]
    _set_nets(estimator, nets, tree["trunk"])


def _restore_weights(net, module, **more):
    check_weights(own_net(net, 0), module)
    return restore(net, MemberState(0, 0, module, **more))


def _set_nets(estimator, nets, trunk):
    """Members; for an ensemble over a shared trunk these are heads."""
    if not hasattr(estimator, "_whole_members"):
        estimator.estimators_ = nets
        return
    estimator.heads_, estimator.trunk_ = nets, None
    if trunk is not None:
        device, precision = nets[0].device, trunk["precision"]
        estimator.trunk_ = as_trunk(estimator.shared_trunk, 0, device, precision)
        estimator.trunk_.load_state(trunk)
    estimator.estimators_ = estimator._whole_members()


def _aggregation(rule, nested, fitted):
    aggregation = AGGREGATIONS.resolve(rule).set_params(**nested)
    for name, value in fitted.items():
        if not name.isidentifier() or name.startswith("_") or not name.endswith("_"):
            raise ModelFileError(f"it sets {name!r}, which no fit does.")
        setattr(aggregation, name, value)
    return aggregation


def _input_format(tree):
    shapes = {
        name: value if value is None else tuple(int(size) for size in value)
        for name, value in tree.items()
        if name.endswith("shape")
    }
    return InputFormat(**{**tree, **shapes})


def check_weights(net, state, seed=0) -> None:
    """Raise if the weights are not those of the network, before it takes memory.

    A crafted file can ask for a network of any size. It is built without memory
    first, and for real only if the file has all its weights. What a network draws
    while it is built, its width say, it draws from the member's seed.
    """
    module = net.module__module
    if isinstance(module, nn.Module):
        return  # a prototype that the user passed
    kwargs = net.get_params_for("module")
    kwargs = {k: v for k, v in kwargs.items() if k not in OWN_ARGUMENTS}
    try:
        limit = _bounded(SPARE_LAYERS + 4 * len(state))
        with own_draws(seed), limit, torch.device("meta"):
            inner = module(**kwargs)
    except ModelFileError:
        raise
    except Exception:
        if name_of(module) is not None:
            raise
        return  # the user's own may read numbers from tensors, which have none here
    for key, value in inner.state_dict().items():
        if not isinstance(value, torch.Tensor):
            continue  # what get_extra_state returns
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
    """Let a block build modules of at most so many layers and parameters."""
    count = 0

    def hook(module, name, value):
        nonlocal count
        count += 1
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
