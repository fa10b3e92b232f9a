"""SharpBalance held against its paper: train, corrupt, measure, tabulate.

    python examples/experiments/reproduce.py digits
    python examples/experiments/reproduce.py headline --data cifar10.npz --minutes 9
    python examples/experiments/reproduce.py report

Runs: headline, ablation, contest_rho, contest, contest_wide, attribution,
seconds_cifar10, seconds_cifar100, recipe, defaults,
defaults_few, defaults_step, defaults_step_few, small_cnn, tradeoff, widths, sparsity,
picture_sizes, sed, rethinking (pictures, on a GPU; the last two are of other papers);
digits, confirm, sizes, digits_tradeoff, digits_widths, digits_sparsity (on a CPU).
Their settings are in ``reproduce.toml``. An ensemble that another run has trained and
measured in the same way is not trained again: its record is copied from the results of
that run. ``contest`` and ``contest_wide`` read ``reproduce_contest_rho.json`` in the
folder ``--out``, and train each method with the radius that was best there. ``--data``
takes an npz file, an ImageFolder, or torchvision's CIFAR-10 root. Every fit goes
through the public estimators, writes checkpoints and shares warm-ups through
``memory``. A command that is out of time stops cleanly, and the same command goes on
from there. Each trained ensemble is one record of ``results/reproduce_RUN.json``; a
table and figures stand beside it. ``--jobs`` works on several seeds at once, which
fills a GPU that narrow networks leave idle. ``report`` trains nothing: it writes the
tables and figures of all results again, with the records of runs that are not complete.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import time
import tomllib
import traceback
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

from _reproduce_claims import claims, gain_figure
from _reproduce_measure import measure, prepare
from _reproduce_methods import CONTESTS, ON_DIGITS, RUNS
from _reproduce_records import chosen_radii
from _reproduce_report import beside_the_paper, boost_over_sam, with_table, write_report
from _reproduce_rethinking import measure_nets
from _reproduce_sed import fit_heads, measure_heads, prepare_heads

from sklearn_sharpbalance.exceptions import DivergenceError

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from _machine import machine

SEEDS = (13, 113, 43, 17, 117, 59, 27, 127, 223, 7)  # the first nine are the paper's
CONFIG = Path(__file__).with_suffix(".toml")
RESULTS = Path(__file__).parent / "results"
COMPLETE, FAILED, OUT_OF_TIME = 0, 1, 3
# Options that only some runs have; absent from the settings of the others.
OF_SOME_RUNS = ("head_epochs", "trunk_share", "seconds")
# Options that say which samples an ensemble is trained and measured on.
OF_THE_TASK = ("pictures", "images", "corrupted", "sharpness_batches")


def run_seed(options, seed):
    """Train and measure every method of a seed that has no record yet.

    A method whose training fails is told and left out; the others go on. Where
    measuring fails no more is trained. Returns the methods that failed; what was
    trained is in its checkpoint, and is measured by the next call.
    """
    task = prepare_run(options)(seed)
    failed, trained = [], {}
    of_other_runs = equal_ensembles(options, seed)
    for group, method, clf in RUNS[options.run](options, seed):
        path, params = record_path(options, seed, group, method), str(clf.get_params())
        twin = trained.setdefault(params, path)
        names = method, f"{group}/{method}"
        wanted = any(re.fullmatch(options.only, name) for name in names)
        if path.exists() or not wanted:
            continue
        record = {"group": group, "method": method, "seed": seed}
        if twin.exists():  # the same ensemble under the name of another group
            save(path, json.loads(twin.read_text()) | record)
            continue
        if params in of_other_runs:
            save(path, of_other_runs[params] | record)
            continue
        start = time.perf_counter()
        try:
            fit(clf, task, options, f"{group}_{method}_{seed}")
            seconds = time.perf_counter() - start
        except Exception:
            traceback.print_exc()
            failed.append(method)
            continue
        try:
            record |= measure_run(clf, task, options)
        except Exception as error:
            traceback.print_exc()
            failed.append(method)
            if isinstance(error, DivergenceError):
                continue
            break  # it would fail again after the next training
        if options.shared_gpu:
            record.pop("epoch_seconds", None)
        record["fit_seconds"] = seconds
        record["measure_seconds"] = time.perf_counter() - start - seconds
        save(path, record)
        shown = ("group", "method", "seed", "accuracy", "corrupted_accuracy", "der")
        shown += ("fit_seconds",)
        print({k: record[k] for k in shown if k in record}, flush=True)
    return failed


def equal_ensembles(options, seed):
    """Records of other runs on the same samples, by the parameters of the ensemble."""
    own, found = settings_of(options), {}
    for path in sorted(Path(options.out).glob("reproduce_*.json")):
        result = json.loads(path.read_text())
        settings = result["settings"]
        same_task = all(own.get(name) == settings.get(name) for name in OF_THE_TASK)
        if settings["run"] == options.run or not same_task:
            continue
        records = {
            (record["group"], record["method"]): record
            for record in result["records"]
            if record["seed"] == seed
        }
        run = RUNS[settings["run"]]
        for group, method, clf in run(argparse.Namespace(**settings), seed):
            if (group, method) in records:
                copied = {"of_run": settings["run"]} | records[group, method]
                found.setdefault(str(clf.get_params()), copied)
    return found


def prepare_run(options):
    """Return a function from a seed to its data."""
    return prepare_heads(options) if options.run == "sed" else prepare(options)


def measure_run(clf, task, options):
    """Return the numbers about a fitted ensemble."""
    if options.run == "sed":
        return measure_heads(clf, task)
    if options.run == "rethinking":
        return measure_nets(clf, task, options.sharpness_batches)
    return measure(clf, task, options.sharpness_batches)


def fit(clf, task, options, name):
    """On pictures, with checkpoints and shared warm-ups; digits and heads are fast."""
    if options.run == "sed":
        fit_heads(clf, task)
        return
    if options.run not in ON_DIGITS:
        work = Path(options.work)
        clf.set_params(
            checkpoint_dir=str(work / f"{fingerprint(options)}_{name}"),
            memory=str(work / "memory"),
        )
    clf.fit(task.X, task.y)


def seeds_of(options):
    """The first so many, or fresh ones that no other run has seen."""
    first = options.first_seed
    return SEEDS[: options.seeds] if first < 0 else range(first, first + options.seeds)


def settings_of(options):
    """What the numbers depend on."""
    without = ("out", "work", "data", "config", "minutes", "jobs", "only", "seeds")
    without += ("first_seed", "shared_gpu")
    kept = {k: v for k, v in vars(options).items() if k not in without}
    return kept if options.data is None else kept | {"pictures": digest(options.data)}


@cache
def digest(path):
    """Of a file by its bytes, of a folder by the names and sizes of its files."""
    path, made = Path(path), hashlib.sha256()
    if path.is_file():
        made.update(path.read_bytes())
    for file in sorted(path.rglob("*")) if path.is_dir() else ():
        if file.is_file():
            made.update(f"{file.relative_to(path)} {file.stat().st_size}\n".encode())
    return made.hexdigest()[:12]


def fingerprint(options):
    """The run and a digest of its settings, as a name for files."""
    return fingerprint_of(settings_of(options))


def fingerprint_of(settings):
    text = json.dumps(settings, sort_keys=True).encode()
    return f"{settings['run']}_{hashlib.sha256(text).hexdigest()[:12]}"


def records_folder(options):
    """Records of a run that is not complete, beside its result."""
    return Path(options.out) / "records" / fingerprint(options)


def record_path(options, seed, group, method):
    """One file per trained ensemble, so that several commands can share a folder."""
    name = re.sub(r"[^\w.]+", "_", f"{group}_{method}_{seed}")
    return records_folder(options) / f"{name}.json"


def result_path(options):
    return Path(options.out) / f"reproduce_{options.run}.json"


def take_up(options):
    """Go on from an earlier result of the same settings."""
    path, settings = result_path(options), settings_of(options)
    if not path.exists():
        return
    result = json.loads(path.read_text())
    if result["settings"] != settings:
        sys.exit(
            f"{path} was made with {result['settings']}, not with {settings}. "
            "Move it away, or pass another --out."
        )
    for record in result["records"]:
        names = record["seed"], record["group"], record["method"]
        if not record_path(options, *names).exists():
            save(record_path(options, *names), record)


def report(folder):
    """Write tables and figures of all results in a folder again; trains nothing."""
    results = {}
    for path in sorted(folder.glob("reproduce_*.json")):
        result = json.loads(path.read_text())
        beside = records_beside(folder, result["settings"])
        if beside:
            records = [*result["records"], *beside]
            result["records"] = merged(result["settings"], records)
            result["minutes"] = minutes_of(result["records"])
            save(path, result)
        write_report(path, result)
        results[result["settings"]["run"]] = result["records"]
    if folder.resolve() == RESULTS.resolve():
        write_page(results)


def write_page(results):
    """Write the page's tables and figure, ``results`` are {run: records} of all runs."""
    headline, ablation = results["headline"], results["ablation"]
    (RESULTS / "beside_the_paper.md").write_text(beside_the_paper(headline))
    (RESULTS / "boost_over_sam.md").write_text(boost_over_sam(headline, ablation))
    page = RESULTS.parent / "RESULTS.md"
    page.write_text(with_table(page.read_text(), "claims", claims(results)))
    gain_figure(results).savefig(RESULTS / "gain.png", dpi=130)


