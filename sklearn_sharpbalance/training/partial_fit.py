"""Checks of ``partial_fit``: refused parameters, and settings that may not change."""

from typing import Any

import numpy as np
from torch import nn

from sklearn_sharpbalance._parameters import PARAMETERS, names_where
from sklearn_sharpbalance.engine.support import base_optimizer
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members.member_params import own_settings, same_setting
from sklearn_sharpbalance.members.module import OWN_ARGUMENTS
from sklearn_sharpbalance.persistence.fingerprint import (
    code_name,
    describe,
    differences,
)

# Names of parameters of the ensemble that differ from those of the net.
LABELS = {"module": "estimator"}
FIXED = names_where(partial_fit="fixed")
# Settings of the net that may change, or that are compared as a whole.
FREE = {"optimizer__base_optimizer", "optimizer__lr"}
FREE |= {f"module__{name}" for name in OWN_ARGUMENTS}


def check_partial_fit(params, classes=None, known=None):
    """Raise if a parameter needs a whole fit, or if the classes have changed.

    ``known`` are the classes of the previous calls, None in the first one.
    """
    refused = names_where(partial_fit="refused")
    given = [name for name in refused if params[name]]
    if given:
        values = " and ".join(f"{name}={params[name]!r}" for name in given)
        defaults = " and ".join(f"{n} to {PARAMETERS[n].default}" for n in given)
        raise InvalidInputError(
            f"partial_fit does not support {values}, because the number of calls is "
            f"not known. Use fit, or set {defaults}."
        )
    if classes is None or known is None:
        return
    named = np.unique(classes)
    if not np.array_equal(named, known):
        raise InvalidInputError(
            f"classes={named[:10].tolist()} differs from the previous call, where it "
            f"was {known[:10].tolist()}. Leave out `classes` to keep these classes, or "
            "start again with fit."
        )


def check_unchanged(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise if a setting, as from :func:`fixed_settings`, has changed."""
    names = [name for name in {**before, **now} if not _same(name, before, now)]
    # If a class has changed, do not report its arguments as well.
    names = [name for name in names if name.partition("__")[0] not in {*names} - {name}]
    if not names:
        return
    before_text = {_label(n): describe(before[n]) for n in names if n in before}
    now_text = {_label(n): describe(now[n]) for n in names if n in now}
    raise InvalidInputError(
        "partial_fit continues to train the members of the previous calls, which have "
        f"other settings: {'; '.join(differences(before_text, now_text))}. Restore "
        "these settings, or start again with fit or with a clone."
    )


def fixed_settings(net) -> dict[str, Any]:
    """Return the settings that determine networks and optimizers of the members.

    Names are skorch's for parts of the net and their arguments, and parameters of the
    ensemble.
    """
    of_members = [dict(settings) for settings in own_settings(net)]
    optimizer, bound = base_optimizer(net)
    parts = {name: net.get_params_for(name) for name in ("module", "criterion")}
    parts["optimizer"] = bound | net.get_params_for("optimizer")
    options = {
        f"{part}__{name}": value
        for part, given in parts.items()
        for name, value in given.items()
    }
    return {
        "standardize": net.module__mean is not None,
        "member_params": of_members if any(of_members) else None,
        "sam": net.optimizer,
        "class": type(net),
        "module": _structure(net.module__module),
        "criterion": net.criterion,
        "optimizer": optimizer,
        **{name: value for name, value in options.items() if name not in FREE},
    }


def _same(name, before, now):
    if name not in before or name not in now:
        return False
    a, b = before[name], now[name]
    return same_setting(a, b) or describe(a) == describe(b)


def _label(name):
    return LABELS.get(name, name if name in FIXED else f"estimator__{name}")


def _structure(module):
    """Return a class or factory; describe an instance by its layers and shapes."""
    if not isinstance(module, nn.Module):
        return module
    layers = " ".join(repr(module).split())
    shapes = {
        name: tuple(getattr(value, "shape", ()))
        for name, value in module.state_dict().items()
    }
    return f"{layers} {shapes} {code_name(type(module))}"
