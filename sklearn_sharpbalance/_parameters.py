"""The parameters of the ensembles, one row each.

A new parameter needs a row here, a place in ``__init__`` and a paragraph in the
docstring of the estimators that have it. ``tests/test_parameters.py`` compares them.
"""

from dataclasses import dataclass
from os import PathLike
from typing import Any

from sklearn_sharpbalance._validation import Integral, Interval, Real, StrOptions

__all__ = ["CONSTRAINTS", "PARAMETERS", "Parameter", "names_where", "without_sam"]


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """What the library has to know about a parameter.

    Attributes
    ----------
    default : object
    constraint : list or None
        What scikit-learn's validation accepts; None if ``fit`` checks the value.
    changes_result : bool
        Whether the result of a fit depends on it. If so, a checkpoint that was
        written with another value is refused.
    partial_fit : {"free", "fixed", "refused"}
        Whether it may be set between two calls of ``partial_fit``, must stay as it
        was in the first call, or must keep its default in all calls.
    in_file : bool
        Whether a model file may set it. Folders and processes belong to a machine.
    """

    default: Any = None
    constraint: list | None = None
    changes_result: bool = True
    partial_fit: str = "free"
    in_file: bool = True


COUNT = Interval(Integral, 1, None, closed="left")
PRECISIONS = {"auto", "float32", "tf32", "bf16", "fp16"}

PARAMETERS: dict[str, Parameter] = {
    "estimator": Parameter(partial_fit="fixed"),
    "n_estimators": Parameter(default=3, constraint=[COUNT], partial_fit="fixed"),
    # SharpBalance
    "rho": Parameter(),
    "flat_ratio": Parameter(
        default=0.4, constraint=[Interval(Real, 0, 1, closed="both")]
    ),
    "sam": Parameter(partial_fit="fixed"),
    "warmup": Parameter(default="sam", constraint=[StrOptions({"sam", "sgd"})]),
    "warmup_epochs": Parameter(
        default=0.5,
        constraint=[
            Interval(Integral, 0, None, closed="left"),
            Interval(Real, 0, 1, closed="both"),
        ],
    ),
    "sharpness": Parameter(default="fisher_trace"),
    "selection": Parameter(default="flattest"),
    # Joint training
    "loss": Parameter(default="sed", constraint=[StrOptions({"sed", "a2d", "divdis"})]),
    "diversity_weight": Parameter(
        default=0.1, constraint=[Interval(Real, 0, None, closed="left")]
    ),
    "pair_members": Parameter(
        default=2, constraint=[Interval(Integral, 2, None, closed="left"), None]
    ),
    "shared_trunk": Parameter(partial_fit="fixed"),
    # Training
    "max_epochs": Parameter(constraint=[COUNT, None]),
    "lr": Parameter(constraint=[Interval(Real, 0, None, closed="neither"), None]),
    "lr_schedule": Parameter(),
    "batch_size": Parameter(constraint=[COUNT, None]),
    "optimizer": Parameter(partial_fit="fixed"),
    "member_params": Parameter(constraint=[list, tuple, None], partial_fit="fixed"),
    "standardize": Parameter(default=True, constraint=["boolean"], partial_fit="fixed"),
    "train_transform": Parameter(default="auto"),
    "n_buffer": Parameter(
        constraint=[Interval(Integral, 0, None, closed="left"), None]
    ),
    "aggregation": Parameter(default="mean_logit"),
    "validation_fraction": Parameter(
        constraint=[Interval(Real, 0, 1, closed="neither"), None]
    ),
    "early_stopping": Parameter(
        default=False, constraint=["boolean", COUNT], partial_fit="refused"
    ),
    "class_weight": Parameter(constraint=[dict, StrOptions({"balanced"}), None]),
    "warm_start": Parameter(default=False, constraint=["boolean"]),
    "weight_averaging": Parameter(partial_fit="refused"),
    "prune": Parameter(
        constraint=[Interval(Real, 0, 1, closed="left"), None], partial_fit="refused"
    ),
    "precision": Parameter(default="auto", constraint=[StrOptions(PRECISIONS)]),
    "callbacks": Parameter(constraint=[list, None]),
    "random_state": Parameter(constraint=["random_state"]),
    # How and where a fit runs
    "engine": Parameter(
        default="auto",
        constraint=[StrOptions({"auto", "stacked", "graph", "skorch"})],
        changes_result=False,
    ),
    "device": Parameter(default="auto", changes_result=False),
    "memory": Parameter(changes_result=False, in_file=False),
    "checkpoint_dir": Parameter(
        constraint=[str, PathLike, None],
        changes_result=False,
        partial_fit="refused",
        in_file=False,
    ),
    "verbose": Parameter(default=0, constraint=["verbose"], changes_result=False),
}

CONSTRAINTS: dict[str, list] = {
    name: parameter.constraint
    for name, parameter in PARAMETERS.items()
    if parameter.constraint is not None
}


def names_where(**values) -> list[str]:
    """Return the names of the parameters whose attributes have the given values.

    Examples
    --------
    >>> names_where(in_file=False)
    ['memory', 'checkpoint_dir']
    """
    return [
        name
        for name, parameter in PARAMETERS.items()
        if all(getattr(parameter, key) == value for key, value in values.items())
    ]


def without_sam(params: dict[str, Any]) -> dict[str, Any]:
    """Return all parameters of an ensemble that offers some and never applies SAM."""
    defaults = {name: parameter.default for name, parameter in PARAMETERS.items()}
    no_sam = {"selection": "none", "warmup": "sgd", "warmup_epochs": 0}
    no_sam |= {"sam": "sam", "rho": 0.0}  # None would be a default for the data
    return defaults | no_sam | params
