"""Small modules, each with another layer or difficulty."""

import torch
import torch.nn.functional as F
from torch import nn

from tests import reference

N, CLASSES = 5, 3


def cross_entropy(outputs, y):
    return F.cross_entropy(outputs, y, reduction="none")


def tabular():
    return torch.randn(N, 6)


def images():
    return torch.randn(N, 4, 7, 8)


def signals():
    return torch.randn(N, 4, 9)


def volumes():
    return torch.randn(N, 2, 4, 5, 4)


def sequences():
    return torch.randn(N, 5, 6)


def tokens():
    return torch.randint(0, 7, (N, 6))  # some tokens must repeat


def with_head(*layers):
    """Return the layers, followed by layers that use every entry of their output."""
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.LazyLinear(CLASSES))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(4, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.conv = nn.Conv2d(6, 6, 3, padding=1)
        self.short = nn.Conv2d(6, 6, 1, stride=2)
        self.down = nn.Conv2d(6, 6, 3, stride=2, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x):
        x = self.relu(self.norm(self.stem(x)))
        x = self.relu(x + self.conv(x))
        x = self.relu(self.down(x) + self.short(x))
        return self.fc(x.mean((2, 3)))


class Twice(nn.Module):
    """Every type of layer, called twice: the gradients of the calls add up."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.norm = nn.GroupNorm(2, 4)
        self.linear = nn.Linear(4, 4)
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x):
        x = self.norm(self.conv(x)).tanh()
        x = self.norm(self.conv(x)).mean((2, 3))
        return self.fc(self.linear(self.linear(x).tanh()))


class TwiceAtTwoSizes(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, (3, 2), padding=1)
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x):
        x = F.avg_pool2d(self.conv(x).tanh(), 2)
        return self.fc(self.conv(x).tanh().mean((2, 3)))


class Recurrent(nn.Module):
    """A hand-written recurrence: one linear layer at every time step."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(12, 6)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x):
        h = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            h = self.cell(input=torch.cat([x[:, t], h], 1)).tanh()
        return self.fc(h)


class ByKeyword(nn.Module):
    """Inputs as keyword arguments, whose names differ between layers."""

    def __init__(self):
        super().__init__()
        self.layer_norm, self.rms_norm = nn.LayerNorm(6), nn.RMSNorm(6)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.fc(input=self.rms_norm(x=self.layer_norm(input=x)).mean(1))


class PartlyDetached(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x):
        with torch.no_grad():
            gate = self.a(x)
        return self.fc(self.a(x).tanh() * gate + self.b(x).detach())


class Named(nn.Module):
    """Take a dict of inputs, one of them integer."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(7, CLASSES)

    def forward(self, numbers, words):
        mean = words.to(numbers).mean(1, keepdim=True)
        return self.fc(torch.cat([numbers, mean], 1))


def named_inputs():
    return {"numbers": tabular(), "words": tokens()}


class HookedByUser(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.fc = nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.a.register_forward_hook(_triple)
        self.a.register_forward_pre_hook(_halve)

    def forward(self, x):
        return self.fc(self.a(x).tanh())


def _triple(module, args, output):
    return 3 * output


def _halve(module, args):
    return (args[0] / 2,)


def frozen(freeze, module):
    for name, p in module.named_parameters():
        if any(part in name for part in freeze):
            p.requires_grad_(False)
    return module


# name: (module, inputs); the layer rules apply to all of them.
BY_RULES = {
    "softmax_regression": (lambda: nn.Linear(6, CLASSES), tabular),
    "mlp": (lambda: with_head(nn.Linear(6, 8), nn.ReLU()), tabular),
    "no_bias": (lambda: with_head(nn.Linear(6, 8, bias=False)), tabular),
    "inplace": (lambda: with_head(nn.Linear(6, 8), nn.ReLU(inplace=True)), tabular),
    "sequence_direct": (lambda: with_head(nn.Linear(6, 2)), sequences),
    "sequence_gram": (
        lambda: with_head(nn.Linear(6, 40), nn.Linear(40, 40)),
        sequences,
    ),
    "sequence_inplace": (
        lambda: with_head(nn.Linear(6, 8), nn.ReLU(inplace=True)),
        sequences,
    ),
    "conv": (lambda: with_head(nn.Conv2d(4, 6, 3)), images),
    "conv_gram": (
        lambda: with_head(nn.Conv2d(4, 40, 3, stride=2), nn.Conv2d(40, 40, 2)),
        images,
    ),
    "conv1d": (lambda: with_head(nn.Conv1d(4, 5, 3, stride=2, padding=1)), signals),
    "conv3d": (lambda: with_head(nn.Conv3d(2, 3, (2, 3, 2), padding=1)), volumes),
    "batch_norm_2d": (
        lambda: with_head(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True)),
        images,
    ),
    "batch_norm_first": (lambda: with_head(nn.BatchNorm1d(6)), tabular),
    "batch_norm_1d": (lambda: with_head(nn.BatchNorm1d(4)), signals),
    "batch_norm_3d": (lambda: with_head(nn.BatchNorm3d(2)), volumes),
    "group_norm": (lambda: with_head(nn.GroupNorm(2, 4)), images),
    "layer_norm": (lambda: with_head(nn.LayerNorm(6)), tabular),
    "layer_norm_positions": (lambda: with_head(nn.LayerNorm(6)), sequences),
    "rms_norm": (lambda: with_head(nn.RMSNorm(6)), sequences),
    "by_keyword": (ByKeyword, sequences),
    "residual": (Residual, images),
    "twice": (Twice, images),
    "conv_twice_at_two_sizes": (TwiceAtTwoSizes, images),
    "recurrent": (Recurrent, sequences),
    "partly_detached": (PartlyDetached, tabular),
    "dict": (Named, named_inputs),
    "hooked_by_user": (HookedByUser, tabular),
    "frozen_stem": (lambda: frozen(["stem", "norm"], Residual()), images),
    "frozen_weights": (lambda: frozen(["weight"], Residual()), images),
    "frozen_biases": (lambda: frozen(["bias"], Residual()), images),
}


def build(entry, seed=0):
    """Return ``(module, X, y)`` in float64, with random running statistics."""
    make, inputs = entry[:2]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module, X = make().eval(), inputs()
        with torch.no_grad():
            outputs = reference.call(module, X)  # initialises lazy layers
        for name, buffer in module.named_buffers():
            if "running_mean" in name:
                buffer.normal_()
            if "running_var" in name:
                buffer.uniform_(0.5, 2.0)
        y = torch.randint(0, outputs.shape[1], (len(outputs),))
    return module.double().train(), reference.as_double(X), y
