"""Images: which network and recipe give the most accurate ensemble for the seconds.

    python examples/benchmarks/bench_images.py --data DIR/cifar100_q85.npz \
        --plan networks recipe [--budget 560] [--out FILE]

Each configuration is a fit of an ensemble of this package, on a part of the training
images; other training images measure it (``--test`` uses the test set instead, for
configurations that have been chosen). There is one line of JSON for each fit, written
as it ends. Questions of the plans, in the order of their expected value:

``networks``
    Which network is the most accurate after equal seconds on 40,000 images: residual
    networks of three widths, or networks that pool before the norm (like airbench's),
    with a learnt or a whitening first layer, ReLU or GELU, Dirac initialisation, a
    scaled head?
``recipe``
    For the best one: learning rate, weight decay, batch size, label smoothing, shape of
    the schedule, padding, reflection, cutout, averaged weights?
``ensembles``
    Deep ensemble or SharpBalance with Momentum-SAM, and which radius; three members or
    five of fewer epochs?
``few``, ``some``
    The same for 2,000 and 10,000 images: width, batch size, epochs, label smoothing.
``final``
    The chosen defaults on the test set, clean and corrupted.
"""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from _image_candidates import CropFlip, PoolNet, whitening_filters
from skorch.callbacks import Callback

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
    SmallResNet,
)
from sklearn_sharpbalance.corruption import iter_corruptions
from sklearn_sharpbalance.members.weights import WeightAveraging
from sklearn_sharpbalance.metrics import nll_after_temperature
from sklearn_sharpbalance.networks import ResNet

N_VALIDATION = 10_000


def triangle(progress, peak=0.25):
    """Rise from a fifth to one, then fall to zero, both linearly."""
    if progress < peak:
        return 0.2 + 0.8 * progress / peak
    return (1 - progress) / (1 - peak)


def linear_decay(progress, rise=0.05):
    return (
        min(1.0, progress / rise + 0.02)
        if progress < rise
        else (1 - progress) / (1 - rise)
    )


def fast(epochs, batch=512, lr=0.4, decay=5e-4, smooth=0.1, **more):
    """Return the parameters of a short schedule."""
    params = {
        "max_epochs": epochs,
        "batch_size": batch,
        "lr": lr,
        "lr_schedule": "one_cycle",
        "train_transform": CropFlip(),
        "estimator__optimizer__nesterov": True,
        "estimator__optimizer__momentum": 0.9,
        "estimator__optimizer__weight_decay": decay,
        "estimator__criterion__label_smoothing": smooth,
    }
    return params | more


def pool(whiten=False, **net):
    """Return the parameters of a network that pools before the norm."""
    params = {"estimator": PoolNet, "whiten": whiten}
    if whiten:
        net["stem"] = "whiten"
    return params | {f"estimator__module__{k}": v for k, v in net.items()}


def small(width):
    return {"estimator": SmallResNet, "estimator__module__width": width}


ONE = {"kind": "deep", "n_estimators": 1}
DEEP = {"kind": "deep", "n_estimators": 3}


def balanced(rho=1.0, **more):
    return {
        "kind": "sharpbalance",
        "n_estimators": 3,
        "sam": "momentum_sam",
        "rho": rho,
        **more,
    }


