"""Common tests of all flatness metrics: unchanged nets, ensembles, input types."""

import random
import re

import numpy as np
import pytest
import torch
from sklearn.ensemble import BaggingClassifier
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import TensorDataset

from sklearn_sharpbalance import metrics
from sklearn_sharpbalance.exceptions import DivergenceError, InvalidInputError
from sklearn_sharpbalance.sharpness import fisher_trace, input_curvature
from tests.metrics.nets import NoisyNet, ensemble_of, make_net, mlp, samples

MEASURES = {
    metrics.adaptive_sharpness: {"n_iter": 5},
    metrics.average_case_sharpness: {"n_draws": 3},
    metrics.fisher_rao_norm: {},
    metrics.hessian_top_eigenvalue: {"tol": 0.1},
    metrics.hessian_trace: {"n_probes": 3},
    metrics.mean_fisher_trace: {},
    metrics.mean_input_curvature: {"n_directions": 3},
    metrics.relative_flatness: {},
    metrics.sam_sharpness: {"n_draws": 3},
}
every = pytest.mark.parametrize("measure", MEASURES, ids=lambda f: f.__name__)


def some(measure, n):
    """Return the options for ``n`` random samples, a multiple of four."""
    if measure is metrics.adaptive_sharpness:
        return {"batch_size": 4, "n_batches": n // 4}
    return {"n_samples": n}


def call(measure, net, X, y, **kwargs):
    return measure(net, X, y, random_state=0, **MEASURES[measure], **kwargs)


def picture_net(dtype=torch.float32, seed=0):
    return make_net(NoisyNet(), dtype=dtype, seed=seed)


def state_of(net):
    module = net.module_
    return {
        "weights": {k: v.clone() for k, v in module.state_dict().items()},
        "grad": [
            None if p.grad is None else p.grad.clone() for p in module.parameters()
        ],
        "flags": [p.requires_grad for p in module.parameters()],
        "modes": [m.training for m in module.modules()],
        "reduction": net.criterion_.reduction,
        "hooks": [len(m._forward_hooks) for m in module.modules()],
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1].copy(),  # noqa: NPY002
        "python": random.getstate(),
    }


@every
def test_enclosing_autocast_uses_the_moved_weights(measure):
    net, (X, y) = picture_net(), samples(7, (2, 4, 4), 3)
    values = []
    for cached in (True, False):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
            values.append(call(measure, net, X, y))
    assert values[0] == values[1] != 0


@every
def test_net_is_not_changed(measure):
    net, (X, y) = picture_net(), samples(7, (2, 4, 4), 3)
    net.module_.train()
    net.module_.norm.eval()  # neither train() nor eval() would restore this
    net.module_.conv.bias.requires_grad_(False)
    net.module_.head.weight.grad = torch.ones_like(net.module_.head.weight)
    before = state_of(net)
    value = call(measure, net, X, y)
    after = state_of(net)
    for key in ("flags", "modes", "reduction", "hooks", "python"):
        assert after[key] == before[key], key
    np.testing.assert_array_equal(after["numpy"], before["numpy"])
    torch.testing.assert_close(after["torch"], before["torch"], rtol=0, atol=0)
    for key in ("weights", "grad"):
        torch.testing.assert_close(after[key], before[key], rtol=0, atol=0)
    # Nor does its state change the value.
    net.module_.eval()
    net.module_.head.weight.grad = None
    torch.manual_seed(99)
    assert call(measure, net, X, y) == value


@every
def test_net_is_not_changed_by_a_failure(measure, monkeypatch):
    net, (X, y) = mlp(), samples(7)
    before, calls = state_of(net), []
    infer = net.infer

    def fails_later(x):
        calls.append(x)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return infer(x)

    monkeypatch.setattr(net, "infer", fails_later)
    if measure in (metrics.relative_flatness, metrics.fisher_rao_norm):
        calls.append(None)  # they run the net less often
    with pytest.raises(KeyboardInterrupt):
        call(measure, net, X, y)
    after = state_of(net)
    assert after["modes"] == before["modes"]
    assert after["flags"] == before["flags"]
    assert after["hooks"] == before["hooks"]
    torch.testing.assert_close(after["weights"], before["weights"], rtol=0, atol=0)


