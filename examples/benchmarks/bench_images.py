"""Images: the default network and recipe against their alternatives.

    python examples/benchmarks/bench_images.py DIR/cifar100.npz --plan many final
    python examples/benchmarks/bench_images.py --report

Every row is the fit of an ensemble, whole time, on part of the training images. Other
training images measure it. The rows of the last plans were chosen before: they are
measured on the test set, those of ``final`` on corrupted images, too. Each row is added to
``results/images.jsonl`` as it ends. The report is ``results/images.md`` and
``results/images.png``. Rows of ``many``, ``some``, ``few`` and ``fewer`` have no record:
what they showed is told here. Questions of the plans:

``many``
    40,000 images: which network, rate, decay, batch size, smoothing, cutout? Width 64 is
    within a point of width 96 and of nets that pool, which take longer. A batch of 256
    gains nothing; decay 2e-3 or rate 0.8 lose a point.
``longer``
    The same images for the 30 epochs of the default, one net: shape, norms, crops,
    schedule? No row gains a point over both seeds of the default. The records have
    crops and flips without warps.
``warp``, ``warp_some``, ``warp_few``
    40,000, 10,000 and 2,000 images, also corrupted: random crops and flips alone, or
    also warps of half of the images? How strong? Of 40,000, 40 epochs gain half a point.
    Cutmix, mixup and GELU gain no accuracy. Changes of colour gain on corrupted images,
    which change colours too.
``radius``
    25,000 images, also corrupted: which radius, from when on, which and how many
    samples, by which score, beside a deep ensemble of more epochs?
``seeds_few``
    2,000 images, some of them corrupted: the default and a deep ensemble of more epochs
    for the same seconds on two cores, five ensembles each.
``some``, ``few``
    The same for 10,000 and 2,000 images. Momentum-SAM with which radius? Of 10,000,
    width 64 gains nothing over 32, and decay 2e-3 loses half a point. Of 2,000, decay 2e-3
    gains two points over 1e-3, and radius 1 costs six.
``fewer``
    1,000 images: how many epochs? 36 instead of 60 lose two points. Of 1,000 letters and
    1,200 digits, which are grey, 30 epochs are as accurate as 60 and 50.
``final``
    The default, a deep ensemble of the same recipe, five members of fewer epochs, one
    net like airbench's, and the default of earlier tables. The row before them is
    the first fit of a process, which also loads and compiles kernels; on a GPU such
    a fit comes before the other plans, too, without a record.
``final_some``, ``final_few``, ``digits``, ``letters``, ``doubled``
    The same without corruptions: for 10,000 and 2,000 images, for digits as images of
    8 x 8 and letters of 28 x 28 ("digits" and "letters" in place of a file), and for
    10,000 images that are enlarged to 64 x 64.
"""

import argparse
import io
import json
import time
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from _image_candidates import (
    CropFlip,
    NormFirst,
    OtherNorms,
    PoolNet,
    Shaped,
    early_peak,
    triangular,
)
from _letters import letters
from _machine import RESULTS, machine

from sklearn_sharpbalance import DeepEnsembleClassifier, SharpBalanceEnsembleClassifier
from sklearn_sharpbalance.corruption import iter_corruptions
from sklearn_sharpbalance.data.augment import RandomCropFlip
from sklearn_sharpbalance.metrics import nll_after_temperature
from sklearn_sharpbalance.training.image_recipe import RATE, SIZES

warnings.simplefilter("ignore")
N_VALIDATION = 10_000
N_CORRUPTED, N_CORRUPTED_ON_CPU = 2000, 200
RECORDS = RESULTS / "images.jsonl"


def deep(**params):
    return DeepEnsembleClassifier(random_state=0, **params)


def balanced(**params):
    return SharpBalanceEnsembleClassifier(random_state=0, **params)


def decay(value):
    return {"estimator__optimizer__weight_decay": value}


def smoothing(value):
    return {"estimator__criterion__label_smoothing": value}


def width(value):
    return {"estimator__module__width": value}


def crops(**options):
    return RandomCropFlip(mode="reflect", **options)


def warps():
    return {
        "crops and flips": balanced(train_transform=crops()),
        "warp 0.1": balanced(train_transform=crops(warp=0.1)),
        "warp 0.2": balanced(train_transform=crops(warp=0.2)),
    }


