"""Networks: a perceptron for tables and convolutional nets for images.

All take explicit sizes, return logits of shape (N, n_classes), and can be copied and
pickled. :func:`default_network` chooses one by the shape of a sample, :func:`finetune`
puts a new head on a pretrained one.
"""

from sklearn_sharpbalance.networks.cnn import SmallCNN
from sklearn_sharpbalance.networks.defaults import default_network
from sklearn_sharpbalance.networks.mlp import MLP
from sklearn_sharpbalance.networks.resnet import (
    ResNet,
    ResNet18,
    SmallResNet,
    WideResNet,
)
from sklearn_sharpbalance.networks.transfer import finetune

__all__ = [
    "MLP",
    "ResNet",
    "ResNet18",
    "SmallCNN",
    "SmallResNet",
    "WideResNet",
    "default_network",
    "finetune",
]
