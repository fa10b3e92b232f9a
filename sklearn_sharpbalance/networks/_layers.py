"""What the networks share: checks of their sizes and the start of their weights."""

from numbers import Integral, Real

from torch import nn

from sklearn_sharpbalance.exceptions import InvalidInputError


class PlainSequential(nn.Sequential):
    """Sequential whose subclasses are built from sizes and can still be sliced."""

    def __getitem__(self, index):
        # nn.Sequential would hand a slice of layers to the subclass's __init__.
        if isinstance(index, slice):
            return nn.Sequential(*list(self._modules.values())[index])
        return super().__getitem__(index)


def check_sizes(**sizes: int) -> None:
    """Every size is an integer of at least 1."""
    for name, value in sizes.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise InvalidInputError(
                f"{name} must be an integer of at least 1, got {value!r}."
            )


def check_dropout(dropout: float) -> None:
    """A share of at least 0 and less than 1."""
    if not isinstance(dropout, Real) or not 0 <= dropout < 1:
        raise InvalidInputError(
            f"dropout must be at least 0 and less than 1, got {dropout!r}."
        )


def init_he(module: nn.Module) -> None:
    """He et al. (2015), fan-out, for every convolution; norm layers start at one."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def conv3x3(n_in: int, n_out: int, stride: int = 1) -> nn.Conv2d:
    """3x3 convolution that keeps the size; without a bias, a norm layer follows."""
    return nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)


def conv1x1(n_in: int, n_out: int, stride: int = 1) -> nn.Conv2d:
    """1x1 convolution without a bias, for shortcuts."""
    return nn.Conv2d(n_in, n_out, 1, stride=stride, bias=False)
