"""The method: comparison with plain loops, randomness, and accuracy."""

import os
from itertools import pairwise

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from sklearn_sharpbalance import MLP, DeepEnsembleClassifier
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from sklearn_sharpbalance.data.training_data import TrainingData
from sklearn_sharpbalance.engine import jobs as jobs_module
from sklearn_sharpbalance.engine.jobs import MemberJobs
from sklearn_sharpbalance.runtime.process import torch_threads
from tests.cases import rest_slow
from tests.reference import per_sample_squared_norms

N, BATCH, EPOCHS, LR, RHO = 70, 32, 4, 0.1, 0.2
SMALL = {
    "n_estimators": 2,
    "max_epochs": EPOCHS,
    "batch_size": BATCH,
    "random_state": 0,
    "device": "cpu",
    "estimator__module__hidden": (16,),
}


def table(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6)) * [1, 10, 0.1, 1, 1, 1] + 3
    y = (X[:, 0] > 3).astype(int) + (X[:, 1] > 10)
    return X, y


def third(sharpness, random_state):
    """Select a fixed third of the samples for each member."""
    members, samples = np.indices(sharpness.shape)
    return (samples + members) % 3 == 0


def weights(clf, member):
    module = clf.estimators_[member].module_.module
    return {name: p.detach() for name, p in module.named_parameters()}


def assert_bitwise(one, other):
    for member in range(len(one.estimators_)):
        mine, theirs = weights(one, member), weights(other, member)
        assert all(mine[name].equal(theirs[name]) for name in mine)
        for row, twin in zip(one.history_[member], other.history_[member]):
            assert row["train_loss"] == twin["train_loss"]
        assert len(one.history_[member]) == len(other.history_[member])


def differ(one, other):
    mine, theirs = weights(one, 0), weights(other, 0)
    return any(not mine[name].equal(theirs[name]) for name in mine)


# Naive implementation ---------------------------------------------------------------


