"""Compare joint training with independent loops."""

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback, LRScheduler
from torch import nn
from torch.nn.functional import cross_entropy

from sklearn_sharpbalance import MLP, DeepEnsembleClassifier, SmallCNN
from sklearn_sharpbalance.data.batches import BatchLayout, batch_sizes
from sklearn_sharpbalance.engine import skorch_engine
from sklearn_sharpbalance.exceptions import DivergenceError, InvalidInputError
from sklearn_sharpbalance.joint.batches import draw_members
from sklearn_sharpbalance.joint.losses import mutual_information_loss
from sklearn_sharpbalance.members import initial_state
from sklearn_sharpbalance.members.schedules import cosine
from sklearn_sharpbalance.runtime.rng import epoch_rng
from sklearn_sharpbalance.training.plan import draw_seeds
from tests.cases import rest_slow
from tests.joint.diversified_cases import (
    LOSSES,
    Looped,
    Noisy,
    assert_same_weights,
    configured,
    diversified,
    table,
)


@pytest.mark.parametrize("optimizer", rest_slow([torch.optim.AdamW, torch.optim.SGD]))
@pytest.mark.parametrize("module", rest_slow([MLP, Looped]))
def test_joint_training_without_diversity_equals_a_deep_ensemble(
    module, optimizer, monkeypatch
):
    """The deep ensemble uses the same order of samples for all members."""
    X, y = table()
    net = configured(module, optimizer)
    joint = diversified(estimator=net, diversity_weight=0, lr_schedule="cosine")
    joint.fit(X, y)
    shared = draw_seeds(0, 3).selection
    monkeypatch.setattr(
        skorch_engine, "epoch_rng", lambda _, epoch: epoch_rng(shared, epoch)
    )
    alone = DeepEnsembleClassifier(
        net,
        max_epochs=4,
        batch_size=32,
        lr_schedule="cosine",
        engine="skorch",
        random_state=0,
        device="cpu",
    ).fit(X, y)
    assert_same_weights(joint.estimators_, alone.estimators_, 1e-6)
    np.testing.assert_allclose(
        joint.member_predict_proba(X), alone.member_predict_proba(X), atol=1e-6
    )
    for got, want in zip(joint.history_, alone.history_):
        assert [r["train_loss"] for r in got] == pytest.approx(
            [r["train_loss"] for r in want], abs=1e-6
        )


def naive_sed_training(clf, X, y, n_members, n_drawn, n_epochs, weight):
    """Train with SED and SGD as in the paper, times the number of members."""
    seeds = draw_seeds(0, n_members)
    states = [initial_state(clf.net_, i, s) for i, s in enumerate(seeds.members)]
    modules = [MLP(5, 3, hidden=(8,)).double() for _ in states]
    for module, state in zip(modules, states):
        module.load_state_dict(
            {k[7:]: v.double() for k, v in state.module.items() if k[:7] == "module."}
        )
    params = [p for module in modules for p in module.parameters()]
    optimizer = torch.optim.SGD(params, lr=0.05, momentum=0.9)
    X, y = torch.tensor(X).double(), torch.tensor(y)
    no_sam = np.zeros((1, len(X)), dtype=bool)
    sizes = batch_sizes(no_sam, 32)
    layout = BatchLayout(no_sam[0], sizes)
    for epoch in range(n_epochs):
        dealt = layout.epoch(epoch_rng(seeds.selection, epoch))
        rng = np.random.default_rng([seeds.selection, epoch, 1])
        drawn = draw_members(n_members, n_drawn, sizes.n_batches, rng)
        for t in range(sizes.n_batches):
            rows = dealt[t][layout.share[t] > 0]
            logits = [module(X[rows]) for module in modules]
            loss = sum(cross_entropy(f, y[rows]) for f in logits) / n_members
            loss = loss + weight * naive_pairs(logits, y[rows], drawn[t])
            progress = (epoch + t / sizes.n_batches) / n_epochs
            optimizer.param_groups[0]["lr"] = 0.05 * cosine(progress)
            optimizer.zero_grad()
            (n_members * loss).backward()
            optimizer.step()
    return modules