def records_beside(folder, settings):
    """Records of a run that is not complete."""
    paths = (folder / "records" / fingerprint_of(settings)).glob("*.json")
    return [json.loads(path.read_text()) for path in paths]


def names_of_run(settings):
    """(group, method) of all ensembles of a seed, in the order of the run."""
    options = argparse.Namespace(**settings)
    return [(group, method) for group, method, _ in RUNS[options.run](options, 0)]


def merged(settings, records):
    """Records in the order of seeds and of the run.

    Of two records with the same names the later one is kept.
    """
    names = ("seed", "group", "method")
    found = {tuple(record[name] for name in names): record for record in records}
    order = names_of_run(settings)

    def place(record):
        seed = record["seed"]
        fresh = seed not in SEEDS
        names = record["group"], record["method"]
        at = order.index(names) if names in order else len(order)  # of older code
        return fresh, seed if fresh else SEEDS.index(seed), at

    return sorted(found.values(), key=place)


def is_complete(settings, seeds, records):
    """Whether every method of the run has a record for every seed.

    These are the given seeds, and all others that have a record.
    """
    wanted = set(names_of_run(settings))
    done = {seed: set() for seed in seeds}
    for record in records:
        names = record["group"], record["method"]
        done.setdefault(record["seed"], set()).add(names)
    return all(wanted <= methods for methods in done.values())


