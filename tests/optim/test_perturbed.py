"""``perturbed()`` and ``descend()``, as in the mixed training step."""

import copy
import gc

import pytest
import torch

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.optim import OPTIMIZERS, SAM, FriendlySAM, _buckets, sam
from tests.optim.reference import (
    BASES,
    METHODS,
    OPTIONS,
    NaiveBase,
    NaiveSAM,
    gradient,
    loss_of,
    make,
    new,
    over_sgd,
    perturb,
    plain_steps,
    problem,
    same,
    train,
)


def parts(batch, size):
    """Return the first ``size`` samples (for SAM) and the others."""
    X, y = batch
    return (X[:size], y[:size]), (X[size:], y[size:])


def mixed_step(params, optimizer, batch, size, set_to_none=True):
    sharp, normal = parts(batch, size)
    fraction = size / len(batch[0])
    optimizer.zero_grad(set_to_none=set_to_none)
    if size:
        (fraction * loss_of(params, sharp)).backward()
        perturb(
            optimizer,
            lambda: (fraction * loss_of(params, sharp)).backward(),
            set_to_none=set_to_none,
            grad_scale=fraction,
        )
    if fraction < 1:
        ((1 - fraction) * loss_of(params, normal)).backward()
    optimizer.descend()


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_mixed_step_equals_naive_loops(method, set_to_none):
    start, batches = problem(steps=4)
    sizes = [3, 6, 2, 5]
    params, optimizer = make(method, "sgd", start)
    sam = NaiveSAM(method, 0.1, **OPTIONS[method])
    base = NaiveBase("sgd", **BASES["sgd"][1])
    w = start
    for batch, size in zip(batches, sizes):
        mixed_step(params, optimizer, batch, size, set_to_none)
        sharp, normal = parts(batch, size)
        s = size / 8
        aware = sam.direction(w, sharp, momentum=base.m)
        both = zip(aware, gradient(w, normal))
        w = base.update(w, [s * a + (1 - s) * b for a, b in both])
    for p, expected in zip(params, w):
        torch.testing.assert_close(p.detach(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_mixed_step_with_no_samples_is_the_base_step_and_with_all_is_step(method):
    start, batches = problem()
    plain = new(start)
    plain_steps(plain, BASES["sgd"][0](plain, **BASES["sgd"][1]), batches)
    params, optimizer = make(method, "sgd", start)
    for batch in batches:
        mixed_step(params, optimizer, batch, 0)
    assert same(params, plain)

    full, reference = make(method, "sgd", start)
    train(full, reference, batches)
    params, optimizer = make(method, "sgd", start)
    for batch in batches:
        mixed_step(params, optimizer, batch, 8)
    assert same(params, full)


@pytest.mark.parametrize("method", METHODS)
def test_weights_are_restored_bitwise(method):
    # Rounding changes 0.1 + eps - eps; -0.0 and subnormal numbers are the hard cases.
    w = torch.nn.Parameter(torch.tensor([0.1, -0.0, 1e-40, 1e8, -3.7]))
    optimizer = over_sgd(method, [w], rho=0.7, lr=0.0)
    address = w.data_ptr()
    (w * torch.tensor([0.3, 5.0, -1.0, 2.0, 0.0])).sum().backward()
    if method == "momentum_sam":
        optimizer.descend()  # it moves from the second step on
    before = w.detach().clone()
    assert same([before[1:3]], [torch.tensor([-0.0, 1e-40])])
    with optimizer.perturbed():
        assert not same([w], [before])
        assert w.data_ptr() == address
        assert w.grad is None
        w.sum().backward()
    assert same([w], [before])


@pytest.mark.parametrize("method", METHODS)
def test_weights_are_restored_after_an_exception(method):
    start, batches = problem(steps=2)
    params, optimizer = make(method, "sgd", start)
    train(params, optimizer, batches[:1])
    before = [p.detach().clone() for p in params]
    state = optimizer.state_dict()["state"]
    saved = copy.deepcopy(state)
    loss_of(params, batches[1]).backward()
    with pytest.raises(KeyError, match="inside"), optimizer.perturbed():
        raise KeyError("inside")
    assert same(params, before)
    for index, entries in optimizer.state_dict()["state"].items():
        for name, value in entries.items():
            torch.testing.assert_close(value, saved[index][name], rtol=0, atol=0)


def test_weights_are_restored_if_the_ascent_fails(monkeypatch):
    a = torch.nn.Parameter(torch.tensor([1.0]))
    b = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = SAM([a, b], rho=0.5, lr=0.1)
    (a + b).sum().backward()
    real = sam.add_scaled_

    def fails_on_second(weights, direction, factor):
        if weights[0].dtype == torch.float64:
            raise torch.OutOfMemoryError("no memory left")
        real(weights, direction, factor)

    monkeypatch.setattr(sam, "add_scaled_", fails_on_second)
    with pytest.raises(torch.OutOfMemoryError), optimizer.perturbed():
        pass
    assert a.item() == b.item() == 1


@pytest.mark.parametrize("method", METHODS)
def test_gradient_accumulation_equals_the_whole_batch(method):
    start, batches = problem(steps=3)
    whole, reference = make(method, "adam", start)
    train(whole, reference, batches)

    def accumulate(params, batch):
        for X, y in parts(batch, 3):
            (len(X) / 8 * loss_of(params, (X, y))).backward()

    by_context, optimizer = make(method, "adam", start)
    for batch in batches:
        optimizer.zero_grad()
        accumulate(by_context, batch)
        perturb(optimizer, lambda batch=batch: accumulate(by_context, batch))
        optimizer.descend()

    by_closure, optimizer = make(method, "adam", start)
    for batch in batches:

        def closure(batch=batch):
            optimizer.zero_grad()
            accumulate(by_closure, batch)
            return 0.0

        assert optimizer.step(closure) == 0.0
    for a, b, c in zip(whole, by_context, by_closure):
        torch.testing.assert_close(a, b)
        assert torch.equal(b, c)


@pytest.mark.parametrize("scale", [0.0, torch.tensor(0.0)])
def test_friendly_average_ignores_a_batch_without_sharp_samples(scale):
    w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = FriendlySAM([w], rho=0.1, lr=0.1)
    w.grad = torch.tensor([1.0, 3.0])
    with optimizer.perturbed(grad_scale=0.5):
        pass
    (entry,) = optimizer.state_dict()["state"].values()
    average = entry["gradient_average"].tolist()
    assert average == pytest.approx([0.2, 0.6])
    w.grad = torch.zeros(2)
    with optimizer.perturbed(grad_scale=scale):
        assert torch.isfinite(w).all()
    assert optimizer.state_dict()["state"][0]["gradient_average"].tolist() == average


def test_friendly_average_ignores_a_gradient_that_is_not_finite():
    w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = FriendlySAM([w], rho=0.1, lr=0.1)
    for bad in (float("inf"), float("nan")):
        w.grad = torch.tensor([1.0, bad])
        with optimizer.perturbed():
            pass
    assert w.tolist() == [1, 2]
    assert optimizer.state_dict()["state"][0]["gradient_average"].tolist() == [0, 0]


@pytest.mark.parametrize("method", METHODS)
def test_no_copy_of_the_weights_is_kept_between_steps(method):
    shape = (11, 13)  # no other tensor in the process has this shape
    w = torch.nn.Parameter(torch.ones(shape))
    optimizer = OPTIMIZERS[method]([w], lr=0.1, momentum=0.9)
    train([w], optimizer, [1.0, 2.0], lambda p, t: torch.sin(t * p[0]).sum())
    optimizer.zero_grad()
    gc.collect()
    kinds = (torch.Tensor, torch.nn.Parameter)
    live = [t for t in gc.get_objects() if type(t) in kinds and t.shape == shape]
    # the weights, the momentum, and the average or the direction that some keep
    assert len(live) == (3 if method in ("friendly_sam", "look_sam") else 2)


def test_step_without_closure_raises_with_advice():
    optimizer = SAM([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    message = r"SAM.step\(\) needs a closure.*scaler=scaler.*`perturbed\(\)` and"
    with pytest.raises(InvalidInputError, match=message):
        optimizer.step()


def test_interrupt_during_the_copy_does_not_change_the_weights(monkeypatch):
    start, batches = problem(steps=1)
    params, optimizer = make("sam", "sgd", start)
    loss_of(params, batches[0]).backward()
    copy = _buckets.foreach_copy_

    def interrupted(targets, sources):
        monkeypatch.setattr(_buckets, "foreach_copy_", copy)
        for target in targets:
            target.fill_(torch.nan)  # like uninitialised memory
        raise KeyboardInterrupt

    monkeypatch.setattr(_buckets, "foreach_copy_", interrupted)
    with pytest.raises(KeyboardInterrupt), optimizer.perturbed():
        pass
    assert _buckets.foreach_copy_ is copy
    assert same(params, start)


@pytest.mark.parametrize("freeze_norms", [None, 1, "all", [torch.nn.Identity()]])
def test_invalid_freeze_norms_raises_before_the_weights_move(freeze_norms):
    w = torch.nn.Parameter(torch.ones(2))
    optimizer = SAM([w], lr=0.1)
    w.sum().backward()
    raises = pytest.raises(ValueError, match="freeze_norms must be True, False or")
    with raises, optimizer.perturbed(freeze_norms=freeze_norms):
        pass
    assert w.grad.tolist() == [1.0, 1.0]