def naive_pairs(logits, y, drawn):
    with torch.no_grad():
        ce = cross_entropy(sum(logits) / len(logits), y, reduction="none")
        a = ce / ce.mean() ** 2
    total = 0.0
    for i, m in enumerate(drawn):
        for k in drawn[i + 1 :]:
            p, q = logits[m].softmax(1), logits[k].softmax(1)
            c = p.argmax(1, keepdim=True)
            p, q = p.gather(1, c)[:, 0], q.gather(1, c)[:, 0]
            total += (a * -torch.log(p * (1 - q) + (1 - p) * q)).mean()
    return total / (len(drawn) * (len(drawn) - 1))


@pytest.mark.parametrize(
    ("module", "n_drawn"),
    rest_slow([(MLP, 2), (Looped, None), (MLP, None), (Looped, 2)], keep=2),
)
def test_sed_training_equals_the_naive_loop(module, n_drawn):
    X, y = table()
    net = configured(
        module, torch.optim.SGD, 0.05, module__hidden=(8,), optimizer__momentum=0.9
    )
    clf = diversified(
        estimator=net,
        n_estimators=4,
        pair_members=n_drawn,
        diversity_weight=0.2,
        max_epochs=3,
        standardize=False,
        lr_schedule="cosine",
    ).fit(X, y)
    want = naive_sed_training(clf, X, y, 4, n_drawn or 4, 3, 0.2)
    for net, module in zip(clf.estimators_, want):
        for got, value in zip(net.module_.parameters(), module.parameters()):
            torch.testing.assert_close(got.double(), value, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("loss", rest_slow(LOSSES, ["sed", "divdis"]))
def test_stacked_members_equal_separate_modules(loss):
    X, y = table()
    common = {"loss": loss, "diversity_weight": 0.5, "n_estimators": 4}
    unlabeled, _ = table(50, seed=1)
    fits = [
        diversified(estimator=module, **common).fit(X, y, X_unlabeled=unlabeled)
        for module in (MLP, Looped)
    ]
    assert [clf.engine_.name for clf in fits] == ["stacked", "modules"]
    assert "not stacked: Looped is not a chain" in fits[1].engine_.reason
    assert_same_weights(*(clf.estimators_ for clf in fits), tol=2e-5)
    for name in ("train_loss", "diversity_loss", "lr"):
        got, want = ([r[name] for r in clf.history_[1]] for clf in fits)
        assert got == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_increase_diversity(loss):
    X, y = table()
    unlabeled, _ = table(80, seed=1)

    def alike(weight):
        clf = diversified(loss=loss, diversity_weight=weight, max_epochs=5)
        proba = clf.fit(X, y, X_unlabeled=unlabeled).member_predict_proba(unlabeled)
        if loss == "divdis":
            first, second, _ = torch.tensor(proba)
            return mutual_information_loss(first, second).item()
        return -np.abs(proba[0] - proba[1]).mean()

    assert alike(1.0) < alike(0.0)


@pytest.mark.parametrize("loss", ["a2d", "divdis"])
def test_missing_unlabeled_samples_raise_with_advice(loss):
    X, y = table()
    clf = diversified(loss=loss)
    with pytest.raises(InvalidInputError, match=f"loss='{loss}'.*Pass X_unlabeled"):
        clf.fit(X, y)
    with pytest.raises(ValueError, match="X has 4 features"):
        clf.fit(X, y, X_unlabeled=X[:, :4])
    with pytest.raises(InvalidInputError, match=r"shape \(1, 5\) and X is .* \(5,\)"):
        clf.fit(X, y, X_unlabeled=X[:, None])
    with pytest.raises(InvalidInputError, match=r"a dictionary of \['x'\] and X is"):
        clf.fit(X, y, X_unlabeled={"x": X})


def test_unlabeled_samples_may_be_a_dataset_without_labels():
    X, y = table()
    items = torch.tensor(table(40, seed=1)[0])

    class Bare(torch.utils.data.Dataset):
        def __len__(self):
            return len(items)

        def __getitem__(self, i):
            return items[i]

    clf = diversified(loss="a2d")
    from_items = clf.fit(X, y, X_unlabeled=Bare()).predict_proba(X)
    from_array = clf.fit(X, y, X_unlabeled=items.numpy()).predict_proba(X)
    np.testing.assert_allclose(from_items, from_array, atol=1e-6)


def test_unlabeled_samples_do_not_change_running_statistics():
    X, y = table()
    clf = diversified(estimator=Noisy, loss="a2d", standardize=False, max_epochs=5)
    clf.fit(X, y, X_unlabeled=X + 1000)
    for net in clf.estimators_:
        assert net.module_.module.norm.running_mean.abs().max() < 1


def test_one_unlabeled_sample_with_batch_norm():
    X, y = table()
    clf = diversified(estimator=Noisy, loss="a2d").fit(X, y, X_unlabeled=X[:1])
    assert np.isfinite(clf.predict_proba(X)).all()


def test_members_share_the_augmentation_of_pictures():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=60)
    X = (rng.integers(0, 99, (60, 8, 8)) + 100 * y[:, None, None]).astype(np.uint8)
    seen = []

    def shift(x):
        seen.append(x.shape)
        return torch.roll(x, int(torch.randint(3, ())), dims=-1)

    params = {"train_transform": shift, "max_epochs": 3, "estimator__module__width": 8}
    clf = diversified(estimator=SmallCNN, **params).fit(X, y)
    assert seen == [(30, 1, 8, 8)] * 6  # once per batch for any number of members
    again = diversified(estimator=SmallCNN, **params)
    np.testing.assert_array_equal(
        again.fit(X, y).predict_proba(X), clf.predict_proba(X)
    )
    assert clf.score(X, y) > 0.9


