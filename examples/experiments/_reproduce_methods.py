"""What each run of the reproduction trains: (group, method, estimator) by seed."""

from argparse import Namespace
from functools import partial

import torch
from scipy.stats import loguniform
from sklearn.model_selection import ParameterSampler

from sklearn_sharpbalance import (
    MLP,
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    ResNet18,
    SharpBalanceEnsembleClassifier,
    SmallCNN,
)
from sklearn_sharpbalance.evaluation import gradient_passes, match_passes
from sklearn_sharpbalance.members.weights import WeightAveraging

__all__ = [
    "BASELINE",
    "CONTEST",
    "CONTESTS",
    "CONTROLS",
    "LOOK_SAM",
    "ON_DIGITS",
    "RUNS",
    "SAME_COST",
    "SHALLOW",
    "TWICE",
    "radii_to_try",
    "with_rho",
]

BASELINE = "deep ensemble"
TWICE = "deep ensemble, twice the members"
RULES = (  # in order of worth: a run that is cut short lacks the last ones
    "sharpest",
    "flattest",
    "all",
    "random",
    "flattest_union",
    "none",
    "same",
)
BEST = ("flattest", "random")  # of the rules on pictures, where it matters
LATE = {"warmup": "sgd", "warmup_epochs": 0.75}
AVERAGED = {"weight_averaging": "exponential"}
ALL_RHO, FEW_RHO = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4), (0.02, 0.1, 0.4)  # on digits
PICTURE_RHO = (0.05, 0.1, 0.2, 0.4)
SAME_EPOCHS, SAME_COST = "same epochs", "same cost"
# Over those of plain descent, on one H200: measured for Momentum-SAM on all samples.
SECONDS_OF_A_BALANCED_EPOCH = 1.07
SAME_SECONDS = "same seconds"
# Methods for the passes of a deep ensemble, and the radii to choose from.
LATER = {f"SAM, last {1 - share:.0%}": share for share in (0.75, 0.9, 0.95)}
ALPHA = "estimator__optimizer__alpha"  # 0.2 is the default, 0.7 is the paper's
LOOK_ALL = {"selection": "all", "warmup_epochs": 0, "sam": "look_sam"}
LOOK_FLATTEST = {"selection": "flattest", "sam": "look_sam"}
LOOK_SAM = {
    "LookSAM, alpha 0.2": LOOK_ALL | {ALPHA: 0.2},
    "flattest, LookSAM, alpha 0.2": LOOK_FLATTEST | {ALPHA: 0.2},
    "LookSAM, alpha 0.7": LOOK_ALL | {ALPHA: 0.7},
    "flattest, LookSAM, alpha 0.7": LOOK_FLATTEST | {ALPHA: 0.7},
}
CONTEST = {
    name: {"selection": "all", "warmup": "sgd", "warmup_epochs": share}
    for name, share in LATER.items()
} | {
    "flattest, late": {"selection": "flattest", **LATE},
    "Momentum-SAM": {"selection": "all", "warmup_epochs": 0, "sam": "momentum_sam"},
    "flattest, Momentum-SAM": {"selection": "flattest", "sam": "momentum_sam"},
    "LookSAM, alpha 0.2": LOOK_SAM["LookSAM, alpha 0.2"],
}
BEST_OF_CONTEST = ("Momentum-SAM", "flattest, Momentum-SAM")  # on corrupted pictures
CONTEST_RHO, MOMENTUM_RHO = (0.05, 0.1, 0.2), (0.1, 0.3, 1.0, 3.0)
CONTESTS = ("contest", "contest_wide")  # use the radii that ``contest_rho`` chose

SHALLOW = "shallow ensemble"
LAMBDAS = (0.1, 0, 1, 0.01, 10)  # in order of worth
N_HEADS = (2, 3, 5, 8, 12, 20)
# Hyper-parameters that members may differ in, and be averaged nevertheless.
DIVERSE = {
    "lr": loguniform(3e-4, 3e-3),
    "optimizer__weight_decay": loguniform(1e-3, 1e-1),
    "criterion__label_smoothing": [0.0, 0.05, 0.1],
}
CONTROLS = {
    "no control": {"train_transform": None, "estimator__optimizer__weight_decay": 0.0},
    "augmentation": {"estimator__optimizer__weight_decay": 0.0},
    "weight decay": {"train_transform": None},
    "both": {},
}