def own(network, epochs, size=SIZES[-1], **net):
    """Return the recipe of the default for another network."""
    params = {f"estimator__module__{name}": value for name, value in net.items()}
    params |= {"lr": RATE * (size.batch_size / 512) ** 0.5, "max_epochs": epochs}
    params |= {"batch_size": size.batch_size} | decay(size.weight_decay)
    params |= {"lr_schedule": "one_cycle", "train_transform": CropFlip(mode="reflect")}
    params |= {"estimator__optimizer__nesterov": True, **smoothing(0.05)}
    return {"estimator": network} | params


EARLIER = {  # the default of the tables that were made with 90 epochs
    "lr": 0.1,
    "lr_schedule": "cosine",
    "max_epochs": 90,
    "batch_size": 128,
    "train_transform": "crop_flip",
    "estimator__optimizer__nesterov": False,
    **width(16),
    **decay(5e-4),
    **smoothing(0.0),
}
ONE = {"n_estimators": 1}
SMALL_CROPS = ONE | {"train_transform": CropFlip(2, mode="reflect")}
NORMS = "*.bias", "*bn?.weight", "*module.1.weight", "*module.?.2.weight"
NO_DECAY = ONE | {
    "estimator__optimizer__param_groups": [(w, {"weight_decay": 0.0}) for w in NORMS]
}
FIRST_FIT = "two epochs, kernels compiled"
# On test images:
TESTED = "final", "final_some", "final_few", "digits", "letters", "doubled"
# Also measured on corrupted images:
CORRUPTED = "final", "radius", "warp", "warp_some", "warp_few", "seeds_few"


def default_and_others():
    """Return the default, and what may be better for the same seconds."""
    return {
        "default": balanced(),
        "deep ensemble": deep(),
        "five members, 18 epochs": balanced(n_estimators=5, max_epochs=18),
        "earlier default": balanced(rho=0.3, **EARLIER),
    }


