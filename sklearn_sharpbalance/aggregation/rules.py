"""Rules that combine the members' logits (M, N, C) to probabilities (N, C)."""

from abc import ABC, abstractmethod

import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator

from sklearn_sharpbalance._validation import Registry, check_call, in_a_sentence
from sklearn_sharpbalance.aggregation.nets import (
    greedy_soup,
    logits_on,
    uniform_soup,
    validation_accuracy,
    warn_of_different_starts,
)
from sklearn_sharpbalance.arrays import to_array
from sklearn_sharpbalance.data.labels import check_held_out
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members.member_params import different_settings
from sklearn_sharpbalance.metrics.likelihood import temperature_or_one
from sklearn_sharpbalance.runtime.rng import random_stream

__all__ = [
    "AGGREGATIONS",
    "Aggregation",
    "BestMemberAggregation",
    "FunctionAggregation",
    "GreedySoupAggregation",
    "MajorityAggregation",
    "MeanLogitAggregation",
    "MeanProbaAggregation",
    "TemperatureAggregation",
    "UniformSoupAggregation",
]

TRIED_SAMPLES = 5
SUM_TOLERANCE = 1e-2  # a rule may compute in half precision


class Aggregation(BaseEstimator, ABC):
    """Base class of rules that combine members to one prediction.

    A rule on predictions overrides :meth:`combine`; calling the rule also checks the
    result. A rule on weights (a soup) overrides :meth:`prepare` as well, which returns
    the nets that predict, and :meth:`stage` if it can be applied to fewer members
    later. A rule that uses validation samples sets ``needs_validation``.

    Attributes
    ----------
    needs_validation : bool
        Whether :meth:`prepare` uses validation samples.
    """

    needs_validation = False

    def check(self, data):
        """Raise if the data lack samples that :meth:`prepare` needs."""
        if self.needs_validation:
            check_held_out(data, f"{type(self).__name__} needs")

    def check_settings(self, net):
        """Raise if the members of ``net`` differ so that they cannot be combined."""

    def try_out(self, n_members, n_classes):
        """Raise an error if the rule fails on logits (n_members, N, n_classes).

        A rule that overrides :meth:`prepare` is not tried: it may need that first.
        """
        if type(self).prepare is not Aggregation.prepare:
            return
        rng = np.random.default_rng(0)
        logits = rng.normal(size=(n_members, TRIED_SAMPLES, n_classes))
        try:
            with random_stream("cpu"):  # it may draw
                self(logits)
        except InvalidInputError:
            raise
        except Exception as error:  # of several kinds, by the rule
            raise InvalidInputError(
                f"{self!r} failed on an array of logits of shape {logits.shape} "
                f"(members, samples, classes): {type(error).__name__}: "
                f"{in_a_sentence(error)}. Let it take a numpy array and return "
                "probabilities (samples, classes)."
            ) from error

    def prepare(self, nets, data):
        """Return the nets whose predictions are combined; called at the end of ``fit``.

        Parameters
        ----------
        nets : list of NeuralNetClassifier
            The members.
        data : TrainingData
            Their training data, with the validation samples.
        """
        return nets

    @abstractmethod
    def combine(self, member_logits):
        """Return probabilities (N, C) from ``member_logits`` (M, N, C)."""

    def __call__(self, member_logits):
        """Return probabilities (N, C) of :meth:`combine`; raise if they are invalid."""
        proba = to_array(self.combine(member_logits))
        shape = member_logits.shape[1:]
        if proba.shape != shape:
            raise InvalidInputError(
                f"{self!r} must return an array of shape {shape} (samples, classes), "
                f"got shape {proba.shape}."
            )
        sums = proba.sum(axis=1)
        is_proba = (proba >= 0).all(axis=1) & (np.abs(sums - 1) <= SUM_TOLERANCE)
        # Do not blame the rule for members without finite logits.
        is_proba |= ~np.isfinite(member_logits).all(axis=(0, 2))
        if not is_proba.all():
            row = int(np.argmin(is_proba))
            raise InvalidInputError(
                f"{self!r} must return probabilities: non-negative rows that sum to "
                f"one. Row {row} is {proba[row, :10].tolist()}, with the sum "
                f"{sums[row]:g}. Apply a softmax to logits."
            )
        return proba


class MeanLogitAggregation(Aggregation):
    """Softmax of the mean of the members' logits, the rule of the paper.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.log([[[0.9, 0.1]], [[0.5, 0.5]]])
    >>> MeanLogitAggregation().combine(logits).round(2)
    array([[0.75, 0.25]])
    """

    def combine(self, member_logits):
        """Return the softmax of the mean logits."""
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
        """Return the mean of the members' probabilities."""
        return softmax(member_logits, axis=-1).mean(axis=0)


class MajorityAggregation(Aggregation):
    """Fraction of the members that vote for each class; ties go to the mean logit.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.log([[[0.9, 0.1]], [[0.4, 0.6]], [[0.4, 0.6]]])
    >>> MajorityAggregation().combine(logits).round(2)
    array([[0.33, 0.67]])
    """

    def combine(self, member_logits):
        """Return fractions of votes; a term smaller than one vote breaks ties."""
        n_members, _, n_classes = member_logits.shape
        votes = np.eye(n_classes)[member_logits.argmax(axis=-1)].mean(axis=0)  # (N, C)
        tie_break = 1e-6 / n_members
        mean = softmax(member_logits.mean(axis=0), axis=-1)
        return (1 - tie_break) * votes + tie_break * mean


