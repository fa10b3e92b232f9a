"""What a member's module returns, read in one way."""

import torch
from torch import Tensor

__all__ = ["as_logits"]


def as_logits(net, output: Tensor) -> Tensor:
    """Logits in float32; the logarithm for a net that returns probabilities.

    skorch's convention: with the criterion ``NLLLoss`` modules return probabilities.

    Parameters
    ----------
    net : NeuralNetClassifier
        Initialised.
    output : Tensor of shape (..., C)
        Of its module.
    """
    output = output.float()
    if isinstance(net.criterion_, torch.nn.NLLLoss):
        return output.clamp_min(torch.finfo(torch.float32).tiny).log()
    return output
