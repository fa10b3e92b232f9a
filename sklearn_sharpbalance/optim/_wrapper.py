"""An optimizer that shares parameter groups and state with a base optimizer."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from sklearn_sharpbalance._validation import Integral, Interval
from sklearn_sharpbalance.exceptions import InvalidInputError


class WrappingOptimizer(Optimizer):
    """Base of optimizers that own a base optimizer.

    ``param_groups`` and ``state`` are stored on the base optimizer only, and are
    properties here. So the two always agree, also after the base optimizer loads a
    state dict by itself, or after ``optimizer.state = defaultdict(dict)``, a common
    reset.

    torch's own ``__getstate__`` keeps only ``defaults``, ``state`` and
    ``param_groups``; here it also keeps the base optimizer and the method's own state.
    """

    _rules: ClassVar[dict[str, Interval]] = {}
    own_state_names: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        params: Any,
        base_optimizer: Callable[..., Optimizer],
        options: Mapping[str, Any],
        base_kwargs: Mapping[str, Any],
    ) -> None:
        self._keys = _group_keys(options, base_optimizer)
        # Kept separately: Adam treats any entry of `state` as its own.
        self._own_state: dict[Tensor, dict[str, Any]] = {}
        super().__init__(params, {self._keys[k]: v for k, v in options.items()})
        self.base_optimizer = _make_base(
            base_optimizer, self.param_groups, self._keys, base_kwargs
        )
        self._join_base()
        # Schedulers that cycle the momentum look for it among the defaults.
        self.defaults.update(self.base_optimizer.defaults)
        self._check_groups(self.param_groups)

    @property
    def param_groups(self):
        return self._home["param_groups"]

    @param_groups.setter
    def param_groups(self, groups):
        self._home["param_groups"] = groups

    @property
    def state(self):
        return self._home["state"]

    @state.setter
    def state(self, state):
        self._own_state = _split(state, self.own_state_names)
        self._home["state"] = state

    @property
    def _home(self) -> dict[str, Any]:
        """Attributes of the object that stores groups and state."""
        return vars(vars(self).get("base_optimizer", self))

    def _join_base(self) -> None:
        """Store groups and state on the base optimizer only."""
        for name in ("param_groups", "state"):
            vars(self).pop(name, None)
        self.base_optimizer.register_load_state_dict_pre_hook(
            partial(_with_options, tuple(self._keys.values()))
        )

    def _option(self, group: Mapping[str, Any], name: str) -> Any:
        return group[self._keys[name]]

    def add_param_group(self, param_group):
        """Add a ``param_group``, as in any torch optimizer."""
        if "base_optimizer" not in self.__dict__:
            super().add_param_group(param_group)  # __init__ checks all groups
            return
        if isinstance(param_group, dict):  # torch raises for anything else
            for key in self._keys.values():
                param_group.setdefault(key, self.defaults[key])
        self.base_optimizer.add_param_group(param_group)
        try:
            self._check_groups(self.param_groups, first=-1)
        except InvalidInputError:
            self.param_groups.pop()
            raise

    def _check_groups(self, groups: list[dict[str, Any]], first: int = 0) -> None:
        members = _member_count(groups)
        for group in groups[first:]:
            _check_group(group, self._rules, self._keys, members)

    def state_dict(self):
        """Return the state of the base optimizer and of the method, per parameter."""
        state_dict = super().state_dict()
        state = dict(state_dict["state"])
        params = chain.from_iterable(group["params"] for group in self.param_groups)
        for index, param in enumerate(params):
            if param in self._own_state:
                state[index] = {**state.get(index, {}), **self._own_state[param]}
        return {**state_dict, "state": state}

    def load_state_dict(self, state_dict):
        """Load ``state_dict``; options that are missing in it keep their values."""
        keys = self._keys.values()
        super().load_state_dict(_with_options(keys, self, state_dict))

    def __getstate__(self):
        own = ("base_optimizer", "_keys", "_own_state")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in own}}

    def __setstate__(self, state):
        if "base_optimizer" in state:  # unpickled or copied, with the base optimizer
            super().__setstate__(state)
            self._join_base()
            return
        self._check_groups(state["param_groups"])  # before anything is replaced
        self._own_state = _split(state["state"], self.own_state_names)
        self.base_optimizer.__setstate__(state)


def _with_options(
    keys: Iterable[str], optimizer: Optimizer, state_dict: dict[str, Any]
) -> dict[str, Any]:
    """Return the state dict, completed by the optimizer's own options."""
    groups = state_dict["param_groups"]
    if len(groups) == len(optimizer.param_groups):
        groups = [
            {**{key: mine[key] for key in keys}, **theirs}
            for mine, theirs in zip(optimizer.param_groups, groups)
        ]
    return {**state_dict, "param_groups": groups}


def _split(state: dict, names: tuple[str, ...]) -> dict[Tensor, dict[str, Any]]:
    """Remove the entries ``names`` from each parameter's state and return them."""
    own: dict[Tensor, dict[str, Any]] = {}
    for param in [key for key in state if isinstance(key, Tensor)]:
        found = {name: state[param].pop(name) for name in names if name in state[param]}
        if found:
            own[param] = found
    return own


