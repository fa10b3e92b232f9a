"""SED and its rivals: heads on a frozen trunk, what they find foreign, how they differ.

The trunk is a ResNet-18 that was trained on all classes but the last two. Heads of two
layers (Linear, ReLU, Linear) are trained on its features. They are stacked, which heads
with convolutions are not. Heads see pictures that the trunk was not trained on: the
features of its own training pictures fit the labels so well that no sample is hard.
"""

import copy
import os
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from _reproduce_measure import digits, draw, nll, read
from _reproduce_methods import picture_recipe
from PIL import Image
from torch import nn

from sklearn_sharpbalance import DeepEnsembleClassifier, DiversifiedEnsembleClassifier
from sklearn_sharpbalance.aggregation.nets import mean_weights, member_logits
from sklearn_sharpbalance.corruption import CORRUPTIONS, SEVERITIES, corrupt
from sklearn_sharpbalance.members.shared_trunk import Trunk
from sklearn_sharpbalance.metrics import (
    bma_score,
    disagreement,
    ood_auroc,
    predictive_diversity_score,
    unique_predictions,
)

__all__ = ["HeadTask", "fit_heads", "measure_heads", "prepare_heads"]

N_FOREIGN_CLASSES = 2
N_UNLABELED = 5000
SCORES = {"bma": lambda probas: -bma_score(probas), "pds": predictive_diversity_score}
QUANTILES = np.linspace(0, 1, 33)


class HeadTask:
    """Pictures of one seed, the trunk, and the trunk's features of each set.

    Parameters
    ----------
    options : Namespace
    seed : int
    pictures : SimpleNamespace
        ``train`` and ``test`` as (images, labels) of the known classes, ``unlabeled``
        images, ``foreign`` images by name, ``corrupted`` (images, labels) by kind and
        severity.
    folder : Path
        Of the trunk's checkpoint.
    """

    def __init__(self, options, seed, pictures, folder):
        self.options, self.seed, self.folder = options, seed, folder
        self.test, self.unlabeled = pictures.test, pictures.unlabeled
        self.foreign, self.corrupted = pictures.foreign, pictures.corrupted
        images, labels = pictures.train
        n_trunk = round(options.trunk_share * len(labels))
        self.of_trunk = images[:n_trunk], labels[:n_trunk]
        # With a share of one, heads are trained on the pictures of the trunk.
        rest = slice(n_trunk if n_trunk < len(labels) else 0, None)
        self.X, self.y = images[rest], labels[rest]

    @cached_property
    def trained(self):
        """The net whose layers before the last are the trunk."""
        recipe = picture_recipe(self.options, self.seed) | {"n_estimators": 1}
        net = DeepEnsembleClassifier(
            **recipe,
            checkpoint_dir=str(self.folder),
        )
        return net.fit(*self.of_trunk)

    @cached_property
    def trunk(self):
        """The module that takes pictures and returns features."""
        module = copy.deepcopy(self.trained.estimators_[0].module_)
        module.module.head = nn.Identity()
        return module

    @cached_property
    def extractor(self):
        """The trunk as a fit would have it, on the device and in its precision."""
        settings = self.trained.settings_
        module = copy.deepcopy(self.trunk)
        return Trunk(module, settings["device"], settings["precision"])

    def features(self, images):
        """Features (N, F) of pictures."""
        return self.extractor.features(self.trained.member_inputs(images))

    @cached_property
    def of_heads(self):
        """Features of the pictures that heads are trained on."""
        return self.features(self.X)

    @cached_property
    def sets(self):
        """{name: (features, labels or None)} of everything that heads are tested on."""
        found = {"clean": (self.features(self.test[0]), self.test[1])}
        for name, (images, labels) in self.corrupted.items():
            found[name] = self.features(images), labels
        for name, images in self.foreign.items():
            found[name] = self.features(images), None
        return found


def prepare_heads(options):
    """Draw all corrupted copies; returns a function from a seed to its HeadTask."""
    work = Path(options.work)
    (images, labels), (test, test_labels) = (
        read(options.data, split) for split in ("train", "test")
    )
    images, labels = images[: options.images], labels[: options.images]
    known_classes = np.unique(labels)[:-N_FOREIGN_CLASSES]
    known, test_known = (np.isin(each, known_classes) for each in (labels, test_labels))
    images, labels = images[known], labels[known]
    few = test[: options.corrupted]
    few_known, few_labels = (
        each[: options.corrupted] for each in (test_known, test_labels)
    )
    names, path = draw(few, work)
    unlabeled = draw_unlabeled(images[-N_UNLABELED:], work)

    def task(seed):
        copies = dict(zip(names, np.load(path, mmap_mode="r")))
        pictures = SimpleNamespace(
            train=(images, labels),
            test=(test[test_known], test_labels[test_known]),
            unlabeled=unlabeled,
            foreign={
                "classes": test[~test_known],
                "digits": digits_as_pictures(test.shape[1]),
            },
            corrupted={
                name: (each[few_known], few_labels[few_known])
                for name, each in copies.items()
            },
        )
        return HeadTask(
            options, seed, pictures, folder=work / trunk_name(options, seed)
        )

    return task


def trunk_name(options, seed):
    """Name of the trunk's checkpoint, by what it depends on."""
    names = ("data", "images", "width", "epochs", "trunk_share")
    text = repr([getattr(options, name) for name in names])
    return f"trunk_{sha256(text.encode()).hexdigest()[:12]}_{seed}"


