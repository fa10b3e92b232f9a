"""What a fit leaves: its settings, and the attributes of an earlier fit if it fails."""

import inspect
import warnings
from typing import Any

import torch
from skorch.callbacks import LRScheduler

from sklearn_sharpbalance.data.augment import RandomCropFlip
from sklearn_sharpbalance.engine.support import base_optimizer
from sklearn_sharpbalance.exceptions import SharpBalanceWarning
from sklearn_sharpbalance.members.schedules import LR_SCHEDULES
from sklearn_sharpbalance.optim import OPTIMIZERS
from sklearn_sharpbalance.runtime.devices import resolve_devices
from sklearn_sharpbalance.training.net_building import base_rate
from sklearn_sharpbalance.training.prepare import Prepared

__all__ = ["FittedState", "settings_in_force", "settings_text"]

# Shown if the net has them.
OPTIONS_SHOWN = (
    "module__width",
    "criterion__label_smoothing",
    "optimizer__nesterov",
)


class FittedState:
    """Context that restores the fitted attributes if a fit fails.

    If the estimator was not fitted before, the usable state of an interrupted fit is
    kept.

    Parameters
    ----------
    estimator : BaseDeepEnsemble

    Attributes
    ----------
    usable_epochs : int
        Epochs of the usable state after an interrupted fit; 0 if there is none.
    """

    def __init__(self, estimator):
        self.estimator, self.usable_epochs = estimator, 0
        self.before = self._attributes()

    def _attributes(self):
        return {k: v for k, v in vars(self.estimator).items() if k.endswith("_")}

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is None:
            return
        if self.usable_epochs and "estimators_" not in self.before:
            warnings.warn(
                "The fit was interrupted. The ensemble is usable in its state after "
                f"epoch {self.usable_epochs}, the last one that all members have "
                "completed, or the best one with early stopping.",
                SharpBalanceWarning,
                stacklevel=4,
            )
            return
        for name in self._attributes():
            delattr(self.estimator, name)
        vars(self.estimator).update(self.before)


def settings_in_force(prepared: Prepared) -> dict[str, Any]:
    """Return the settings of a fit by name, as numbers and strings.

    Parameters
    ----------
    prepared : Prepared

    Returns
    -------
    settings : dict
        ``lr``, ``lr_schedule``, ``max_epochs``, ``batch_size``, ``optimizer``,
        ``weight_decay``, ``train_transform``, ``device``, ``precision``,
        ``threads``, those of torch on the CPU, and with SAM ``sam`` and ``rho``. If
        they are set, ``width`` of the network, ``label_smoothing`` and ``nesterov``.
    """
    net, training = prepared.trainer.net, prepared.trainer.training
    optimizer, _ = base_optimizer(net)
    settings = {
        "lr": float(base_rate(net)),
        "lr_schedule": _schedule_name(prepared.params["lr_schedule"], training),
        "max_epochs": int(training.n_epochs),
        "batch_size": int(training.batch_size),
        "optimizer": getattr(optimizer, "__name__", type(optimizer).__name__),
        "weight_decay": _weight_decay(net),
        "train_transform": _transform_name(training.transform),
        "device": ", ".join(resolve_devices(prepared.params["device"])),
        "precision": training.precision,
        "threads": prepared.engine.threads or torch.get_num_threads(),
    }
    for name in OPTIONS_SHOWN:
        value = getattr(net, name, None)
        if isinstance(value, int | float):
            settings[name.partition("__")[2]] = value
    if any(training.rho):
        settings["sam"] = _step_name(net.optimizer)
        settings["rho"] = _radius(training.rho)
    return settings


def _step_name(optimizer):
    """Return the name of a sharpness-aware step, or of a class of the user."""
    names = {kind: name for name, kind in OPTIMIZERS.items()}
    return names.get(optimizer, optimizer.__name__)


def _radius(rho):
    """Return the radius of all members, or a text with one for each."""
    return rho[0] if len(set(rho)) == 1 else ", ".join(f"{each:g}" for each in rho)


def _transform_name(transform):
    if transform is None or isinstance(transform, RandomCropFlip):
        return repr(transform)
    return getattr(transform, "__name__", type(transform).__name__)


def _weight_decay(net):
    """Return the weight decay of the net, of its optimizer, or that one's default."""
    optimizer, bound = base_optimizer(net)
    parameter = inspect.signature(optimizer).parameters.get("weight_decay")
    default = 0.0 if parameter is None else parameter.default
    value = getattr(net, "optimizer__weight_decay", bound.get("weight_decay", default))
    return float(value)


def _schedule_name(given, training):
    if isinstance(given, LRScheduler):
        return "LRScheduler"
    for name, schedule in LR_SCHEDULES.items():
        if schedule is training.lr_schedule:
            return name
    kind = type(training.lr_schedule).__name__
    return getattr(training.lr_schedule, "__name__", kind)


def settings_text(settings: dict[str, Any]) -> str:
    """Return the settings in one line.

    Examples
    --------
    >>> settings_text({"lr": 0.1, "batch_size": 128, "device": "cpu"})
    'lr 0.1, batch_size 128, device cpu'
    """
    parts = []
    for name, value in settings.items():
        text = f"{value:g}" if isinstance(value, float) else str(value)
        parts.append(f"{name} {text}")
    return ", ".join(parts)
