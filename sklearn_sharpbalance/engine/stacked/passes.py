"""Loss and gradients of stacked members without autograd.

For small networks the graph of autograd, and handling the gradient of each weight,
take about as long as the matrix products. Here all gradients are parts of one tensor.
"""

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
        self._weights = weights
        self._views = network.views(weights)
        self._gradient = torch.zeros_like(weights, dtype=self.dtype)
        self._gradients = network.views(self._gradient)  # by name
        self._layers = [
            KINDS.get(type(layer), _Activation)(name, layer)
            for name, layer in network.layers
            if not isinstance(layer, nn.Flatten | nn.Identity)  # the input is flat
        ]
        linear = [isinstance(layer, _Linear) for layer in self._layers]
        self._first_linear = linear.index(True)

    @torch.no_grad()
    def loss(self, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        """Return the losses (M,) of a batch; :meth:`backward` has their gradients.

        Inputs (M, B, F), labels (M, B), and the factor (M, B) of each sample's loss in
        the sum.
        """
        self._cast = self._views
        if self.dtype != self._weights.dtype:
            self._cast = self.network.views(self._weights.to(self.dtype))
        x = x.to(self.dtype)
        for layer in self._layers:
            x = layer.forward(x, self._cast)
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
        grad = self._grad
        for i in range(len(self._layers) - 1, self._first_linear - 1, -1):
            needs_input = i > self._first_linear
            layer = self._layers[i]
            grad = layer.backward(grad, self._cast, self._gradients, needs_input)
        weights = self.network.weights
        weights.grad = self._gradient.to(weights.dtype)


class _Linear:
    """M linear layers."""

    def __init__(self, name, layer):
        self.weight, self.bias = f"{name}.weight", f"{name}.bias"

    def forward(self, x, weights):
        self.x = x  # (M, B, I)
        return affine(x, weights[self.weight], weights.get(self.bias))

    def backward(self, grad, weights, gradients, needs_input):
        torch.bmm(grad.mT, self.x, out=gradients[self.weight])
        if self.bias in gradients:
            torch.sum(grad, dim=1, out=gradients[self.bias])
        return torch.bmm(grad, weights[self.weight]) if needs_input else None


class _ReLU:
    """ReLU, whose derivative follows from its output."""

    def __init__(self, name, layer):
        pass

    def forward(self, x, weights):
        self.output = torch.relu(x)
        return self.output

    def backward(self, grad, weights, gradients, needs_input):
        return relu_backward(grad, self.output)


class _Activation:
    """Any other pointwise layer; its derivative is that of autograd."""

    def __init__(self, name, layer):
        self.layer = layer

    def forward(self, x, weights):
        with torch.enable_grad():
            self.x = x.detach().requires_grad_()
            # A layer may work in place, which is not allowed for a leaf.
            self.output = self.layer(self.x.clone())
        return self.output.detach()

    def backward(self, grad, weights, gradients, needs_input):
        return torch.autograd.grad(self.output, self.x, grad)[0]


KINDS: dict[type[nn.Module], type] = {nn.Linear: _Linear, nn.ReLU: _ReLU}