def picture_recipe(options, seed):
    """The paper's recipe, for every method alike."""
    return {
        "estimator": ResNet18,
        "estimator__module__width": options.width,
        "estimator__criterion__label_smoothing": 0.0,
        "estimator__optimizer__nesterov": False,
        "estimator__optimizer__weight_decay": 5e-4,
        "n_estimators": options.members,
        "max_epochs": options.epochs,
        "lr": 0.1,
        "lr_schedule": "steps",
        "batch_size": 128,
        "train_transform": "crop_flip",
        "random_state": seed,
    }


def cosine_recipe(options, seed):
    """The paper's recipe with the default schedule, better for deep ensembles too."""
    return picture_recipe(options, seed) | {"lr_schedule": "cosine"}


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


def default_recipe(options, seed):
    """What a fit on pictures has without settings."""
    return {
        "n_estimators": options.members,
        "max_epochs": options.epochs,
        "random_state": seed,
    }


def small_cnn_recipe(options, seed):
    """A small network with the crops and flips of the paper's recipe."""
    augmented = {"estimator": SmallCNN, "train_transform": "crop_flip"}
    return default_recipe(options, seed) | augmented


class Methods:
    """Estimators by one recipe."""

    def __init__(self, recipe, options, seed):
        self.recipe = recipe(options, seed)
        self.balance = {
            "sam": "sam",
            "rho": options.rho,
            "flat_ratio": options.flat_ratio,
        }
        self.asam_rho = 10 * options.rho  # ASAM measures in units of the weights

    def deep(self, **changes):
        return DeepEnsembleClassifier(**self.recipe | changes)

    def flat(self, selection="sharpest", **changes):
        settings = self.recipe | self.balance | changes
        return SharpBalanceEnsembleClassifier(**settings, selection=selection)

    def plain(self, **changes):
        """The deep ensemble itself, as a warm-up that is never over.

        Methods with a warm-up by plain descent find its epochs in the cache.
        """
        return self.flat("none", warmup="sgd", warmup_epochs=1.0, **changes)

    def rules(self):
        """Every selection rule, from one warm-up by SAM."""
        for rule in RULES:
            yield SAME_EPOCHS, rule, self.flat(rule)

    def warmups(self, rules):
        """The same from a warm-up by plain descent, which costs half."""
        for rule in rules:
            yield SAME_EPOCHS, f"{rule}, SGD warm-up", self.flat(rule, warmup="sgd")

    def starts(self, rule):
        """The selection after 3/4 and 7/8 of the epochs instead of 1/2."""
        for share in (0.75, 0.875):
            method = f"{rule}, T_d {share:g}"
            yield SAME_EPOCHS, method, self.flat(rule, warmup_epochs=share)

    def late(self, rules):
        """SAM after 3/4 of the epochs only; the plain descent before is shared."""
        for rule in rules:
            yield SAME_EPOCHS, f"{rule}, late", self.flat(rule, **LATE)

    def variants(self, rule):
        """What else may be done with the last quarter of the epochs."""
        last = {"weight_averaging": WeightAveraging("exponential", 0.75)}
        rho = self.balance["rho"] / 2
        late = f"{rule}, late"
        for method, estimator in {
            f"{late}, half of rho": self.flat(rule, **LATE | {"rho": rho}),
            f"{late}, averaged": self.flat(rule, **LATE, **last),
            f"{BASELINE}, averaged": self.plain(**last),
            f"{late}, ASAM": self.flat(rule, **LATE, sam="asam", rho=self.asam_rho),
        }.items():
            yield SAME_EPOCHS, method, estimator

    def for_the_cost_of_sam(self, rule):
        """As many passes as SAM takes: by plain members for longer, by more members."""
        sam, more = self.flat("all"), {"n_estimators": 2 * self.recipe["n_estimators"]}
        passes = gradient_passes(sam)
        for method, estimator in (
            (BASELINE, self.deep()),
            ("SAM", sam),
            (TWICE, self.deep(**more)),
            (f"{rule}, late, twice the members", self.flat(rule, **LATE, **more)),
        ):
            estimator.set_params(**match_passes(estimator, passes))
            yield SAME_COST, method, estimator

    def candidates(self):
        """What might beat a deep ensemble at its own cost."""
        n_members = self.recipe["n_estimators"]
        late = partial(self.flat, **LATE)
        return {  # in order of worth: a run that is cut short lacks the last ones
            "SAM": self.flat("all"),
            "sharpest": self.flat(),
            TWICE: self.deep(n_estimators=2 * n_members),
            "sharpest, late": late(),
            "sharpest, late, averaged": late(**AVERAGED),
            "deep ensemble, averaged": self.deep(**AVERAGED),
            "SAM, late": late("all"),
            "sharpest, late, ASAM": late(sam="asam", rho=self.asam_rho),
            "sharpest, late, twice the members": late(n_estimators=2 * n_members),
            "flattest, late": late("flattest"),
            "random, late": late("random"),
            "sharpest, SGD warm-up": self.flat(warmup="sgd"),
            "sharpest, latest": self.flat(warmup="sgd", warmup_epochs=0.875),
        }

    def equal_cost(self, candidates=None):
        """Every candidate, shortened to the gradient passes of the deep ensemble."""
        passes = gradient_passes(self.deep())
        yield SAME_COST, BASELINE, self.deep()
        for method, estimator in (candidates or self.candidates()).items():
            shorter = match_passes(estimator, passes)
            yield SAME_COST, method, estimator.set_params(**shorter)


