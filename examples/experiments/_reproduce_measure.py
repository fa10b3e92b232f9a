"""Data of a run, its corrupted copies, and the record of a fitted ensemble."""

import os
from base64 import b64encode
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from _cifar import read_cifar10, read_folder, read_npz
from _packed_jpeg import is_packed, read_packed
from _reproduce_methods import ON_DIGITS
from scipy.special import log_softmax, softmax
from scipy.stats import spearmanr
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.optim.swa_utils import update_bn

from sklearn_sharpbalance import metrics
from sklearn_sharpbalance.corruption import iter_corruptions
from sklearn_sharpbalance.data.augment import RandomCropFlip, resolve_transform
from sklearn_sharpbalance.evaluation import evaluate, gradient_passes
from sklearn_sharpbalance.sharpness import fisher_trace, input_curvature
from sklearn_sharpbalance.training.image_recipe import size_for

__all__ = ["Task", "measure", "prepare"]

DIGITS_TRAIN_SHARE = 0.2  # so that there is something left to get wrong


class Task(NamedTuple):
    """Samples of one seed; corrupted test sets by (kind, severity)."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    corrupted: dict


def prepare(options):
    """Pictures with all corrupted copies of the test set on disk, drawn only once.

    Returns a function from a seed to its Task. Workers map the files into memory.
    """
    if options.run in ON_DIGITS:
        images, labels = digits()
        kept = images
    else:
        train, test = (read(options.data, split) for split in ("train", "test"))
        images, labels = (part[: options.images] for part in train)
        kept = test[0][: options.corrupted]
    names, path = draw(kept, Path(options.work))

    def task(seed):
        copies = dict(zip(names, np.load(path, mmap_mode="r")))
        if options.run not in ON_DIGITS:
            few = test[1][: len(kept)]
            sets = {name: (pictures, few) for name, pictures in copies.items()}
            return Task(images, labels, *test, sets)
        learn, rest = train_test_split(
            np.arange(len(labels)),
            train_size=DIGITS_TRAIN_SHARE,
            stratify=labels,
            random_state=seed,
        )
        few = rest[: options.corrupted]
        sets = {name: (copy[few], labels[few]) for name, copy in copies.items()}
        return Task(images[learn], labels[learn], images[rest], labels[rest], sets)

    return task


def digits():
    """The 1797 pictures of 8 x 8, as bytes."""
    images, labels = load_digits(return_X_y=True)
    return (images.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8), labels


def read(path, split):
    """Pictures and labels from an npz file, torchvision's root or an ImageFolder."""
    path = Path(path)
    if path.suffix == ".npz":
        if is_packed(path):
            return read_packed(path, split)
        return read_npz(path, split)
    if (path / "cifar-10-batches-py").exists():
        return read_cifar10(path, split)
    return read_folder(path, split)


def draw(images, folder):
    """Names of all 75 corrupted copies, and the file that holds them."""
    folder.mkdir(parents=True, exist_ok=True)
    size, digest = "x".join(map(str, images.shape)), sha256(images.tobytes())
    path = folder / f"corrupted_{size}_{digest.hexdigest()[:12]}.npy"
    partial = path.with_suffix(f".{os.getpid()}.npy")  # of this run alone
    names, copies = [], None
    if path.exists():  # names in the order in which they were drawn
        few = iter_corruptions(images[:1], random_state=0)
        return [(kind, severity) for kind, severity, _ in few], path
    for kind, severity, copy in iter_corruptions(images, random_state=0, n_jobs=-1):
        if copies is None:
            shape = (75, *copy.shape)
            copies = np.lib.format.open_memmap(partial, "w+", np.uint8, shape)
        copies[len(names)] = copy
        names.append((kind, severity))
    copies.flush()
    partial.replace(path)
    return names, path


def measure(clf, task, n_batches):
    """Numbers about a fitted ensemble, as one flat dictionary."""
    once = Remembering(clf)
    report = evaluate(
        {"it": once},
        task.X_test,
        task.y_test,
        corruptions=task.corrupted,
        sharpness={"n_batches": n_batches},
        X_train=task.X,
        y_train=task.y,
        n_bootstrap=0,
    )
    record = {}
    rows = report.to_frame()[["metric", "part", "detail", "mean"]].to_numpy()
    for metric, part, detail, value in rows:
        name = "_".join(filter(None, (detail.replace(" ", "_"), metric)))
        of_members = part == "members" and metric != "sharpness"
        record[f"member_{name}" if of_members else name] = float(value)
    codes = np.searchsorted(clf.classes_, task.y_test)
    logits = once.member_decision_function(task.X_test)
    temperature = metrics.fit_temperature(codes, logits.mean(0), kind="logits")
    mixed = np.log(mean_proba(logits))
    mixed_temperature = metrics.fit_temperature(codes, mixed, kind="logits")
    record |= {
        "temperature": temperature,
        "nll_after_temperature": nll(logits.mean(0) / temperature, codes),
        "mean_proba_accuracy": float((mixed.argmax(-1) == codes).mean()),
        "mean_proba_nll": nll(mixed, codes),
        "mean_proba_nll_after_temperature": nll(mixed / mixed_temperature, codes),
    }
    record |= measure_corrupted(once, task, temperature, mixed_temperature)
    record |= {
        "by_members": [
            float((logits[:m].mean(0).argmax(-1) == codes).mean())
            for m in range(1, len(logits) + 1)
        ],
        "passes": gradient_passes(clf),
        "epochs": len(clf.history_[0]),
        "epoch_seconds": sum(row["dur"] for row in clf.history_[0]),
        "engine": clf.engine_.name,
    }
    if hasattr(clf, "sam_masks_"):
        record["sam_share"] = float(clf.sam_masks_.mean())
        record["sam_shares"] = clf.sam_masks_.mean(axis=1).tolist()  # of the members
    record |= measure_reestimated(clf, task)
    return record | {"rank_correlation": correlation(clf, task)}


