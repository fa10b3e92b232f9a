"""Seconds of SHAP values, and the latency of one row through FastAPI.

    pip install shap fastapi httpx
    python examples/benchmarks/bench_serving.py [--out DIR]

Both follow the recipes of the page *In production*, with the breast cancer table of 30
columns and the default ensemble, on one thread. Latencies are medians, in process. It
writes ``serving.json``.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import shap
import torch
from _machine import RESULTS, write
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sklearn.datasets import load_breast_cancer

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier

ROWS, BACKGROUND = 100, 50  # of SHAP
REPEATS = 500


def main():
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    clf = SharpBalanceEnsembleClassifier(device="cpu", random_state=0).fit(X, y)
    session = session_of(clf)
    numbers = {"shap_s": shap_seconds(session, X), "row_ms": latencies(clf, session, X)}
    write("serving", numbers, args.out)


def session_of(clf):
    """Return the exported ensemble."""
    with tempfile.TemporaryDirectory() as folder:
        clf.export_onnx(f"{folder}/model.onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(f"{folder}/model.onnx", options)


def shap_seconds(session, X):
    """Return the CPU seconds for the values of 100 rows, by number of permutations."""

    def predict(rows):
        arrays = dict(zip(X.columns, rows.T.astype(np.float32)[:, :, None]))
        return session.run(["probabilities"], arrays)[0]

    explainer = shap.PermutationExplainer(predict, X.to_numpy()[:BACKGROUND], seed=0)
    explainer(X.to_numpy()[:2], silent=True)  # compiles
    found = {}
    for permutations in (1, 10):
        start = time.process_time()
        n_evals = permutations * (2 * X.shape[1] + 1)
        explainer(X.to_numpy()[:ROWS], max_evals=n_evals, silent=True)
        found[f"permutations_{permutations}"] = time.process_time() - start
    return found


def latencies(clf, session, X):
    """Return the milliseconds of a row, by what predicts."""
    app = FastAPI()

    @app.post("/predict")
    async def predict(row: dict[str, float | str | None]) -> list[float]:
        arrays = {name: np.array([[row[name]]], "float32") for name in row}
        return session.run(["probabilities"], arrays)[0][0].tolist()

    row = X.iloc[0].to_dict()
    arrays = {name: np.array([[value]], "float32") for name, value in row.items()}
    want = clf.predict_proba(X[:1])[0]
    with TestClient(app) as client:
        got = client.post("/predict", json=row).json()
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
        return {
            "fastapi": median_ms(lambda: client.post("/predict", json=row)),
            "onnxruntime": median_ms(lambda: session.run(None, arrays)),
            "predict_proba": median_ms(lambda: clf.predict_proba(X[:1])),
        }


def median_ms(call):
    """Return the median milliseconds of a call."""
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return 1e3 * float(np.median(found))


if __name__ == "__main__":
    main()
