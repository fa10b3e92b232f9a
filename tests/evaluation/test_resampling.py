"""Bootstrap with counts, compared with metrics on copies of the drawn samples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss

from sklearn_sharpbalance import metrics
from sklearn_sharpbalance.evaluation._measures import Key, measure_predictions
from sklearn_sharpbalance.evaluation._resampling import Draws, interval, weighted_auroc
from sklearn_sharpbalance.metrics._outputs import outputs_of
from tests.evaluation.fake import Fake, made_up

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def drawn_rows(counts):
    """Return the row numbers that a row of counts stands for."""
    return np.repeat(np.arange(len(counts)), counts.astype(int))


def naive(y, probas, proba):
    """Return every number by the public metrics, members one by one."""
    members = {
        name: np.mean([function(y, p) for p in probas])
        for name, function in PREDICTOR_METRICS.items()
    }
    ensemble = {name: f(y, proba) for name, f in PREDICTOR_METRICS.items()}
    ensemble |= {
        "disagreement": metrics.disagreement(probas),
        "der": metrics.disagreement_error_ratio(y, probas),
        "variance": metrics.variance_diversity(probas),
        "kl": metrics.kl_diversity(probas),
        "eir": metrics.ensemble_improvement_rate(y, probas, ensemble_proba=proba),
    }
    return {Key(n, "members"): v for n, v in members.items()} | {
        Key(n): v for n, v in ensemble.items()
    }


PREDICTOR_METRICS = {
    "accuracy": lambda y, p: (p.argmax(1) == y).mean(),
    "nll": metrics.negative_log_likelihood,
    "brier": lambda y, p: brier_score_loss(y, p, labels=range(p.shape[1])),
    "ece": metrics.expected_calibration_error,
}


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("ties", [False, True])
def test_every_draw_equals_the_metrics_on_the_drawn_samples(n_classes, ties):
    probas, y, X = made_up(0, n_classes=n_classes)
    if ties:  # equal confidences and certain predictions
        probas = np.random.default_rng(0).multinomial(10, probas) / 10
    fake = Fake(probas)
    draws = Draws(10, 3)
    run = measure_predictions(outputs_of(fake, X), y, draws)
    counts = np.concatenate([c for (c,) in Draws(10, 3).blocks((len(y), 0))])
    assert set(run) == set(naive(y, probas, fake.proba))
    for b, row in enumerate(counts):
        at = drawn_rows(row)
        expected = naive(y[at], probas[:, at], fake.proba[at])
        for key, value in expected.items():
            assert run[key].draws[b] == pytest.approx(value, abs=1e-10), key
    for key, value in naive(y, probas, fake.proba).items():
        assert run[key].value == pytest.approx(value, abs=1e-12), key


def test_ratios_are_zero_on_draws_without_member_errors():
    probas, _, X = made_up(1, n_samples=12)
    y = probas[0].argmax(1)  # the first member is always right
    probas[:] = probas[0]
    probas[1, 0] = np.roll(probas[0, 0], 1)  # the second errs once
    fake = Fake(probas)
    run = measure_predictions(outputs_of(fake, X), y, Draws(60, 0))
    counts = np.concatenate([c for (c,) in Draws(60, 0).blocks((len(y), 0))])
    no_error = counts[:, 0] == 0
    assert no_error.any()
    assert not no_error.all()
    np.testing.assert_array_equal(run[Key("der")].draws[no_error], 0.0)
    np.testing.assert_array_equal(run[Key("eir")].draws[no_error], 0.0)
    assert (run[Key("der")].draws[~no_error] > 0).all()


def test_intervals_cover_the_true_mean():
    """Of 300 samples of a coin with p = 0.8, about 95 % have p in their interval."""
    rng = np.random.default_rng(0)
    covered = 0
    for i in range(300):
        hits = (rng.random(150) < 0.8).astype(float)
        found = Draws(300, i).apply(lambda c, h=hits: {"mean": c @ h / len(h)}, (150,))
        low, high = interval(found["mean"][1:])
        covered += low <= 0.8 <= high
    # Three standard errors around 0.94: percentile intervals are slightly too short.
    assert 0.90 <= covered / 300 <= 0.98


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(1, 20))
def test_weighted_auroc_equals_scikit_learns(seed, n_in, n_out):
    rng = np.random.default_rng(seed)
    known, foreign = rng.integers(6, size=n_in), rng.integers(3, 9, size=n_out)
    a = rng.multinomial(n_in, np.full(n_in, 1 / n_in), size=3).astype(float)
    b = rng.multinomial(n_out, np.full(n_out, 1 / n_out), size=3).astype(float)
    found = weighted_auroc(a, b, known.astype(float), foreign.astype(float))
    for k in range(3):
        drawn = known[drawn_rows(a[k])], foreign[drawn_rows(b[k])]
        assert found[k] == pytest.approx(metrics.ood_auroc(*drawn))
