"""Print how many files a default ``fit`` passes, and its longest chain of calls.

    python examples/benchmarks/trace_fit.py

The chain is the one from ``fit`` to the training step, in frames of this package.
"""

import sys
from pathlib import Path

from sklearn.datasets import load_iris

import sklearn_sharpbalance
from sklearn_sharpbalance import SharpBalanceEnsembleClassifier

PACKAGE = Path(sklearn_sharpbalance.__file__).parent
STEP = "training_step"


def place(frame):
    """File and function of a call in this package, else None.

    Modules, lambdas and comprehensions, which are functions in Python 3.11 only, do not
    count.
    """
    path, code = Path(frame.f_code.co_filename), frame.f_code
    if PACKAGE not in path.parents or code.co_name.startswith("<"):
        return None
    return f"{path.relative_to(PACKAGE)}:{code.co_qualname}"


def trace(fit):
    """Places that a call passes, and the chain of places to the training step."""
    places, chain = set(), []

    def profile(frame, event, _):
        found = place(frame) if event == "call" else None
        if found is None:
            return
        places.add(found)
        if frame.f_code.co_name == STEP and not chain:
            while frame is not None:
                chain.append(place(frame))
                frame = frame.f_back

    sys.setprofile(profile)
    try:
        fit()
    finally:
        sys.setprofile(None)
    return places, [found for found in reversed(chain) if found is not None]


def files_of(places):
    """Files of some places, without repetitions."""
    return {found.partition(":")[0] for found in places}


def main():
    X, y = load_iris(return_X_y=True)
    clf = SharpBalanceEnsembleClassifier(max_epochs=4, random_state=0)
    places, chain = trace(lambda: clf.fit(X, y))
    print(f"{len(chain)} frames from fit to the training step:")
    for found in chain:
        print(f"  {found}")
    print(f"{len(files_of(places))} files, {len(places)} functions")


if __name__ == "__main__":
    main()
