"""Subset selection: from (M, N) sharpness scores to (M, N) SAM masks."""

from sklearn_sharpbalance._validation import Registry
from sklearn_sharpbalance.selection.base import FunctionSelector, SubsetSelector
from sklearn_sharpbalance.selection.rules import (
    AllSelector,
    NoneSelector,
    RandomSelector,
    ReferenceBoostSelector,
    ReferenceUnionSelector,
    SameSelector,
    SharpBalanceSelector,
    extreme_samples,
    union_of_others,
)

__all__ = [
    "SUBSET_SELECTORS",
    "AllSelector",
    "FunctionSelector",
    "NoneSelector",
    "RandomSelector",
    "ReferenceBoostSelector",
    "ReferenceUnionSelector",
    "SameSelector",
    "SharpBalanceSelector",
    "SubsetSelector",
    "extreme_samples",
    "union_of_others",
]

SUBSET_SELECTORS = Registry("selection", SubsetSelector, wrap=FunctionSelector)
SUBSET_SELECTORS["sharpbalance"] = SharpBalanceSelector
SUBSET_SELECTORS["reference_union"] = ReferenceUnionSelector
SUBSET_SELECTORS["reference_boost"] = ReferenceBoostSelector
SUBSET_SELECTORS["random"] = RandomSelector
SUBSET_SELECTORS["same"] = SameSelector
SUBSET_SELECTORS["all"] = AllSelector
SUBSET_SELECTORS["none"] = NoneSelector
