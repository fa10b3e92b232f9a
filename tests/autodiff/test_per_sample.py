"""Compare squared gradient norms of single samples with a loop in float64."""

import threading
import warnings
from itertools import product

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Subset, TensorDataset

from sklearn_sharpbalance.autodiff import per_sample, per_sample_squared_norms
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests import reference
from tests.autodiff.traps import BY_OTHERS, OverwritesInput
from tests.autodiff.zoo import BY_RULES, build, cross_entropy, images

ALL = BY_RULES | BY_OTHERS


def assert_equal(actual, expected, rtol=1e-9):
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual.double(), expected, rtol=rtol, atol=1e-12)


BY_VMAP = ["residual", "twice", "dict", "frozen_stem"]  # which layer rules take too


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *((name, "layer_rules") for name in BY_RULES),
        *((name, "auto") for name in ALL),
        *((name, BY_OTHERS[name][3]) for name in BY_OTHERS),
        *product(BY_VMAP, ["vmap", "loop"]),
    ],
)
def test_each_method_equals_the_reference(name, method):
    module, X, y = build(ALL[name])
    expected = reference.per_sample_squared_norms(module, cross_entropy, X, y)
    actual = per_sample_squared_norms(module, cross_entropy, X, y, method=method)
    assert_equal(actual, expected)


@pytest.mark.parametrize("name", BY_OTHERS)
def test_layer_rules_raise_with_the_reason(name):
    module, X, y = build(BY_OTHERS[name])
    with pytest.raises(InvalidInputError, match=BY_OTHERS[name][2]):
        per_sample_squared_norms(module, cross_entropy, X, y, method="layer_rules")
    with pytest.raises(InvalidInputError, match="'fast'"):
        per_sample_squared_norms(module, cross_entropy, X, y, method="fast")


def test_overwritten_input_raises():
    module, X, y = build((OverwritesInput, BY_RULES["mlp"][1]))
    with pytest.raises(InvalidInputError, match="input is modified in place"):
        per_sample_squared_norms(module, cross_entropy, X, y, method="layer_rules")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        per_sample_squared_norms(module, cross_entropy, X, y)


@pytest.mark.parametrize("method", ["layer_rules", "vmap", "loop"])
def test_result_depends_neither_on_chunk_size_nor_on_other_samples(method):
    module, X, y = build(BY_RULES["residual"])
    expected = per_sample_squared_norms(module, cross_entropy, X, y, method=method)
    for chunk_size, n in product((1, 2, 3, 100), (1, 2, 3, len(y))):
        actual = per_sample_squared_norms(
            module, cross_entropy, X[:n], y[:n], method=method, chunk_size=chunk_size
        )
        assert_equal(actual, expected[:n])


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 5])
@pytest.mark.parametrize("n_positions", [1, 2, 3, 5])
def test_positions_are_not_confused_with_samples(n_positions, chunk_size):
    module, X, y = build(BY_OTHERS["sequence_first"])
    X = X[:, :n_positions]
    expected = reference.per_sample_squared_norms(module, cross_entropy, X, y)
    actual = per_sample_squared_norms(
        module, cross_entropy, X, y, chunk_size=chunk_size
    )
    assert_equal(actual, expected)


@pytest.mark.parametrize(
    "convert",
    [
        lambda X, y: (X.numpy(), y.numpy()),
        lambda X, y: (X.numpy(), y.tolist()),
        lambda X, y: (TensorDataset(X, y), y),
        lambda X, y: (TensorDataset(X, y), None),
        lambda X, y: (Subset(TensorDataset(X, y), range(len(y))), None),
        lambda X, y: (X.numpy(), pd.Series(y.numpy(), index=range(7, 12))),
    ],
    ids=["numpy", "list", "dataset", "dataset_without_y", "subset", "series"],
)
def test_types_of_data(convert):
    module, X, y = build(BY_RULES["mlp"])
    expected = reference.per_sample_squared_norms(module, cross_entropy, X, y)
    actual = per_sample_squared_norms(
        module, cross_entropy, *convert(X, y), chunk_size=2
    )
    assert_equal(actual, expected)


def test_everything_frozen_gives_zeros():
    module, X, y = build(BY_RULES["mlp"])
    module.requires_grad_(False)
    for method in ("layer_rules", "vmap", "loop"):
        actual = per_sample_squared_norms(module, cross_entropy, X, y, method=method)
        assert torch.equal(actual, torch.zeros_like(actual))
        assert actual.shape == (len(y),)


