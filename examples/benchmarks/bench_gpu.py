"""GPU: the graph engine against the best plain PyTorch loop, and each phase's cost.

    python examples/benchmarks/bench_gpu.py [--out DIR] [--images 50000]
    python examples/benchmarks/bench_gpu.py --rows sgd momentum_balanced
    python examples/benchmarks/bench_gpu.py --heads [--images 2000]

Three ResNet-18 at batch 128 in bf16. The plain loop is one CUDA graph with a stream
per member and nothing else: no data pipeline, no history, no estimator.

On random pictures the sets that the default rule selects differ in size, and every
batch has places for the largest SAM part and for the largest rest of any member. Rows
that end in "_equal" have sets of equal size, four fifths of the samples.

``--rows`` measures only these methods, and "sgd" for the ratios. The result is then
``gpu_rows.json`` instead of ``gpu.json``. ``--heads`` measures only fits of fifty heads
of two layers on 512 features of a shared trunk, also on a CPU.
"""

import argparse
import time

import numpy as np
import torch
from _machine import write
from torch import nn
from torch.nn.functional import cross_entropy

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    ResNet18,
    SharpBalanceEnsembleClassifier,
)
from sklearn_sharpbalance.data.batches import batch_sizes

MEMBERS, BATCH = 3, 128


def plain_loop(compiled, steps=200):
    """Images per second of a bare captured loop, all members together."""
    device = torch.device("cuda")
    nets = [
        ResNet18(3, 10).to(device, memory_format=torch.channels_last)
        for _ in range(MEMBERS)
    ]
    calls = [torch.compile(net, dynamic=False) if compiled else net for net in nets]
    optimizers = [
        torch.optim.SGD(
            net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, fused=True
        )
        for net in nets
    ]
    x = torch.randn(BATCH, 3, 32, 32, device=device)
    x = x.contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (BATCH,), device=device)
    streams = [torch.cuda.Stream() for _ in nets]

    def step():
        current = torch.cuda.current_stream()
        for call, optimizer, stream in zip(calls, optimizers, streams):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                optimizer.zero_grad()
                with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                    logits = call(x)
                cross_entropy(logits.float(), y).backward()
                optimizer.step()
        for stream in streams:
            current.wait_stream(stream)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return MEMBERS * BATCH / _time_per_call(graph.replay, steps)


def _time_per_call(call, n):
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(n):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / n


def epoch_seconds(clf, X, y, phase):
    """Median time of an ensemble epoch of one phase, without those that capture."""
    clf.fit(X, y)
    rows = [row for row in clf.history_[0] if row["phase"] == phase]
    return float(np.median([row["dur"] for row in rows[1:]])), clf


def equal_sets(sharpness, random_state):
    """Select four fifths of the samples for each member, not the same for two."""
    n_members, n_samples = sharpness.shape
    left_out = np.arange(n_members)[:, None]  # (M, 1)
    return np.arange(n_samples) % 5 != left_out


def cases_of(common):
    """Return an estimator for each row; "sgd" is first, because ratios need it."""
    balance = SharpBalanceEnsembleClassifier
    momentum = {"sam": "momentum_sam", "rho": 0.3}
    everywhere = {"selection": "all", "warmup_epochs": 0}
    mixed = {"flat_ratio": 0.4, "warmup_epochs": 1}
    equal = {"selection": equal_sets, "warmup_epochs": 1}
    return {
        "sgd": DeepEnsembleClassifier(**common),
        "sam": balance(sam="sam", **everywhere, **common),
        "balanced": balance(sam="sam", **mixed, **common),
        "balanced_equal": balance(sam="sam", **equal, **common),
        "momentum_sam": balance(**momentum, **everywhere, **common),
        "momentum_balanced": balance(**momentum, **mixed, **common),
        "momentum_balanced_equal": balance(**momentum, **equal, **common),
        "look_sam": balance(sam="look_sam", **everywhere, **common),
    }


def measure_case(name, clf, X, y, numbers):
    """Fit an ensemble, and add its times to ``numbers``."""
    start = time.perf_counter()
    seconds, clf = epoch_seconds(clf, X, y, "balanced")
    numbers[f"{name}_epoch_s"] = seconds
    numbers[f"{name}_images_per_s"] = MEMBERS * len(X) / seconds
    numbers[f"{name}_fit_s"] = time.perf_counter() - start
    numbers[f"{name}_sam_share"] = float(clf.sam_masks_.mean())
    numbers[f"{name}_sam_shares"] = clf.sam_masks_.mean(axis=1).tolist()
    sizes = batch_sizes(clf.sam_masks_, BATCH)
    numbers[f"{name}_batches"] = [sizes.n_sam, sizes.n_normal, sizes.width]
    numbers[f"{name}_epoch_over_sgd"] = seconds / numbers["sgd_epoch_s"]
    numbers["engine"] = clf.engine_.name
    print({k: v for k, v in numbers.items() if k.startswith(name)}, flush=True)