def minutes_of(records):
    """Training and measuring, methods added up; shared rows count once.

    Those of other runs do not count.
    """
    own = [record for record in records if "of_run" not in record]
    seconds = {(r["fit_seconds"], r["measure_seconds"]) for r in own}
    return sum(map(sum, seconds)) / 60


def save(path, content):
    """All or nothing: a run may be killed at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(partial, path)


def worker(options, seed, deadline):
    """One seed; says how it ended."""
    import torch

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.jobs))
    stop_at(deadline)
    try:
        return FAILED if run_seed(options, seed) else COMPLETE
    except KeyboardInterrupt:
        return OUT_OF_TIME


def stop_at(deadline):
    """Raise KeyboardInterrupt, which leaves a valid checkpoint, when time is up."""

    def out_of_time(*_):
        raise KeyboardInterrupt

    if deadline is not None:
        signal.signal(signal.SIGALRM, out_of_time)
        signal.setitimer(signal.ITIMER_REAL, max(deadline - time.time(), 0.1))


def run_all(options, seeds, deadline):
    """Every seed, ``options.jobs`` at a time; says how the worst of them ended."""
    if options.jobs == 1:
        return max(worker(options, seed, deadline) for seed in seeds)
    # A process for each seed: CUDA graphs of two threads must not be captured at once.
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        waiting = [pool.submit(worker, options, seed, deadline) for seed in seeds]
        return max(future.result() for future in waiting)


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", choices=[*RUNS, "report"])
    parser.add_argument("--data", help="pictures; digits need none")
    parser.add_argument("--out", default=str(RESULTS))
    parser.add_argument("--work", default="reproduce_work", help="checkpoints, cache")
    parser.add_argument("--minutes", type=float, help="stop and keep what there is")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time")
    parser.add_argument(
        "--shared-gpu",
        action="store_true",
        help="another command uses the GPU; leave out seconds of epochs",
    )
    parser.add_argument("--only", default=".*", help="methods, as a regular expression")
    parser.add_argument("--members", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--first-seed", type=int, help="-1: those of the paper")
    parser.add_argument("--head-epochs", type=int)
    parser.add_argument("--trunk-share", type=float, help="of the training pictures")
    parser.add_argument("--seconds", type=float, help="of the default over deep's")
    parser.add_argument("--rho", type=float)
    parser.add_argument("--flat-ratio", type=float)
    parser.add_argument("--images", type=int, help="train on the first so many only")
    parser.add_argument("--corrupted", type=int)
    parser.add_argument("--sharpness-batches", type=int)
    parser.add_argument("--checkpoint-every", type=int)
    parser.add_argument("--config", default=str(CONFIG))
    options = parser.parse_args()
    if options.run == "report":
        return options
    settings = {"members": 3}
    settings |= tomllib.loads(Path(options.config).read_text())[options.run]
    for name, value in settings.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    for name in OF_SOME_RUNS:
        if name not in settings:
            delattr(options, name)
    if options.run not in ON_DIGITS and options.data is None:
        parser.error(f"{options.run} needs --data: an npz file, a folder of pictures")
    if options.run in CONTESTS:
        path = Path(options.out) / "reproduce_contest_rho.json"
        try:
            options.radii = chosen_radii(json.loads(path.read_text())["records"])
        except (FileNotFoundError, ValueError) as error:
            parser.error(f"{options.run} needs {path}; run contest_rho first ({error})")
        print("Radii that contest_rho chose:", options.radii, flush=True)
    return options


def main():
    options = parse()
    if options.run == "report":
        report(Path(options.out))
        sys.exit(COMPLETE)
    start = time.time()
    deadline = None if options.minutes is None else start + 60 * options.minutes
    seeds = seeds_of(options)
    take_up(options)
    prepare_run(options)  # draws the corrupted copies before there are several workers
    end = run_all(options, seeds, deadline)
    settings = settings_of(options)
    found = records_beside(Path(options.out), settings)
    records = merged(settings, found)
    result = {
        "machine": machine(),
        "settings": settings,
        "jobs": options.jobs,
        "minutes": minutes_of(records),
        "complete": is_complete(settings, seeds, records),
        "records": records,
    }
    save(result_path(options), result)
    if result["complete"]:  # it holds them all
        shutil.rmtree(records_folder(options))
    write_report(result_path(options), result)
    if end == FAILED:
        print("Some methods failed, see above; the same command tries them again.")
    if end == OUT_OF_TIME:
        print("Out of time; the same command goes on from the last checkpoint.")
    sys.exit(end)


if __name__ == "__main__":
    main()
