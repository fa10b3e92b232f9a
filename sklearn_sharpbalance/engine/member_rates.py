"""Steps of stacked members with different learning rates and weight decays."""

import torch

from sklearn_sharpbalance.engine.support import base_optimizer
from sklearn_sharpbalance.runtime.torch_internals import (
    foreach_add_,
    foreach_copy_,
    foreach_mul,
    foreach_mul_,
    foreach_sub_,
)

__all__ = ["MemberRates", "allows_own_rates"]

# Optimizers whose state does not depend on the learning rate.
OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


def allows_own_rates(net) -> bool:
    """Whether stacked members may differ in learning rate and weight decay.

    Parameters
    ----------
    net : NeuralNetClassifier
    """
    base, bound = base_optimizer(net)
    maximize = getattr(net, "optimizer__maximize", bound.get("maximize", False))
    return base in OPTIMIZERS and not maximize


class MemberRates:
    """Makes the step of a stacked optimizer with the rates of each member.

    torch's optimizers take one learning rate and one weight decay. Here they make a
    step of rate one without weight decay, which is then multiplied by the rates.

    Parameters
    ----------
    optimizer : SharpnessAwareOptimizer
        Of the stacked weights, with one parameter group. Its learning rate becomes the
        factor of all rates; its weight decay becomes zero.
    lr, weight_decay : list of float
        Of each member.
    """

    def __init__(self, optimizer, lr, weight_decay):
        self.optimizer, self.lr = optimizer, lr
        (self.group,) = optimizer.param_groups
        self.group["initial_lr"], self.group["weight_decay"] = 1.0, 0.0
        self.weights = self.group["params"]
        self.before = [torch.empty_like(weight) for weight in self.weights]
        self.is_decoupled = bool(self.group.get("decoupled_weight_decay"))
        self._lr = self._for_each_weight(lr)
        self.set_weight_decay(weight_decay)

    def set_weight_decay(self, weight_decay: list[float]) -> None:
        """Set the weight decay of each member."""
        self.decays = any(weight_decay)
        self._weight_decay = self._for_each_weight(weight_decay)

    def member_lr(self, member: int) -> float:
        """Return the current learning rate of a member."""
        return self.lr[member] * self.group["lr"]

    @torch.no_grad()
    def descend(self) -> None:
        """Make a step of the base optimizer along ``.grad``."""
        factor = self.group["lr"]
        rates = foreach_mul(self._lr, factor)
        if self.decays and not self.is_decoupled:
            decay = foreach_mul(self.weights, self._weight_decay)
            foreach_add_([weight.grad for weight in self.weights], decay)
        foreach_copy_(self.before, self.weights)
        self.group["lr"] = 1.0
        self.optimizer.descend()
        self.group["lr"] = factor
        foreach_sub_(self.weights, self.before)
        foreach_mul_(self.weights, rates)
        if self.decays and self.is_decoupled:
            decay = foreach_mul(rates, self._weight_decay)
            foreach_mul_(self.before, [1 - each for each in decay])
        foreach_add_(self.weights, self.before)

    def _for_each_weight(self, values):
        """Return the values (M,) as tensors that multiply stacked weights."""
        tensors = []
        for weight in self.weights:
            own = torch.tensor(values, dtype=weight.dtype, device=weight.device)
            tensors.append(own.view(-1, *[1] * (weight.ndim - 1)))
        return tensors
