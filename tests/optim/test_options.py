"""Invalid arguments raise errors that say what to do."""

import pytest
import torch

from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.optim import ASAM, OPTIMIZERS, SAM

NON_NEGATIVE = r"must be a float in the range \[0.0, inf\); got"


def parameter():
    return torch.nn.Parameter(torch.ones(2))


@pytest.mark.parametrize("method", OPTIMIZERS)
@pytest.mark.parametrize("rho", [-0.1, float("nan"), float("inf"), "0.1", None])
def test_invalid_rho_raises(method, rho):
    with pytest.raises(InvalidInputError, match=f"rho {NON_NEGATIVE} {rho!r}"):
        OPTIMIZERS[method]([parameter()], rho=rho, lr=0.1)


@pytest.mark.parametrize("rho", [torch.tensor(-0.5), torch.tensor([0.5, -0.5])])
def test_invalid_rho_as_tensor_raises(rho):
    with pytest.raises(InvalidInputError, match=f"rho {NON_NEGATIVE} -0.5"):
        SAM([parameter()], rho=rho, lr=0.1, stacked=True)


@pytest.mark.parametrize(
    ("method", "name", "value", "message"),
    [
        ("asam", "eta", -1.0, f"eta {NON_NEGATIVE} -1.0"),
        ("gsam", "alpha", -1.0, f"alpha {NON_NEGATIVE} -1.0"),
        ("friendly_sam", "sigma", -1.0, f"sigma {NON_NEGATIVE} -1.0"),
        ("friendly_sam", "lmbda", 1.0, r"lmbda must be a float in the range \[0.0, 1"),
        ("look_sam", "k", 0, r"k must be an int in the range \[1, inf\); got 0"),
        ("look_sam", "k", 2.5, r"k must be an int in the range \[1, inf\); got 2.5"),
        ("look_sam", "alpha", -1.0, f"alpha {NON_NEGATIVE} -1.0"),
        ("sam", "stacked", 1, "stacked must be a bool; got 1"),
    ],
)
def test_invalid_options_raise(method, name, value, message):
    with pytest.raises(InvalidInputError, match=message):
        OPTIMIZERS[method]([parameter()], lr=0.1, **{name: value})
    with pytest.raises(InvalidInputError, match=message):
        OPTIMIZERS[method]([{"params": [parameter()], name: value}], lr=0.1)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (torch.optim.SGD([parameter()], lr=0.1), "class; got an object of type SGD"),
        (0.1, "got an object of type float"),
        (torch.optim.LBFGS, "got LBFGS"),
        (ASAM, "got ASAM"),
        (lambda groups, **kwargs: [], "got list"),
        (lambda groups, **kwargs: torch.optim.Adadelta(groups), "Adadelta .* 'rho'"),
    ],
)
def test_unsuitable_base_optimizers_raise(base, message):
    with pytest.raises(InvalidInputError, match=message):
        SAM([parameter()], base)