@pytest.mark.parametrize(
    "name", [n for n, (_, inputs) in BY_RULES.items() if inputs is images]
)
def test_channels_last(name):
    module, X, y = build(BY_RULES[name])
    expected = reference.per_sample_squared_norms(module, cross_entropy, X, y)
    module = module.to(memory_format=torch.channels_last)
    for inputs in (X, X.to(memory_format=torch.channels_last)):
        actual = per_sample_squared_norms(module, cross_entropy, inputs, y)
        assert_equal(actual, expected)


@pytest.mark.parametrize("name", ["residual", "sequence_gram", "twice"])
def test_bfloat16_autocast(name):
    module, X, y = build(BY_RULES[name])
    expected = reference.per_sample_squared_norms(module, cross_entropy, X, y)
    with torch.autocast("cpu", torch.bfloat16):
        actual = per_sample_squared_norms(
            module.float(), cross_entropy, X.float(), y, method="layer_rules"
        )
    assert actual.dtype == torch.float32
    assert_equal(actual, expected, rtol=0.1)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_works_without_autograd(context):
    module, X, y = build(BY_RULES["mlp"])
    expected = per_sample_squared_norms(module, cross_entropy, X, y)
    with context():
        actual = per_sample_squared_norms(module, cross_entropy, X, y)
    assert_equal(actual, expected)


def test_compiled_module_runs_eagerly():
    module, X, y = build(BY_RULES["mlp"])
    expected = per_sample_squared_norms(module, cross_entropy, X, y)
    compiled = torch.compile(module, backend="eager")
    actual = per_sample_squared_norms(
        compiled, cross_entropy, X, y, method="layer_rules"
    )
    assert_equal(actual, expected)


def _state(module):
    return {
        "training": [m.training for m in module.modules()],
        "requires_grad": [p.requires_grad for p in module.parameters()],
        "gradients": [p.grad for p in module.parameters()],
        "hooks": [
            (len(m._forward_hooks), len(m._forward_pre_hooks)) for m in module.modules()
        ],
        "tensors": [t.clone() for t in module.state_dict().values()],
    }


def _assert_same_state(before, after):
    for a, b in zip(before.pop("tensors"), after.pop("tensors")):
        assert torch.equal(a, b)
    for a, b in zip(before.pop("gradients"), after.pop("gradients")):
        assert a is b
    assert before == after


def _mixed_state(name):
    module, X, y = build(ALL[name])
    list(module.modules())[-1].eval()
    next(module.parameters()).grad = torch.ones_like(next(module.parameters()))
    return module, X, y


@pytest.mark.parametrize("name", ["residual", "frozen_stem", "tied", "lstm"])
def test_module_is_not_changed(name):
    module, X, y = _mixed_state(name)
    before, rng = _state(module), torch.get_rng_state()
    per_sample_squared_norms(module, cross_entropy, X, y)
    _assert_same_state(before, _state(module))
    assert torch.equal(torch.get_rng_state(), rng)


@pytest.mark.parametrize("method", ["auto", "layer_rules", "vmap", "loop"])
def test_module_is_not_changed_after_an_error(method):
    module, X, y = _mixed_state("residual")
    before = _state(module)

    def failing(outputs, y):
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        per_sample_squared_norms(module, failing, X, y, method=method)
    _assert_same_state(before, _state(module))


def test_errors_of_the_user_are_raised():
    module, X, y = build(BY_RULES["mlp"])
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        per_sample_squared_norms(module, cross_entropy, X[:, :3], y)