def split(samples, n_batches, rng):
    """Split shuffled samples into batches whose sizes differ by at most one."""
    samples = rng.permutation(samples)
    edges = [i * len(samples) // n_batches for i in range(n_batches + 1)]
    return [samples[a:b] for a, b in pairwise(edges)]


def quantile(X, share, weight=None):
    """Return the smallest value of each column that covers a share of the weight."""
    weight = np.ones(len(X)) if weight is None else weight
    cuts = []
    for column in X.T:
        covered = [weight[column <= value].sum() for value in column]
        cuts.append(column[np.array(covered) >= share * weight.sum()].min())
    return np.array(cuts)


def naive_train(seed, X, y, mask, *, weight=None, rho=RHO, n_epochs=EPOCHS):
    """Train one member in a plain loop with batches of both kinds."""
    cuts = [quantile(X, share, weight) for share in (0.25, 0.5, 0.75)]
    X = (X - cuts[1]) / (cuts[2] - cuts[0]) * 1.349
    X = torch.tensor(X / np.sqrt(1 + X**2 / 9), dtype=torch.float32)
    y = torch.tensor(y)
    weight = np.ones(len(y)) if weight is None else weight / weight.mean()
    weight = torch.tensor(weight, dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = MLP(X.shape[1], int(y.max()) + 1, hidden=(16,))
    optimizer = torch.optim.SGD(
        module.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4
    )
    n_batches, fraction = -(-len(y) // BATCH), mask.mean()
    n_sam = round(n_batches * fraction)
    for epoch in range(n_epochs):
        rng = np.random.default_rng([seed, epoch])
        sam, rest = np.flatnonzero(mask), np.flatnonzero(~mask)
        sam = split(sam, n_sam, rng) if n_sam else []
        rest = split(rest, n_batches - n_sam, rng) if n_sam < n_batches else []
        for t in range(n_batches):
            done = (epoch + t / n_batches) / n_epochs
            optimizer.param_groups[0]["lr"] = LR * 0.5 * (1 + np.cos(np.pi * done))
            # SAM batches are spread evenly; both kinds count as their samples do.
            is_sam = (t + 1) * n_sam // n_batches > t * n_sam // n_batches
            rows = (sam if is_sam else rest).pop(0)
            n_kind = n_sam if is_sam else n_batches - n_sam
            kind = fraction if is_sam else 1 - fraction
            factor = weight * kind * n_batches / n_kind
            naive_update(
                module, optimizer, X[rows], y[rows], factor[rows], is_sam * rho
            )
    return dict(module.named_parameters())


def naive_update(module, optimizer, x, y, weight, rho):
    params = list(module.parameters())

    def gradient():
        losses = nn.functional.cross_entropy(module(x), y, reduction="none")
        return torch.autograd.grad((losses * weight).mean(), params)

    g = gradient()
    length = torch.cat([part.flatten() for part in g]).norm()
    before = [p.detach().clone() for p in params]
    with torch.no_grad():
        for p, part in zip(params, g):
            p += rho * part / length
    g = gradient()
    with torch.no_grad():
        for p, old in zip(params, before):
            p.copy_(old)
    for p, part in zip(params, g):
        p.grad = part
    optimizer.step()


WEIGHTED = [("none", True), ("all", True), (third, True)]
UNWEIGHTED = [(third, False), ("none", False), ("all", False)]


@pytest.mark.parametrize("engine", ["skorch", "stacked"])
@pytest.mark.parametrize(
    ("selection", "weighted"), [*WEIGHTED, *rest_slow(UNWEIGHTED, 0)]
)
def test_members_equal_those_of_a_plain_loop(selection, weighted, engine):
    """Without SAM samples it is SGD, with all it is SAM."""
    X, y = table()
    weight = np.random.default_rng(1).uniform(0.2, 3, N) if weighted else None
    clf = SharpBalance(
        selection=selection,
        sam="sam",
        warmup_epochs=0,
        rho=RHO,
        engine=engine,
        optimizer=torch.optim.SGD,
        lr=LR,
        **SMALL,
    ).fit(X, y, sample_weight=weight)
    for i, seed in enumerate(clf.member_seeds_):
        mask = {"none": np.zeros(N, bool), "all": np.ones(N, bool)}.get(
            selection, (np.arange(N) + i) % 3 == 0
        )
        want = naive_train(seed, X, y, mask, weight=weight)
        np.testing.assert_array_equal(clf.sam_masks_[i], mask)
        for name, value in weights(clf, i).items():
            torch.testing.assert_close(value, want[name].data, atol=1e-6, rtol=1e-5)


def test_selection_none_or_rho_zero_equals_a_deep_ensemble():
    X, y = table()
    plain = DeepEnsembleClassifier(**SMALL).fit(X, y)
    for warmup, warmup_epochs in (("sam", 0), ("sgd", 0), ("sgd", 2), ("sgd", 1.0)):
        clf = SharpBalance(
            selection="none", warmup=warmup, warmup_epochs=warmup_epochs, **SMALL
        )
        assert_bitwise(clf.fit(X, y), plain)
    assert_bitwise(SharpBalance(selection="all", rho=0.0, **SMALL).fit(X, y), plain)


@pytest.mark.parametrize("engine", ["skorch", "stacked"])
def test_scoring_after_every_epoch_does_not_change_the_members(engine):
    X, y = table()
    options = {"validation_fraction": 0.2, "engine": engine, **SMALL}
    plain = SharpBalance(**options).fit(X, y)
    watched = SharpBalance(early_stopping=100, **options).fit(X, y)
    assert watched.n_iter_ == EPOCHS
    np.testing.assert_array_equal(plain.train_indices_, watched.train_indices_)
    for member, want in zip(watched.history_, plain.history_):
        assert member  # until the best epoch
        for row, twin in zip(member, want):
            for name in ("train_loss", "valid_loss", "valid_acc", "lr"):
                assert row[name] == twin[name]


# Scores and selection ---------------------------------------------------------------


def test_scores_are_fisher_traces_after_the_warm_up():
    """Compare with a loop over samples in float64."""
    X, y = table()
    options = {"lr_schedule": "constant", "sam": "sam", **SMALL}
    clf = SharpBalance(warmup_epochs=2, **options).fit(X, y)
    warm = SharpBalance(selection="all", **{**options, "max_epochs": 2}).fit(X, y)
    for i, net in enumerate(warm.estimators_):
        loss = nn.functional.cross_entropy
        want = per_sample_squared_norms(
            net.module_, loss, torch.tensor(X, dtype=torch.float32), torch.tensor(y)
        )
        np.testing.assert_allclose(clf.sharpness_[i], want, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize(("selection", "sign"), [("sharpest", -1), ("flattest", 1)])
def test_sam_samples_are_proposed_by_the_other_members(selection, sign):
    X, y = table()
    small = {**SMALL, "n_estimators": 3}
    clf = SharpBalance(selection=selection, flat_ratio=0.3, **small).fit(X, y)
    assert clf.sharpness_.shape == clf.sam_masks_.shape == (3, N)
    k = round(0.3 * N)
    proposed = [set(np.argsort(sign * scores)[:k]) for scores in clf.sharpness_]
    remaining = sorted(set(range(N)) - set.union(*proposed))
    for i in range(3):
        others = set.union(*(s for j, s in enumerate(proposed) if j != i))
        if selection == "flattest":
            others |= set(remaining) - set(remaining[i::3])
        assert set(np.flatnonzero(clf.sam_masks_[i])) == others


# Randomness -------------------------------------------------------------------------


def jitter(x):
    return x + 0.1 * torch.randn_like(x)


RANDOM_PARTS = {
    **SMALL,
    "estimator__module__dropout": 0.3,
    "selection": "random",
    "train_transform": jitter,
    "validation_fraction": 0.2,
}


def test_ensemble_depends_on_random_state():
    X, y = table()
    one, same, other = (
        SharpBalance(**{**RANDOM_PARTS, "random_state": s}).fit(X, y) for s in (0, 0, 1)
    )
    assert_bitwise(one, same)
    np.testing.assert_array_equal(one.sam_masks_, same.sam_masks_)
    assert differ(one, other)


def test_generator_advances_between_fits():
    X, y = table()
    rng = np.random.RandomState(0)
    first, second = (
        DeepEnsembleClassifier(**{**SMALL, "random_state": rng}).fit(X, y)
        for _ in range(2)
    )
    assert_bitwise(first, DeepEnsembleClassifier(**SMALL).fit(X, y))
    assert differ(first, second)


def test_fits_without_random_state_differ():
    X, y = table()
    options = {**SMALL, "random_state": None, "max_epochs": 1}
    kept = np.random.get_state()  # noqa: NPY002
    try:
        fitted = []
        for _ in range(2):
            np.random.seed(0)  # noqa: NPY002
            fitted.append(DeepEnsembleClassifier(**options).fit(X, y))
    finally:
        np.random.set_state(kept)  # noqa: NPY002
    assert differ(*fitted)


def test_first_members_do_not_depend_on_n_estimators():
    X, y = table()
    small = DeepEnsembleClassifier(**SMALL).fit(X, y)
    large = DeepEnsembleClassifier(**{**SMALL, "n_estimators": 3}).fit(X, y)
    assert large.member_seeds_[:2] == small.member_seeds_
    for i in range(2):
        for name, value in weights(small, i).items():
            torch.testing.assert_close(weights(large, i)[name], value)


def data_location(net, data, member):
    mapped = isinstance(data.X, np.memmap) and not data.X.flags.writeable
    return mapped, os.getpid(), float(data.X[member, 0])


@pytest.mark.parametrize("backend", rest_slow(["multiprocessing", "loky"]))
def test_processes_give_the_same_members_and_map_the_data(backend, monkeypatch):
    """In one test, since processes of loky start slowly."""
    monkeypatch.setattr(jobs_module, "MAPPED_BYTES", 100)
    X, y = table()
    options = {**SMALL, "engine": "skorch", "selection": "random"}
    options |= {"validation_fraction": 0.2, "estimator__module__dropout": 0.3}
    apart = [{"lr": 0.01, "module__hidden": (9,)}, {"optimizer__weight_decay": 0.1}]

    def processes():
        return joblib.parallel_config(backend, n_jobs=2)

    for clf in (SharpBalance(**options), SharpBalance(**options, member_params=apart)):
        with torch_threads(1):
            serial = clone(clf).fit(X, y)
        with processes():
            parallel = clone(clf).fit(X, y)
        assert_bitwise(parallel, serial)
        for name in ("sam_masks_", "sharpness_"):
            got, want = getattr(parallel, name), getattr(serial, name)
            np.testing.assert_array_equal(got, want)
        probas = [clf.predict_proba(X) for clf in (parallel, serial)]
        np.testing.assert_array_equal(*probas)

    calls = [{"member": i} for i in range(3)]
    with processes():
        found = MemberJobs(2).run(data_location, None, TrainingData(X, y), calls)
    assert [mapped for mapped, _, _ in found] == [True] * 3
    assert os.getpid() not in {pid for _, pid, _ in found}
    np.testing.assert_array_equal([x for *_, x in found], X[:3, 0])


# Accuracy ---------------------------------------------------------------------------


def test_accuracy_on_digits_with_default_parameters():
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.25, random_state=0
    )
    clf = SharpBalance(random_state=0).fit(X_train, y_train)
    assert clf.score(X_test, y_test) >= 0.97