def heads(n_samples, n_heads=50, n_features=512, n_epochs=10):
    """Seconds of fits and predictions of many heads on features of a shared trunk."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_samples, 64)).astype(np.float32)
    y = rng.integers(10, size=n_samples)
    common = {
        "n_estimators": n_heads,
        "shared_trunk": nn.Sequential(nn.Linear(64, n_features), nn.ReLU()),
        "estimator__module__hidden": (n_features,),
        "max_epochs": n_epochs,
        "random_state": 0,
    }
    numbers = {}
    for kind in (DeepEnsembleClassifier, SharpBalanceEnsembleClassifier):
        kind(**common | {"n_estimators": 2}).fit(X[:1000], y[:1000])  # loads kernels
        clf, start = kind(**common), time.perf_counter()
        clf.fit(X, y)
        fitted = time.perf_counter()
        clf.predict_proba(X)
        name = f"heads_{kind.__name__}"
        numbers[f"{name}_fit_s"] = fitted - start
        numbers[f"{name}_predict_s"] = time.perf_counter() - fitted
        numbers[f"{name}_epoch_s"] = np.median([row["dur"] for row in clf.history_[0]])
        numbers[f"{name}_engine"] = clf.engine_.name
        numbers[f"{name}_batch_size"] = clf.settings_["batch_size"]
    print(numbers, flush=True)
    return numbers


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rows", nargs="+", choices=cases_of({}), metavar="ROW")
    parser.add_argument("--heads", action="store_true")
    options = parser.parse_args()
    if options.heads:
        write("gpu_heads", heads(options.images), options.out)
        return
    rng = np.random.default_rng(0)
    X = rng.integers(256, size=(options.images, 3, 32, 32), dtype=np.uint8)
    y = rng.integers(10, size=options.images)
    common = dict(
        estimator=ResNet18,
        n_estimators=MEMBERS,
        batch_size=BATCH,
        train_transform="crop_flip",
        lr_schedule="steps",
        max_epochs=options.epochs,
        device="cuda",
        precision="bf16",
        random_state=0,
    )
    cases = cases_of(common)
    numbers = {}
    if options.rows is not None:
        for name, clf in cases.items():
            if name == "sgd" or name in options.rows:
                measure_case(name, clf, X, y, numbers)
        write("gpu_rows", numbers, options.out)
        return
    numbers["plain_graph_images_per_s"] = plain_loop(compiled=False)
    print(numbers, flush=True)
    start = time.perf_counter()
    numbers["plain_compiled_images_per_s"] = plain_loop(compiled=True)
    numbers["plain_compiled_total_s"] = time.perf_counter() - start
    print(numbers, flush=True)
    for name, clf in cases.items():
        measure_case(name, clf, X, y, numbers)
    for name in ("balanced", "balanced_equal"):
        seconds = numbers[f"{name}_epoch_s"]
        numbers[f"{name}_over_sam"] = seconds / numbers["sam_epoch_s"]
    best = max(
        v for k, v in numbers.items() if k.startswith("plain_") and "images" in k
    )
    numbers["sgd_over_best_plain"] = numbers["sgd_images_per_s"] / best
    large = common | {"sam": "sam", "batch_size": 512}
    for name, rule in (("sam", "all"), ("balanced_equal", equal_sets)):
        seconds, _ = epoch_seconds(
            SharpBalanceEnsembleClassifier(selection=rule, warmup_epochs=0, **large),
            X,
            y,
            "balanced",
        )
        numbers[f"{name}_epoch_s_at_512"] = seconds
        print(name, "at batch 512:", seconds, flush=True)
    numbers |= heads(50_000)
    numbers |= search_memory()
    numbers |= scoring_and_prediction(clf, X, y)
    write("gpu", numbers, options.out)


def search_memory():
    """Memory that a search on the GPU leaves allocated, in bytes."""
    import gc

    from sklearn.model_selection import GridSearchCV

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, 20)), rng.integers(3, size=600)
    clf = SharpBalanceEnsembleClassifier(max_epochs=4, device="cuda", random_state=0)
    grid = {"rho": [0.02, 0.05, 0.1], "flat_ratio": [0.2, 0.4, 0.6]}

    def allocated():
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    clf.fit(X, y).predict(X)  # libraries keep workspaces from their first use on
    del clf.estimators_, clf.predictors_
    before = allocated()
    GridSearchCV(clf, grid, cv=2, refit=False).fit(X, y)
    return {"search_bytes_before": before, "search_bytes_after": allocated()}


def scoring_and_prediction(clf, X, y):
    """Fisher trace and predictions against bare loops over the same images."""
    from sklearn_sharpbalance.sharpness import FisherTraceScorer

    net = clf.estimators_[0]
    images = torch.as_tensor(X, device="cuda")
    labels = torch.as_tensor(y, device="cuda")

    def score():
        with torch.autocast("cuda", torch.bfloat16):
            FisherTraceScorer().score_samples(net, images, y)

    def train_pass(batch):
        net.module_.train()
        for part in torch.arange(len(X), device="cuda").split(batch):
            with torch.autocast("cuda", torch.bfloat16):
                loss = cross_entropy(net.module_(images[part]), labels[part])
            loss.backward()

    def bare_predict():
        with torch.inference_mode():
            for member in clf.estimators_:
                for part in images.split(2048):
                    nn.functional.softmax(member.module_.eval()(part), 1).cpu()

    times = {}
    for name, call in (
        ("fisher", score),
        ("forward_backward_128", lambda: train_pass(128)),
        ("forward_backward_1024", lambda: train_pass(1024)),
        ("bare_predict", bare_predict),
        ("predict_proba", lambda: clf.predict_proba(X)),
    ):
        call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times[f"{name}_s"] = time.perf_counter() - start
    times["fisher_images_per_s"] = len(X) / times["fisher_s"]
    for batch in (128, 1024):
        ratio = times["fisher_s"] / times[f"forward_backward_{batch}_s"]
        times[f"fisher_over_forward_backward_{batch}"] = ratio
    times["predict_ratio"] = times["predict_proba_s"] / times["bare_predict_s"]
    return times


if __name__ == "__main__":
    main()
