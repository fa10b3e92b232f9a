"""A new head on a pretrained network."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torchvision import models

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.networks import SmallCNN, finetune
from tests.cases import rest_slow


def trained_names(model):
    return [name for name, p in model.named_parameters() if p.requires_grad]


FAMILIES = [
    "convnext_tiny",
    "googlenet",
    "inception_v3",
    "mnasnet0_5",
    "mobilenet_v3_small",
    "resnet18",
    "shufflenet_v2_x0_5",
    "squeezenet1_0",
    "swin_t",
    "vgg11_bn",
    "vit_b_16",
]
LONG = "densenet121", "efficientnet_b0", "maxvit_t", "regnet_x_400mf"


@pytest.mark.parametrize("name", rest_slow([*FAMILIES, *LONG], FAMILIES))
def test_every_family_of_torchvision_gets_a_new_head(name):
    # On the meta device if the builder does not need values of weights.
    device = "cpu" if name in ("maxvit_t", "regnet_x_400mf") else "meta"
    kwargs = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    kwargs |= {"input_size": (224, 224)} if name == "maxvit_t" else {}
    with torch.device(device):
        model = models.get_model(name, weights=None, **kwargs)
        before = {k: v.shape for k, v in model.state_dict().items()}
        model = finetune(model, 7)
    changed = {k: v for k, v in model.state_dict().items() if v.shape != before[k]}
    assert {k.rpartition(".")[2] for k in changed} >= {"weight"}
    assert all(len(v) == 7 and before[k][0] == 1000 for k, v in changed.items())


def test_only_the_head_is_trained():
    source = SmallCNN(3, 10, width=4)
    assert trained_names(finetune(source, 3)) == [
        n for n, _ in source.named_parameters()
    ]
    head = [f"{len(source) - 1}.weight", f"{len(source) - 1}.bias"]
    assert trained_names(finetune(source, 3, trainable="head")) == head


def test_frozen_batch_norm_keeps_its_statistics():
    source = SmallCNN(3, 10, width=4)
    model = finetune(source, 3, trainable="head")
    model = pickle.loads(pickle.dumps(copy.deepcopy(model))).train()
    X = torch.randn(8, 3, 8, 8) + 3
    assert torch.equal(model[:-1](X), copy.deepcopy(source).eval()[:-1](X))
    for name, value in model.named_buffers():
        assert torch.equal(value, source.get_buffer(name)), name
    loose = finetune(source, 3)
    loose(X)
    assert not torch.equal(loose[1].running_mean, source[1].running_mean)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_a_convolution_is_replaced_by_one_of_its_kind(kind):
    """With the same kernel size, stride, padding, dilation and groups."""
    settings = {"stride": 2, "padding": 3, "dilation": 2, "padding_mode": "circular"}
    old = kind(4, 6, 3, groups=2, bias=False, **settings)
    model = finetune(nn.Sequential(nn.Identity(), old.double()), n_classes=2)
    new, x = model[1], torch.randn(2, 4, *[9] * (old.weight.ndim - 2)).double()
    assert type(new) is kind
    with torch.no_grad():
        new.weight.copy_(old.weight[[0, 3]])  # the first filter of each group
        torch.testing.assert_close(model(x), old(x)[:, [0, 3]])


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("resnet18", {}, "must be a torch.nn.Module, got 'resnet18'"),
        (nn.Sequential(nn.ReLU()), {}, "no Linear layer or convolution"),
        (nn.Sequential(nn.Conv1d(4, 6, 1, groups=2)), {}, "2 groups, .* n_classes=3"),
        (nn.Linear(4, 2), {"trainable": 2}, "trainable"),
    ],
)
def test_wrong_arguments_raise(model, arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        finetune(model, 3, **arguments)
