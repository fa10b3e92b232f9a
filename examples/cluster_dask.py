"""
Members on a cluster
====================

Each member of an ensemble trains by itself, so an ensemble that outgrows one machine
can be spread over many. joblib's dask backend sends the members to the workers of a
cluster; a worker that is lost costs the epochs since the last checkpoint, no more.

    pip install -e ".[dask]"
"""

# %%
# A cluster
# ---------
# Here it is two processes of this machine. On a real one, start
# ``dask scheduler --scheduler-file cluster.json`` somewhere, and on every node one
# worker per GPU, which announces it as a resource:
#
#     CUDA_VISIBLE_DEVICES=0 dask worker --scheduler-file cluster.json \
#         --nthreads 1 --resources GPU=1
#
# and connect with ``Client(scheduler_file="cluster.json")``. One thread per worker:
# torch has one random generator per process, so members of one process take turns.

import tempfile
import time

import joblib
import numpy as np
from dask.distributed import Client, LocalCluster
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier


def main():
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

    # %%
    # An ensemble
    # -----------
    # ``engine="skorch"`` trains members one by one, which is what can be sent away.
    # With a folder that all machines see, a fit that is cut short goes on where it was
    # when it is started again, on this cluster or another one. On workers with a GPU,
    # ``device="auto"`` takes it.
    checkpoints = tempfile.mkdtemp()
    clf = SharpBalanceEnsembleClassifier(
        n_estimators=4,
        max_epochs=20,
        engine="skorch",
        checkpoint_dir=checkpoints + "/{fit}",
        random_state=0,
    )

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as here,
        Client(here) as client,
    ):
        print(f"{len(client.ncores())} workers")

        # %%
        # Fit inside the backend
        # ----------------------
        # Data and network are sent to every worker once. Where workers announced
        # GPUs, ``parallel_config(backend="dask", resources={"GPU": 1})`` gives one to
        # each member.
        start = time.perf_counter()
        with joblib.parallel_config(backend="dask"):
            clf.fit(X_train, y_train)
        print(f"accuracy {clf.score(X_test, y_test):.3f}")
        print(f"fitted on the cluster in {time.perf_counter() - start:.1f} s")

        # %%
        # The result does not depend on where members train, and a finished fit is read
        # back from its checkpoint instead of being repeated.
        proba = clf.predict_proba(X_test)
        start = time.perf_counter()
        clf.fit(X_train, y_train)
        assert np.array_equal(clf.predict_proba(X_test), proba)
        print(f"read back in {time.perf_counter() - start:.2f} s")

        # %%
        # A search
        # --------
        # The fits of a search are tasks of the cluster, and so are their members. A
        # fit gives its place back while it waits for its members, so no more members
        # train at once than there are workers. ``{fit}`` in the folder's name keeps
        # the checkpoints of all these fits apart: a search that died goes on, too.
        search = GridSearchCV(
            clf.set_params(n_estimators=2, max_epochs=6),
            {"rho": [0.02, 0.1]},
            cv=2,
        )
        with joblib.parallel_config(backend="dask"):
            search.fit(X_train, y_train)
        print(f"best rho {search.best_params_['rho']}")


if __name__ == "__main__":  # workers are new processes that import this file
    main()
