"""An optimizer that shares parameter groups and state with a base optimizer."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer

from sklearn_sharpbalance._validation import Interval
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.optim._options import (
    check_group,
    group_keys,
    make_base,
    member_count,
)

__all__ = ["WrappingOptimizer"]


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
    _own_state_names: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        params: Any,
        base_optimizer: Callable[..., Optimizer],
        options: Mapping[str, Any],
        base_kwargs: Mapping[str, Any],
    ) -> None:
        self._keys = group_keys(options, base_optimizer)
        # Kept separately: Adam treats any entry of `state` as its own.
        self._own_state: dict[Tensor, dict[str, Any]] = {}
        super().__init__(params, {self._keys[k]: v for k, v in options.items()})
        self.base_optimizer = make_base(
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
        self._own_state = _split(state, self._own_state_names)
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
        members = member_count(groups)
        for group in groups[first:]:
            check_group(group, self._rules, self._keys, members)

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
        self._own_state = _split(state["state"], self._own_state_names)
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
