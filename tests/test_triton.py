"""Triton kernels compile for a Hopper GPU; a missing Triton gives a warning."""

import os

import pytest
import torch

from sklearn_sharpbalance import _triton
from sklearn_sharpbalance.exceptions import SharpBalanceWarning

triton = pytest.importorskip("triton", reason="torch came without Triton")
if os.environ.get("TRITON_INTERPRET"):
    pytest.skip("kernels are interpreted", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from sklearn_sharpbalance.engine.graph import norm_programs  # noqa: E402

TILE = {"BLOCK_R": 64, "BLOCK_C": 64}
SUMS = {**TILE, "BLOCK_P": 64}
IMAGES = {"x", "y", "residual", "grad", "grad_x", "grad_residual"}
NUMBERS = {"momentum", "eps"}
VECTORS = {"partials", "mean_out", "rstd_out", "running_mean", "running_var"}
VECTORS |= {"mean_in", "rstd_in", "weight_in", "bias_in", "grad_weight", "grad_bias"}
KERNELS = [
    (norm_programs.statistics, {"TRACK": True, **SUMS}),
    (norm_programs.statistics, {"TRACK": False, **SUMS}),
    (norm_programs.normalise, {"ADD": True, "RELU": True, **TILE}),
    (norm_programs.gradient_sums, {"MASK": 1, **SUMS}),
    (norm_programs.gradient, {"MASK": 2, "ADD": True, **TILE}),
]


def kind_of(name, constants, image):
    if name in constants:
        return "constexpr"
    if name in IMAGES:
        return f"*{image}"
    if name in VECTORS:
        return "*fp32"
    if name == "counter":
        return "*i32"
    return "fp32" if name in NUMBERS else "i32"


@pytest.mark.parametrize(
    "image", ["bf16", pytest.param("fp32", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("kernel", "constants"), KERNELS, ids=lambda value: getattr(value, "__name__", "")
)
def test_kernels_compile_for_a_hopper(kernel, constants, image):
    names = kernel.arg_names
    signature = {name: kind_of(name, constants, image) for name in names}
    aligned = [n for n in names if signature[n].startswith("*") or n == "n_channels"]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    ptx = compiled.asm["ptx"]
    assert ".visible .entry" in ptx
    if "n_channels" in names:  # norms read and write 16 bytes at a time
        assert "ld.global.v4.b32" in ptx
        assert "global.b16" not in ptx


@pytest.fixture
def clear_cache():
    """Clear the cached result before and after the test."""
    _triton.kernels_run_on.cache_clear()
    yield
    _triton.kernels_run_on.cache_clear()


def test_no_kernels_without_a_gpu(clear_cache, monkeypatch, recwarn):
    assert not _triton.kernels_run_on(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not _triton.kernels_run_on(torch.device("cuda"))
    assert not recwarn.list


def test_a_gpu_on_which_triton_fails_warns_once(clear_cache, monkeypatch, recwarn):
    def missing(*args, **kwargs):
        raise RuntimeError("Failed to find C compiler.")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "zeros", missing)
    with pytest.warns(SharpBalanceWarning, match="do not run on cuda: Failed to find"):
        assert not _triton.kernels_run_on(torch.device("cuda"))
    recwarn.clear()
    assert not _triton.kernels_run_on(torch.device("cuda"))
    assert not recwarn.list


@pytest.mark.gpu
def test_kernels_run_on_a_gpu():
    assert _triton.kernels_run_on(torch.device("cuda"))
