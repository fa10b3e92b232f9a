"""Default optimizer, learning rate and number of epochs for tables."""

import inspect
import math
from typing import Any

import torch

from sklearn_sharpbalance.data.inputs import InputFormat
from sklearn_sharpbalance.training.net_building import names_given, resolve_sam

__all__ = ["table_recipe"]

LEARNING_RATE = 3e-3
WEIGHT_DECAY = (1.0, 3.0)  # decoupled: multiplied by the learning rate in each step
DECAY_PER_COLUMN = 150.0  # times the number of columns, divided by that of rows
EPOCHS = (20, 40)
FEW_ROWS = 1000  # below it, more epochs


def table_recipe(
    params: dict[str, Any],
    nested: dict[str, Any],
    fmt: InputFormat,
    n_rows: int,
    n_classes: int,
    *,
    whole_fit: bool = True,
    fitted: Any = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return parameters with the defaults for tables in place of None.

    They apply to the default network for tables and sequences. AdamW, its learning rate
    and its weight decay belong together: none of them is set if the user sets the
    optimizer, the learning rate, or an option of the optimizer. Options of the
    sharpness-aware step, such as LookSAM's ``alpha``, are not options of the optimizer.

    Parameters
    ----------
    params : dict
        Parameters of the ensemble.
    nested : dict
        ``estimator__...`` parameters without their prefix.
    fmt : InputFormat
    n_rows : int
        Training samples.
    n_classes : int
    whole_fit : bool, default=True
        Whether the number of epochs is set; False in ``partial_fit``, whose number of
        calls is not known.
    fitted : NeuralNetClassifier or None, default=None
        Net of earlier calls, whose optimizer, rate and weight decay are kept.

    Returns
    -------
    params, nested : dict

    Examples
    --------
    >>> names = ("estimator", "optimizer", "lr", "max_epochs", "member_params")
    >>> params, nested = dict.fromkeys(names), {}
    >>> table = InputFormat("table", (4,), (4,))
    >>> params, nested = table_recipe(params, nested, table, 5000, n_classes=2)
    >>> params["lr"], params["max_epochs"], nested
    (0.003, 20, {'optimizer__weight_decay': 1.0})
    """
    shape = fmt.shape or ()
    if params["estimator"] is not None or not 0 < len(shape) < 3:
        return params, nested
    names = names_given(params, nested)
    sets_lr = params["lr"] is not None or "lr" in names
    of_step = _options_of_step(params.get("sam"))
    if params["optimizer"] is not None or any(
        name.startswith("optimizer") and name not in of_step for name in names
    ):
        return params, nested
    if fitted is None and not sets_lr:
        lr = LEARNING_RATE
        decay = weight_decay(n_rows, math.prod(shape), n_classes)
    elif getattr(fitted, "optimizer__base_optimizer", None) is torch.optim.AdamW:
        lr, decay = fitted.lr, fitted.optimizer__weight_decay
    else:
        return params, nested
    chosen: dict[str, Any] = {"optimizer": torch.optim.AdamW}
    if not sets_lr:
        chosen["lr"] = lr
    if params["max_epochs"] is None and "max_epochs" not in nested and whole_fit:
        chosen["max_epochs"] = n_epochs(n_rows, n_classes)
    return params | chosen, nested | {"optimizer__weight_decay": decay}


def weight_decay(n_rows: int, n_columns: int, n_classes: int) -> float:
    """Return the weight decay for a table: larger for fewer rows per column.

    A row says more about a network if there are more classes.

    Examples
    --------
    >>> [weight_decay(n, n_columns=20, n_classes=2) for n in (100, 1500, 9000)]
    [3.0, 2.0, 1.0]
    """
    low, high = WEIGHT_DECAY
    decay = DECAY_PER_COLUMN * n_columns / (n_rows * max(1, n_classes - 1))
    return min(max(decay, low), high)


def n_epochs(n_rows: int, n_classes: int) -> int:
    """Return the number of epochs: fewer for large tables of two classes.

    Examples
    --------
    >>> [n_epochs(n, n_classes=2) for n in (100, 250, 500, 1000, 10_000)]
    [40, 40, 28, 20, 20]
    >>> n_epochs(10_000, n_classes=3)
    40
    """
    low, high = EPOCHS
    share = min(1.0, n_rows / FEW_ROWS)
    n_needed = round(low / share**0.5) if n_classes < 3 else high
    return min(n_needed, high)


def _options_of_step(sam):
    """Return the names of the settings of a sharpness-aware step."""
    options = inspect.signature(resolve_sam(sam)).parameters.keys()
    return {f"optimizer__{name}" for name in options - {"params", "base_optimizer"}}
