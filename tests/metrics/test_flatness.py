"""Common tests of all flatness metrics: unchanged nets, ensembles, input types."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from sklearn_sharpbalance import metrics
from sklearn_sharpbalance.exceptions import InvalidInputError
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
    call(measure, net, X, y)
    after = state_of(net)
    for key in ("flags", "modes", "reduction", "hooks", "python"):
        assert after[key] == before[key], key
    np.testing.assert_array_equal(after["numpy"], before["numpy"])
    torch.testing.assert_close(after["torch"], before["torch"], rtol=0, atol=0)
    for key in ("weights", "grad"):
        torch.testing.assert_close(after[key], before[key], rtol=0, atol=0)


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
    kwargs = {"batch_size": 1} if measure is not metrics.relative_flatness else {}
    if measure is metrics.relative_flatness or measure is metrics.fisher_rao_norm:
        calls.append(None)  # they run the net less often
    with pytest.raises(KeyboardInterrupt):
        call(measure, net, X, y, **kwargs)
    after = state_of(net)
    assert after["modes"] == before["modes"]
    assert after["flags"] == before["flags"]
    assert after["hooks"] == before["hooks"]
    torch.testing.assert_close(after["weights"], before["weights"], rtol=0, atol=0)


@every
def test_arrays_may_have_negative_strides(measure):
    net, (X, y) = picture_net(), samples(7, (2, 4, 4), 3)
    assert call(measure, net, X[::-1], y[::-1]) == call(
        measure, net, X[::-1].copy(), y[::-1].copy()
    )


@every
def test_the_state_of_the_net_does_not_matter(measure):
    """Training flag, gradients and global generators do not change the value."""
    net, (X, y) = picture_net(), samples(7, (2, 4, 4), 3)
    net.module_.eval()
    first = call(measure, net, X, y)
    net.module_.train()
    torch.manual_seed(99)
    net.module_.head.weight.grad = torch.ones_like(net.module_.head.weight)
    assert call(measure, net, X, y) == first


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


@every
def test_shapes_of_batches_and_members(measure):
    ensemble, (X, y) = (
        ensemble_of([mlp(seed=s) for s in range(2)], range(4)),
        samples(20),
    )
    kwargs = {"batch_size": 4, "n_batches": 3, "return_batches": True}
    assert call(measure, ensemble, X, y, **kwargs).shape == (3,)
    each = call(measure, ensemble, X, y, per_member=True, **kwargs)
    assert each.shape == (2, 3)
    np.testing.assert_allclose(
        each.mean(axis=0), call(measure, ensemble, X, y, **kwargs), rtol=1e-12
    )
    assert call(measure, mlp(), X, y, per_member=True).shape == (1,)


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
    kwargs = {"batch_size": 4, "n_batches": 2}
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
def test_uint8_images_equal_floats(measure):
    net = picture_net()
    X = np.random.default_rng(0).integers(256, size=(6, 2, 4, 4), dtype=np.uint8)
    y = np.arange(6) % 3
    if measure is not metrics.mean_input_curvature:  # it divides uint8 by 255
        floats = call(measure, net, X.astype(np.float32), y)
        assert call(measure, net, X, y) == pytest.approx(floats, rel=1e-5)
    assert np.isfinite(call(measure, net, X, y))


@every
def test_read_only_input_gives_no_warning(measure, recwarn):
    net, (X, y) = mlp(), samples(8)
    X.flags.writeable = y.flags.writeable = False
    call(measure, net, X, y)
    assert not [w for w in recwarn if "writ" in str(w.message)]


def test_means_of_scores_equal_the_scorers():
    net, (X, y) = mlp(), samples(9)
    X, y = torch.as_tensor(X), torch.as_tensor(y)
    assert metrics.mean_fisher_trace(net, X, y) == pytest.approx(
        fisher_trace(net, X, y).mean().item(), rel=1e-6
    )
    assert metrics.mean_input_curvature(
        net, X, y, directions="sign_gradient"
    ) == pytest.approx(
        input_curvature(net, X, y, directions="sign_gradient").mean().item(), rel=1e-6
    )


def test_an_ensemble_converts_channels_last_images():
    """The member alone needs channels first."""
    net, (X, y) = picture_net(), samples(6, (2, 4, 4), 3)
    ensemble = ensemble_of([net], range(3))
    ensemble.member_inputs = lambda X: np.moveaxis(X, -1, 1)
    assert metrics.fisher_rao_norm(ensemble, np.moveaxis(X, 1, -1), y) == pytest.approx(
        metrics.fisher_rao_norm(net, X, y)
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
    with pytest.raises(InvalidInputError, match="has no trainable parameters"):
        metrics.adaptive_sharpness(frozen, X, y)


def test_generators_continue_from_their_state():
    net, (X, y) = mlp(), samples(40)
    kwargs = {"n_batches": 2, "n_iter": 3}
    for make in (np.random.default_rng, np.random.RandomState):
        state = make(0)
        first, second = (
            metrics.adaptive_sharpness(net, X, y, random_state=state, **kwargs)
            for _ in range(2)
        )
        assert first != second
        again = metrics.adaptive_sharpness(net, X, y, random_state=make(0), **kwargs)
        assert again == first


@pytest.mark.gpu
@every
def test_gpu_equals_cpu(measure):
    net, (X, y) = picture_net(), samples(40, (2, 4, 4), 3)
    kwargs = {"batch_size": 5, "n_batches": 4}
    if measure in (metrics.adaptive_sharpness,):
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
