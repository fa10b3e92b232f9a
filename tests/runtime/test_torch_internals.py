"""Steps of torch's optimizers without the import of its compiler."""

import sys

import pytest
import torch
from torch.optim import Optimizer

from sklearn_sharpbalance.runtime import torch_internals
from sklearn_sharpbalance.runtime.process import WITHOUT_COMPILER_IMPORT
from sklearn_sharpbalance.runtime.torch_internals import (
    HIDDEN_FORM,
    HIDDEN_METHODS,
    step_of,
)
from tests.cases import rest_slow
from tests.training.killing import call_in_child

OPTIMIZERS = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop]


@pytest.fixture
def no_compiler(monkeypatch):
    """Simulate a process that has not imported torch's compiler."""
    monkeypatch.setattr(torch_internals, "COMPILER", "a module that is not there")


def weights_after(kind, step):
    weight = torch.ones(3, requires_grad=True)
    optimizer = kind([weight], lr=0.1, weight_decay=0.01)
    for scale in (1.0, 2.0, -1.0):
        weight.grad = scale * torch.arange(3.0)
        step(optimizer)
    return weight.detach()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_step_equals_that_of_torch(kind, no_compiler):
    expected = weights_after(kind, lambda optimizer: optimizer.step())
    assert torch.equal(weights_after(kind, step_of), expected)


def test_hooks_and_schedulers_follow_the_step(no_compiler):
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    calls = []
    optimizer.register_step_post_hook(lambda *args: calls.append(args))
    weight.grad = torch.ones(1)
    step_of(optimizer)
    assert len(calls) == 1


def test_optimizer_with_an_overridden_step_keeps_it(no_compiler):
    class Doubled(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            return super().step(closure)

    weight = torch.ones(1, requires_grad=True)
    weight.grad = torch.ones(1)
    step_of(Doubled([weight], lr=0.25))
    assert weight.item() == 0.5


def use_an_optimizer(with_torch_alone):
    assert "torch._dynamo" not in sys.modules
    functions = [getattr(Optimizer, name).__wrapped__ for name in HIDDEN_METHODS]
    with WITHOUT_COMPILER_IMPORT:
        with WITHOUT_COMPILER_IMPORT:
            pass
        assert all(hasattr(f, HIDDEN_FORM) for f in functions)
        optimizer = torch.optim.SGD([torch.zeros(1)])
        optimizer.zero_grad()
        optimizer.load_state_dict(optimizer.state_dict())
    assert not any(hasattr(f, HIDDEN_FORM) for f in functions)
    assert "torch._dynamo" not in sys.modules
    if with_torch_alone:  # torch itself imports the compiler
        torch.optim.SGD([torch.zeros(1)])
        assert "torch._dynamo" in sys.modules


@pytest.mark.parametrize("with_torch_alone", rest_slow([False, True]))
def test_torch_is_restored(with_torch_alone):
    """In another process, since other tests have imported the compiler."""
    call_in_child(use_an_optimizer, with_torch_alone)


def test_nothing_is_changed_if_the_compiler_is_imported():
    import torch._dynamo

    torch.optim.SGD([torch.zeros(1)]).zero_grad()
    function = Optimizer.zero_grad.__wrapped__
    before = getattr(function, HIDDEN_FORM)
    with WITHOUT_COMPILER_IMPORT:
        assert getattr(function, HIDDEN_FORM) is before
    assert getattr(function, HIDDEN_FORM) is before