class Activations(nn.Module):
    """Few weights, one of them without a rule, and many activations."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return (x.repeat(1, 500) * self.scale).exp().reshape(len(x), 3, -1).mean(2)


@pytest.mark.parametrize(("module", "X"), [(Activations(), torch.ones(50, 6))])
def test_chunk_size_considers_the_activations(module, X, monkeypatch):
    """A sample needs more than 6000 numbers, few of them weights or layer outputs."""
    sizes = []

    def recorded(fn, n, chunk_size):
        sizes.append(chunk_size)
        return fn(slice(0, n))

    monkeypatch.setattr(per_sample, "in_chunks", recorded)
    monkeypatch.setattr(per_sample, "_limits", lambda device: (1024, 60_000))
    y = torch.zeros(50, dtype=torch.long)
    per_sample_squared_norms(module, cross_entropy, X, y)
    assert 3 <= sizes[-1] <= 10


def test_overlapping_threads_restore_the_settings_of_the_process():
    """The first thread leaves first, and the last one restores the settings."""
    module, X, y = build(BY_OTHERS["attention"])
    modules = module, build(BY_OTHERS["attention"])[0]
    inside, go = ([threading.Event() for _ in modules] for _ in range(2))

    def score(i):
        def loss(outputs, y):
            inside[i].set()
            assert go[i].wait(10)
            return cross_entropy(outputs, y)

        per_sample_squared_norms(
            modules[i], loss, X, y, method="vmap", chunk_size=len(y)
        )

    def settings():
        fused = torch.backends.cuda.flash_sdp_enabled()
        return fused, torch.backends.cuda.mem_efficient_sdp_enabled(), warnings.filters

    before = (*settings()[:2], list(warnings.filters))
    threads = [threading.Thread(target=score, args=(i,)) for i in range(2)]
    for i, thread in enumerate(threads):
        thread.start()
        assert inside[i].wait(10)
        assert warnings.filters == before[2]
    for i, thread in enumerate(threads):
        go[i].set()
        thread.join()
        assert torch.backends.cuda.flash_sdp_enabled() == (i == 1 and before[0])
    assert settings() == before


def test_operations_without_a_rule_for_vmap_do_not_warn():
    module, X, y = build(BY_OTHERS["temperature"])

    def margins(outputs, y):
        return F.multi_margin_loss(outputs, y, reduction="none")

    expected = reference.per_sample_squared_norms(module, margins, X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = per_sample_squared_norms(module, margins, X, y, method="vmap")
    assert_equal(actual, expected)


def test_batch_statistics_raise():
    module = nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False))
    with pytest.raises(
        InvalidInputError, match=r"'0' \(BatchNorm1d\) keeps no running"
    ):
        per_sample_squared_norms(module, cross_entropy, torch.ones(3, 2), torch.ones(3))


def test_targets_of_a_wrong_length_raise():
    module, X, y = build(BY_RULES["mlp"])
    with pytest.raises(InvalidInputError, match="`X` has 5 samples but `y` has 4"):
        per_sample_squared_norms(module, cross_entropy, X, y[:4])
    with pytest.raises(InvalidInputError, match="X is empty"):
        per_sample_squared_norms(module, cross_entropy, X[:0], y[:0], method="loop")
    with pytest.raises(InvalidInputError, match="`y` may be None only"):
        per_sample_squared_norms(module, cross_entropy, X, None)
    with pytest.raises(InvalidInputError, match="same number of samples"):
        per_sample_squared_norms(module, cross_entropy, {"a": X, "b": X[:2]}, y)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ALL)
def test_cuda_equals_the_reference(name):
    module, X, y = build(ALL[name])
    expected = reference.per_sample_squared_norms(module, cross_entropy, X, y)
    module, y = module.cuda(), y.numpy()
    actual = per_sample_squared_norms(module, cross_entropy, X, y, chunk_size=4)
    assert actual.is_cuda
    assert_equal(actual.cpu(), expected, rtol=1e-6)


@pytest.mark.parametrize("method", ["auto", "vmap"])
@pytest.mark.parametrize("name", ["two_names", "tied"])
def test_parameters_with_two_names_are_not_replaced(name, method):
    module, X, y = build(BY_OTHERS[name])
    before = dict(module.named_parameters(remove_duplicate=False))
    per_sample_squared_norms(module, cross_entropy, X, y, method=method)
    after = dict(module.named_parameters(remove_duplicate=False))
    assert after.keys() == before.keys()
    assert all(after[key] is p for key, p in before.items())


class Scaled(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, x):
        return self.scale * self.module(x)


@pytest.mark.parametrize("method", ["auto", "vmap", "loop"])
def test_a_forward_that_is_a_module_adds_no_parameters(method):
    module, X, y = build(BY_OTHERS["temperature"])
    wrapper = Scaled(module)
    names = [f"module.{name}" for name, _ in module.named_parameters()]
    expected = reference.per_sample_squared_norms(wrapper, cross_entropy, X, y, names)
    parameters = list(wrapper.parameters())
    actual = per_sample_squared_norms(
        module, cross_entropy, X, y, forward=wrapper, method=method
    )
    torch.testing.assert_close(actual, expected)
    assert all(a is b for a, b in zip(parameters, wrapper.parameters(), strict=True))
