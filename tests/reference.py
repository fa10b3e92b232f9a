"""Naive implementations to compare with: loops over samples in float64."""

import copy

import numpy as np
import torch


def as_double(X):
    """Return a copy of inputs with floating-point tensors in float64."""
    if isinstance(X, dict):
        return {key: as_double(part) for key, part in X.items()}
    return X.double() if X.is_floating_point() else X


def one_sample(X, i):
    if isinstance(X, dict):
        return {key: part[i : i + 1] for key, part in X.items()}
    return X[i : i + 1]


def call(module, x):
    return module(**x) if isinstance(x, dict) else module(x)


def per_sample_gradients(module, loss_fn, X, y, names=None):
    """Return the gradient of each sample's loss; (N, P) float64."""
    module = copy.deepcopy(module).double().eval()
    X = as_double(X)
    params = [
        p
        for name, p in module.named_parameters()
        if p.requires_grad and (names is None or name in names)
    ]
    rows = []
    for i in range(len(y)):
        loss = loss_fn(call(module, one_sample(X, i)), y[i : i + 1]).sum()
        gradients = torch.autograd.grad(loss, params, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    torch.zeros(p.numel(), dtype=torch.float64)
                    if g is None
                    else g.to_dense().reshape(-1)
                    for p, g in zip(params, gradients)
                ]
            )
        )
    return torch.stack(rows)


def per_sample_squared_norms(module, loss_fn, X, y, names=None):
    """Return the squared norm of each sample's gradient; (N,) float64."""
    return per_sample_gradients(module, loss_fn, X, y, names).square().sum(1)


def per_sample_losses(module, loss_fn, X, y):
    """Return the loss of each sample; (N,) float64."""
    module = copy.deepcopy(module).double().eval()
    X = as_double(X)
    with torch.no_grad():
        losses = [
            loss_fn(call(module, one_sample(X, i)), y[i : i + 1]).sum()
            for i in range(len(y))
        ]
    return torch.stack(losses)


def loss_rise(module, loss_fn, X, y, rho):
    """Return the rise of each loss at ``w + rho g / ||g||``, g the mean gradient."""
    gradient = per_sample_gradients(module, loss_fn, X, y).mean(0)
    step = rho * gradient / gradient.norm()
    moved = copy.deepcopy(module).double()
    with torch.no_grad():
        for p in moved.parameters():
            if p.requires_grad:
                p += step[: p.numel()].view_as(p)
                step = step[p.numel() :]
    assert len(step) == 0
    before = per_sample_losses(module, loss_fn, X, y)
    return per_sample_losses(moved, loss_fn, X, y) - before


def hessian(module, loss_fn, X, y, h=1e-5):
    """Return the Hessian of the mean loss by central differences; (P, P) float64."""
    module = copy.deepcopy(module).double().eval()
    X = as_double(X)
    params = [p for p in module.parameters() if p.requires_grad]

    def gradient():
        loss = loss_fn(call(module, X), y).mean()
        parts = torch.autograd.grad(loss, params, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts])

    columns = []
    for p in params:
        for i in range(p.numel()):
            entry = p.data.view(-1)[i : i + 1]
            before = entry.clone()
            entry.copy_(before + h)
            up = gradient()
            entry.copy_(before - h)
            down = gradient()
            entry.copy_(before)
            columns.append((up - down) / (2 * h))
    return torch.stack(columns, dim=1)


def input_gradient(module, loss_fn, x, y):
    """Return the gradient of one sample's loss in its float64 input."""
    x = x.clone().requires_grad_(True)
    return torch.autograd.grad(loss_fn(module(x), y).sum(), x)[0]


def input_curvature(module, loss_fn, X, y, step, directions):
    """Return the mean of ||(grad(x + h v) - grad(x)) / h||^2; (N,) float64.

    ``directions`` maps a sample's gradient to a list of directions.
    """
    module = copy.deepcopy(module).double().eval()
    X = as_double(X)
    scores = []
    for i in range(len(y)):
        x, target = X[i : i + 1], y[i : i + 1]
        here = input_gradient(module, loss_fn, x, target)
        values = []
        for v in directions(here):
            there = input_gradient(module, loss_fn, x + step * v, target)
            values.append(float(((there - here) / step).square().sum()))
        scores.append(np.mean(values))
    return torch.tensor(scores, dtype=torch.float64)
