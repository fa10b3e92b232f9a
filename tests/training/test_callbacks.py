"""Callbacks of skorch for each member, of scikit-learn for the fit, and output."""

import re

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from skorch.callbacks import Callback

from sklearn_sharpbalance import SharpBalanceEnsembleClassifier as SharpBalance
from tests.cases import N_EPOCHS, N_SAMPLES, SMALL, column, rest_slow, table

# skorch -----------------------------------------------------------------------------


class WeightNorm(Callback):
    """Record the norm of the weights after every epoch."""

    def on_epoch_end(self, net, **kwargs):
        norms = [float(p.detach().square().sum()) for p in net.module_.parameters()]
        net.history.record("norm", sum(norms))


@pytest.mark.parametrize("engine", ["skorch", "stacked"])
def test_callbacks_are_called_for_every_member_and_epoch(engine):
    clf = SharpBalance(callbacks=[WeightNorm()], engine=engine, **SMALL).fit(*table())
    for net, history in zip(clf.estimators_, clf.history_):
        norm = sum(float(p.detach().square().sum()) for p in net.module_.parameters())
        assert len(history) == N_EPOCHS
        assert history[-1]["norm"] == pytest.approx(norm, rel=1e-5)
    assert column(clf, "norm", 0) != column(clf, "norm", 1)


# scikit-learn -----------------------------------------------------------------------


class RecordTasks:
    """A scikit-learn callback that records its calls."""

    def __init__(self, stop_at=None):
        self.calls, self.stop_at = [], stop_at

    def setup(self, estimator, context):
        self.calls.append("setup")

    def teardown(self, estimator, context):
        self.calls.append("teardown")

    def on_fit_task_begin(self, estimator, context):
        self.calls.append(f"+{context.task_name} {context.task_id}")

    def on_fit_task_end(self, estimator, context):
        self.calls.append(f"-{context.task_name} {context.task_id}")
        return (context.task_name, context.task_id) == self.stop_at


def test_callbacks_of_scikit_learn_follow_phases_members_and_epochs():
    pytest.importorskip("sklearn.callback")
    witness = RecordTasks()
    options = {**SMALL, "max_epochs": 3, "warmup_epochs": 1, "engine": "skorch"}
    SharpBalance(**options).set_callbacks(witness).fit(*table())
    warm_up = ["+warmup 0"]
    for member in (0, 1):
        warm_up += [f"+member {member}", "+epoch 0", "-epoch 0"]
    balanced = ["+balanced 1"]
    for member in (0, 1):
        balanced += [
            f"+member {member}",
            "+epoch 0",
            "-epoch 0",
            "+epoch 1",
            "-epoch 1",
        ]
    ends = ["-member 0", "-member 1"]
    assert witness.calls == [
        "setup",
        "+fit 0",
        *warm_up,
        *ends,
        "-warmup 0",
        *balanced,
        *ends,
        "-balanced 1",
        "-fit 0",
        "teardown",
    ]


@pytest.mark.parametrize("engine", ["skorch", "stacked"])
@pytest.mark.parametrize(
    ("stop_at", "n_epochs"), [(("warmup", 0), 2), (("epoch", 0), 1), (("fit", 0), 4)]
)
def test_callbacks_of_scikit_learn_can_stop_a_fit(engine, stop_at, n_epochs):
    pytest.importorskip("sklearn.callback")
    clf = SharpBalance(engine=engine, **SMALL).set_callbacks(RecordTasks(stop_at))
    clf.fit(*table())
    assert [len(history) for history in clf.history_] == [n_epochs] * 2


def test_callbacks_of_scikit_learn_are_torn_down_after_an_error():
    pytest.importorskip("sklearn.callback")

    def fail(net, X, y):
        raise RuntimeError("no scores today")

    witness = RecordTasks()
    clf = SharpBalance(sharpness=fail, **SMALL).set_callbacks(witness)
    with pytest.raises(RuntimeError, match="no scores today"):
        clf.fit(*table())
    assert witness.calls[-1] == "teardown"


def test_scores_of_the_ensemble_after_each_phase():
    callback = pytest.importorskip("sklearn.callback")
    X, y = table()
    monitor = callback.ScoringMonitor(scoring=["accuracy", "neg_log_loss"])
    plain = {**SMALL, "sam": "sam", "lr_schedule": "constant"}
    clf = SharpBalance(warmup_epochs=2, **plain)
    clf.set_callbacks(monitor).fit(X, y)
    rows = monitor.get_logs().data
    assert [row["task_name"] for row in rows] == ["warmup", "balanced"]
    # Before the selection it equals the SAM ensemble.
    half = SharpBalance(selection="all", **{**plain, "max_epochs": 2}).fit(X, y)
    for row, fitted in zip(rows, (half, clf)):
        assert row["accuracy"] == fitted.score(X, y)
        loss = -np.log(fitted.predict_proba(X)[np.arange(N_SAMPLES), y]).mean()
        assert row["neg_log_loss"] == pytest.approx(-loss)


# Output -----------------------------------------------------------------------------


def mean_loss(clf):
    return np.mean([history[-1]["train_loss"] for history in clf.history_])


def last_frame(printed):
    """Return the last line that a progress bar has drawn, without control codes."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed).strip().splitlines()[-1]


def test_verbose_1_shows_one_bar_in_a_terminal(capsys, terminal):
    clf = SharpBalance(rho=0.2, verbose=1, **SMALL).fit(*table())
    printed = capsys.readouterr().out
    assert printed.startswith("SharpBalance(n_estimators=2, rho=0.2, ")
    line = last_frame(printed)
    assert line.startswith("SharpBalance(n_est")  # cut where it ends
    assert f"2 members, 4 epochs, loss {mean_loss(clf):.4f}, " in line


def test_verbose_1_prints_two_lines_where_output_is_no_terminal(capsys):
    grid = {"rho": [0.1, 0.2], "selection": ["all", "flattest"]}
    clf = SharpBalance(verbose=1, **{**SMALL, "max_epochs": 2})
    GridSearchCV(clf, grid, cv=2, refit=False).fit(*table())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 * 2 * 2
    for first, last in zip(lines[::2], lines[1::2]):
        assert ": MLP, 2 members, 2 epochs, 30 samples, device cpu, engine " in first
        assert re.search(r"\): 2 members, 2 epochs, loss \d\.\d{4}, \d+\.\d s$", last)
    names = [line.split("): ")[0] for line in lines]
    assert len(set(names)) == 4
    assert sum("rho=0.2" in name for name in names) == 8
    assert sum("selection='all'" in name for name in names) == 8


@pytest.mark.parametrize("engine", rest_slow(["stacked", "skorch"]))
def test_verbose_2_prints_every_epoch(capsys, engine):
    options = {"validation_fraction": 0.2, "engine": engine, **SMALL}
    clf = SharpBalance(verbose=2, **options).fit(*table())
    lines = capsys.readouterr().out.splitlines()
    expected = [
        f"member {member} epoch {row['epoch']} {row['phase']}: train_loss "
        f"{row['train_loss']:.4f}, valid_loss {row['valid_loss']:.4f}, valid_acc "
        f"{row['valid_acc']:.4f}, lr {row['lr']:.4f}"
        for member, history in enumerate(clf.history_)
        for row in history
    ]
    assert sorted(lines) == sorted(expected)
