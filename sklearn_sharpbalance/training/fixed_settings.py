"""What the first call of ``partial_fit`` settles for the members of all later ones."""

from typing import Any

from torch import nn

from sklearn_sharpbalance._parameters import names_where
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members.module import OWN_ARGUMENTS
from sklearn_sharpbalance.members.net import BoundOptimizer
from sklearn_sharpbalance.members.own_settings import own_settings, same_setting
from sklearn_sharpbalance.persistence.code_identity import code_name
from sklearn_sharpbalance.persistence.fingerprint import describe, differences

__all__ = ["check_unchanged", "fixed_settings"]

# By which name the user sets a part of the net, where that is not its own.
LABELS = {"module": "estimator"}
FIXED = names_where(partial_fit="fixed")


def check_unchanged(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise if a setting is another one than in the calls before.

    Parameters
    ----------
    before, now : dict
        Values by name, as from :func:`fixed_settings`; either may lack some.
    """
    names = [name for name in {**before, **now} if not _same(name, before, now)]
    # Arguments of a class mean nothing to another one.
    names = [name for name in names if name.partition("__")[0] not in {*names} - {name}]
    if not names:
        return
    texts = [
        {_label(name): describe(each[name]) for name in names if name in each}
        for each in (before, now)
    ]
    raise InvalidInputError(
        "partial_fit goes on with the members of the calls before, which were made by "
        f"other settings: {'; '.join(differences(*texts))}. Set them back to go on, "
        "or start again with fit, or with a fresh clone."
    )


def fixed_settings(net) -> dict[str, Any]:
    """What members, their weights and optimizers, were or would be made by.

    Parameters
    ----------
    net : NeuralNetClassifier
        From ``member_net``.

    Returns
    -------
    settings : dict
        Parts of the net and their arguments by the names that skorch has for them,
        and parameters of the ensemble.
    """
    apart = [dict(settings) for settings in own_settings(net)]
    optimizer, options = _base_optimizer(net)
    given = {"module": _given(net, "module", leave_out=OWN_ARGUMENTS)}
    given |= {"criterion": _given(net, "criterion"), "optimizer": options}
    return {
        "standardize": net.module__mean is not None,
        "member_params": apart if any(apart) else None,
        "sam": net.optimizer,
        "class": type(net),
        "module": _structure(net.module__module),
        "criterion": net.criterion,
        "optimizer": optimizer,
        **{
            f"{part}__{name}": value
            for part, options in given.items()
            for name, value in options.items()
        },
    }


def _same(name, before, now):
    if name not in before or name not in now:
        return False
    a, b = before[name], now[name]
    return same_setting(a, b) or describe(a) == describe(b)


def _label(name):
    return LABELS.get(name, name if name in FIXED else f"estimator__{name}")


def _given(net, part, leave_out=()):
    given = net.get_params_for(part)
    return {name: value for name, value in given.items() if name not in leave_out}


def _base_optimizer(net):
    """The optimizer that the user chose, and its options but those that may change."""
    options = _given(net, "optimizer", leave_out=("base_optimizer", "lr"))
    base: Any = net.get_params_for("optimizer").get("base_optimizer", net.optimizer)
    if isinstance(base, BoundOptimizer):
        base, options = base.func, options | base.keywords
    return base, options


def _structure(module):
    """A class or factory; of an instance what it is made of: weights are the start."""
    if not isinstance(module, nn.Module):
        return module
    layers = " ".join(repr(module).split())
    shapes = {
        name: tuple(getattr(value, "shape", ()))
        for name, value in module.state_dict().items()
    }
    return f"{layers} {shapes} {code_name(type(module))}"