def _group_keys(
    names: Iterable[str], base_optimizer: Callable[..., Optimizer]
) -> dict[str, str]:
    """Return the key of each option in a parameter group: its name or ``sam_<name>``.

    The base optimizer reads the same groups, so an option that it has too
    (Adadelta's ``rho``, RMSprop's ``alpha``) needs another key.
    """
    try:
        taken = _arguments(base_optimizer)
    except (TypeError, ValueError):  # not hashable, or without a signature
        taken = frozenset()
    return {name: f"sam_{name}" if name in taken else name for name in names}


@lru_cache(maxsize=64)  # called for each member in each phase
def _arguments(base_optimizer: Callable[..., Optimizer]) -> frozenset[str]:
    return frozenset(inspect.signature(base_optimizer).parameters)


def _make_base(
    base_optimizer: Callable[..., Optimizer],
    groups: list[dict[str, Any]],
    keys: Mapping[str, str],
    kwargs: Mapping[str, Any],
) -> Optimizer:
    """Return the base optimizer over ``groups`` (the same dict objects)."""
    if not callable(base_optimizer) or isinstance(base_optimizer, Optimizer):
        raise InvalidInputError(
            "base_optimizer must be a torch.optim.Optimizer class; got an object of "
            f"type {type(base_optimizer).__name__}. Pass the class, and its arguments "
            "by name: SAM(params, torch.optim.SGD, lr=0.1)."
        )
    base = base_optimizer(groups, **kwargs)
    # LBFGS and other sharpness-aware optimizers run further passes in a step.
    if not isinstance(base, Optimizer) or (
        isinstance(base, torch.optim.LBFGS) or hasattr(base, "perturbed")
    ):
        raise InvalidInputError(
            "base_optimizer must make a torch optimizer that only reads `.grad`; "
            f"got {type(base).__name__}. Use SGD, Adam, AdamW or the like."
        )
    clash = sorted(set(keys.values()) & set(base.defaults))
    if clash:
        raise InvalidInputError(
            f"{type(base).__name__} has an option {clash[0]!r} of its own, which the "
            "signature of base_optimizer does not show. Pass the class or a "
            "functools.partial of it, so that the two options get different names."
        )
    return base


def _member_count(groups: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the size ``M`` of the leading axis in all stacked groups, None if none."""
    groups = list(groups)
    for group in groups:
        if not isinstance(group["stacked"], bool):
            raise InvalidInputError(
                f"stacked must be a bool; got {group['stacked']!r}."
            )
    if len({group["stacked"] for group in groups}) > 1:
        raise InvalidInputError("stacked must be the same in all parameter groups.")
    params = [p for group in groups if group["stacked"] for p in group["params"]]
    if not params:
        return None
    sizes = {p.shape[0] if p.ndim else None for p in params}
    if len(sizes) > 1 or None in sizes:
        shapes = ", ".join(sorted({str(tuple(p.shape)) for p in params}))
        raise InvalidInputError(
            "Parameters of stacked groups need a leading member axis of a common size; "
            f"got shapes {shapes}."
        )
    return sizes.pop()


def _check_group(
    group: dict[str, Any],
    rules: Mapping[str, Interval],
    keys: Mapping[str, str],
    members: int | None,
) -> None:
    """Check the options of a group and convert them so that they can be saved.

    ``members`` is the member count of all stacked groups, because a group without
    parameters does not show it.
    """
    for name, rule in rules.items():
        per_member = members if name == "rho" and group["stacked"] else None
        value = _checked(name, group[keys[name]], rule, per_member)
        if isinstance(value, Tensor) and group["params"]:
            value = value.to(group["params"][0].device)
        group[keys[name]] = value
    for key, value in group.items():
        if isinstance(value, np.generic):  # torch.load(weights_only=True) rejects it
            group[key] = value.item()


def _checked(
    name: str, value: Any, rule: Interval, members: int | None
) -> float | Tensor:
    """Return a number as int or float; a tensor, or one value per member, as tensor."""
    if isinstance(value, list | tuple | np.ndarray):
        value = torch.as_tensor(value, dtype=torch.get_default_dtype())
    entries = value.flatten().tolist() if isinstance(value, Tensor) else [value]
    wrong = [v for v in entries if not rule.is_satisfied_by(v)]
    if wrong:
        raise InvalidInputError(f"{name} must be {rule}; got {wrong[0]!r}.")
    if rule.type is Integral and len(entries) == 1:
        return int(entries[0])
    if not isinstance(value, Tensor):
        return float(value)
    if value.ndim and tuple(value.shape) != (members,):
        problem = f"{name} has shape {tuple(value.shape)}"
        if members is None:
            raise InvalidInputError(
                f"{problem}, but the group is not stacked. Pass one number."
            )
        raise InvalidInputError(
            f"{problem} for {members} stacked members. Pass one value or {members}."
        )
    return value
