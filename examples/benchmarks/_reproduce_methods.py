"""What each run of the reproduction trains: (group, method, estimator) by seed."""

from functools import partial

from sklearn_sharpbalance import (
    MLP,
    DeepEnsembleClassifier,
    ResNet18,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.evaluation import gradient_passes, match_passes

__all__ = ["BASELINE", "RUNS"]

BASELINE = "deep ensemble"
RULES = (  # in order of worth: a run that is cut short lacks the last ones
    "sharpbalance",
    "reference_boost",
    "all",
    "random",
    "reference_union",
    "none",
    "same",
)
LATE = {"warmup": "sgd", "warmup_epochs": 0.75}
SAME_EPOCHS, SAME_COST = "same epochs", "same cost"


def picture_recipe(options, seed):
    """The paper's recipe, for every method alike."""
    return {
        "estimator": ResNet18,
        "estimator__module__width": options.width,
        "n_estimators": options.members,
        "max_epochs": options.epochs,
        "lr": 0.1,
        "lr_schedule": "steps",
        "batch_size": 128,
        "train_transform": "crop_flip",
        "random_state": seed,
    }


def digits_recipe(options, seed):
    """Small networks on pictures of 8 x 8, with the estimator's own defaults."""
    return {
        "estimator": MLP,
        "estimator__module__n_features": 64,
        "estimator__module__hidden": (options.width, options.width),
        "n_estimators": options.members,
        "max_epochs": options.epochs,
        "batch_size": 32,
        "random_state": seed,
    }


class Methods:
    """Estimators by one recipe."""

    def __init__(self, recipe, options, seed):
        self.recipe = recipe(options, seed)
        self.balance = {"rho": options.rho, "flat_ratio": options.flat_ratio}

    def deep(self, **changes):
        return DeepEnsembleClassifier(**self.recipe | changes)

    def flat(self, selection="sharpbalance", **changes):
        settings = self.recipe | self.balance | changes
        return SharpBalanceEnsembleClassifier(**settings, selection=selection)

    def rules(self):
        """Every selection rule, from one warm-up by SAM."""
        for rule in RULES:
            yield SAME_EPOCHS, rule, self.flat(rule)

    def warmups(self, rules):
        """The same from a warm-up by plain descent, which costs half."""
        for rule in rules:
            yield SAME_EPOCHS, f"{rule}, SGD warm-up", self.flat(rule, warmup="sgd")

    def starts(self):
        """The selection after 3/4 and 7/8 of the epochs instead of 1/2."""
        for share in (0.75, 0.875):
            method = f"sharpbalance, T_d {share:g}"
            yield SAME_EPOCHS, method, self.flat(warmup_epochs=share)

    def candidates(self):
        """What might beat a deep ensemble at its own cost."""
        n_members = self.recipe["n_estimators"]
        asam_rho = 10 * self.balance["rho"]  # ASAM measures in units of the weights
        averaged = {"weight_averaging": "exponential"}
        late = partial(self.flat, **LATE)
        return {  # in order of worth: a run that is cut short lacks the last ones
            "SAM": self.flat("all"),
            "sharpbalance": self.flat(),
            "deep ensemble, twice the members": self.deep(n_estimators=2 * n_members),
            "sharpbalance, late": late(),
            "sharpbalance, late, averaged": late(**averaged),
            "deep ensemble, averaged": self.deep(**averaged),
            "SAM, late": late("all"),
            "sharpbalance, late, ASAM": late(sam="asam", rho=asam_rho),
            "sharpbalance, late, reselected": late(reselect_every=2),
            "sharpbalance, late, twice the members": late(n_estimators=2 * n_members),
            "reference_boost, late": late("reference_boost"),
            "random, late": late("random"),
            "sharpbalance, SGD warm-up": self.flat(warmup="sgd"),
            "sharpbalance, latest": self.flat(warmup="sgd", warmup_epochs=0.875),
        }

    def equal_cost(self, candidates=None):
        """Every candidate, shortened to the gradient passes of the deep ensemble."""
        passes = gradient_passes(self.deep())
        yield SAME_COST, BASELINE, self.deep()
        for method, estimator in (candidates or self.candidates()).items():
            shorter = match_passes(estimator, passes)
            yield SAME_COST, method, estimator.set_params(**shorter)


def headline(options, seed):
    """Deep ensemble, SAM and SharpBalance; the last two share their warm-up."""
    methods = Methods(picture_recipe, options, seed)
    yield SAME_EPOCHS, "SAM", methods.flat("all")
    yield SAME_EPOCHS, "sharpbalance", methods.flat()
    yield SAME_EPOCHS, BASELINE, methods.deep()


def ablation(options, seed):
    """Every rule from one warm-up, warm-ups, moments, and equal cost."""
    methods = Methods(picture_recipe, options, seed)
    yield from methods.rules()
    yield SAME_EPOCHS, BASELINE, methods.deep()
    yield from methods.warmups(("sharpbalance", "reference_boost"))
    yield from methods.starts()
    yield from methods.equal_cost()


def tradeoff(options, seed):
    """SAM ensembles and SharpBalance over rho."""
    methods = Methods(picture_recipe, options, seed)
    for rho in (0.01, 0.02, 0.05, 0.1, 0.2, 0.4):
        yield "SAM", f"SAM, rho {rho:g}", methods.flat("all", rho=rho)
        yield "sharpbalance", f"sharpbalance, rho {rho:g}", methods.flat(rho=rho)


def widths(options, seed):
    """SAM ensembles over width and rho."""
    methods = Methods(picture_recipe, options, seed)
    for width in (8, 16, 32, 64):
        for rho in (0.02, 0.1, 0.4):
            changes = {"estimator__module__width": width, "rho": rho}
            method = f"SAM, width {width}, rho {rho:g}"
            yield f"width {width}", method, methods.flat("all", **changes)


def sparsity(options, seed):
    """SAM ensembles over the share of pruned weights and rho."""
    methods = Methods(picture_recipe, options, seed)
    for pruned in (None, 0.8, 0.95):
        for rho in (0.02, 0.1, 0.4):
            method = f"SAM, sparsity {pruned or 0:g}, rho {rho:g}"
            group = f"sparsity {pruned or 0:g}"
            yield group, method, methods.flat("all", prune=pruned, rho=rho)


def digits(options, seed):
    """The ablation on digits, with both warm-ups for every rule."""
    methods = Methods(digits_recipe, options, seed)
    yield from methods.rules()
    yield SAME_EPOCHS, BASELINE, methods.deep()
    # "none" after plain descent is the deep ensemble itself.
    yield from methods.warmups(rule for rule in RULES if rule != "none")
    yield from methods.starts()
    yield from methods.equal_cost()


def confirm(options, seed):
    """The best candidates on digits again, with seeds that did not choose them."""
    methods = Methods(digits_recipe, options, seed)
    chosen = ("deep ensemble, twice the members", "SAM", "sharpbalance")
    candidates = {name: methods.candidates()[name] for name in chosen}
    candidates |= {
        "SAM, twice rho": methods.flat("all", rho=2 * options.rho),
        "ASAM": methods.flat("all", sam="asam", rho=10 * options.rho),
        "SAM, twice the members": methods.flat("all", n_estimators=2 * options.members),
    }
    yield from methods.equal_cost(candidates)


RUNS = {
    run.__name__: run
    for run in (headline, ablation, tradeoff, widths, sparsity, digits, confirm)
}
