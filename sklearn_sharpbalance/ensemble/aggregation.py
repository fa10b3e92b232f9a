"""From the members' logits (M, N, C) to one probability (N, C)."""

from abc import ABC, abstractmethod

import numpy as np
import torch
from scipy.special import softmax
from sklearn.base import BaseEstimator

from sklearn_sharpbalance._validation import Registry
from sklearn_sharpbalance.members.data import DeviceData
from sklearn_sharpbalance.members.state import MemberState, restore, to_cpu, unfitted

__all__ = [
    "AGGREGATIONS",
    "Aggregation",
    "FunctionAggregation",
    "MajorityAggregation",
    "MeanLogitAggregation",
    "MeanProbaAggregation",
    "UniformSoupAggregation",
    "mean_weights",
    "recompute_batch_statistics",
]


class Aggregation(BaseEstimator, ABC):
    """How members become one prediction.

    A rule on predictions overrides :meth:`combine`. A rule on weights (a soup)
    overrides :meth:`prepare` as well, which says which nets predict.
    """

    def prepare(self, nets, data):
        """Nets whose predictions are combined, chosen once at the end of ``fit``.

        Parameters
        ----------
        nets : list of NeuralNetClassifier
            The members.
        data : TrainingData
            What they were trained on, with its held-out part.
        """
        return nets

    @abstractmethod
    def combine(self, member_logits):
        """Probabilities (N, C) from the logits (M, N, C) of the prepared nets."""


class MeanLogitAggregation(Aggregation):
    """Softmax of the mean of the members' logits: the paper's rule.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.log([[[0.9, 0.1]], [[0.5, 0.5]]])
    >>> MeanLogitAggregation().combine(logits).round(2)
    array([[0.75, 0.25]])
    """

    def combine(self, member_logits):
        """Softmax of the mean logits."""
        return softmax(member_logits.mean(axis=0), axis=-1)


class MeanProbaAggregation(Aggregation):
    """Mean of the members' probabilities.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.log([[[0.9, 0.1]], [[0.5, 0.5]]])
    >>> MeanProbaAggregation().combine(logits).round(2)
    array([[0.7, 0.3]])
    """

    def combine(self, member_logits):
        """Mean of the softmaxes."""
        return softmax(member_logits, axis=-1).mean(axis=0)


class MajorityAggregation(Aggregation):
    """Share of the members that vote for each class; ties go to the mean logit.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.log([[[0.9, 0.1]], [[0.4, 0.6]], [[0.4, 0.6]]])
    >>> MajorityAggregation().combine(logits).round(2)
    array([[0.33, 0.67]])
    """

    def combine(self, member_logits):
        """Votes, with less than one vote's weight for the mean logit."""
        n_members, _, n_classes = member_logits.shape
        votes = np.eye(n_classes)[member_logits.argmax(axis=-1)].mean(axis=0)  # (N, C)
        tie_break = 1e-6 / n_members
        mean = softmax(member_logits.mean(axis=0), axis=-1)
        return (1 - tie_break) * votes + tie_break * mean


class UniformSoupAggregation(MeanLogitAggregation):
    """One net with the mean of the members' weights.

    Useful where members share a start (a warm-up or pre-trained weights); members
    from different starts lie in different basins and their mean predicts poorly.
    BatchNorm statistics of the mean are recomputed on the training data.
    """

    def prepare(self, nets, data):
        """The soup as the only net."""
        soup = mean_weights(nets)
        recompute_batch_statistics(soup, data)
        return [soup]


class FunctionAggregation(Aggregation):
    """A plain function ``func(member_logits) -> proba`` as an aggregation.

    Parameters
    ----------
    func : callable
        Takes (M, N, C) logits, returns (N, C) probabilities.
    """

    def __init__(self, func):
        self.func = func

    def combine(self, member_logits):
        """Call the function."""
        return np.asarray(self.func(member_logits))


AGGREGATIONS = Registry("aggregation", Aggregation, wrap=FunctionAggregation)
AGGREGATIONS["mean_logit"] = MeanLogitAggregation
AGGREGATIONS["mean_proba"] = MeanProbaAggregation
AGGREGATIONS["majority"] = MajorityAggregation
AGGREGATIONS["uniform_soup"] = UniformSoupAggregation


def mean_weights(nets):
    """A net whose floating-point weights are the mean over ``nets``."""
    states = [net.module_.state_dict() for net in nets]
    mean = {
        key: (
            torch.stack([state[key] for state in states]).mean(0)
            if value.is_floating_point()
            else value
        )
        for key, value in states[0].items()
    }
    return restore(unfitted(nets[0]), MemberState(0, 0, to_cpu(mean)))


def recompute_batch_statistics(net, data, batch_size=512):
    """Set running BatchNorm statistics to those of the data under these weights."""
    norms = [
        module
        for module in net.module_.modules()
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
        and module.track_running_stats
    ]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative average: every batch counts the same
    net.module_.train()
    with torch.no_grad():
        for x, rows in DeviceData(data, net.device).in_order(batch_size):
            if len(rows) == batch_size or len(rows) == len(data):
                net.infer(x)  # a short last batch would count as much as a full one
    net.module_.eval()
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum
