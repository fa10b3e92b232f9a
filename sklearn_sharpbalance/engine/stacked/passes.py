"""Loss and gradients of stacked members without autograd.

For small networks the graph of autograd, and handling the gradient of each weight,
take about as long as the matrix products. Here all gradients are parts of one tensor.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from sklearn_sharpbalance.engine.stacked.network import StackedNetwork, affine
from sklearn_sharpbalance.runtime.torch_internals import relu_backward

__all__ = ["StackedPass"]


class StackedPass:
    """A forward and a backward pass through stacked networks and the cross-entropy.

    ``dtype`` is that of the matrix products; None is that of the weights.
    """

    def __init__(self, network: StackedNetwork, label_smoothing: float, dtype=None):
        self.network, self.label_smoothing = network, label_smoothing
        weights = network.weights.detach()
        self.dtype = dtype or weights.dtype
        self._weights = self._second_weights = _Rows(network, weights)
        self._gradient = self._zeros()
        self._second_gradient: _Rows | None = None  # until a batch has two parts
        self._layers = [
            _layer_pass(name, layer)
            for name, layer in network.layers
            if not isinstance(layer, nn.Flatten | nn.Identity)  # the input is flat
        ]
        linear = [isinstance(layer, _Linear) for layer in self._layers]
        self._first_linear = linear.index(True)

    @torch.no_grad()
    def hold_second_weights(self) -> None:
        """Keep a copy of the current weights for the second part of the next batches.

        Call it before the weights are perturbed for the first part.
        """
        if self._second_weights is self._weights:
            copy = torch.empty_like(self._weights.rows)
            self._second_weights = _Rows(self.network, copy)
        self._second_weights.rows.copy_(self._weights.rows)

    @torch.no_grad()
    def loss(
        self, x: Tensor, y: Tensor, share: Tensor, n_first: int | None = None
    ) -> Tensor:
        """Return the losses (M,) of a batch; :meth:`backward` has their gradients.

        Inputs (M, B, F), labels (M, B), and the factor (M, B) of each sample's loss in
        the sum. The gradients of the first ``n_first`` samples and of the others are
        kept apart, which is faster than one pass for each part.
        """
        self._parts = self._split(n_first)
        x = x.to(self.dtype)
        for layer in self._layers:
            x = layer.forward(x, self._parts)
        log_proba = torch.log_softmax(x.float(), dim=2)
        target, smoothing = y.unsqueeze(2), self.label_smoothing
        loss = -log_proba.gather(2, target).squeeze(2)
        if smoothing:
            loss = torch.lerp(loss, -log_proba.mean(2), smoothing)
        # The gradient by the logits: probabilities minus smoothed labels.
        grad = log_proba.exp_()
        grad.scatter_add_(2, target, grad.new_full(target.shape, smoothing - 1))
        if smoothing:
            grad -= smoothing / grad.shape[2]
        self._grad = grad.mul_(share.unsqueeze(2)).to(self.dtype)
        return (loss * share).sum(1)

    @torch.no_grad()
    def backward(self) -> None:
        """Set the ``.grad`` of the weights to the gradient of the last loss."""
        grad, first = self._grad, self._first_linear
        for i in range(len(self._layers) - 1, first - 1, -1):
            grad = self._layers[i].backward(grad, self._parts, needs_input=i > first)
        weights = self.network.weights
        weights.grad = self._gradient.rows.to(weights.dtype)

    def second_gradient(self) -> Tensor:
        """Return the gradient (M, P) of the second part of the last batch."""
        assert self._second_gradient is not None  # there was a second part
        return self._second_gradient.rows.to(self._weights.rows.dtype)

    def _zeros(self):
        zeros = torch.zeros_like(self._weights.rows, dtype=self.dtype)
        return _Rows(self.network, zeros)

    def _split(self, n_first):
        """Return the parts of a batch."""
        weights = self._weights.cast(self.dtype)
        first = _Part(slice(n_first), weights, self._gradient.views)
        if n_first is None:
            return [first]
        if self._second_weights is not self._weights:
            weights = self._second_weights.cast(self.dtype)
        if self._second_gradient is None:
            self._second_gradient = self._zeros()
        second = _Part(slice(n_first, None), weights, self._second_gradient.views)
        return [first, second]


class _Rows:
    """Weights or gradients of all members as rows (M, P), and views by name."""

    def __init__(self, network, rows):
        self.network, self.rows, self.views = network, rows, network.views(rows)

    def cast(self, dtype):
        """Return views of this dtype."""
        if dtype == self.rows.dtype:
            return self.views
        return self.network.views(self.rows.to(dtype))


class _Part(NamedTuple):
    """Samples of a batch, the weights they pass and the memory of their gradients."""

    samples: slice
    weights: dict[str, Tensor]
    gradients: dict[str, Tensor]


class _Linear:
    """M linear layers."""

    def __init__(self, name):
        self.weight, self.bias = f"{name}.weight", f"{name}.bias"

    def forward(self, x, parts):
        self.x = x  # (M, B, I)
        if parts[0].weights is parts[-1].weights:
            weights = parts[0].weights
            return affine(x, weights[self.weight], weights.get(self.bias))
        outputs = [
            affine(x[:, samples], weights[self.weight], weights.get(self.bias))
            for samples, weights, _ in parts
        ]
        return torch.cat(outputs, dim=1)

    def backward(self, grad, parts, needs_input):
        for samples, _, gradients in parts:
            own, x = grad, self.x
            if len(parts) > 1:
                own, x = grad[:, samples], x[:, samples]
            torch.bmm(own.mT, x, out=gradients[self.weight])
            if self.bias in gradients:
                torch.sum(own, dim=1, out=gradients[self.bias])
        if not needs_input:
            return None
        if parts[0].weights is parts[-1].weights:
            return torch.bmm(grad, parts[0].weights[self.weight])
        inputs = [torch.bmm(grad[:, p.samples], p.weights[self.weight]) for p in parts]
        return torch.cat(inputs, dim=1)


class _ReLU:
    """ReLU, whose derivative follows from its output."""

    def forward(self, x, parts):
        self.output = torch.relu(x)
        return self.output

    def backward(self, grad, parts, needs_input):
        return relu_backward(grad, self.output)


class _Activation:
    """Any other pointwise layer; its derivative is that of autograd."""

    def __init__(self, layer):
        self.layer = layer

    def forward(self, x, parts):
        with torch.enable_grad():
            self.x = x.detach().requires_grad_()
            # A layer may work in place, which is not allowed for a leaf.
            self.output = self.layer(self.x.clone())
        return self.output.detach()

    def backward(self, grad, parts, needs_input):
        return torch.autograd.grad(self.output, self.x, grad)[0]


def _layer_pass(name, layer):
    if isinstance(layer, nn.Linear):
        return _Linear(name)
    return _ReLU() if isinstance(layer, nn.ReLU) else _Activation(layer)
