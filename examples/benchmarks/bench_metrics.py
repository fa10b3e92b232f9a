"""Time of the metrics on the predictions of 5 members for 100,000 x 100.

    python examples/benchmarks/bench_metrics.py [--members 5] [--samples 100000]
        [--classes 100] [--repeats 3] [--out results]

A number is the shortest of the repeats, in seconds, validation included. The
worst-case sharpness of three small MLPs is also timed with batches one by one; the
ratio of both times is ``sharpness_one_by_one_over_stacked``. Where there
is a GPU, the worst-case sharpness of a ResNet-18 (100 batches of 5, 20 steps) is timed
on it as well.
"""

import argparse
import time

import numpy as np
import torch
from _machine import write
from scipy.special import softmax

from sklearn_sharpbalance import metrics

OF_MEMBERS = [
    metrics.disagreement,
    metrics.kl_diversity,
    metrics.variance_diversity,
    metrics.unique_predictions,
    metrics.mutual_information,
    metrics.predictive_diversity_score,
    metrics.bma_score,
]
OF_LABELS_AND_MEMBERS = [
    metrics.disagreement_error_ratio,
    metrics.ensemble_improvement_rate,
]
OF_LABELS_AND_PROBA = [
    metrics.expected_calibration_error,
    metrics.negative_log_likelihood,
    metrics.fit_temperature,
    metrics.nll_after_temperature,
]


def predictions(n_members, n_samples, n_classes, seed=0):
    """Labels, and probabilities in float32 that know something of them."""
    rng = np.random.default_rng(seed)
    y = rng.integers(n_classes, size=n_samples)
    logits = rng.standard_normal((n_members, n_samples, n_classes), dtype=np.float32)
    logits *= 2
    logits[:, np.arange(n_samples), y] += 4
    return y, softmax(logits, axis=-1)


def shortest(function, repeats):
    """Seconds of the fastest call, after one that warms up."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return round(min(times), 4)


def time_arrays(y, probas, repeats):
    """Seconds of every metric on arrays."""
    proba = probas.mean(axis=0)
    calls = {f.__name__: (f, (probas,)) for f in OF_MEMBERS}
    calls |= {f.__name__: (f, (y, probas)) for f in OF_LABELS_AND_MEMBERS}
    calls |= {f.__name__: (f, (y, proba)) for f in OF_LABELS_AND_PROBA}
    seconds = {
        name: shortest(lambda f=f, args=args: f(*args), repeats)
        for name, (f, args) in calls.items()
    }
    for name, options in {
        "expected_calibration_error, quantile": {"strategy": "quantile"},
        "expected_calibration_error, classwise": {"classwise": True},
    }.items():
        seconds[name] = shortest(
            lambda options=options: metrics.expected_calibration_error(
                y, proba, **options
            ),
            repeats,
        )
    return seconds


def time_stacking(repeats):
    """Seconds of the worst-case sharpness of three MLPs, and the ratio by stacking."""
    from sklearn.datasets import load_digits

    from sklearn_sharpbalance import DeepEnsembleClassifier
    from sklearn_sharpbalance.metrics.flatness import worst_case

    X, y = load_digits(return_X_y=True)
    clf = DeepEnsembleClassifier(max_epochs=5, device="cpu", random_state=0).fit(X, y)

    def call():
        return metrics.adaptive_sharpness(clf, X, y, random_state=0)

    stacked, value = shortest(call, repeats), call()
    stacked_objective = worst_case.stacked_objective
    worst_case.stacked_objective = lambda *args: None
    try:
        one_by_one, expected = shortest(call, repeats), call()
    finally:
        worst_case.stacked_objective = stacked_objective
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    return {
        "adaptive_sharpness, stacked": stacked,
        "adaptive_sharpness, one by one": one_by_one,
        "sharpness_one_by_one_over_stacked": round(one_by_one / stacked, 2),
    }


def time_sharpness():
    """Seconds of the worst-case sharpness of a ResNet-18 on the GPU."""
    from skorch import NeuralNetClassifier

    from sklearn_sharpbalance import ResNet18

    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 3, 32, 32), dtype=np.float32)
    y = rng.integers(10, size=500)
    net = NeuralNetClassifier(
        ResNet18, criterion=torch.nn.CrossEntropyLoss, device="cuda"
    ).initialize()

    def call(norm):
        metrics.adaptive_sharpness(net, X, y, norm=norm, random_state=0)
        torch.cuda.synchronize()

    return {
        f"adaptive_sharpness, {norm}": shortest(lambda norm=norm: call(norm), 1)
        for norm in ("l2", "linf")
    }


def main():
    """Time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", default=None, help="folder of the JSON file")
    args = parser.parse_args()
    y, probas = predictions(args.members, args.samples, args.classes)
    numbers = {
        "shape": list(probas.shape),
        "dtype": str(probas.dtype),
        "seconds": time_arrays(y, probas, args.repeats),
        "stacking": time_stacking(args.repeats),
    }
    name = "metrics"
    if torch.cuda.is_available():
        name = "metrics_gpu"
        numbers["seconds_on_gpu"] = time_sharpness()
    write(name, numbers, args.out)


if __name__ == "__main__":
    main()
