"""Mutate the content of files, sign them again, and open them with limits.

In a process of its own, because a mutation may end it.
"""

import copy
import json
import resource
import signal
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint, LRScheduler

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
    load,
)
from sklearn_sharpbalance.exceptions import SharpBalanceError
from sklearn_sharpbalance.persistence import archive
from tests.training.killing import small_data

MEMORY = 3 * 2**30  # bytes beyond those of the imports
SECONDS = 20  # per file
FEW = {"n_estimators": 2, "max_epochs": 2, "batch_size": 32, "device": "cpu"}
FEW |= {"random_state": 0, "estimator__module__hidden": (4,)}
FUSED = {"optimizer": torch.optim.AdamW, "estimator__optimizer__fused": True}


def read(path, change=str):
    """Return the JSON tree and the tensors of a file."""
    with archive._opened(path) as file:
        metadata = file.metadata()
    return metadata["format"], json.loads(change(metadata["tree"])), load_file(path)


def write(path, file_format, tree, tensors):
    """Write a file with the digest that belongs to it."""
    text = json.dumps(tree, separators=(",", ":"))
    digest = archive._digest(file_format, text, sorted(tensors.items()))
    metadata = {"format": file_format, "digest": digest, "tree": text}
    save_file({k: v.contiguous().clone() for k, v in tensors.items()}, path, metadata)
    return path


def frame(X):
    table = pd.DataFrame(X, columns=list("abcde"))
    return table.assign(city=np.where(X[:, 0] > 0, "x", "y"), n=(X[:, 1] > 0) * 3)


def callbacks(folder):
    return [
        ("writes", Checkpoint(monitor=None, dirname=str(folder / "own"))),
        ("rate", LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=1)),
    ]


TRUNK = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh())
PASSED = {"trunk": {"shared_trunk": TRUNK}}  # to ``load``


def models(folder):
    """Ensembles by name; the last two are read from their checkpoints."""
    kept = {"checkpoint_dir": folder / "fit"}
    hold_out = {"validation_fraction": 0.3, "aggregation": "temperature"}
    apart = [{"lr": 0.1}, {"module__hidden": (3,)}]
    Phased, Deep = SharpBalanceEnsembleClassifier, DeepEnsembleClassifier
    net = NeuralNetClassifier(
        torch.nn.Linear,
        criterion=torch.nn.CrossEntropyLoss,
        module__in_features=5,
        module__out_features=3,
    )
    few = {k: v for k, v in FEW.items() if k != "estimator__module__hidden"}
    return {
        "fused": Deep(**FEW, **FUSED),
        "validation": Phased(**FEW, **hold_out, sam="look_sam"),
        "frame": Deep(**FEW),
        "trunk": DiversifiedEnsembleClassifier(**FEW, shared_trunk=TRUNK),
        "apart": Phased(**FEW, member_params=apart),
        "images": Deep(**FEW),
        "net": Deep(net, **few),
        "skorch": Phased(**FEW, **FUSED, engine="skorch"),
        "checkpoint": Phased(**FEW, **FUSED, **kept),
        "callbacks": Deep(**FEW, **kept, callbacks=callbacks(folder)),
    }


MODELS = list(models(Path()))

VALUES = [None, True, -1, 0, 1, 3, 0.5, 10**6, 10**9, 2**53, 10**30, 1e300, "x"]
VALUES += ["\x1b[31m", "/tmp/x", [], {}, [[]], {"$float": "nan"}, {"$tuple": []}]
VALUES += [[0] * 3000, {"$dict": [[i * (2**61 - 1), 0] for i in range(3000)]}]
VALUES += [json.loads("[" * 100 + "]" * 100), {"a": 1}, {"$tuple": [1, "x"]}]
CLASSES = ("torch.nn.TransformerEncoder", "torch.nn.ParameterList", "torch.nn.Linear")
CLASSES += ("torch.nn.Transformer", "torch.optim.LBFGS", "torch.optim.AdamW")
CLASSES += ("sklearn_sharpbalance.networks.ResNet", "skorch.NeuralNetClassifier")
CLASSES += ("sklearn_sharpbalance.optim.LookSAM", "torch.nn.NLLLoss")
SETTINGS = {
    "module__num_layers": 10**8,
    "module__values": [1] * 3000,
    "module__blocks": [10**9],
    "module__hidden": [1] * 3000,
    "optimizer__fused": True,
    "optimizer__foreach": True,
    "optimizer__k": 0,
    "optimizer__momentum": 0.9,
    "optimizer__capturable": True,
    "criterion__weight": [1, 2],
    "compile": True,
    "max_epochs": 10**12,
    "batch_size": 0,
    "module__mean": 1,
    "module__clip": -1,
}