class _Soup(MeanLogitAggregation):
    """Base class of rules on weights, for members of the same network."""

    def check_settings(self, net):
        """Raise if members are different networks."""
        names = [n for n in different_settings(net) if n.startswith("module__")]
        if names:
            raise InvalidInputError(
                f"{type(self).__name__} takes the mean of the members' weights, but "
                f"member_params gives them different networks: {', '.join(names)}. "
                "Combine predictions instead, for example by aggregation='mean_logit'."
            )


class UniformSoupAggregation(_Soup):
    """One net with the mean of the members' weights.

    Useful if members start from the same weights (pretrained ones, say). The mean of
    members from different starts predicts poorly, and gives a warning. BatchNorm
    statistics of the mean are recomputed on the training data.
    """

    def prepare(self, nets, data):
        """Return the soup as the only net; warn if it cannot predict well."""
        soup = uniform_soup(nets, data)
        warn_of_different_starts(nets)
        return [soup]


class GreedySoupAggregation(_Soup):
    """One net with the mean weights of those members that improve it.

    Members are tried in the order of their validation accuracy. Each is added if it
    does not lower that of the soup. Needs ``validation_fraction``.

    Attributes
    ----------
    chosen_ : list of int
        Members in the soup, the most accurate first.
    """

    needs_validation = True

    def prepare(self, nets, data):
        """Return the soup as the only net."""
        self.check(data)
        soup, self.chosen_ = greedy_soup(nets, data)
        return [soup]


class BestMemberAggregation(MeanLogitAggregation):
    """The member with the highest accuracy on validation samples; ties go to the first.

    Needs ``validation_fraction``: on training samples most members have the same
    accuracy of one.

    Attributes
    ----------
    member_ : int
        Index of the member.
    accuracies_ : list of float
        Accuracy of each member on the validation samples.
    """

    needs_validation = True

    def prepare(self, nets, data):
        """Return the best member as the only net."""
        self.check(data)
        self.accuracies_ = [validation_accuracy(net, data.valid) for net in nets]
        self.member_ = int(np.argmax(self.accuracies_))
        return [nets[self.member_]]


class TemperatureAggregation(MeanLogitAggregation):
    """Softmax of the mean logits divided by one temperature.

    The temperature maximises the likelihood of validation samples, so that confidence
    matches accuracy. It does not change predicted classes. If there is no maximum,
    because all predictions are right or no better than chance, it is 1, with a
    warning. Needs ``validation_fraction``.

    Attributes
    ----------
    temperature_ : float
        Above 1 for an over-confident ensemble.

    Examples
    --------
    >>> import numpy as np
    >>> rule = TemperatureAggregation()
    >>> rule.temperature_ = 2.0
    >>> rule.combine(np.log([[[0.9, 0.1]]])).round(2)  # odds of 3, the root of 9
    array([[0.75, 0.25]])
    """

    needs_validation = True

    def prepare(self, nets, data):
        """Fit the temperature and return all nets."""
        self.check(data)
        valid = data.valid
        logits = logits_on(nets, valid).astype(np.float64).mean(axis=0)
        finite = np.isfinite(logits).all(axis=1, keepdims=True)
        logits = np.where(finite, logits, 0.0)  # no influence on the temperature
        self.temperature_ = temperature_or_one(valid.y, logits, valid.weight)
        return nets

    def combine(self, member_logits):
        """Return the softmax of the mean logits divided by the temperature."""
        # A rule that is not fitted has temperature one.
        temperature = getattr(self, "temperature_", 1.0)
        return softmax(member_logits.mean(axis=0) / temperature, axis=-1)


class FunctionAggregation(Aggregation):
    """A plain function ``func(member_logits) -> proba`` as an aggregation.

    Parameters
    ----------
    func : callable
        Takes an array of logits (M, N, C), returns an array or a tensor of
        probabilities (N, C): rows that are not negative and sum to one. It is tried
        before the training.
    """

    def __init__(self, func):
        self.func = func

    def check(self, data):
        """Raise if the function cannot be called with logits only."""
        super().check(data)
        check_call(self.func, "An aggregation function", "func(member_logits)", None)

    def combine(self, member_logits):
        """Call the function."""
        return to_array(self.func(member_logits))


AGGREGATIONS = Registry("aggregation", Aggregation, wrap=FunctionAggregation)
AGGREGATIONS["mean_logit"] = MeanLogitAggregation
AGGREGATIONS["mean_proba"] = MeanProbaAggregation
AGGREGATIONS["majority"] = MajorityAggregation
AGGREGATIONS["uniform_soup"] = UniformSoupAggregation
AGGREGATIONS["greedy_soup"] = GreedySoupAggregation
AGGREGATIONS["best_member"] = BestMemberAggregation
AGGREGATIONS["temperature"] = TemperatureAggregation
