"""Convert the output of a member's module to logits."""

import torch
from torch import Tensor

__all__ = ["as_logits"]


def as_logits(net, output: Tensor) -> Tensor:
    """Return logits in float32, which are logarithms for outputs of probabilities.

    skorch's convention: with the criterion ``NLLLoss`` modules return probabilities.

    Parameters
    ----------
    net : NeuralNetClassifier
        Initialised.
    output : Tensor of shape (..., C)
        Output of its module.
    """
    output = output.float()
    if isinstance(net.criterion_, torch.nn.NLLLoss):
        return output.clamp_min(torch.finfo(torch.float32).tiny).log()
    return output
