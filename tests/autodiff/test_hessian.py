"""Compare products with the Hessian with the dense Hessian."""

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh
from torch import nn

from sklearn_sharpbalance.autodiff import HessianOperator
from sklearn_sharpbalance.exceptions import InvalidInputError
from tests import reference
from tests.autodiff.traps import BY_OTHERS
from tests.autodiff.zoo import BY_RULES, build, cross_entropy
from tests.cases import rest_slow

NAMES = ["mlp", "embedding", "dict", "transformer", "lstm", "tied"]


def problem(name):
    module, X, y = build((BY_RULES | BY_OTHERS)[name])
    return module, cross_entropy, X, y


@pytest.mark.parametrize("name", rest_slow(NAMES, {*NAMES} - {"transformer", "lstm"}))
def test_products_equal_the_full_hessian(name):
    args = problem(name)
    expected = reference.hessian(*args)
    vectors = torch.randn(len(expected), 2, dtype=torch.float64)
    actual = HessianOperator(*args) @ vectors
    torch.testing.assert_close(actual, expected @ vectors, rtol=1e-5, atol=1e-7)


def test_products_do_not_depend_on_the_chunk_size():
    args = problem("mlp")
    operator = HessianOperator(*args)
    vector = torch.randn(operator.shape[0], dtype=torch.float64)
    for chunk_size in (1, 2, 5):
        actual = HessianOperator(*args, chunk_size=chunk_size) @ vector
        torch.testing.assert_close(actual, operator @ vector)


def test_top_eigenvalue_by_lanczos():
    args = problem("mlp")
    expected = torch.linalg.eigvalsh(reference.hessian(*args))[-1]
    operator = HessianOperator(*args).to_scipy()
    v0 = np.ones(operator.shape[0])
    top = eigsh(operator, k=1, which="LA", v0=v0, return_eigenvectors=False)
    np.testing.assert_allclose(top[0], expected, rtol=1e-6)


def test_linear_loss_has_no_curvature():
    layer = nn.Linear(3, 1)
    X, y = torch.ones(2, 3), torch.ones(2)
    operator = HessianOperator(layer, lambda out, y: out[:, 0] * y, X, y)
    assert torch.equal(operator @ torch.ones(4), torch.zeros(4))


def test_vector_of_a_wrong_shape_raises():
    args = problem("mlp")
    with pytest.raises(InvalidInputError, match=r"shape \(83,\). Got \(5,\)"):
        HessianOperator(*args) @ torch.ones(5)


def test_no_trainable_parameters_raises():
    module, *rest = problem("mlp")
    with pytest.raises(InvalidInputError, match="no trainable parameters"):
        HessianOperator(module.requires_grad_(False), *rest)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_cuda(name):
    module, loss_fn, X, y = problem(name)
    expected = reference.hessian(module, loss_fn, X, y)
    vector = torch.randn(len(expected), dtype=torch.float64)
    actual = HessianOperator(module.cuda(), loss_fn, X, y) @ vector
    torch.testing.assert_close(actual.cpu(), expected @ vector, rtol=1e-5, atol=1e-7)
