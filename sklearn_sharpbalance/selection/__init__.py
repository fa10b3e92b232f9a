"""Subset selection: from (M, N) sharpness scores to (M, N) SAM masks."""

from sklearn_sharpbalance._validation import Registry
from sklearn_sharpbalance.selection.rules import (
    AllSelector,
    FlattestSelector,
    FlattestUnionSelector,
    FunctionSelector,
    NoneSelector,
    RandomSelector,
    SameSelector,
    SharpestSelector,
    SubsetSelector,
    extreme_samples,
    union_of_others,
)

__all__ = [
    "SUBSET_SELECTORS",
    "AllSelector",
    "FlattestSelector",
    "FlattestUnionSelector",
    "FunctionSelector",
    "NoneSelector",
    "RandomSelector",
    "SameSelector",
    "SharpestSelector",
    "SubsetSelector",
    "extreme_samples",
    "union_of_others",
]

SUBSET_SELECTORS = Registry("selection", SubsetSelector, wrap=FunctionSelector)
SUBSET_SELECTORS["flattest"] = FlattestSelector
SUBSET_SELECTORS["flattest_union"] = FlattestUnionSelector
SUBSET_SELECTORS["sharpest"] = SharpestSelector
SUBSET_SELECTORS["random"] = RandomSelector
SUBSET_SELECTORS["same"] = SameSelector
SUBSET_SELECTORS["all"] = AllSelector
SUBSET_SELECTORS["none"] = NoneSelector