def test_probabilities_with_nll_loss_equal_logits():
    X, y = table()

    class Proba(Looped):
        def forward(self, x):
            return super().forward(x).softmax(1)

    nets = [
        configured(Looped, module__hidden=(8,)),
        configured(Proba, module__hidden=(8,)).set_params(criterion=nn.NLLLoss),
    ]
    logits, proba = (
        diversified(estimator=net, diversity_weight=0.5).fit(X, y) for net in nets
    )
    assert_same_weights(logits.estimators_, proba.estimators_, 1e-4)


def test_samples_of_weight_zero_are_ignored():
    X, y = table()
    wrong = np.r_[y, 2 - y]
    weight = np.r_[np.ones(120), np.zeros(120)]
    common = {"batch_size": 1000, "standardize": False, "max_epochs": 10}
    params = common | {"optimizer": torch.optim.SGD, "lr": 0.05}
    plain = diversified(**params).fit(X, y)
    weighted = diversified(**params).fit(np.r_[X, X], wrong, sample_weight=weight)
    np.testing.assert_allclose(
        plain.predict_proba(X), weighted.predict_proba(X), atol=1e-4
    )


def test_callbacks_are_called_and_members_stop_together():
    X, y = table()

    class StopAt(Callback):
        def on_epoch_end(self, net, **kwargs):
            norm = sum(p.abs().sum().item() for p in net.module_.parameters())
            net.history.record("norm", norm)
            # Members differ by their weights; all have stopped by epoch 5.
            if len(net.history) >= 3 + int(norm * 1e4) % 3:
                raise KeyboardInterrupt

    for module in (MLP, Looped):
        clf = diversified(estimator=module, callbacks=[StopAt()], max_epochs=50).fit(
            X, y
        )
        assert 3 <= clf.n_iter_ < 50
        assert {len(history) for history in clf.history_} == {clf.n_iter_}
        assert clf.history_[0][0]["norm"] != clf.history_[0][-1]["norm"]


def test_callbacks_that_need_batches_raise():
    X, y = table()

    class OnBatch(Callback):
        def on_batch_end(self, net, **kwargs):
            pass

    for params, message in (
        ({"callbacks": [OnBatch()]}, "OnBatch is called for every batch"),
        ({"lr_schedule": LRScheduler("StepLR", step_size=1)}, "an LRScheduler sets"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            diversified(**params).fit(X, y)


def test_divergence_raises_with_advice_and_keeps_the_old_model():
    X, y = table()
    clf = diversified().fit(X, y)
    before, members = clf.predict_proba(X), clf.estimators_
    clf.set_params(optimizer=torch.optim.SGD, lr=1e20, standardize=False)
    with pytest.raises(DivergenceError, match="Lower lr"):
        clf.fit(X, y)
    assert clf.estimators_ is members
    np.testing.assert_array_equal(clf.predict_proba(X), before)


@pytest.mark.parametrize("loss", rest_slow(LOSSES, ["sed"]))
def test_half_precision_learns_like_single_precision(loss):
    X, y = table()
    fits = [
        diversified(loss=loss, precision=p, estimator=Looped, max_epochs=3)
        for p in ("float32", "bf16", "fp16")
    ]
    one, *both = (clf.fit(X, y, X_unlabeled=X + 1).predict_proba(X) for clf in fits)
    for half in both:
        np.testing.assert_allclose(half, one, atol=0.05)
        assert (half != one).any()
