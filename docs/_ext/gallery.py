"""Order of the examples in the gallery: from the first steps to the special."""

ORDER = [
    "plot_quickstart.py",
    "plot_tradeoff.py",
    "plot_compare_methods_digits.py",
    "plot_evaluate_report.py",
    "plot_refuse_uncertain.py",
    "plot_search.py",
    "plot_subset_overlap.py",
    "plot_sharpness_controls.py",
    "plot_loss_landscape.py",
    "plot_theory_bounds.py",
    "plot_custom_scorer_and_selector.py",
    "plot_finetune_backbone.py",
    "plot_finetune_frozen_trunk_sed.py",
    "plot_text_classification.py",
]


def example_order(name):
    """Place of an example; those that are not listed come last, by name."""
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)
