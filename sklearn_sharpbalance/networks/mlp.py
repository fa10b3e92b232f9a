"""Multi-layer perceptron for tables and other samples, which it flattens."""

from collections.abc import Iterable, Sequence
from numbers import Integral

from torch import nn

from sklearn_sharpbalance._validation import (
    FROM_0_BELOW_1,
    POSITIVE_INTEGER,
    check_numbers,
)
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.networks._layers import PlainSequential

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "identity": nn.Identity,
}


class MLP(PlainSequential):
    """Fully connected network that returns logits.

    It is a :class:`torch.nn.Sequential` of ``Flatten``, then for each hidden layer
    ``Linear``, ``BatchNorm1d`` if ``batch_norm``, the activation and ``Dropout`` if
    ``dropout > 0``, and a last ``Linear``.

    Parameters
    ----------
    n_features : int
        Values per sample; the product of the axes if a sample has several.
    n_classes : int
        Number of logits.
    hidden : int or sequence of int, default=(128, 128)
        Width of each hidden layer; empty for softmax regression.
    activation : str, default="relu"
        One of "relu", "leaky_relu", "elu", "gelu", "silu", "tanh", "sigmoid",
        "identity".
    dropout : float, default=0.0
        Probability of dropping a hidden unit in training.
    batch_norm : bool, default=False
        Whether to normalise before each activation.

    Examples
    --------
    >>> import torch
    >>> MLP(4, 3, hidden=(8,))(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    >>> MLP(28 * 28, 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        n_features,
        n_classes,
        hidden=(128, 128),
        activation="relu",
        dropout=0.0,
        batch_norm=False,
    ):
        hidden = _as_widths(hidden)
        _check(n_features, n_classes, hidden, activation, dropout)
        layers: list[nn.Module] = [nn.Flatten()]
        widths = (n_features, *hidden)
        for n_in, n_out in zip(widths, hidden):
            layers.append(nn.Linear(n_in, n_out))
            if batch_norm:
                layers.append(nn.BatchNorm1d(n_out))
            layers.append(ACTIVATIONS[activation]())
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
        super().__init__(*layers, nn.Linear(widths[-1], n_classes))


def _as_widths(hidden) -> tuple:
    if isinstance(hidden, Iterable):
        return tuple(hidden)
    if isinstance(hidden, Integral):
        return (hidden,)
    raise InvalidInputError(
        f"hidden must be a width or a sequence of widths, got {hidden!r}. Pass () for "
        "softmax regression."
    )


def _check(
    n_features: int,
    n_classes: int,
    hidden: Sequence[int],
    activation: str,
    dropout: float,
) -> None:
    check_numbers(POSITIVE_INTEGER, n_features=n_features, n_classes=n_classes)
    for i, width in enumerate(hidden):
        check_numbers(POSITIVE_INTEGER, **{f"hidden[{i}]": width})
    check_numbers(FROM_0_BELOW_1, dropout=dropout)
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        names = ", ".join(repr(name) for name in ACTIVATIONS)
        raise InvalidInputError(
            f"Unknown activation {activation!r}. Choose one of {names}."
        )
