"""Size checks, initialisation and convolutions that the networks share."""

from torch import nn


class PlainSequential(nn.Sequential):
    """Sequential that can be sliced, although a subclass is built from sizes."""

    def __getitem__(self, index):
        # nn.Sequential would pass the layers to the __init__ of the subclass.
        if isinstance(index, slice):
            return nn.Sequential(*list(self)[index])
        return super().__getitem__(index)


def init_he(module: nn.Module) -> None:
    """Initialise all convolutions as He et al. (2015), with the fan-out."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def conv3x3(n_in: int, n_out: int, stride: int = 1) -> nn.Conv2d:
    """Return a padded 3x3 convolution without a bias, for use before a norm layer."""
    return nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)


def conv1x1(n_in: int, n_out: int, stride: int = 1) -> nn.Conv2d:
    """Return a 1x1 convolution without a bias, for shortcuts."""
    return nn.Conv2d(n_in, n_out, 1, stride=stride, bias=False)
