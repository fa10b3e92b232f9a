"""Default step, optimizer, learning rate, batch size and epochs for tables."""

import math
from typing import Any

import torch

from sklearn_sharpbalance.data.inputs import InputFormat
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.optim import MomentumSAM
from sklearn_sharpbalance.selection.rules import selects_all
from sklearn_sharpbalance.training.net_building import resolve_sam

LEARNING_RATE = 3e-3
RHO = 0.1  # of Momentum-SAM
MAX_DECAY = 3.0  # decoupled: multiplied by the learning rate in each step
DECAY_PER_COLUMN = 150.0  # times the number of columns, divided by that of rows
EPOCHS = (20, 40)
FEW_ROWS = 1_000  # below it, more epochs
MANY_ROWS = 10_000  # above it, less decay
PASSED_ROWS = 3_200_000  # by a member in all epochs
LEAST_EPOCHS = 4
BATCHES = 128  # of an epoch, at least
BATCH_SIZES = (128, 1024)


def table_step(
    params: dict[str, Any], nested: dict[str, Any], fmt: InputFormat
) -> dict[str, Any]:
    """Return parameters with the default sharpness-aware step in place of None.

    It is Momentum-SAM where :func:`table_recipe` applies. For other data, and for SAM
    ensembles (``selection="all"``), it is SAM.
    """
    applies = _applies(params, nested, fmt)
    sam, rho = params["sam"], params["rho"]
    if sam is None:
        is_plain = not applies or selects_all(params["selection"])
        sam = "sam" if is_plain else "momentum_sam"
    if rho is None and applies and resolve_sam(sam) is MomentumSAM:
        rho = RHO
    return params | {"sam": sam, "rho": rho}


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

    They apply to the default network for tables and sequences, unless the user chooses
    another optimizer than AdamW. Each setting that the user gives leaves the others as
    they are. ``nested`` are ``estimator__...`` parameters without their prefix. The
    number of epochs is not set in ``partial_fit``, which is no ``whole_fit``; its later
    calls keep batch size and weight decay of the ``fitted`` net.
    """
    if not _applies(params, nested, fmt):
        return params, nested
    for name in ("momentum", "nesterov", "dampening"):
        if f"optimizer__{name}" in nested:
            raise InvalidInputError(
                f"estimator__optimizer__{name} is not an option of AdamW, the default "
                "optimizer for tables. Pass optimizer=torch.optim.SGD too, or remove "
                "it."
            )
    n_inputs = math.prod(fmt.shape or ())  # with the codes of categories
    decay = weight_decay(n_rows, n_inputs, n_classes)
    chosen: dict[str, Any] = {
        "optimizer": torch.optim.AdamW,
        "lr": LEARNING_RATE,
        "batch_size": getattr(fitted, "batch_size", batch_size(n_rows)),
    }
    if whole_fit:
        chosen["max_epochs"] = n_epochs(n_rows, n_classes)
    decay = getattr(fitted, "optimizer__weight_decay", decay)
    given = {name for name, value in params.items() if value is not None}
    given |= {name.removeprefix("optimizer__") for name in nested}
    chosen = {name: value for name, value in chosen.items() if name not in given}
    return params | chosen, {"optimizer__weight_decay": decay} | nested


def _applies(params, nested, fmt):
    """Whether members have the default network for tables, and AdamW."""
    optimizer = nested.get("optimizer", params["optimizer"])
    is_default = params["estimator"] is None and "module" not in nested
    is_flat = fmt.kind == "frame" or 0 < len(fmt.shape or ()) < 3
    return is_default and is_flat and optimizer in (None, torch.optim.AdamW)


def weight_decay(n_rows: int, n_columns: int, n_classes: int) -> float:
    """Return the weight decay for a table: larger for fewer rows per column.

    A row says more about a network if there are more classes.

    Examples
    --------
    >>> [weight_decay(n, 20, n_classes=2) for n in (100, 1500, 9000, 100_000)]
    [3.0, 2.0, 1.0, 0.1]
    """
    decay = DECAY_PER_COLUMN * n_columns / (n_rows * max(1, n_classes - 1))
    return min(max(decay, min(1.0, MANY_ROWS / n_rows)), MAX_DECAY)


def batch_size(n_rows: int) -> int:
    """Return the batch size: a power of two, larger for many rows.

    Examples
    --------
    >>> [batch_size(n) for n in (1_000, 10_000, 100_000, 500_000)]
    [128, 128, 512, 1024]
    """
    low, high = BATCH_SIZES
    return min(max(low, 2 ** int(math.log2(n_rows / BATCHES))), high)


def n_epochs(n_rows: int, n_classes: int) -> int:
    """Return the number of epochs: fewer for two classes, and for many rows.

    Examples
    --------
    >>> [n_epochs(n, n_classes=2) for n in (100, 500, 1000, 50_000, 200_000, 500_000)]
    [40, 28, 20, 20, 16, 6]
    >>> n_epochs(10_000, n_classes=3)
    40
    """
    low, high = EPOCHS
    fraction = min(1.0, n_rows / FEW_ROWS)
    n_needed = round(low / fraction**0.5) if n_classes < 3 else high
    n_affordable = max(LEAST_EPOCHS, PASSED_ROWS // n_rows)
    return min(n_needed, n_affordable, high)