@every
def test_value_of_an_ensemble_is_the_mean_of_its_members(measure):
    nets, (X, y) = [mlp(seed=s) for s in range(3)], samples(12)
    classes = np.array(["ant", "bee", "cat", "dog"])
    ensemble = ensemble_of(nets, classes)
    alone = [call(measure, net, X, y) for net in nets]
    each = call(measure, ensemble, X, classes[y], per_member=True)
    assert each.shape == (3,)
    np.testing.assert_allclose(each, alone, rtol=1e-12)
    mean = call(measure, ensemble, X, classes[y])
    assert mean == pytest.approx(np.mean(alone), rel=1e-12)
    assert isinstance(mean, float)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, left, right):
        return self.layer(torch.cat([left, right], dim=1))


@every
def test_arrays_tensors_datasets_and_dictionaries_agree(measure):
    net, (X, y) = mlp((3, 4)), samples(12)
    pair = make_net(TwoInputs())
    kwargs = some(measure, 8)
    expected = call(measure, net, X, y, **kwargs)
    assert (
        call(measure, net, torch.as_tensor(X), torch.as_tensor(y), **kwargs) == expected
    )
    assert call(measure, net, X.astype(np.float32), y, **kwargs) == pytest.approx(
        expected, rel=1e-4
    )
    dataset = TensorDataset(torch.as_tensor(X), torch.as_tensor(y))
    assert call(measure, net, dataset, None, **kwargs) == pytest.approx(expected)
    if measure is metrics.mean_input_curvature:
        return  # the directions differ between one and two inputs
    split = {"left": X[:, :1], "right": X[:, 1:]}
    assert call(measure, pair, split, y, **kwargs) == pytest.approx(expected)


@every
def test_input_may_be_read_only_or_have_negative_strides(measure, recwarn):
    net, (X, y) = mlp(), samples(8)
    expected = call(measure, net, X[::-1].copy(), y[::-1].copy())
    X.flags.writeable = y.flags.writeable = False
    assert call(measure, net, X[::-1], y[::-1]) == expected
    assert not [w for w in recwarn if "writ" in str(w.message)]


@every
def test_a_diverged_net_raises(measure):
    net, (X, y) = mlp(), samples(12)
    with torch.no_grad():
        net.module_[0].weight[0, 0] = np.nan
    with pytest.raises(DivergenceError, match="infinite or not a number"):
        call(measure, net, X, y)


def test_means_of_scores_equal_the_scorers():
    net, (X, y) = mlp(), samples(9)
    X, y = torch.as_tensor(X), torch.as_tensor(y)
    assert metrics.mean_fisher_trace(net, X, y) == pytest.approx(
        fisher_trace(net, X, y).mean().item(), rel=1e-6
    )
    many = {"n_directions": 300, "random_state": 0}  # whose seeds differ
    assert metrics.mean_input_curvature(net, X, y, **many) == pytest.approx(
        input_curvature(net, X, y, **many).mean().item(), rel=0.1
    )


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros((3, 3)), [0.5, 1, 2], "non-negative integer class codes"),
        (np.zeros((3, 3)), ["a", "b", "c"], "integer class codes.*pass the ensemble"),
        (np.zeros((3, 3)), [-1, 0, 1], "non-negative integer class codes"),
        (np.zeros((3, 3)), [0, 1, 4], "class code 4, but the net has only 4 outputs"),
        (np.zeros((3, 3)), [0, 1], "3 samples but `y` has 2"),
        (np.zeros((0, 3)), np.zeros(0, int), "X is empty"),
    ],
)
def test_invalid_samples_raise(X, y, message):
    with pytest.raises(InvalidInputError, match=message):
        metrics.fisher_rao_norm(mlp(), X, np.asarray(y))