def headline(options, seed):
    """Deep ensemble, SAM, and SharpBalance by the rules of the paper and its code.

    SAM and SharpBalance of one command share their warm-up. Then what the ablation
    found best, and SAM, for the passes of the deep ensemble.
    """
    methods = Methods(picture_recipe, options, seed)
    yield SAME_EPOCHS, "SAM", methods.flat("all")
    yield SAME_EPOCHS, "sharpest", methods.flat("sharpest")
    yield SAME_EPOCHS, "flattest", methods.flat("flattest")
    yield SAME_EPOCHS, "flattest_union", methods.flat("flattest_union")
    yield SAME_EPOCHS, BASELINE, methods.deep()
    late = next(clf for *_, clf in methods.late(BEST[:1]))
    candidates = {f"{BEST[0]}, late": late, "SAM": methods.flat("all")}
    yield from methods.equal_cost(candidates)


def ablation(options, seed):
    """Every rule from one warm-up, warm-ups, moments, variants, in order of worth.

    All train for as many epochs, which lets them share warm-ups. What they cost lies
    between a deep ensemble of these epochs and one of twice as many, and the report
    holds each against what a deep ensemble gives for its cost.
    """
    methods = Methods(picture_recipe, options, seed)
    longer, sam, twice, late_twice = methods.for_the_cost_of_sam(BEST[0])
    yield SAME_EPOCHS, BASELINE, methods.plain()
    yield longer
    yield from methods.rules()
    yield sam
    yield from methods.warmups(BEST)
    yield from methods.starts(BEST[0])
    yield from methods.late((BEST[0], "all"))
    yield from methods.variants(BEST[0])
    yield twice
    yield late_twice


def contest_rho(options, seed):
    """Methods for the passes of a deep ensemble, over radii; seeds of their own.

    LookSAM with the paper's ``alpha`` is in this run only, where it was far behind.
    """
    methods = Methods(cosine_recipe, options, seed)
    candidates = {}
    of_paper = "LookSAM, alpha 0.7"
    searched = CONTEST | {of_paper: LOOK_SAM[of_paper]}
    for name, settings in searched.items():
        for rho in radii_to_try(name):
            candidates[with_rho(name, rho)] = methods.flat(**settings, rho=rho)
    yield from methods.equal_cost(candidates)


def contest(options, seed):
    """The methods of ``contest_rho``, each with the radius chosen there.

    ``options.radii`` has the radius of each method, see ``chosen_radii``.
    """
    yield from contest_of(CONTEST, options, seed)


def contest_wide(options, seed):
    """The best two of the contest with wide networks, and the same radii."""
    yield from contest_of(BEST_OF_CONTEST, options, seed)


def contest_of(names, options, seed):
    """These methods of ``CONTEST`` and the deep ensemble, for the same passes."""
    methods = Methods(cosine_recipe, options, seed)
    candidates = {}
    for name in names:
        rho = options.radii[name]
        candidates[with_rho(name, rho)] = methods.flat(**CONTEST[name], rho=rho)
    yield from methods.equal_cost(candidates)