def plans():
    """Return the configurations of each plan by name, in their order."""
    E = 16
    r = fast(E)
    whiten = pool(whiten=True)
    chosen = whiten
    return {
        "networks": {
            "pool 128-384-512": ONE | r | pool(),
            "pool whiten": ONE | r | whiten,
            "small 64": ONE | r | small(64),
            "pool whiten gelu": ONE | r | pool(whiten=True, activation="gelu"),
            "pool whiten, gelu stem": ONE
            | r
            | pool(whiten=True, stem_activation="gelu"),
            "pool whiten dirac": ONE | r | pool(whiten=True, dirac=True),
            "pool whiten, max head": ONE | r | pool(whiten=True, head="max"),
            "pool whiten, scaled head": ONE | r | pool(whiten=True, head_scale=0.2),
            "pool 64-256-256 two": ONE
            | fast(2 * E)
            | pool(whiten=True, widths=(64, 256, 256), n_convs=2),
            "pool 128-256-512": ONE | r | pool(whiten=True, widths=(128, 256, 512)),
            "pool 64-256-512": ONE
            | fast(E * 3 // 2)
            | pool(whiten=True, widths=(64, 256, 512)),
            "pool 128-384-768": ONE | r | pool(whiten=True, widths=(128, 384, 768)),
            "pool 96-192-384": ONE
            | fast(2 * E)
            | pool(whiten=True, widths=(96, 192, 384)),
        },
        "recipe": {
            "decay 1e-3": ONE | fast(E, decay=1e-3) | chosen,
            "decay 2e-3": ONE | fast(E, decay=2e-3) | chosen,
            "lr 0.2": ONE | fast(E, lr=0.2) | chosen,
            "lr 0.8": ONE | fast(E, lr=0.8) | chosen,
            "lr 0.2 decay 2e-3": ONE | fast(E, lr=0.2, decay=2e-3) | chosen,
            "batch 1024 lr 0.8": ONE | fast(E, batch=1024, lr=0.8) | chosen,
            "batch 256 lr 0.2": ONE | fast(E, batch=256, lr=0.2) | chosen,
            "smoothing 0.2": ONE | fast(E, smooth=0.2) | chosen,
            "smoothing 0": ONE | fast(E, smooth=0.0) | chosen,
            "triangle": ONE | fast(E, lr_schedule=triangle) | chosen,
            "linear decay": ONE | fast(E, lr_schedule=linear_decay) | chosen,
            "padding 2": ONE | fast(E, train_transform=CropFlip(2)) | chosen,
            "reflect": ONE
            | fast(E, train_transform=CropFlip(4, mode="reflect"))
            | chosen,
            "cutout 8": ONE | fast(E, train_transform=CropFlip(4, cutout=8)) | chosen,
            "averaged": ONE | fast(E, weight_averaging=late_average()) | chosen,
            "bn momentum 0.4": ONE | r | pool(whiten=True, momentum=0.4),
            "seed 1": ONE | r | chosen | {"random_state": 1},
        },
        "ensembles": {
            "deep, 3": DEEP | fast(30) | chosen,
            "sharpbalance, rho 1": balanced(1.0) | fast(30) | chosen,
            "sharpbalance, rho 2": balanced(2.0) | fast(30) | chosen,
            "deep, 5": DEEP | {"n_estimators": 5} | fast(18) | chosen,
            "today": {"kind": "sharpbalance"},
        },
        "few": few_plan(),
        "contest": contest(),
        "few contest": few_contest(),
        "some": some(),
    }


REFLECT = {"train_transform": CropFlip(4, mode="reflect")}
CUT = {"train_transform": CropFlip(4, mode="reflect", cutout=8)}


def contest(E=24):
    """Return combinations of what helped, for 40,000 images."""
    averaged = {"weight_averaging": late_average()}
    plain_res = {
        "estimator": ResNet,
        "estimator__module__blocks": (2, 2, 2),
        "estimator__module__width": 64,
    }
    return {
        "small 64 reflect": ONE | fast(E, decay=1e-3) | small(64) | REFLECT,
        "small 64 cutout": ONE | fast(E, decay=1e-3) | small(64) | CUT,
        "small 64 cutout lr 0.8": ONE | fast(E, lr=0.8, decay=1e-3) | small(64) | CUT,
        "small 64 cutout decay 2e-3": ONE | fast(E, decay=2e-3) | small(64) | CUT,
        "small 64 cutout decay 2e-3 averaged": ONE
        | fast(E, decay=2e-3)
        | small(64)
        | CUT
        | averaged,
        "small 64 cutout b256": ONE
        | fast(E, 256, lr=0.4, decay=1e-3)
        | small(64)
        | CUT,
        "small 96 cutout": ONE | fast(E * 2 // 3, decay=1e-3) | small(96) | CUT,
        "pool 128-384-768 cutout": ONE
        | fast(E, decay=1e-3)
        | pool(widths=(128, 384, 768), stem=32)
        | CUT,
        "pool 128-384-768 cutout dirac 2e-3": ONE
        | fast(E, decay=2e-3)
        | pool(widths=(128, 384, 768), stem=32, dirac=True)
        | CUT,
        "resnet 64-128-256 cutout": ONE
        | fast(E * 2 // 3, decay=1e-3)
        | plain_res
        | CUT,
        "small 64 cutout smoothing 0.05": ONE
        | fast(E, decay=1e-3, smooth=0.05)
        | small(64)
        | CUT,
    }


def few_contest():
    two = {"n_convs": 2}
    nets = {
        "small 16": small(16),
        "pool 16,32-64-128": pool(widths=(32, 64, 128), stem=16),
        "two 16,32-96-128": pool(widths=(32, 96, 128), stem=16, **two),
        "two 16,32-64-128": pool(widths=(32, 64, 128), stem=16, **two),
        "two 24,48-96-192": pool(widths=(48, 96, 192), stem=24, **two),
        "two 16,32-64-128 residual": pool(
            widths=(32, 64, 128), stem=16, residual=True, **two
        ),
        "two 16,32-64-128 dirac": pool(
            widths=(32, 64, 128), stem=16, dirac=True, **two
        ),
    }
    out = {}
    for name, net in nets.items():
        out[f"{name}, 30 x b64, 2e-3"] = (
            DEEP | fast(30, 64, 0.14, decay=2e-3) | net | REFLECT
        )
    for name in ("small 16", "two 16,32-96-128"):
        net = nets[name]
        out |= {
            f"{name}, 30 x b32, 2e-3": DEEP
            | fast(30, 32, 0.1, decay=2e-3)
            | net
            | REFLECT,
            f"{name}, 24 x b32, 2e-3": DEEP
            | fast(24, 32, 0.1, decay=2e-3)
            | net
            | REFLECT,
            f"{name}, 40 x b64, 2e-3": DEEP
            | fast(40, 64, 0.14, decay=2e-3)
            | net
            | REFLECT,
            f"{name}, 30 x b64, 4e-3": DEEP
            | fast(30, 64, 0.14, decay=4e-3)
            | net
            | REFLECT,
            f"{name}, 30 x b64, 2e-3, smooth 0.05": DEEP
            | fast(30, 64, 0.14, decay=2e-3, smooth=0.05)
            | net
            | REFLECT,
            f"{name}, 30 x b64, 2e-3, rho 1": balanced(1.0)
            | fast(30, 64, 0.14, decay=2e-3)
            | net
            | REFLECT,
            f"{name}, 30 x b32, 2e-3, rho 1": balanced(1.0)
            | fast(30, 32, 0.1, decay=2e-3)
            | net
            | REFLECT,
        }
    return out


def some():
    out = {}
    for width, batch, lr, decay, epochs in (
        (32, 128, 0.2, 1e-3, 30),
        (32, 128, 0.2, 2e-3, 30),
        (64, 128, 0.2, 2e-3, 30),
        (32, 128, 0.2, 2e-3, 60),
        (32, 256, 0.3, 2e-3, 30),
    ):
        out[f"10k: small {width}, {epochs} x b{batch}, {decay}"] = (
            DEEP | fast(epochs, batch, lr, decay=decay) | small(width) | REFLECT
        )
    return out


def late_average():
    return WeightAveraging("exponential", start=0.6, decay=0.6)


def few_plan():
    """Return configurations for 2,000 images of CIFAR-10."""
    b = fast(30, batch=64, lr=0.1)
    out = {
        "small 16, b64, 30": DEEP | b | small(16),
        "pool 32-64-128": DEEP | b | pool(widths=(32, 64, 128), stem=16),
        "pool 32-96-128 whiten": DEEP | b | pool(True, widths=(32, 96, 128)),
        "pool 32-96-128 whiten, b32": DEEP
        | fast(30, 32, 0.1)
        | pool(True, widths=(32, 96, 128)),
        "pool 32-96-128 whiten, 60": DEEP
        | fast(60, 64, 0.1)
        | pool(True, widths=(32, 96, 128)),
        "pool 32-96-128 two, 45": DEEP
        | fast(45, 64, 0.1)
        | pool(True, widths=(32, 96, 128), n_convs=2),
        "pool 64-128-256 whiten, 30": DEEP | b | pool(True, widths=(64, 128, 256)),
        "pool 32-96-128 whiten, decay 2e-3": DEEP
        | fast(30, 64, 0.1, decay=2e-3)
        | pool(True, widths=(32, 96, 128)),
        "pool 32-96-128 whiten, lr 0.2": DEEP
        | fast(30, 64, 0.2)
        | pool(True, widths=(32, 96, 128)),
        "pool 32-96-128 whiten, lr 0.05": DEEP
        | fast(30, 64, 0.05)
        | pool(True, widths=(32, 96, 128)),
        "pool 32-96-128 whiten, smooth 0.2": DEEP
        | fast(30, 64, 0.1, smooth=0.2)
        | pool(True, widths=(32, 96, 128)),
        "pool 32-96-128 whiten, smooth 0": DEEP
        | fast(30, 64, 0.1, smooth=0.0)
        | pool(True, widths=(32, 96, 128)),
        "pool 32-96-128 whiten, sharpbalance 0.3": balanced(0.3)
        | b
        | pool(True, widths=(32, 96, 128)),
        "pool 32-96-128 whiten, sharpbalance 1": balanced(1.0)
        | b
        | pool(True, widths=(32, 96, 128)),
        "pool 32-96-128 whiten, max head": DEEP
        | b
        | pool(True, widths=(32, 96, 128), head="max"),
        "pool 32-96-128 whiten, cutout": DEEP
        | b
        | pool(True, widths=(32, 96, 128))
        | {"train_transform": CropFlip(4, cutout=8)},
        "pool 32-96-128 whiten, reflect": DEEP
        | b
        | pool(True, widths=(32, 96, 128))
        | {"train_transform": CropFlip(4, mode="reflect")},
        "pool 32-96-128 whiten, bn 0.4": DEEP
        | b
        | pool(True, widths=(32, 96, 128), momentum=0.4),
        "pool 32-96-128 whiten, gelu": DEEP
        | b
        | pool(True, widths=(32, 96, 128), activation="gelu"),
        "small 16, b64, 60": DEEP | fast(60, 64, 0.1) | small(16),
    }
    return out


class Timeline(Callback):
    """Notes when epochs begin and end; all members share it."""

    def __init__(self, n_members):
        self.marks, self.n_members = [], n_members

    def __deepcopy__(self, memo):
        return self

    def __sklearn_clone__(self):
        return self

    def on_epoch_begin(self, net, **kwargs):
        self.marks.append(("begin", time.perf_counter()))

    def on_epoch_end(self, net, **kwargs):
        self.marks.append(("end", time.perf_counter()))


def parts_of(timeline, start, stop):
    """Return the seconds of the parts of a fit, from the marks of one member."""
    begins = [t for kind, t in timeline.marks if kind == "begin"]
    ends = [t for kind, t in timeline.marks if kind == "end"]
    # Members begin and end an epoch one after the other: take the outermost marks.
    n = len(begins) // max(1, timeline.n_members)
    firsts = begins[:: timeline.n_members]
    lasts = ends[timeline.n_members - 1 :: timeline.n_members]
    epochs = np.subtract(lasts, firsts)
    typical = float(np.median(epochs))
    gaps = np.subtract(firsts[1:], lasts[:-1])
    return {
        "setup": firsts[0] - start,
        "capture": float(np.maximum(epochs - 1.5 * typical, 0).sum()),
        "epoch": typical,
        "epochs": float(epochs.sum()),
        "between": float(gaps.sum()),
        "end": stop - lasts[-1],
        "n": n,
    }


def build(config, X):
    """Return an estimator for a configuration."""
    config = dict(config)
    kind = config.pop("kind")
    if config.pop("whiten", False):
        config["estimator__module__whitening"] = whitening_filters(X)
    kinds = {
        "deep": DeepEnsembleClassifier,
        "sharpbalance": SharpBalanceEnsembleClassifier,
    }
    return kinds[kind](**{"random_state": 0, **config})


def measure(name, config, train, valid, others=None):
    """Fit a configuration; return its record."""
    X, y = train
    clf = build(config, X)
    timeline = Timeline(clf.n_estimators)
    clf.set_params(callbacks=[("timeline", timeline)])
    start = time.perf_counter()
    clf.fit(X, y)
    stop = time.perf_counter()
    record = {"name": name, "n": len(X), "seconds": stop - start}
    record |= {"parts": parts_of(timeline, start, stop), "engine": clf.engine_.name}
    record |= {"settings": {k: str(v) for k, v in clf.settings_.items()}}
    record["weights"] = sum(p.numel() for p in clf.estimators_[0].module_.parameters())
    record |= scores(clf, *valid)
    for label, (Xo, yo) in (others or {}).items():
        record[label] = scores(clf, Xo, yo)
    return record


def scores(clf, X, y):
    """Return accuracy, likelihood and the accuracy of members, also with mirror images."""
    plain = torch.from_numpy(clf.member_decision_function(X))  # (M, N, C)
    mirror = torch.from_numpy(
        clf.member_decision_function(np.ascontiguousarray(X[:, :, ::-1]))
    )
    codes = np.searchsorted(clf.classes_, y)
    out = {}
    for label, logits in (("", plain), ("mirror_", (plain + mirror) / 2)):
        mean = logits.mean(0).double()
        nll = float(torch.nn.functional.cross_entropy(mean, torch.from_numpy(codes)))
        tempered = (
            float(nll_after_temperature(codes, mean.numpy(), kind="logits"))
            if not label
            else None
        )
        out |= {
            f"{label}accuracy": float((mean.argmax(-1).numpy() == codes).mean()),
            f"{label}nll": nll,
            f"{label}tempered": tempered,
            f"{label}members": [
                float((m.argmax(-1).numpy() == codes).mean()) for m in logits
            ],
        }
    return out


def read(path):
    """Return training and test images and labels of a packed file."""
    sys.path.insert(0, str(Path(path).parent))
    from load_cifar import load_cifar

    return load_cifar(Path(path).name, folder=Path(path).parent)[:4]


def corrupted(X, y, n=2000):
    """Return images of all kinds and severities, and their labels."""
    parts = [images for _, _, images in iter_corruptions(X[:n], n_jobs=-1)]
    return np.concatenate(parts), np.tile(y[:n], len(parts))


def finals(path, epochs):
    """Return ensembles with the recipe of the best record of the contest."""
    lines = Path(path).read_text().splitlines()
    records = [json.loads(each) for each in lines]
    records = [r for r in records if r["plan"] == "contest" and "tempered" in r]
    best = sorted(records, key=lambda r: r["tempered"] - 2 * r["accuracy"])[:2]
    first, second = (contest()[r["name"]] for r in (best * 2)[:2])
    per = {"max_epochs": epochs}
    return {
        f"final sharpbalance: {best[0]['name']}": first | balanced(1.0) | per,
        f"final deep: {best[0]['name']}": first | DEEP | per,
        f"final second, sharpbalance: {best[-1]['name']}": second | balanced(1.0) | per,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--plan", nargs="+", default=[])
    parser.add_argument("--only", nargs="+", help="parts of names")
    parser.add_argument("--n", type=int, help="training images")
    parser.add_argument("--final", type=int, help="epochs, on the test set")
    parser.add_argument("--no-corruption", action="store_true")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds")
    parser.add_argument("--out", default="images.jsonl")
    parser.add_argument("--set", nargs="*", default=[], help="name=value for every fit")
    args = parser.parse_args()
    began = time.perf_counter()
    warnings.simplefilter("ignore")
    X, y, X_test, y_test = read(args.data)
    print(
        f"data {time.perf_counter() - began:.1f} s {X.shape} {X_test.shape}", flush=True
    )
    held_out = min(N_VALIDATION, len(X) // 4)
    n = args.n or len(X) - held_out
    train, valid, others = (X[:n], y[:n]), (X[-held_out:], y[-held_out:]), None
    configs = {(p, k): v for p in args.plan for k, v in plans()[p].items()}
    run_all(configs, train, valid, None, args, began)
    if args.final:
        if not args.no_corruption:
            others = {"corrupted": corrupted(X_test, y_test)}
            print(f"corrupted {time.perf_counter() - began:.1f} s", flush=True)
        configs = {("final", k): v for k, v in finals(args.out, args.final).items()}
        run_all(configs, (X, y), (X_test, y_test), others, args, began)


def run_all(configs, train, valid, others, args, began):
    """Run configurations until the budget is spent; write each record as it ends."""
    extra = {k: json.loads(v) for k, v in (each.split("=", 1) for each in args.set)}
    longest = {}
    for (plan, name), config in configs.items():
        if args.only and not any(part in name for part in args.only):
            continue
        if time.perf_counter() - began + longest.get(plan, 0) > args.budget:
            print("no time left for", name, flush=True)
            continue
        started = time.perf_counter()
        record = {"plan": plan, "data": Path(args.data).stem}
        try:
            record |= measure(name, config | extra, train, valid, others)
        except Exception as error:
            record |= {"name": name, "error": repr(error)[:300]}
        longest[plan] = max(longest.get(plan, 0), time.perf_counter() - started)
        with open(args.out, "a") as file:
            file.write(json.dumps(record) + "\n")
        print(line(record), flush=True)


def line(record):
    """Return a record as one line."""
    if "error" in record:
        return f"{record['name']:34} {record['error']}"
    parts = record["parts"]
    best = record.get("corrupted", {})
    return (
        f"{record['name']:34} {100 * record['accuracy']:6.2f} "
        f"({100 * np.mean(record['members']):.2f}; mirror {100 * record['mirror_accuracy']:.2f}) "
        f"nll {record['nll']:.3f} {record['tempered']:.3f} "
        + (f"corrupted {100 * best['accuracy']:.2f} " if best else "")
        + f"{record['seconds']:6.1f} s: setup {parts['setup']:.1f} capture "
        f"{parts['capture']:.1f} {parts['n']} x {parts['epoch']:.2f} between "
        f"{parts['between']:.1f} end {parts['end']:.1f} {record['engine']}"
    )


if __name__ == "__main__":
    main()