def test_invalid_nets_raise():
    X, y = samples(5)
    with pytest.raises(InvalidInputError, match=r"initialised skorch net.*got Linear"):
        metrics.adaptive_sharpness(nn.Linear(3, 4), X, y)
    frozen = mlp()
    frozen.module_.requires_grad_(False)
    for measure in set(MEASURES) - {metrics.mean_input_curvature}:
        if measure is not metrics.relative_flatness:
            with pytest.raises(InvalidInputError, match="has no trainable parameters"):
                measure(frozen, X, y)


INVALID = {
    metrics.adaptive_sharpness: {
        **{"rho": [0, np.inf, "0.5"], "n_iter": [0], "batch_size": [0]},
        **{"n_batches": [-1], "norm": ["l1", ["l2"]], "random_state": ["a"]},
    },
    metrics.average_case_sharpness: {"rho": [-1, np.inf, "0.1", [0.1]], "n_draws": [0]},
    metrics.hessian_top_eigenvalue: {"tol": [-1, np.nan, np.inf, "a", None]},
    metrics.hessian_trace: {"n_probes": [0]},
    metrics.sam_sharpness: {"rho": [-1, np.inf, "0.1", [0.1]], "n_draws": [0]},
}


@pytest.mark.parametrize("measure", INVALID, ids=lambda f: f.__name__)
def test_invalid_options_raise(measure):
    for name, values in INVALID[measure].items():
        for value in values:
            message = rf"\b{name} .*{re.escape(repr(value))}"
            with pytest.raises(InvalidInputError, match=message):
                measure(mlp(), *samples(5), **{name: value})


# Each layer scaled by 8 and the next by 1/8: the same function.
INVARIANT = [
    metrics.adaptive_sharpness,
    metrics.average_case_sharpness,
    metrics.fisher_rao_norm,
    metrics.relative_flatness,
]


@pytest.mark.parametrize("measure", INVARIANT, ids=lambda f: f.__name__)
def test_relative_measures_are_invariant_to_the_scale_of_layers(measure):
    X, y = samples(10)
    net, scaled = mlp((3, 6, 4)), mlp((3, 6, 4))
    with torch.no_grad():
        scaled.module_[0].weight.mul_(8)
        scaled.module_[0].bias.mul_(8)
        scaled.module_[2].weight.div_(8)
    variants = [{}]
    if measure is metrics.adaptive_sharpness:
        variants = [{"norm": norm, "rho": 0.2} for norm in ("l2", "linf")]
    for options in variants:
        found = [call(measure, each, X, y, **options) for each in (net, scaled)]
        assert found[0] == pytest.approx(found[1], rel=1e-9)
        if measure in (metrics.adaptive_sharpness, metrics.average_case_sharpness):
            options = options | {"adaptive": False}
            plain = [call(measure, each, X, y, **options) for each in (net, scaled)]
            assert plain[0] != pytest.approx(plain[1], rel=0.1)


@every
def test_some_samples_are_random_and_reproducible(measure):
    net, (X, y) = mlp(), samples(40)
    first = call(measure, net, X, y, **some(measure, 8))
    assert first == call(measure, net, X, y, **some(measure, 8))
    assert first != pytest.approx(call(measure, net, X, y))
    if measure is not metrics.adaptive_sharpness:
        with pytest.raises(InvalidInputError, match=r"n_samples .* got 0"):
            call(measure, net, X, y, n_samples=0)


@every
def test_value_is_the_same_in_inference_mode(measure):
    net, (X, y) = mlp(), samples(12)
    kwargs = some(measure, 8)
    expected = call(measure, net, X, y, **kwargs)
    with torch.inference_mode():
        found = call(measure, net, X, y, **kwargs)
    assert found == pytest.approx(expected, rel=1e-9)