def places(tree, path=()):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def put(tree, path, value):
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value


def tensor_like(tensor, rng):
    """Return a tensor of another shape, type or content."""
    kind = rng.integers(7)
    if kind == 0:
        return torch.zeros(1, dtype=tensor.dtype)
    if kind == 1:
        return torch.zeros(0, dtype=tensor.dtype)
    if kind == 2:
        return tensor[None].repeat(3, *[1] * tensor.ndim)
    if kind == 3:
        return tensor.flatten()
    if kind == 4:
        return tensor.to([torch.int64, torch.float64, torch.bool][rng.integers(3)])
    if kind == 5:
        return torch.full_like(tensor, [0, 1, 2**15][rng.integers(3)])
    return tensor.mT if tensor.ndim > 1 else tensor.flatten()[:-1]


def mutated(file_format, tree, tensors, rng):
    """Change one or two places of a file."""
    tree, tensors = copy.deepcopy(tree), dict(tensors)
    for _ in range(rng.integers(1, 3)):
        kind = rng.integers(6)
        found = list(places(tree))
        path = found[rng.integers(len(found))]
        if kind <= 1:
            name = sorted(tensors)[rng.integers(len(tensors))]
            tensors[name] = tensor_like(tensors[name], rng)
        elif kind == 2:
            put(tree, path, VALUES[rng.integers(len(VALUES))])
        elif kind == 3:
            value = {"$class": CLASSES[rng.integers(len(CLASSES))]}
            classes = [p for p in found if p[-1] == "$class"] or [path]
            put(tree, classes[rng.integers(len(classes))][:-1] or path, value)
        elif kind == 4 and "net" in tree:
            name = sorted(SETTINGS)[rng.integers(len(SETTINGS))]
            tree["net"]["params"][name] = {"value": SETTINGS[name]}
        else:
            numbers = [p for p in found if isinstance(_at(tree, p), int | float)]
            path = numbers[rng.integers(len(numbers))]
            put(tree, path, VALUES[rng.integers(2, 12)])
    return file_format, tree, tensors


def _at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def use(path, clf, X, y, passed):
    """Load a model, predict and train; or continue the fit of a checkpoint."""
    if clf.get_params(deep=False).get("checkpoint_dir"):
        clf.fit(X, y)
        return
    loaded = load(path, **passed)
    loaded.predict(X)
    loaded.predict_proba(X)
    if hasattr(loaded, "partial_fit"):
        loaded.set_params(early_stopping=False).partial_fit(X, y)
        loaded.predict(X)


def _too_long(*_):
    raise TimeoutError("a file took too long")


def fitted(name, folder):
    """Return an ensemble, its data and the path of its file."""
    X, y = small_data()
    if name == "frame":
        X = frame(X)
    if name == "images":
        X = (99 + 20 * X.clip(-4, 4)).astype(np.uint8).reshape(-1, 5, 1, 1)
    clf = models(folder)[name].fit(X, y)
    path = folder / "model"
    if clf.get_params(deep=False).get("checkpoint_dir"):
        (path,) = (folder / "fit").iterdir()
    else:
        clf.save(path)
    return clf, X, y, path


def try_mutated(name, count, folder, log):
    """Open ``count`` mutated files; write the number of each to ``log`` before."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    clf, X, y, path = fitted(name, folder)
    content, rng = read(path), np.random.default_rng(len(name))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    signal.signal(signal.SIGALRM, _too_long)
    refused = 0
    for i in range(count):
        tree = mutated(*content, rng)
        log.write_text(f"{name}, file {i}")  # the last one, if the process ends
        if tree[1].get("finished") is True:
            tree[1]["finished"] = bool(rng.integers(2))
        write(path, *tree)
        signal.alarm(SECONDS)
        try:
            use(path, clf, X, y, PASSED.get(name, {}))
        except SharpBalanceError:
            refused += 1
        finally:
            signal.alarm(0)
        for other in path.parent.glob("epoch-*"):
            other.unlink()
    assert refused > 0.2 * count
    log.write_text("done")