def attribution(options, seed):
    """What makes the gain of the contest: SAM, for a part of the samples, for which.

    The deep ensemble of equal seconds has as many more epochs as a step takes longer.
    Records named "split" are older: their batches had samples of both kinds.
    """
    methods = Methods(cosine_recipe, options, seed)
    momentum = {"sam": "momentum_sam", "rho": 0.3}
    epochs = round(options.epochs * SECONDS_OF_A_BALANCED_EPOCH)
    yield SAME_SECONDS, BASELINE, methods.deep(max_epochs=epochs)
    candidates = {
        rule: methods.flat(rule, **momentum) for rule in ("flattest", "random")
    }
    everywhere = {"selection": "all", "warmup_epochs": 0}
    candidates["all"] = methods.flat(**everywhere, **momentum)
    yield from methods.equal_cost(candidates)


def seconds_cifar10(options, seed):
    """The default and a deep ensemble of as many seconds.

    ``options.seconds`` are those of the default over those of a deep ensemble of equal
    epochs, see ``bench_images.py --plan radius``. The same with random samples, or all
    samples, in place of the selected ones takes slightly less.
    """
    methods = Methods(default_recipe, options, seed)
    epochs = round(options.epochs * options.seconds)
    yield SAME_SECONDS, BASELINE, methods.deep(max_epochs=epochs)
    default = SharpBalanceEnsembleClassifier(**methods.recipe)
    yield SAME_SECONDS, "default", default
    others = {"sam": "momentum_sam", "warmup": "sgd"}
    yield SAME_SECONDS, "random", methods.flat("random", **others)
    yield SAME_SECONDS, "all", methods.flat("all", **others)


def seconds_cifar100(options, seed):
    """The same with other images."""
    yield from seconds_cifar10(options, seed)


def radii_to_try(name):
    """Return the radii of a method of the contest, in increasing order."""
    return MOMENTUM_RHO if "Momentum-SAM" in name else CONTEST_RHO


def with_rho(name, rho):
    return f"{name}, rho {rho:g}"


