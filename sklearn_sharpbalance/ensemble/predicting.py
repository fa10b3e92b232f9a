"""Logits of all members on new data, in bounded memory."""

import numpy as np
import torch

from sklearn_sharpbalance.members import DeviceData, TrainingData
from sklearn_sharpbalance.members.data import n_rows

__all__ = ["member_logits", "net_logits"]

PREDICT_BATCH = 2048


def member_logits(nets, X):
    """Logits of each net, (M, N, C) float32.

    Parameters
    ----------
    nets : list of NeuralNetClassifier
        Initialised; not changed.
    X : ndarray, dict of ndarray, or Dataset
        Laid out as the modules see it.
    """
    return np.stack([net_logits(net, X) for net in nets])


def net_logits(net, X, batch_size=PREDICT_BATCH):
    """Logits of one net, (N, C) float32.

    A net that returns probabilities (criterion ``NLLLoss``, skorch's convention)
    gives their logarithm.
    """
    n = n_rows(X)
    source = DeviceData(TrainingData(X, np.zeros(n, dtype=np.int64)), net.device)
    was_training = net.module_.training
    net.module_.eval()
    parts = []
    with torch.inference_mode():
        for x, _ in source.in_order(batch_size):
            parts.append(net.infer(x).float())
    net.module_.train(was_training)
    logits = torch.cat(parts).cpu().numpy()
    if isinstance(net.criterion_, torch.nn.NLLLoss):
        logits = np.log(np.maximum(logits, np.finfo(np.float32).tiny))
    return logits
