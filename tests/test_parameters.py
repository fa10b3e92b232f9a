"""The table of parameters agrees with signatures, docstrings and registries."""

import pytest

from sklearn_sharpbalance._parameters import CONSTRAINTS, PARAMETERS
from sklearn_sharpbalance.engine.choice import ENGINES
from sklearn_sharpbalance.joint.losses import DIVERSITY_LOSSES
from tests.cases import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_signatures_have_the_defaults_of_the_table(kind):
    for name, default in kind().get_params(deep=False).items():
        assert PARAMETERS[name].default == default
        assert type(PARAMETERS[name].default) is type(default)


def test_every_row_is_a_parameter():
    offered = {name for kind in KINDS for name in kind().get_params(deep=False)}
    assert set(PARAMETERS) == offered


def test_names_of_constraints_are_those_of_the_registries():
    assert CONSTRAINTS["engine"][0].options == {"auto", *ENGINES}
    assert CONSTRAINTS["loss"][0].options == set(DIVERSITY_LOSSES)