def recipe(options, seed):
    """Settings that a fit on pictures could have by default, one at a time.

    "After the drop" selects one epoch after the drop of the rate, as the released code
    of the paper does.
    """
    methods = Methods(picture_recipe, options, seed)
    flat = partial(methods.flat, BEST[0])
    cosine = {"lr_schedule": "cosine"}
    for method, estimator in {
        BASELINE: methods.plain(),
        BEST[0]: flat(),
        f"{BEST[0]}, after the drop": flat(warmup_epochs=options.epochs // 2 + 1),
        f"{BEST[0]}, SGD warm-up": flat(warmup="sgd"),
        f"{BEST[0]}, late": flat(**LATE),
        f"{BEST[0]}, half of rho": flat(rho=options.rho / 2),
        f"{BEST[0]}, late, half of rho": flat(**LATE, rho=options.rho / 2),
        f"{BASELINE}, cosine": methods.deep(**cosine),
        f"{BEST[0]}, cosine": flat(**cosine),
        f"{BEST[0]}, late, cosine": flat(**LATE, **cosine),
        f"{BASELINE}, no augmentation": methods.deep(train_transform=None),
    }.items():
        yield SAME_EPOCHS, method, estimator


def small_cnn(options, seed):
    """A network of 95,000 weights, augmented, and with one setting changed."""
    methods = Methods(small_cnn_recipe, options, seed)
    deep, flat = methods.deep, partial(methods.flat, BEST[0])
    plain, steps = {"train_transform": None}, {"lr_schedule": "steps"}
    for method, estimator in {
        BASELINE: deep(),
        BEST[0]: flat(),
        f"{BASELINE}, no augmentation": deep(**plain),
        f"{BEST[0]}, no augmentation": flat(**plain),
        f"{BASELINE}, steps": deep(**steps),
        f"{BEST[0]}, steps": flat(**steps),
        f"{BEST[0]}, SGD warm-up": flat(warmup="sgd"),
        f"{BEST[0]}, late": flat(**LATE),
        f"{BEST[0]}, twice rho": flat(rho=2 * options.rho),
        "random": methods.flat("random"),
        "SAM": methods.flat("all"),
    }.items():
        yield SAME_EPOCHS, method, estimator


def defaults(options, seed):
    """Ensembles without settings, with one changed, and of other networks."""
    methods = Methods(default_recipe, options, seed)
    deep, flat = methods.deep, partial(methods.flat, BEST[0])
    plain = {"train_transform": None}
    smoothed = {"estimator__criterion__label_smoothing": 0.1}
    narrow = {"estimator": ResNet18, "estimator__module__width": 16}
    for method, estimator in {
        BASELINE: deep(),
        BEST[0]: flat(),
        "SAM": methods.flat("all"),
        f"{BASELINE}, SmallCNN": deep(estimator=SmallCNN),
        f"{BASELINE}, no augmentation": deep(**plain),
        f"{BEST[0]}, no augmentation": flat(**plain),
        f"{BEST[0]}, late": flat(**LATE),
        f"{BASELINE}, smoothed labels": deep(**smoothed),
        f"{BEST[0]}, smoothed labels": flat(**smoothed),
        f"{BASELINE}, ResNet-18 of width 16": deep(**narrow),
    }.items():
        yield SAME_EPOCHS, method, estimator


def defaults_few(options, seed):
    """The same with few pictures."""
    yield from defaults(options, seed)


def defaults_step(options, seed):
    """SAM and Momentum-SAM in ensembles without other settings.

    In the same epochs, and with more epochs for those that pass a sample once, so that
    their passes are a little fewer than those of SAM.
    """
    methods = Methods(default_recipe, options, seed)
    rho = 0.3  # chosen by contest_rho
    name = "flattest, Momentum-SAM"
    settings = CONTEST[name] | {"rho": rho}
    longer = {"max_epochs": round(1.8 * options.epochs)}
    for group, epochs in {SAME_EPOCHS: {}, SAME_COST: longer}.items():
        yield group, BASELINE, methods.deep(**epochs)
        yield group, with_rho(name, rho), methods.flat(**settings, **epochs)
        yield group, BEST[0], methods.flat(BEST[0])


def defaults_step_few(options, seed):
    """The same with few pictures."""
    yield from defaults_step(options, seed)


def sed(options, seed):
    """Heads on a frozen trunk, which ``fit_heads`` adds: tables 1-3, figures 3 and 4.

    The shallow ensemble and the one of diverse hyper-parameters draw batches for each
    member; the others are trained jointly. Naive methods take all pairs of members.
    """
    settings = {
        "estimator": MLP,
        "estimator__module__hidden": (8 * options.width,),  # as many as features
        "n_estimators": options.members,
        "max_epochs": options.head_epochs,
        "lr": 1e-3,
        "batch_size": 128,
        "random_state": seed,
    }
    deep = partial(DeepEnsembleClassifier, optimizer=torch.optim.AdamW)
    joint = DiversifiedEnsembleClassifier
    naive = {"pair_members": None, "diversity_weight": 0.1}
    drawn = list(ParameterSampler(DIVERSE, options.members, random_state=seed))
    group = heads_group(options.members)
    yield group, SHALLOW, deep(**settings)
    for weight in LAMBDAS[:2]:
        yield group, sed_name(weight), joint(**settings, diversity_weight=weight)
    yield group, "naive A2D", joint(**settings, **naive, loss="a2d")
    yield group, "naive DivDis", joint(**settings, **naive, loss="divdis")
    yield group, "diverse hyper-parameters", deep(**settings, member_params=drawn)
    for weight in LAMBDAS[2:]:
        yield group, sed_name(weight), joint(**settings, diversity_weight=weight)
    for n_heads in N_HEADS:
        if n_heads != options.members:
            changed = settings | {"n_estimators": n_heads}
            for weight in LAMBDAS[:2]:
                clf = joint(**changed, diversity_weight=weight)
                yield heads_group(n_heads), sed_name(weight), clf


def sed_name(weight):
    return f"SED-A2D, lambda {weight:g}"


def heads_group(n_heads):
    return f"{n_heads} heads"


def rethinking(options, seed):
    """SGD and SAM under four controls; members also are single nets.

    A control is the augmentation and the weight decay that all optimizers have.
    """
    for control, settings in CONTROLS.items():
        methods = Methods(picture_recipe, options, seed)
        methods.recipe |= settings
        yield control, "SGD", methods.deep()
        for rho in (0.05, 0.2):
            yield control, f"SAM {rho:g}", methods.flat("all", rho=rho)


def tradeoff(options, seed):
    """SAM ensembles and SharpBalance over rho."""
    methods = Methods(picture_recipe, options, seed)
    yield from over_rho(methods, PICTURE_RHO, rule=BEST[0])


def widths(options, seed):
    """SAM ensembles over width and rho."""
    chosen = (8, 16, 32, 64)
    yield from over_widths(picture_recipe, chosen, PICTURE_RHO[:3], options, seed)


def sparsity(options, seed):
    """SAM ensembles over the share of pruned weights and rho."""
    yield from over_sparsity(Methods(picture_recipe, options, seed), PICTURE_RHO[:3])


def picture_sizes(options, seed):
    """Ensembles of two to five members; deep ones up to the cost of five with SAM."""
    yield from over_sizes(picture_recipe, (2, 3, 5, 10), BEST[0], options, seed)


def over_rho(methods, radii, rule):
    for rho in radii:
        yield "SAM", f"SAM, rho {rho:g}", methods.flat("all", rho=rho)
        yield rule, f"{rule}, rho {rho:g}", methods.flat(rule, rho=rho)


def over_widths(recipe, choices, radii, options, seed):
    for width in choices:
        changed = Namespace(**vars(options) | {"width": width})
        methods = Methods(recipe, changed, seed)
        for rho in radii:
            method = f"SAM, width {width}, rho {rho:g}"
            yield f"width {width}", method, methods.flat("all", rho=rho)


def over_sizes(recipe, sizes, rule, options, seed):
    for n_members in sizes:
        methods = Methods(recipe, options, seed)
        methods.recipe["n_estimators"] = n_members
        group = f"{n_members} members"
        yield group, BASELINE, methods.deep()
        if n_members <= 5:
            yield group, "SAM", methods.flat("all")
            yield group, rule, methods.flat(rule)


def over_sparsity(methods, radii):
    for pruned in (None, 0.8, 0.95):
        for rho in radii:
            group = f"sparsity {pruned or 0:g}"
            method = f"SAM, {group}, rho {rho:g}"
            yield group, method, methods.flat("all", prune=pruned, rho=rho)


def digits(options, seed):
    """The ablation on digits, with both warm-ups for every rule."""
    methods = Methods(digits_recipe, options, seed)
    yield from methods.rules()
    yield SAME_EPOCHS, BASELINE, methods.deep()
    # "none" after plain descent is the deep ensemble itself.
    yield from methods.warmups(rule for rule in RULES if rule != "none")
    yield from methods.starts("sharpest")
    yield from methods.equal_cost()


def confirm(options, seed):
    """The best candidates on digits again, with seeds that did not choose them."""
    methods = Methods(digits_recipe, options, seed)
    chosen = (TWICE, "SAM", "sharpest")
    candidates = {name: methods.candidates()[name] for name in chosen}
    candidates |= {
        "SAM, twice rho": methods.flat("all", rho=2 * options.rho),
        "ASAM": methods.flat("all", sam="asam", rho=methods.asam_rho),
        "SAM, twice the members": methods.flat("all", n_estimators=2 * options.members),
    }
    yield from methods.equal_cost(candidates)


def sizes(options, seed):
    """Figures 8 and 15: ensembles of two to five members, on digits.

    Deep ensembles go on to ten members, which is what SAM costs with five.
    """
    chosen = (2, 3, 4, 5, 6, 8, 10)
    yield from over_sizes(digits_recipe, chosen, "sharpest", options, seed)


def digits_tradeoff(options, seed):
    """Figures 1c and 3 on digits."""
    methods = Methods(digits_recipe, options, seed)
    yield from over_rho(methods, ALL_RHO, rule="sharpest")


def digits_widths(options, seed):
    """Figure 5a on digits."""
    yield from over_widths(digits_recipe, (16, 32, 64, 128), FEW_RHO, options, seed)


def digits_sparsity(options, seed):
    """Figure 5b on digits."""
    yield from over_sparsity(Methods(digits_recipe, options, seed), FEW_RHO)


def by_name(runs):
    return {run.__name__: run for run in runs}


ON_PICTURES = by_name(
    [
        headline,
        ablation,
        contest_rho,
        contest,
        contest_wide,
        attribution,
        seconds_cifar10,
        seconds_cifar100,
        recipe,
        defaults,
        defaults_few,
        defaults_step,
        defaults_step_few,
        small_cnn,
        tradeoff,
        widths,
        sparsity,
        picture_sizes,
        sed,
        rethinking,
    ]
)
ON_DIGITS = by_name(
    [digits, confirm, sizes, digits_tradeoff, digits_widths, digits_sparsity]
)
RUNS = ON_PICTURES | ON_DIGITS
