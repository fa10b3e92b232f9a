"""Where the samples come from: reads, images a second, memory and diversity.

    python examples/benchmarks/bench_data.py [DIR/cifar10.npz] [--device cuda]
    python examples/benchmarks/bench_data.py --short

Without a file of images, made-up ones are used. They are written as JPEG files into a
temporary folder, and given to `fit` as each of the ``SOURCES``. Three parts:

``speed``
    Reads of an item in a fit of three members and two epochs. Images a second of the
    epochs, summed over the members, and seconds of the whole fit: three ResNet-18 in
    bf16 on a GPU, three ``SmallCNN`` of width 16 on a CPU. The reader alone: images a second.
``memory``
    Highest anonymous memory of a fit, beyond that before the data were read, for two
    numbers of images of 64 x 64, each fit in a process of its own.
``der``
    Disagreement over error of the default network (the same ``SmallCNN`` on a CPU) from
    files and from streams, against ``n_buffer``. Members of a Dataset must be those of
    the array, whatever it is.

Writes the part ``cpu`` or ``gpu`` of ``data.json``, keeps the other, and writes the
table ``data.md`` of both, after each of the three.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from _machine import RESULTS, machine
from PIL import Image
from torch import nn
from torch.utils.data import get_worker_info

from sklearn_sharpbalance import DeepEnsembleClassifier, ResNet18, SmallCNN
from sklearn_sharpbalance.data.inputs import check_X
from sklearn_sharpbalance.data.reading import read_once
from sklearn_sharpbalance.datasets import load_images, stream
from sklearn_sharpbalance.metrics import disagreement_error_ratio

MEMBERS, SIDE, MB = 3, 64, 1e6
ON_CPU = {"estimator": SmallCNN, "estimator__module__width": 16}
KINDS = [str(k) for k in range(10)]
# n_buffer and workers of each source of samples
SOURCES = {
    "array": (None, False),
    "memory map": (None, False),
    "Dataset": (None, True),
    "Dataset, kept in a file": (1, True),
    "Dataset, read at each use": (0, True),
    "stream": (None, True),
}


class Files:
    """JPEG files as a Dataset that counts what is read, and as a stream."""

    def __init__(self, folder, n=None):
        self.items, self.n_reads = load_images(folder, lazy=True), 0
        total = len(self.items)
        self.rows = np.linspace(0, total - 1, total if n is None else n).astype(int)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        self.n_reads += 1
        return self.items[self.rows[i]]

    def __iter__(self):
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from (self[i] for i in range(first, len(self), step))


class Ordered:
    """Images and labels as a stream of a fixed order."""

    def __init__(self, X, y, order):
        self.X, self.y, self.order = X, y, order

    def __iter__(self):
        yield from ((self.X[i], self.y[i]) for i in self.order)


class Patches(nn.Module):
    """A network of few computations: the memory of a fit is that of the data."""

    def __init__(self, in_channels, n_classes):
        super().__init__()
        self.patches = nn.Conv2d(in_channels, 4, 16, stride=16)
        self.last = nn.Linear(4, n_classes)

    def forward(self, x):
        return self.last(self.patches(x).relu().mean((2, 3)))


def made_up(n, side, seed=0):
    """Return images (n, side, side, 3) of ten kinds, under noise, and their kinds."""
    kinds = np.random.default_rng(0).normal(size=(10, 4, 4, 3))
    rng = np.random.default_rng(seed)
    y = rng.integers(10, size=n)
    coarse = 128 + 12 * kinds[y] + 40 * rng.normal(size=(n, 4, 4, 3))
    X = coarse.repeat(side // 4, axis=1).repeat(side // 4, axis=2)
    return X.clip(0, 255).astype(np.uint8), y


def write_files(folder, X, y):
    """Write images as JPEG files, in a folder for each kind, and as a mixed array."""
    for kind in KINDS:
        (folder / kind).mkdir(parents=True)
    for i, (image, kind) in enumerate(zip(X, y)):
        Image.fromarray(image).save(folder / str(kind) / f"{i:06}.jpg", quality=95)
    decoded, names = load_images(folder)
    order = np.random.default_rng(0).permutation(len(names))
    np.savez(folder / "labels.npz", names[order])
    np.save(folder / "images.npy", decoded[order])


def given(source, folder, n=None):
    """Return what ``fit`` is given, with the first n images or all."""
    if source not in ("array", "memory map"):
        files = Files(folder, n)
        return (files if source != "stream" else stream(files, KINDS, len(files)),)
    images = np.load(folder / "images.npy", mmap_mode="r")[:n]
    with np.load(folder / "labels.npz") as labels:
        y = labels["arr_0"][:n]
    return (images if source == "memory map" else np.array(images)), y


def ensemble(device, n_buffer=None, n_workers=0, **params):
    """Return a deep ensemble whose Datasets have workers."""
    workers = {"estimator__iterator_train__num_workers": n_workers} if n_workers else {}
    return DeepEnsembleClassifier(
        device=device,
        random_state=0,
        n_buffer=n_buffer,
        **{"n_estimators": MEMBERS, "batch_size": 128} | params | workers,
    )


# Speed --------------------------------------------------------------------------------


def reads(source, folder, n):
    """Return how often a fit of two epochs reads an item, without workers."""
    n_buffer, reads_files = SOURCES[source]
    if not reads_files:
        return None
    (items,) = given(source, folder, n)
    net = {"estimator": Patches, "train_transform": None}
    ensemble("cpu", n_buffer, max_epochs=2, **net).fit(items)
    files = items.dataset if source == "stream" else items
    return files.n_reads / len(files)


def processor_seconds():
    """Return the seconds of all cores, with those of workers that have ended."""
    return sum(os.times()[:4])


def epoch_seconds(clf):
    """Return the seconds of each epoch of all members."""
    rows = [[row["dur"] for row in member] for member in clf.history_]
    one_by_one = clf.engine_.name == "skorch"
    return np.sum(rows, axis=0) if one_by_one else np.array(rows[0])


def speed(source, folder, settings, options):
    """Return images a second of the epochs of a fit, and its seconds."""
    n_buffer, has_workers = SOURCES[source]
    n_workers = options.workers if has_workers else 0
    arguments = given(source, folder)
    clf = ensemble(options.device, n_buffer, n_workers, **settings)
    start, processor = time.perf_counter(), processor_seconds()
    clf.fit(*arguments)
    seconds, processor = time.perf_counter() - start, processor_seconds() - processor
    epochs = epoch_seconds(clf)
    epoch = float(np.median(epochs[1:]))  # the first one captures graphs
    return {
        "engine": clf.engine_.name,
        "images_per_s": MEMBERS * len(arguments[0]) / epoch,
        "epoch_s": epoch,
        "before_training_s": seconds - float(epochs.sum()),
        "fit_s": seconds,
        "processor_s_per_epoch": processor / len(epochs),
        "workers": n_workers,
    }


def reader(folder, n_workers):
    """Return the images a second that the reader of a fit decodes."""
    dataset, layout = check_X(ensemble("cpu"), Files(folder), reset=True)
    start = time.perf_counter()
    read_once(dataset, layout, None, {"num_workers": n_workers}, labelled=True)
    return len(dataset) / (time.perf_counter() - start)


def all_speeds(folder, options):
    """Return the measurements of each source, and of the reader alone."""
    on_gpu = options.device != "cpu"
    net = {"estimator": ResNet18, "precision": "bf16"} if on_gpu else ON_CPU
    settings = net | {"max_epochs": 6 if on_gpu else 2}
    few = net | {"max_epochs": 2}  # slower sources
    if options.short:
        settings = few = {"estimator": Patches, "max_epochs": 2}
    speed("array", folder, settings | {"max_epochs": 2}, options)  # loads kernels
    found = {}
    for source, (n_buffer, _) in SOURCES.items():
        is_slow = n_buffer == 0 or source == "stream"
        found[source] = {"reads_per_item": reads(source, folder, options.few)}
        found[source] |= speed(source, folder, few if is_slow else settings, options)
        print(source, found[source], flush=True)
    array = found["array"]
    for row in found.values():
        row["over_array"] = row["images_per_s"] / array["images_per_s"]
        row["processor_over_array"] = (
            row["processor_s_per_epoch"] / array["processor_s_per_epoch"]
        )
    n = options.images
    rate = {str(w): reader(folder, w) for w in sorted({0, options.workers})}
    return {
        "images": n,
        "sources": found,
        "reader_images_per_s": rate,
        "reading_in_epochs": n / rate[str(options.workers)] / array["epoch_s"],
    }


# Memory -------------------------------------------------------------------------------


def anonymous():
    """Return the anonymous memory of this process in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def peak_of(run):
    """Return the highest anonymous memory while a function runs, beyond that before."""
    before, peaks, done = anonymous(), [0], threading.Event()

    def watch():
        while not done.wait(0.002):
            peaks.append(anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    run()
    done.set()
    thread.join()
    return max(peaks) - before


def memory_of(source, folder, n, device):
    """Return the megabytes of a fit in this process, and of its data."""
    net = {"estimator": Patches, "train_transform": None, "max_epochs": 1}
    net |= {"n_estimators": 1}
    clf = ensemble(device, SOURCES[source][0], **net)
    clf.fit(*given(source, folder, 20))  # loads libraries
    on_gpu = device != "cpu"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    peak = peak_of(lambda: clf.fit(*given(source, folder, n)))
    found = {"peak_mb": peak / MB, "data_mb": n * SIDE * SIDE * 3 / MB}
    if on_gpu:
        found["gpu_peak_mb"] = torch.cuda.max_memory_allocated() / MB
    return found


def in_a_process(setting):
    """Return ``memory_of`` in a process of its own."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", json.dumps(setting)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def memory(folder, options):
    """Return peaks of each source for two numbers of images, and their slope."""
    write_files(folder, *made_up(options.most, SIDE))
    counts = (options.most // 2, options.most)
    settings = [
        {"source": source, "folder": str(folder), "n": n, "device": options.device}
        for source in SOURCES
        for n in counts
    ]
    if options.short:
        fits = [here(setting) for setting in settings]
    else:
        with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
            fits = list(pool.map(in_a_process, settings))
    found = {}
    for source, less, more in zip(SOURCES, fits[::2], fits[1::2]):
        data = more["data_mb"] - less["data_mb"]
        per = {k: (more[k] - less[k]) / data for k in less if k != "data_mb"}
        found[source] = {"fits": [less, more], "per_byte": per}
        print(source, found[source], flush=True)
    return found


def here(setting):
    """Return ``memory_of`` in this process."""
    return memory_of(**setting | {"folder": Path(setting["folder"])})


# Diversity ----------------------------------------------------------------------------


def diversity(folder, X_test, y_test, options):
    """Return DER and accuracies of ensembles from files, and streams of two orders."""
    X, y = load_images(folder)  # sorted by kind
    n = len(X)
    files, in_order = Files(folder), np.arange(n)
    mixed = Ordered(X, y, np.random.default_rng(0).permutation(n))
    rows = [("array", (X, y), None)]
    rows += [("Dataset of files", (files,), n_buffer) for n_buffer in (n, n // 10, 0)]
    rows += [("stream, shuffled", mixed, n_buffer) for n_buffer in (1, 1000)]
    sorted_by_kind = Ordered(X, y, in_order)
    rows += [("stream, sorted", sorted_by_kind, n_buffer) for n_buffer in (1000, n)]
    net = ON_CPU if options.device == "cpu" else {}
    net = {"estimator": Patches, "batch_size": 16} if options.short else net
    found = []
    for name, source, n_buffer in rows:
        clf = ensemble(options.device, n_buffer, max_epochs=options.epochs, **net)
        if isinstance(source, Ordered):
            source = (stream(source, np.unique(y), n),)
        clf.fit(*source)
        members = clf.member_predict_proba(X_test)  # (M, N, C)
        codes = np.searchsorted(clf.classes_, y_test)
        found.append(
            {
                "source": name,
                "n_buffer": n_buffer,
                "der": float(disagreement_error_ratio(codes, members)),
                "accuracy": clf.score(X_test, y_test),
                "member_accuracy": float((members.argmax(2) == codes).mean()),
            }
        )
        print(found[-1], flush=True)
    return {"images": n, "rows": found}


# Tables -------------------------------------------------------------------------------


def table(head, rows):
    """Return a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def speed_table(found):
    """Return the table of the part ``speed``."""
    rows = []
    for name, row in found["sources"].items():
        n_reads = row["reads_per_item"]
        rows.append(
            [
                name,
                "–" if n_reads is None else f"{n_reads:.2f}",
                f"`{row['engine']}`",
                f"{row['images_per_s']:,.0f}",
                f"{row['over_array']:.2f}",
                f"{row['processor_over_array']:.2f}",
                f"{row['before_training_s']:.1f}",
                row["workers"],
            ]
        )
    head = ["source", "reads of an item", "engine", "images/s", "over array"]
    head += [
        "processor seconds of the fit, over array",
        "seconds before training",
        "workers",
    ]
    rates = found["reader_images_per_s"].items()
    told = ", ".join(f"{rate:,.0f} images/s with {w} workers" for w, rate in rates)
    return (
        f"{found['images']:,} images. The reader alone: {told}. Reading all images once "
        f"takes as long as {found['reading_in_epochs']:.1f} epochs from the array.\n\n"
    ) + table(head, rows)


def memory_table(found):
    """Return the table of the part ``memory``."""
    rows, on_gpu = [], False
    for name, row in found.items():
        less, more = row["fits"]
        cells = [f"{fit['peak_mb']:.0f}" for fit in (less, more)]
        cells.append(f"{row['per_byte']['peak_mb']:.2f}")
        on_gpu = "gpu_peak_mb" in less
        cells += [f"{row['per_byte']['gpu_peak_mb']:.2f}"] if on_gpu else []
        rows.append([name, *cells])
    head = ["source", *(f"{fit['data_mb']:.0f} MB of images" for fit in (less, more))]
    head += ["bytes for each more", *(["the same on the GPU"] if on_gpu else [])]
    told = "Peak of anonymous memory in MB, the data included. Images that are read at each "
    told += (
        "use are kept for statistics, up to 4,096. Arrays (N, H, W, C) are copied once."
    )
    return told + "\n\n" + table(head, rows)


def der_table(found):
    """Return the table of the part ``der``."""
    rows = [
        [
            row["source"],
            "–" if row["n_buffer"] is None else f"{row['n_buffer']:,}",
            f"{row['der']:.3f}",
            f"{100 * row['accuracy']:.1f}",
            f"{100 * row['member_accuracy']:.1f}",
        ]
        for row in found["rows"]
    ]
    head = ["source", "n_buffer", "DER", "accuracy, %", "member, %"]
    told = (
        f"{found['images']:,} images of {found['data']}, as files. The Dataset is read "
    )
    told += (
        "into an array or a file before the training, or at each use if `n_buffer` is "
    )
    told += "0: each epoch shuffles all images."
    return told + "\n\n" + table(head, rows)


PARTS = {"speed": speed_table, "memory": memory_table, "der": der_table}


def report(numbers):
    """Return all tables as a page of Markdown."""
    text = "# Sources of samples\n\nWritten by `bench_data.py`.\n"
    for device, found in numbers.items():
        where = found["machine"]
        kind = where["gpu"] or f"{where['processor']}, {where['cores']} cores"
        text += f"\n## {device.upper()}: {kind}\n"
        for part, to_table in PARTS.items():
            if part in found:
                text += f"\n### {part}\n\n{to_table(found[part])}"
    return text


def save(part, found, options):
    """Add a part to the results, and write the tables again."""
    path = options.out / "data.json"
    numbers = json.loads(path.read_text()) if path.exists() else {}
    device = "cpu" if options.device == "cpu" else "gpu"
    numbers[device] = numbers.get(device, {}) | {part: found, "machine": machine()}
    numbers = dict(sorted(numbers.items()))
    options.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(numbers, indent=1) + "\n")
    (options.out / "data.md").write_text(report(numbers))


