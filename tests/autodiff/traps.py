"""Small modules to which the layer rules do not apply."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from tests.autodiff.zoo import (
    CLASSES,
    frozen,
    images,
    sequences,
    tabular,
    tokens,
    with_head,
)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.weight = self.a.weight
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.fc(self.b(self.a(x).tanh()))


class TiedByUse(nn.Module):
    """The first layer's weight is used as that of the last one, without a module."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, CLASSES)
        self.mix = nn.Linear(CLASSES, CLASSES)

    def forward(self, x):
        return F.linear(self.mix(self.first(x)), self.first.weight.T).tanh()


class TwoNames(nn.Module):
    """One layer under two names, and a parameter that has no rule."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, CLASSES)
        self.b = self.a
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.scale * (self.a(x) + self.b(x.tanh()))


class TiedByList(nn.Module):
    """A weight that is used twice; a list avoids a second registration."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.shared = [self.first.weight]

    def forward(self, x):
        return F.linear(self.first(x).tanh(), *self.shared)


class ClassToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x):
        token = self.token.expand(len(x), -1, -1)
        return self.fc(torch.cat([token, x], 1).tanh().mean(1))


class Temperature(nn.Module):
    """A scalar parameter, such as a learned temperature."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, CLASSES)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.scale * self.fc(x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.fc(self.attention(x, x, x)[0].mean(1))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(
            6, 2, 8, activation="gelu", batch_first=True
        )
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.fc(self.encoder(x).mean(1))


class SequenceFirst(nn.Module):
    """Positions before samples, and equally many, so that the shapes look right."""

    def __init__(self):
        super().__init__()
        self.a, self.fc = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.fc(self.a(x.transpose(0, 1)).tanh().mean(0))


class TimeDistributed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.fc = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        h = self.a(x.reshape(-1, 6)).tanh()
        return self.fc(h.reshape(x.shape).mean(1))


class LongShortTerm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 4, batch_first=True)
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.fc(self.lstm(x)[0][:, -1])


class OverwritesInput(nn.Module):
    """Change the input of a layer after its call."""

    def __init__(self):
        super().__init__()
        self.a, self.fc = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        h = x * 2
        out = self.a(h).tanh()
        h.mul_(3)
        return self.fc(out + h)


def wrapped_around():
    """Return a network whose convolution was changed to circular padding."""
    conv = nn.Conv2d(4, 6, 3)
    conv._conv_forward = lambda x, weight, bias: F.conv2d(
        F.pad(x, [1, 1, 1, 1], mode="circular"), weight, bias
    )
    return with_head(conv)


class MyLinear(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.extra, self.fc = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.fc(x)


# name: (module, inputs, why the layer rules do not apply, the method that does)
BY_OTHERS = {
    "tied": (Tied, tabular, "two layers share a parameter", "vmap"),
    "two_names": (TwoNames, tabular, "TwoNames has no layer rule for 'scale'", "vmap"),
    "wrapped_around": (wrapped_around, images, "Conv2d has no layer rule", "vmap"),
    "tied_by_use": (TiedByUse, tabular, "used outside of its layer", "vmap"),
    "tied_by_list": (TiedByList, tabular, "used outside of its layer", "loop"),
    "class_token": (ClassToken, sequences, "ClassToken has no layer rule", "vmap"),
    "temperature": (Temperature, tabular, "Temperature has no layer rule", "vmap"),
    "attention": (Attention, sequences, "MultiheadAttention has no", "vmap"),
    "transformer": (Transformer, sequences, "MultiheadAttention has no", "vmap"),
    "sequence_first": (SequenceFirst, sequences, "start with the batch axis", "vmap"),
    "time_distributed": (TimeDistributed, sequences, "batch axis", "vmap"),
    "lstm": (LongShortTerm, sequences, "LSTM has no layer rule", "loop"),
    "subclass": (lambda: with_head(MyLinear(6, 6)), tabular, "MyLinear has no", "vmap"),
    "weight_norm": (
        lambda: with_head(parametrizations.weight_norm(nn.Linear(6, 6))),
        tabular,
        "has no layer rule",
        "vmap",
    ),
    "transposed": (
        lambda: with_head(nn.ConvTranspose2d(4, 3, 3)),
        images,
        "ConvTranspose2d has no layer rule",
        "vmap",
    ),
    "scaled_embedding": (
        lambda: with_head(nn.Embedding(7, 4, scale_grad_by_freq=True)),
        tokens,
        "Embedding has no layer rule",
        "loop",
    ),
    "embedding": (
        lambda: with_head(nn.Embedding(7, 4)),
        tokens,
        "Embedding has no layer rule",
        "vmap",
    ),
    "instance_norm": (
        lambda: with_head(nn.InstanceNorm2d(4, affine=True)),
        images,
        "InstanceNorm2d has no layer rule",
        "vmap",
    ),
    "unused": (Unused, tabular, "is not called", "vmap"),
    "overwrites_input": (  # autograd raises unless the weight is frozen
        lambda: frozen(["a.weight"], OverwritesInput()),
        tabular,
        "input is modified in place",
        "vmap",
    ),
}