PLANS = {
    "many": (
        40_000,
        {
            "default": deep(max_epochs=16, **ONE),
            "pooling after the norm": deep(**ONE, **own(NormFirst, 16, width=64)),
            "width 32, 32 epochs": deep(max_epochs=32, **ONE, **width(32)),
            "width 96, 9 epochs": deep(max_epochs=9, **ONE, **width(96)),
            "pooling 128-384-512": deep(
                **ONE, **own(PoolNet, 16, widths=(128, 384, 512))
            ),
            "pooling 64-256-512": deep(
                **ONE, **own(PoolNet, 24, widths=(64, 256, 512))
            ),
            "rate 0.2": deep(max_epochs=16, lr=0.2, **ONE),
            "rate 0.8": deep(max_epochs=16, lr=0.8, **ONE),
            "decay 5e-4": deep(max_epochs=16, **ONE, **decay(5e-4)),
            "decay 2e-3": deep(max_epochs=16, **ONE, **decay(2e-3)),
            "batch 256": deep(max_epochs=16, batch_size=256, **ONE),
            "batch 1024": deep(max_epochs=16, batch_size=1024, **ONE),
            "smoothing 0": deep(max_epochs=16, **ONE, **smoothing(0.0)),
            "smoothing 0.1": deep(max_epochs=16, **ONE, **smoothing(0.1)),
            "zeros around the crop": deep(
                max_epochs=16, train_transform=CropFlip(), **ONE
            ),
            "cutout": deep(
                max_epochs=16, train_transform=CropFlip(mode="reflect", cutout=8), **ONE
            ),
            "seed 1": deep(max_epochs=16, **ONE).set_params(random_state=1),
        },
    ),
    "longer": (
        40_000,
        {
            "default": deep(**ONE),
            "default, seed 1": deep(**ONE).set_params(random_state=1),
            "padding 2": deep(**SMALL_CROPS),
            "padding 2, seed 1": deep(**SMALL_CROPS).set_params(random_state=1),
            "no decay of norms": deep(**NO_DECAY),
            "no decay of norms, seed 1": deep(**NO_DECAY).set_params(random_state=1),
            "triangular": deep(lr_schedule=triangular, **ONE),
            "peak at 0.15": deep(lr_schedule=early_peak, **ONE),
            "smoothing 0.1": deep(**ONE, **smoothing(0.1)),
            "rate 0.6": deep(lr=0.6, **ONE),
            "zero gamma": deep(**ONE, **own(OtherNorms, 30, zero_gamma=True)),
            "norm momentum 0.3": deep(**ONE, **own(OtherNorms, 30, momentum=0.3)),
            "64-192-384-512, 22 epochs": deep(
                **ONE, **own(Shaped, 22, widths=(64, 192, 384, 512))
            ),
            "64-128-256-768, 25 epochs": deep(
                **ONE, **own(Shaped, 25, widths=(64, 128, 256, 768))
            ),
            "two blocks in the last stage, 26 epochs": deep(
                **ONE, **own(Shaped, 26, blocks=(1, 1, 2))
            ),
        },
    ),
    "warp": (
        40_000,
        {
            "crops and flips": deep(train_transform=crops()),
            "warp 0.1": deep(train_transform=crops(warp=0.1)),
            "warp 0.2": deep(train_transform=crops(warp=0.2)),
            "40 epochs": deep(max_epochs=40),
        },
    ),
    "warp_some": (10_000, warps()),
    "warp_few": (2000, warps()),
    "radius": (
        25_000,
        {
            "default": balanced(),
            "deep ensemble, 35 epochs": deep(max_epochs=35),
            "deep ensemble, batch 256": deep(batch_size=256),
            "rho 0": balanced(rho=0.0),  # batches of one kind without SAM
            "rho 0.25": balanced(rho=0.25),
            "rho 0.5": balanced(rho=0.5),
            "rho 2": balanced(rho=2.0),
            "flat_ratio 0.2": balanced(flat_ratio=0.2),
            "flat_ratio 0.6": balanced(flat_ratio=0.6),
            "24 epochs of warm-up": balanced(warmup_epochs=0.8),
            "flattest_union": balanced(selection="flattest_union"),
            "scores by loss": balanced(sharpness="loss"),
            "random samples": balanced(selection="random"),
            "all samples": balanced(selection="all", sam="momentum_sam"),
        },
    ),
    "seeds_few": (
        2000,
        {
            f"{name}, seed {seed}": clf.set_params(random_state=seed)
            for seed in range(5)
            for name, clf in (
                ("default", balanced()),
                ("deep ensemble, 33 epochs", deep(max_epochs=33)),
            )
        },
    ),
    "some": (
        10_000,
        {
            "default": balanced(),
            "deep ensemble": deep(),
            "width 16": balanced(**width(16)),
            "width 64": balanced(**width(64)),
            "decay 2e-3": balanced(**decay(2e-3)),
            "batch 64": balanced(batch_size=64),
            "60 epochs": balanced(max_epochs=60),
            "rho 0.3": balanced(rho=0.3),
            "rho 1": balanced(rho=1.0),
        },
    ),
    "few": (
        2000,
        {
            "default": balanced(),
            "deep ensemble": deep(),
            "pooling after the norm": deep(**own(NormFirst, 30, SIZES[0], width=16)),
            "width 32": balanced(**width(32)),
            "decay 1e-3": balanced(**decay(1e-3)),
            "decay 4e-3": balanced(**decay(4e-3)),
            "batch 32": balanced(batch_size=32),
            "40 epochs": balanced(max_epochs=40),
            "smoothing 0.1": balanced(**smoothing(0.1)),
            "rho 0.1": balanced(rho=0.1),
            "rho 1": balanced(rho=1.0),
        },
    ),
    "fewer": (1000, {"default": balanced(), "36 epochs": balanced(max_epochs=36)}),
    "final": (
        50_000,
        {
            FIRST_FIT: balanced(max_epochs=2),
            **default_and_others(),
            "default, crops and flips": balanced(train_transform=crops()),
            "deep ensemble, crops and flips": deep(train_transform=crops()),
            "one net that pools, 60 epochs": deep(
                **ONE, **own(PoolNet, 60, widths=(128, 384, 512))
            ),
        },
    ),
    "final_some": (10_000, default_and_others()),
    "final_few": (2000, default_and_others()),
    "digits": (1200, default_and_others()),
    "letters": (10_000, default_and_others()),
    "doubled": (10_000, default_and_others()),
}


def scores(clf, X, y, *, mirror=False):
    """Return accuracy and likelihood; with mirror images, also of both views."""
    codes = np.searchsorted(clf.classes_, y)
    members = clf.member_decision_function(X)  # (M, N, C)
    logits = members.mean(0).astype(np.float64)
    nll = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits), torch.from_numpy(codes)
    )
    found = {
        "accuracy": float((logits.argmax(1) == codes).mean()),
        "member_accuracy": float((members.argmax(2) == codes).mean()),
        "nll": float(nll),
        "tempered_nll": float(
            nll_after_temperature(codes, logits, cv=None, kind="logits")
        ),
    }
    if mirror:
        flipped = np.ascontiguousarray(X[:, :, ::-1])
        both = logits + clf.member_decision_function(flipped).mean(0)
        found["mirror_accuracy"] = float((both.argmax(1) == codes).mean())
    return found