def measure(options):
    """Measure the parts that were asked for, and write each as it ends."""
    if options.data is None:
        name, n_test = "made-up images", max(options.images // 5, 50)
        X, y = made_up(options.images, 32)
        X_test, y_test = made_up(n_test, 32, seed=1)
    else:
        from bench_images import read

        X, y, X_test, y_test = read(options.data)
        name = f"`{Path(options.data).name}`"
        X, y = X[: options.images], y[: options.images]
        X_test, y_test = X_test[: options.images], y_test[: options.images]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if "speed" in options.parts:
            write_files(place / "speed", X, y)
            save("speed", all_speeds(place / "speed", options), options)
        if "memory" in options.parts:
            save("memory", memory(place / "memory", options), options)
        if "der" in options.parts:
            write_files(place / "der", X[: options.n_der], y[: options.n_der])
            found = diversity(place / "der", X_test, y_test.astype(str), options)
            save("der", found | {"data": name}, options)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", help="npz file of images")
    parser.add_argument("--device", default=None)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--short", action="store_true", help="a few seconds")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", help="settings of a fit of the part memory, as JSON")
    options = parser.parse_args(arguments)
    if options.one is not None:
        torch.set_num_threads(1)
        print(json.dumps(here(json.loads(options.one))))
        return
    if options.device is None:
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = options.device != "cpu"
    sizes = {"most": 9000, "few": 500, "epochs": 6}
    sizes |= {"images": 10_000 if on_gpu else 2000, "n_der": 5000 if on_gpu else 2000}
    if options.short:
        sizes = {"images": 60, "most": 60, "few": 30, "epochs": 1, "n_der": 60}
    vars(options).update(sizes)
    options.workers = 0 if options.short else min(16, os.cpu_count() or 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measure(options)


if __name__ == "__main__":
    main()
