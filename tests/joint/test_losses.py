"""Compare diversity losses with float64 loops and other libraries."""

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics import mutual_info_score

from sklearn_sharpbalance.joint.batches import draw_members, unlabeled_rows
from sklearn_sharpbalance.joint.losses import (
    a2d_term,
    agree_to_disagree,
    divdis_term,
    hard_sample_weights,
    mutual_information_loss,
    sed_term,
)


def logits_of(n_members, n_samples=7, n_classes=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(scale=2, size=(n_members, n_samples, n_classes))


def softmax(f):
    e = np.exp(f)
    return e / e.sum()


def naive_a2d(f, g):
    """Return the loss of one sample by the formula."""
    p, q = softmax(f), softmax(g)
    c = int(np.argmax(p))
    return -np.log(p[c] * (1 - q[c]) + (1 - p[c]) * q[c])


def naive_sed(logits, everyone, y, weight):
    """Return the pair term of SED by a loop over samples and pairs."""
    n = len(y)
    ce = [-np.log(softmax(everyone.mean(0)[i])[y[i]]) for i in range(n)]
    batch = sum(weight[i] * ce[i] for i in range(n)) / sum(weight)
    total = 0.0
    for m in range(len(logits)):
        for k in range(m + 1, len(logits)):
            for i in range(n):
                a = ce[i] / batch**2
                total += weight[i] * a * naive_a2d(logits[m, i], logits[k, i])
    return total / (len(logits) * (len(logits) - 1))


@pytest.mark.parametrize("n_classes", [2, 3, 8])
def test_a2d_equals_its_formula(n_classes):
    f, g = logits_of(2, 50, n_classes)
    got = agree_to_disagree(torch.tensor(f), torch.tensor(g))
    want = [naive_a2d(a, b) for a, b in zip(f, g)]
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a2d_of_members_certain_of_the_same_class_is_finite_in_float32():
    # 1 - p = 2 exp(-40) for each, so the loss is -log(2 * 2 exp(-40)).
    f = torch.tensor([40.0, 0.0, 0.0], requires_grad=True)
    loss = agree_to_disagree(f, f.detach().clone())
    loss.backward()
    assert loss.item() == pytest.approx(40 - np.log(4), rel=1e-6)
    # Each of the two 1 - p is half of the logarithm's argument.
    assert f.grad.tolist() == pytest.approx([0.5, -0.25, -0.25], rel=1e-5)


@pytest.mark.parametrize("n_members", [2, 3, 5])
def test_sed_equals_its_formula(n_members):
    everyone = logits_of(6)
    rng = np.random.default_rng(1)
    y, weight = rng.integers(4, size=7), rng.uniform(0.1, 0.2, size=7)
    got = sed_term(
        torch.tensor(everyone[:n_members]),
        torch.tensor(everyone.mean(0)),
        torch.tensor(y),
        torch.tensor(weight),
    )
    want = naive_sed(everyone[:n_members], everyone, y, weight)
    assert got.item() == pytest.approx(want, rel=1e-12)


def test_gradient_does_not_flow_through_the_hard_sample_weights():
    start = torch.tensor(logits_of(3))
    y, weight = torch.arange(7) % 4, torch.full((7,), 1 / 7, dtype=torch.float64)

    def gradient(frozen):
        f = start.clone().requires_grad_()
        mean = f.mean(0)
        ce = torch.nn.functional.cross_entropy(mean, y, reduction="none")
        a = ce / ce.mean() ** 2
        a = a.detach() if frozen else a
        return torch.autograd.grad(a2d_term(f, weight * a), f)[0]

    f = start.clone().requires_grad_()
    got = torch.autograd.grad(sed_term(f, f.mean(0), y, weight), f)[0]
    torch.testing.assert_close(got, gradient(frozen=True), rtol=1e-12, atol=1e-14)
    assert not torch.allclose(got, gradient(frozen=False), rtol=1e-2)


@pytest.mark.parametrize("factor", [100.0, 1e-3, 1e-9, 0.0])
def test_term_of_a_batch_scales_with_its_sample_weights(factor):
    """A batch of small sample weights does not dominate the others."""
    logits, y = torch.tensor(logits_of(3)), torch.arange(7) % 4
    weight = torch.full((7,), 1 / 7, dtype=torch.float64)
    whole = sed_term(logits, logits.mean(0), y, weight)
    part = sed_term(logits, logits.mean(0), y, weight * factor)
    torch.testing.assert_close(part, whole * factor)


def test_weights_of_a_batch_fitted_perfectly_are_finite():
    certain = torch.tensor([[200.0, 0.0], [200.0, 0.0]])
    a = hard_sample_weights(certain, torch.tensor([0, 0]), torch.tensor([0.5, 0.5]))
    assert a.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("n_drawn", [2, 3, 4])
@pytest.mark.parametrize("loss", ["a2d", "sed", "divdis"])
def test_mean_over_all_subsets_is_the_term_over_all_members(loss, n_drawn):
    logits = torch.tensor(logits_of(5))
    y, weight = torch.arange(7) % 4, torch.full((7,), 1 / 7, dtype=torch.float64)
    prior = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)

    def term(members):
        f = logits[list(members)]
        if loss == "a2d":
            return a2d_term(f, weight)
        if loss == "sed":
            return sed_term(f, logits.mean(0), y, weight)
        return divdis_term(f, prior)

    subsets = [term(members) for members in combinations(range(5), n_drawn)]
    assert torch.stack(subsets).mean().item() == pytest.approx(
        term(range(5)).item(), rel=1e-12
    )