def training_share(clf, seconds):
    """Return the share of the seconds that epochs take, without captures of graphs.

    All members train side by side in the graph engine; elsewhere it is no share.
    """
    per_phase = pd.DataFrame(list(clf.history_[0])).groupby("phase")["dur"]
    return float((per_phase.median() * per_phase.size()).sum() / seconds)


class Printed(io.StringIO):
    """What a fit prints, and when it begins to."""

    first = None

    def write(self, text):
        self.first = self.first or time.perf_counter()
        return super().write(text)


def corrupted(X, y, n):
    """Return images of all kinds and severities, and their labels."""
    parts = [images for _, _, images in iter_corruptions(X[:n], n_jobs=-1)]
    return np.concatenate(parts), np.tile(y[:n], len(parts))


def read(path):
    """Return training and test images and labels of a file, of digits or letters."""
    if path == "letters":
        return letters()
    if path == "digits":
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        data = load_digits()
        images = (15 * data.images).astype(np.uint8)  # from 0..16
        X, X_test, y, y_test = train_test_split(
            images, data.target, train_size=1200, stratify=data.target, random_state=0
        )
        return X, y, X_test, y_test
    with np.load(path) as arrays:
        if "jpeg" not in arrays:
            return [
                arrays[f"{name}_{part}"] for part in ("train", "test") for name in "xy"
            ]
    import sys

    sys.path.insert(0, str(Path(__file__).parent.parent / "experiments"))
    from _packed_jpeg import read_packed

    return [*read_packed(path, "train"), *read_packed(path, "test")]


def run(path, plans, only, budget):
    """Fit the rows of some plans, and write each as it ends."""
    began = time.perf_counter()
    X, y, X_test, y_test = read(path)
    print(f"data after {time.perf_counter() - began:.0f} s", flush=True)
    for plan in plans:
        n, rows = PLANS[plan]
        images, test_images, labels = X[:n], X_test, y_test
        if plan not in TESTED:
            test_images, labels = X[-N_VALIDATION:], y[-N_VALIDATION:]
        if plan in CORRUPTED:
            few = plan == "seeds_few"
            n_hard = N_CORRUPTED_ON_CPU if few else N_CORRUPTED
            hard = corrupted(test_images, labels, n_hard)
        if plan == "doubled":
            images, test_images = (
                part.repeat(2, axis=1).repeat(2, axis=2)
                for part in (images, test_images)
            )
        if torch.cuda.is_available() and FIRST_FIT not in rows:
            balanced(max_epochs=2).fit(images, y[:n])
        for name, clf in rows.items():
            if only and name not in only:
                continue
            if time.perf_counter() - began > budget:
                print(f"no time for {plan}: {name}", flush=True)
                continue
            start, cpu_start = time.perf_counter(), time.process_time()
            with redirect_stdout(Printed()) as printed:
                clf.set_params(verbose=1).fit(images, y[:n])
            seconds = time.perf_counter() - start
            record = {"plan": plan, "row": name, "data": Path(path).stem}
            record |= {"images": n, "seconds": seconds, "engine": clf.engine_.name}
            record["first_line"] = printed.first - start
            if clf.engine_.name == "graph":
                record |= {"training_share": training_share(clf, seconds)}
            record |= {"cpu_seconds": time.process_time() - cpu_start}
            record |= {"settings": clf.settings_, "machine": machine()}
            if plan in CORRUPTED:
                record["corrupted"] = scores(clf, hard[0], hard[1])
            record |= scores(clf, test_images, labels, mirror=plan in TESTED)
            RECORDS.parent.mkdir(exist_ok=True)
            with RECORDS.open("a") as file:
                file.write(json.dumps(record, default=str) + "\n")
            print(plan, name, f"{seconds:.1f} s", record["accuracy"], flush=True)


