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

    ``dtype`` is that of the matrix products; None is that of the weights. With
    ``moves`` there is a place, ``moved``, for perturbed weights.
    """

    def __init__(
        self, network: StackedNetwork, label_smoothing: float, dtype=None, moves=False
    ):
        self.network, self.label_smoothing = network, label_smoothing
        weights = network.weights.detach()
        self.dtype = dtype or weights.dtype
        self._weights = weights
        self.moved = torch.empty_like(weights) if moves else weights
        self._views = network.views(weights)
        self._moved_views = network.views(self.moved)
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
    def loss(self, x: Tensor, y: Tensor, share: Tensor, at_moved=False) -> Tensor:
        """Return the losses (M,) of a batch; :meth:`backward` has their gradients.

        Inputs (M, B, F), labels (M, B), and the factor (M, B) of each sample's loss in
        the sum. With ``at_moved`` they are those at the weights ``moved``.
        """
        weights, self._cast = self._weights, self._views
        if at_moved:
            weights, self._cast = self.moved, self._moved_views
        if self.dtype != weights.dtype:
            self._cast = self.network.views(weights.to(self.dtype))
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
        for layer, grad in self._backward():
            layer.write_gradients(grad, self._gradients)
        weights = self.network.weights
        weights.grad = self._gradient.to(weights.dtype)

    @torch.no_grad()
    def squared_norms(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the squared norms (M, B) of the samples' gradients in all weights."""
        self.loss(x, y, x.new_ones(y.shape))
        return sum(layer.squared_norms(grad) for layer, grad in self._backward())

    def _backward(self):
        """Yield each linear layer with the gradient (M, B, O) by its output."""
        grad = self._grad
        for i in range(len(self._layers) - 1, self._first_linear - 1, -1):
            layer = self._layers[i]
            if isinstance(layer, _Linear):
                yield layer, grad
            if i > self._first_linear:
                grad = layer.input_gradient(grad, self._cast)


class _Linear:
    """M linear layers."""

    def __init__(self, name, layer):
        self.weight, self.bias = f"{name}.weight", f"{name}.bias"
        self.has_bias = layer.bias is not None

    def forward(self, x, weights):
        self.x = x  # (M, B, I)
        return affine(x, weights[self.weight], weights.get(self.bias))

    def input_gradient(self, grad, weights):
        return torch.bmm(grad, weights[self.weight])

    def write_gradients(self, grad, gradients):
        torch.bmm(grad.mT, self.x, out=gradients[self.weight])
        if self.bias in gradients:
            torch.sum(grad, dim=1, out=gradients[self.bias])

    def squared_norms(self, grad):
        """Return the squared norms (M, B) of the outer products of grad and x."""
        of_x, of_grad = (
            torch.linalg.vector_norm(z, dim=2) ** 2 for z in (self.x, grad)
        )
        return of_grad * (of_x + self.has_bias)


class _ReLU:
    """ReLU, whose derivative follows from its output."""

    def __init__(self, name, layer):
        pass

    def forward(self, x, weights):
        self.output = torch.relu(x)
        return self.output

    def input_gradient(self, grad, weights):
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

    def input_gradient(self, grad, weights):
        return torch.autograd.grad(self.output, self.x, grad)[0]


KINDS: dict[type[nn.Module], type] = {nn.Linear: _Linear, nn.ReLU: _ReLU}