class Remembering:
    """A fitted ensemble whose members predict each set of a task only once."""

    def __init__(self, clf):
        self.clf, self.seen = clf, {}

    def __getattr__(self, name):
        return getattr(self.clf, name)

    def member_decision_function(self, X):
        """Logits (M, N, C); sets are told apart by where in memory they lie."""
        key = X.ctypes.data, X.shape, X.strides
        if key not in self.seen:  # X is kept, too: nothing else may come to lie there
            self.seen[key] = X, self.clf.member_decision_function(X)
        return self.seen[key][1]


def measure_corrupted(clf, task, temperature, mixed_temperature):
    """What ``evaluate`` lacks on corrupted sets: overall, and by severity.

    Temperatures are those of the clean test set, so that a lower likelihood here is
    not one that a temperature would give as well. The disagreement-error ratio is the
    mean disagreement of the sets over their mean error.
    """
    rows, hits = {}, []
    for (_, severity), (images, labels) in task.corrupted.items():
        codes = np.searchsorted(clf.classes_, labels)
        logits = clf.member_decision_function(images)  # (M, N, C)
        mixed = np.log(mean_proba(logits))
        hits.append(logits.mean(0).argmax(-1) == codes)
        row = {
            "corrupted_nll_after_temperature": nll(logits.mean(0) / temperature, codes),
            "mean_proba_corrupted_accuracy": (mixed.argmax(-1) == codes).mean(),
            "mean_proba_corrupted_nll": nll(mixed, codes),
            "mean_proba_corrupted_nll_after_temperature": nll(
                mixed / mixed_temperature, codes
            ),
            "corrupted_disagreement": metrics.disagreement(softmax(logits, axis=-1)),
            "member_corrupted_error": (logits.argmax(-1) != codes).mean(),
        }
        rows.setdefault("", []).append(row)
        rows.setdefault(f"severity_{severity}_", []).append(row)
    record = {}
    for prefix, sets in rows.items():
        means = {name: float(np.mean([row[name] for row in sets])) for name in sets[0]}
        error = means.pop("member_corrupted_error")
        means["corrupted_der"] = means["corrupted_disagreement"] / max(error, 1e-12)
        record |= {prefix + name: value for name, value in means.items()}
    # Bits of (corrupted set, image), for paired comparisons.
    record["corrupted_hits"] = b64encode(np.packbits(hits).tobytes()).decode()
    return record


def measure_reestimated(clf, task):
    """Accuracies with BatchNorm statistics that are computed again after training.

    A gain of a method that is lost there comes from the running statistics of its
    training.
    """
    nets = [net.module_.eval() for net in clf.estimators_]
    norms = torch.nn.modules.batchnorm._BatchNorm
    if not any(isinstance(layer, norms) for net in nets for layer in net.modules()):
        return {}
    transform = transform_of(clf, task.X)
    device = next(nets[0].parameters()).device
    order = np.random.default_rng(0).permutation(len(task.X))

    def batches():
        for rows in np.array_split(order, len(order) // 128 + 1):
            x = torch.from_numpy(clf.member_inputs(task.X[rows])).to(device)
            yield x if transform is None else transform(x)

    @torch.inference_mode()
    def accuracy(nets, images, labels):
        hits = 0
        for rows in np.array_split(np.arange(len(labels)), len(labels) // 1000 + 1):
            x = torch.from_numpy(clf.member_inputs(images[rows])).to(device)
            codes = sum(net(x) for net in nets).argmax(1).cpu().numpy()
            hits += (clf.classes_[codes] == labels[rows]).sum()
        return float(hits / len(labels))

    copies = [deepcopy(net) for net in nets]
    for net in copies:
        update_bn(batches(), net)
    corrupted = [accuracy(copies, *pair) for pair in task.corrupted.values()]
    return {
        "reestimated_accuracy": accuracy(copies, task.X_test, task.y_test),
        "reestimated_corrupted_accuracy": float(np.mean(corrupted)),
    }


def transform_of(clf, X):
    """Return the augmentation of a fit on colour images."""
    if clf.train_transform == "auto":
        warp = size_for(len(X)).warp
        return RandomCropFlip(padding=X.shape[1] // 8, mode="reflect", warp=warp)
    return resolve_transform(clf.train_transform)


def mean_proba(logits):
    """Mean probability of the members (N, C), bounded away from zero."""
    return np.maximum(softmax(logits.astype(np.float64), axis=-1).mean(0), 1e-30)


def nll(logits, codes):
    """Mean negative log-likelihood of logits (N, C)."""
    chosen = log_softmax(logits, axis=1)[np.arange(len(codes)), codes]
    return float(-chosen.mean())


def correlation(clf, task, n_samples=1000):
    """Figure 14: Spearman's of Fisher trace and input curvature, mean of members."""
    X = clf.member_inputs(task.X[:n_samples])
    codes = np.searchsorted(clf.classes_, task.y[:n_samples])
    found = []
    for net in clf.estimators_:
        traces = fisher_trace(net, X, codes)  # (N,)
        curvatures = input_curvature(net, X, codes, random_state=0)
        found.append(spearmanr(traces.cpu(), curvatures.cpu()).statistic)
    return float(np.mean(found))