def report():
    """Write the table and the figure of all records; the last of a row counts."""
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    rows = {(r["plan"], r["data"], r["row"]): r for r in records}
    lines = ["# Images", "", "Written by `bench_images.py --report`.", ""]
    lines += _defaults(rows)
    for plan, data in sorted({(plan, data) for plan, data, _ in rows}):
        of_plan = [r for key, r in rows.items() if key[:2] == (plan, data)]
        lines += ["", *_table(plan, data, of_plan)]
    (RESULTS / "images.md").write_text("\n".join(lines) + "\n")
    final = [r for r in rows.values() if r["plan"] == "final"]
    _draw([r for r in final if r["row"] != FIRST_FIT])


def _defaults(rows):
    """Yield the table of default fits beside deep ensembles, on test images."""
    yield "## Default fits"
    yield ""
    columns = "data", "images", "machine", "ensemble", "clean, %", "corrupted, %"
    columns += "NLL", "seconds", "to the first line"
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for (plan, data, name), r in sorted(rows.items(), key=lambda item: item[0][:2]):
        if plan in TESTED and name in ("default", "deep ensemble"):
            hard = f"{100 * r['corrupted']['accuracy']:.2f}" if "corrupted" in r else ""
            size = f"{r['images']:,}" + ", enlarged" * (plan == "doubled")
            cells = [data, size, _device(r), name, f"{100 * r['accuracy']:.2f}", hard]
            cells += [f"{r['nll']:.3f}", f"{r['seconds']:.0f}"]
            cells += [f"{r['first_line']:.2f}" if "first_line" in r else ""]
            yield f"| {' | '.join(cells)} |"
    yield ""
    yield "The default of `final_some` also compiled kernels, as the first fit with them."


def _device(record):
    return record["machine"]["gpu"] or f"{record['machine']['cores']} cores"


def _table(plan, data, records):
    where = records[0]["machine"]
    yield f"## `{plan}`: {data}, {records[0]['images']:,} images, {_device(records[0])}"
    yield ""
    columns = {
        "accuracy, %": lambda r: f"{100 * r['accuracy']:.2f}",
        "member, %": lambda r: f"{100 * r['member_accuracy']:.2f}",
        "corrupted, %": lambda r: f"{100 * r['corrupted']['accuracy']:.2f}",
        "mirror, %": lambda r: f"{100 * r['mirror_accuracy']:.2f}",
        "NLL": lambda r: f"{r['nll']:.3f}",
        "tempered": lambda r: f"{r['tempered_nll']:.3f}",
        # None where other fits used the GPU.
        "seconds": lambda r: "–" if r["seconds"] is None else f"{r['seconds']:.0f}",
        "training, %": lambda r: f"{100 * r['training_share']:.0f}",
        "CPU seconds": lambda r: f"{r['cpu_seconds']:.0f}",
    }
    hidden = {"CPU seconds"} if where["gpu"] else {"training, %"}
    hidden |= set() if plan in CORRUPTED else {"corrupted, %", "training, %"}
    hidden |= set() if plan in TESTED else {"mirror, %"}
    shown = {name: cell for name, cell in columns.items() if name not in hidden}
    yield f"| row | {' | '.join(shown)} |"
    yield "|---|" + "---|" * len(shown)
    for r in records:
        yield f"| {r['row']} | {' | '.join(cell(r) for cell in shown.values())} |"


def _draw(records):
    """Draw accuracy on clean and corrupted images against seconds."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    names = sorted({r["data"] for r in records})
    if not names:
        return
    figure = Figure(figsize=(4.5 * len(names), 6), layout="constrained")
    axes = figure.subplots(2, len(names), sharex="col", squeeze=False)
    rows = list(dict.fromkeys(r["row"] for r in records))
    colors = {row: f"C{i}" for i, row in enumerate(rows)}
    for column, name in zip(axes.T, names):
        for r in (r for r in records if r["data"] == name):
            values = 100 * r["accuracy"], 100 * r["corrupted"]["accuracy"]
            for ax, value in zip(column, values):
                ax.plot(r["seconds"], value, "o", color=colors[r["row"]])
        column[0].set(title=name, ylabel="accuracy, %")
        column[1].set(xlabel="seconds of the fit", ylabel="corrupted accuracy, %")
    points = [Line2D([], [], marker="o", ls="", color=colors[row]) for row in rows]
    figure.legend(points, rows, loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(RESULTS / "images.png", dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", help="npz file of images, digits or letters")
    parser.add_argument("--plan", nargs="+", choices=PLANS, default=["final"])
    parser.add_argument("--only", nargs="+", metavar="ROW")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    if options.data:
        run(options.data, options.plan, options.only, options.budget)
    if options.report:
        report()


if __name__ == "__main__":
    main()