def draw_unlabeled(images, folder):
    """Corrupted copies of training pictures: every kind and severity in turn."""
    digest = sha256(images.tobytes()).hexdigest()[:12]
    path = folder / f"unlabeled_{len(images)}_{digest}.npy"
    if not path.exists():
        drawn = images.copy()
        ways = [(kind, severity) for kind in CORRUPTIONS for severity in SEVERITIES]
        for i, (kind, severity) in enumerate(ways):
            rows = slice(i, None, len(ways))
            if len(images[rows]):
                drawn[rows] = corrupt(images[rows], kind, severity, random_state=0)
        partial = path.with_suffix(f".{os.getpid()}.npy")  # of this run alone
        np.save(partial, drawn)
        partial.replace(path)
    return np.load(path)


def digits_as_pictures(side):
    """scikit-learn's digits in the size of the pictures, (N, side, side, 3)."""
    grey, _ = digits()
    large = [np.asarray(Image.fromarray(image).resize((side, side))) for image in grey]
    return np.repeat(np.stack(large)[..., None], 3, axis=-1)


def fit_heads(clf, task):
    """Train heads; a deep ensemble of them is trained on features."""
    precision = task.trained.settings_["precision"]
    clf.set_params(precision=precision)
    if isinstance(clf, DiversifiedEnsembleClassifier):
        clf.set_params(shared_trunk=task.trunk)
        clf.fit(task.X, task.y, X_unlabeled=task.unlabeled)
    else:
        clf.fit(task.of_heads, task.y)


def measure_heads(clf, task, n_batches=None):
    """Numbers about fitted heads, as one flat dictionary (lists for quantiles)."""
    heads = getattr(clf, "heads_", clf.estimators_)
    soup = mean_weights(heads)
    found = {
        name: measure_set(heads, soup, features, labels, clf.classes_)
        for name, (features, labels) in task.sets.items()
    }
    record = {
        "n_heads": len(heads),
        "engine": clf.engine_.name,
        "epochs": len(clf.history_[0]),
        "step_ms": step_milliseconds(clf, len(task.y)),
    }
    clean = found["clean"]
    groups = {"": [clean]}
    groups["corrupted_"] = [found[name] for name in task.corrupted]
    for severity in SEVERITIES:
        groups[f"severity_{severity}_"] = [
            found[name] for name in task.corrupted if name[1] == severity
        ]
    groups |= {f"{name}_": [found[name]] for name in task.foreign}
    for prefix, sets in groups.items():
        record |= {prefix + name: value for name, value in summary(sets).items()}
        if sets != [clean]:
            areas = detection(clean, sets)
            record |= {prefix + name: value for name, value in areas.items()}
    for score in SCORES:
        record[f"{score}_quantiles"] = {
            name: np.quantile(found[name][score], QUANTILES).round(5).tolist()
            for name in ("clean", "classes")
        }
    return record


def measure_set(heads, soup, features, labels, classes):
    """What heads predict for one set."""
    logits = member_logits(heads, features).astype(np.float64)  # (M, N, C)
    probas = np.exp(logits - logits.max(-1, keepdims=True))
    probas /= probas.sum(-1, keepdims=True)
    row = {name: score(probas) for name, score in SCORES.items()}  # (N,) each
    row["members_bma"] = [-bma_score(member[None]) for member in probas]
    row["unique"] = unique_predictions(probas)
    row["disagreement"] = disagreement(probas)
    if labels is not None:
        codes = np.searchsorted(classes, labels)
        (of_soup,) = member_logits([soup], features)
        row["members"] = (logits.argmax(-1) == codes).mean(-1)  # (M,)
        row["ensemble"] = (logits.mean(0).argmax(-1) == codes).mean()
        row["soup"] = (of_soup.argmax(-1) == codes).mean()
        row["nll"] = nll(logits.mean(0), codes)
    return row


def summary(sets):
    """Means over sets of one kind; the oracle is the best member on all of them."""
    row = {
        "unique": np.mean([each["unique"] for each in sets]),
        "disagreement": np.mean([each["disagreement"] for each in sets]),
        "pds": np.mean([each["pds"].mean() for each in sets]),
    }
    if "members" in sets[0]:
        of_members = np.mean([each["members"] for each in sets], axis=0)  # (M,)
        row |= {
            "accuracy": np.mean([each["ensemble"] for each in sets]),
            "member_accuracy": of_members.mean(),
            "oracle_accuracy": of_members.max(),
            "soup_accuracy": np.mean([each["soup"] for each in sets]),
            "nll": np.mean([each["nll"] for each in sets]),
        }
    return {name: float(value) for name, value in row.items()}


def detection(clean, sets):
    """AUROC of each score, the mean over foreign sets; and of members on their own."""
    row = {
        f"{score}_auroc": np.mean([ood_auroc(clean[score], s[score]) for s in sets])
        for score in SCORES
    }
    row["member_auroc"] = np.mean(
        [
            ood_auroc(*pair)
            for each in sets
            for pair in zip(clean["members_bma"], each["members_bma"])
        ]
    )
    return {name: float(value) for name, value in row.items()}


def step_milliseconds(clf, n_samples):
    """Median over epochs of the time of an optimizer step of all heads."""
    epochs = [record["dur"] for record in clf.history_[0]]
    n_steps = -(-n_samples // clf.settings_["batch_size"])
    return float(1e3 * np.median(epochs) / n_steps)
