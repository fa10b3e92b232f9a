"""Flat and diverse deep ensembles as scikit-learn estimators.

The names of this package are imported when they are first used: most of them need
torch, whose import takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sklearn_sharpbalance._version import __version__ as __version__

if TYPE_CHECKING:
    from sklearn_sharpbalance.ensemble import (
        DeepEnsembleClassifier,
        DiversifiedEnsembleClassifier,
        SharpBalanceEnsembleClassifier,
    )
    from sklearn_sharpbalance.ensemble.base import load
    from sklearn_sharpbalance.networks import (
        MLP,
        ResNet18,
        SmallCNN,
        SmallResNet,
        WideResNet,
    )

__all__ = [
    "MLP",
    "DeepEnsembleClassifier",
    "DiversifiedEnsembleClassifier",
    "ResNet18",
    "SharpBalanceEnsembleClassifier",
    "SmallCNN",
    "SmallResNet",
    "WideResNet",
    "load",
]

# The module that defines each name above.
HOMES = {
    "DeepEnsembleClassifier": "ensemble",
    "DiversifiedEnsembleClassifier": "ensemble",
    "MLP": "networks",
    "ResNet18": "networks",
    "SharpBalanceEnsembleClassifier": "ensemble",
    "SmallCNN": "networks",
    "SmallResNet": "networks",
    "WideResNet": "networks",
    "load": "ensemble.base",
}
SUBPACKAGES = (
    "aggregation",
    "corruption",
    "datasets",
    "engine",
    "ensemble",
    "evaluation",
    "exceptions",
    "metrics",
    "model_selection",
    "networks",
    "optim",
    "plotting",
    "selection",
    "sharpness",
    "theory",
)


def __getattr__(name: str) -> Any:
    """Import a name of the package when it is first used (PEP 562)."""
    if name in SUBPACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names that can be imported, for completion."""
    return sorted({*globals(), *__all__, *SUBPACKAGES})
