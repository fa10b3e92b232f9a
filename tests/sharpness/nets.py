"""Initialised skorch nets with fixed weights, for the tests of scorers."""

import torch
from skorch import NeuralNetClassifier
from torch import nn


class Images(nn.Module):
    """Take uint8 or float images, like the module of a member."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 5 * 5, 3)

    def forward(self, x):
        x = (x.to(self.conv.weight.dtype) - 100) / 50
        x = torch.tanh(self.norm(self.conv(x)))
        return self.fc(x.flatten(1))


class Table(nn.Module):
    def __init__(self, activation=nn.Tanh):
        super().__init__()
        self.fc = nn.Linear(8, 3)  # registered first, called last
        self.body = nn.Sequential(nn.Linear(6, 8), activation(), nn.Dropout(0.5))

    def forward(self, x):
        return self.fc(self.body(x))


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.fc = nn.Linear(9, 3)

    def forward(self, numbers, words):
        return self.fc(torch.cat([numbers, self.embed(words).mean(1)], 1).tanh())


def make_net(module=Table, criterion=nn.CrossEntropyLoss, **kwargs):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = NeuralNetClassifier(module, criterion=criterion, **kwargs).initialize()
        for name, buffer in net.module_.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 1.5)
    net.module_.train()
    return net


def make_data(kind="table", n=11):
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(n, 6, generator=generator)
    y = torch.randint(0, 3, (n,), generator=generator)
    if kind == "images":
        size = (n, 3, 5, 5)
        return torch.randint(0, 256, size, generator=generator, dtype=torch.uint8), y
    if kind == "dict":
        words = torch.randint(0, 7, (n, 4), generator=generator)
        return {"numbers": table, "words": words}, y
    return table, y