@every
def test_missing_labels_raise(measure):
    X, _ = samples(5)
    for model in (mlp(), ensemble_of([mlp()], list("abcd"))):
        with pytest.raises(InvalidInputError, match=r"y is None.*Pass the labels as y"):
            call(measure, model, X, None)


@every
def test_class_codes_without_an_output_raise(measure):
    """On a GPU such a code would end the process."""
    X, y = samples(5)
    dataset = TensorDataset(torch.as_tensor(X), torch.as_tensor(y + 4))
    message = f"class code {y.max() + 4}, but the net has only 4 outputs"
    with pytest.raises(InvalidInputError, match=message):
        call(measure, mlp(), dataset, None)


def bagging(X, y, **kwargs):
    net = NeuralNetClassifier(
        nn.Linear,
        module__in_features=3,
        module__out_features=4,
        criterion=nn.CrossEntropyLoss,
        max_epochs=1,
        train_split=None,
        verbose=0,
    )
    return BaggingClassifier(net, n_estimators=2, random_state=0, **kwargs).fit(X, y)


def test_members_with_their_own_columns_raise():
    X, y = samples(20)
    X = X.astype(np.float32)
    whole = bagging(X, y)
    alone = [metrics.fisher_rao_norm(net, X, y) for net in whole.estimators_]
    assert metrics.fisher_rao_norm(whole, X, y) == pytest.approx(np.mean(alone))
    with pytest.raises(
        InvalidInputError, match="BaggingClassifier takes its own columns"
    ):
        metrics.fisher_rao_norm(bagging(X, y, bootstrap_features=True), X, y)


@pytest.mark.gpu
@every
def test_gpu_equals_cpu(measure):
    net, (X, y) = picture_net(), samples(40, (2, 4, 4), 3)
    kwargs = some(measure, 20)
    if measure is metrics.adaptive_sharpness:
        kwargs["n_iter"] = 20
    options = {k: v for k, v in MEASURES[measure].items() if k not in kwargs}
    cpu = measure(net, X, y, random_state=0, **options, **kwargs)
    net.set_params(device="cuda")
    net.module_.cuda()
    gpu = measure(net, X, y, random_state=0, **options, **kwargs)
    random_directions = (
        metrics.average_case_sharpness,
        metrics.sam_sharpness,
        metrics.hessian_trace,
    )
    if measure in random_directions:  # other generators give other directions
        assert np.isfinite(gpu)
    else:
        assert gpu == pytest.approx(cpu, rel=2e-2)


@pytest.mark.gpu
def test_captured_graph_equals_eager_passes(monkeypatch):
    from sklearn_sharpbalance.metrics.flatness import worst_case
    from sklearn_sharpbalance.metrics.flatness._objectives import Objective

    net, (X, y) = picture_net(), samples(40, (2, 4, 4), 3)
    net.set_params(device="cuda")
    net.module_.cuda()
    before = torch.cuda.get_rng_state()
    captured = metrics.adaptive_sharpness(
        net, X, y, random_state=0, return_batches=True
    )
    torch.testing.assert_close(torch.cuda.get_rng_state(), before, rtol=0, atol=0)
    monkeypatch.setattr(
        worst_case, "Objective", lambda *args: Objective(*args, capture=False)
    )
    plain = metrics.adaptive_sharpness(net, X, y, random_state=0, return_batches=True)
    np.testing.assert_allclose(captured, plain, rtol=1e-3)


@pytest.mark.gpu
def test_a_module_that_waits_for_the_device_runs_eagerly():
    class Waits(NoisyNet):
        def forward(self, x):
            return super().forward(x) * (1.0 if x.sum().item() > 1e9 else 2.0)

    net, (X, y) = make_net(Waits(), dtype=torch.float32), samples(20, (2, 4, 4), 3)
    cpu = metrics.adaptive_sharpness(net, X, y, random_state=0)
    net.set_params(device="cuda")
    net.module_.cuda()
    gpu = metrics.adaptive_sharpness(net, X, y, random_state=0)
    assert gpu == pytest.approx(cpu, rel=2e-2)