def test_mutual_information_of_hard_predictions_equals_scikit_learns():
    rng = np.random.default_rng(0)
    a, b = rng.integers(3, size=(2, 200))
    b = np.where(rng.random(200) < 0.5, a, b)
    got = mutual_information_loss(*(torch.eye(3).double()[x] for x in (a, b)))
    assert got.item() == pytest.approx(mutual_info_score(a, b), rel=1e-10)


def test_divdis_equals_its_formula():
    logits, prior = logits_of(3, 20), np.array([0.1, 0.2, 0.3, 0.4])
    probas = np.array([[softmax(f) for f in member] for member in logits])
    information = 0.0
    for m, k in combinations(range(3), 2):
        joint = sum(np.outer(p, q) for p, q in zip(probas[m], probas[k])) / 20
        apart = np.outer(probas[m].mean(0), probas[k].mean(0))
        information += entropy(joint.ravel(), apart.ravel())
    drift = np.mean([entropy(p.mean(0), prior) for p in probas])
    got = divdis_term(torch.tensor(logits), torch.tensor(prior))
    assert got.item() == pytest.approx(information / 6 + drift, rel=1e-10)


def test_gradients_equal_finite_differences():
    f = torch.tensor(logits_of(3, 4)).requires_grad_()
    weight = torch.full((4,), 0.25, dtype=torch.float64)
    prior = torch.full((4,), 0.25, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda f: a2d_term(f, weight), f)
    assert torch.autograd.gradcheck(lambda f: divdis_term(f, prior), f)


def test_divdis_of_certain_members_has_a_finite_gradient():
    f = torch.tensor([[[90.0, 0.0], [0.0, 90.0]]] * 2, requires_grad=True)
    divdis_term(f, torch.tensor([1.0, 0.0])).backward()
    assert torch.isfinite(f.grad).all()


def test_members_are_drawn_uniformly_and_in_order():
    drawn = np.array(draw_members(4, 2, 6000, np.random.default_rng(0)))
    assert (drawn[:, 0] < drawn[:, 1]).all()
    pairs, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(pairs) == 6
    assert np.abs(counts / 1000 - 1).max() < 0.15  # five standard deviations


@pytest.mark.parametrize("n_drawn", [None, 3, 8])
def test_all_members_are_drawn_if_requested(n_drawn):
    rng = np.random.default_rng(0)
    assert draw_members(3, n_drawn, 2, rng) == [[0, 1, 2]] * 2


def test_unlabeled_samples_are_repeated():
    rows = unlabeled_rows(10, 7, 4, np.random.default_rng(0))
    assert rows.shape == (7, 4)
    assert sorted(rows.ravel()[:10]) == list(range(10))
    assert sorted(rows.ravel()[10:20]) == list(range(10))
    assert unlabeled_rows(3, 5, 4, np.random.default_rng(0)).shape == (5, 3)
    # Two samples, since BatchNorm needs a variance.
    assert unlabeled_rows(1, 5, 4, np.random.default_rng(0)).tolist() == [[0, 0]] * 5
