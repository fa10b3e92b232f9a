"""Saved, loaded, copied and pickled optimizers continue exactly like the original."""

import copy
import io
import pickle
from itertools import product

import numpy as np
import pytest
import torch

from sklearn_sharpbalance.optim import OPTIMIZERS, SAM, FriendlySAM
from tests.cases import rest_slow
from tests.optim.reference import (
    BASES,
    METHODS,
    closure_of,
    loss_of,
    make,
    new,
    plain_steps,
    problem,
    same,
    train,
)


def through_state_dict(params, optimizer, method, base):
    params, fresh = make(method, base, [p.detach() for p in params])
    fresh.load_state_dict(optimizer.state_dict())
    return params, fresh


def through_file(params, optimizer, method, base):
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    params, fresh = make(method, base, [p.detach() for p in params])
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return params, fresh


def through_deepcopy(params, optimizer, method, base):
    return copy.deepcopy((params, optimizer))


def through_pickle(params, optimizer, method, base):
    return pickle.loads(pickle.dumps((params, optimizer)))


ROUTES = [through_state_dict, through_file, through_deepcopy, through_pickle]


FIRST, *OTHERS = BASES
PAIRS = [*product([FIRST], ROUTES), *product(OTHERS, ROUTES[:1])]


@pytest.mark.parametrize(("base", "route"), rest_slow(product(BASES, ROUTES), PAIRS))
@pytest.mark.parametrize("method", METHODS)
def test_round_trip_continues_bitwise(method, base, route):
    start, batches = problem(steps=6, dtype=torch.float32)
    whole, reference = make(method, base, start)
    train(whole, reference, batches)

    params, optimizer = make(method, base, start)
    train(params, optimizer, batches[:3])
    frozen = [p.detach().clone() for p in params]
    others, other = route(params, optimizer, method, base)
    assert other.base_optimizer is not optimizer.base_optimizer
    train(others, other, batches[3:])
    assert same(others, whole)
    assert same(params, frozen)  # the first optimizer is independent
    assert other.param_groups[0] is other.base_optimizer.param_groups[0]
    assert other.state is other.base_optimizer.state


def test_state_between_perturbation_and_descent_is_complete():
    # Adam must not use the average as its own state.
    start, batches = problem(steps=4)
    whole, reference = make("friendly_sam", "adam", start)
    train(whole, reference, batches)
    params, optimizer = make("friendly_sam", "adam", start)
    loss_of(params, batches[0]).backward()
    with optimizer.perturbed():
        loss_of(params, batches[0]).backward()
    grads = [p.grad for p in params]
    others, other = through_file(params, optimizer, "friendly_sam", "adam")
    for p, g in zip(others, grads):
        p.grad = g
    other.descend()
    train(others, other, batches[1:])
    assert same(others, whole)


@pytest.mark.parametrize("method", METHODS)
def test_states_of_plain_and_sharpness_aware_optimizers_are_exchangeable(method):
    start, batches = problem(steps=6)
    cls, kwargs = BASES["adam"]
    params = new(start)
    plain = cls(params, **kwargs)
    plain_steps(params, plain, batches[:2])
    aware = OPTIMIZERS[method](params, cls, rho=0.3, lr=99)
    aware.load_state_dict(plain.state_dict())
    assert aware.param_groups[0]["rho"] == 0.3
    assert aware.param_groups[0]["lr"] == kwargs["lr"]
    for batch in batches[2:4]:
        closure_of(aware, lambda b=batch: loss_of(params, b))()
        aware.descend()
    back = cls(params, lr=99)
    back.load_state_dict(aware.state_dict())
    plain_steps(params, back, batches[4:])
    whole = new(start)
    plain_steps(whole, cls(whole, **kwargs), batches)
    assert same(params, whole)


@pytest.mark.parametrize("method", METHODS)
def test_added_group_is_trained_like_an_initial_one(method):
    start, batches = problem()

    def run(add_later):
        params = new(start)
        first, last = {"params": params[:2]}, {"params": params[2:], "rho": 0.3}
        groups = [first] if add_later else [first, last]
        optimizer = OPTIMIZERS[method](groups, rho=0.1, lr=0.1, momentum=0.9)
        if add_later:
            optimizer.add_param_group(last)
        train(params, optimizer, batches)
        assert [g["rho"] for g in optimizer.param_groups] == [0.1, 0.3]
        assert optimizer.base_optimizer.param_groups[1] is optimizer.param_groups[1]
        return params

    later, at_once = run(True), run(False)
    assert same(later, at_once)
    assert not same(later, start)


def test_invalid_group_is_not_added():
    optimizer = SAM([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ValueError, match="rho must be"):
        optimizer.add_param_group(
            {"params": [torch.nn.Parameter(torch.ones(1))], "rho": -1}
        )
    assert len(optimizer.param_groups) == 1
    assert len(optimizer.base_optimizer.param_groups) == 1


def test_named_parameters_and_numpy_numbers_can_be_saved_safely():
    module = torch.nn.Linear(2, 1)
    optimizer = FriendlySAM(
        module.named_parameters(), rho=np.float64(0.1), lr=np.float32(0.5)
    )
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    (group,) = torch.load(file, weights_only=True)["param_groups"]
    assert group["param_names"] == ["weight", "bias"]
    assert (group["rho"], group["lr"]) == (0.1, 0.5)


def test_invalid_state_dict_changes_nothing():
    start, batches = problem(steps=4)
    params, optimizer = make("friendly_sam", "adam", start)
    train(params, optimizer, batches[:2])
    bad = copy.deepcopy(optimizer.state_dict())
    bad["param_groups"][0].update(rho=-1, lr=99)
    bad["state"] = {}
    with pytest.raises(ValueError, match="rho must be"):
        optimizer.load_state_dict(bad)
    train(params, optimizer, batches[2:])
    whole, reference = make("friendly_sam", "adam", start)
    train(whole, reference, batches)
    assert same(params, whole)
