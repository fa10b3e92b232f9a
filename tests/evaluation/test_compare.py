"""Matched compute, comparisons and parameter studies."""

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from sklearn_sharpbalance import (
    DeepEnsembleClassifier,
    DiversifiedEnsembleClassifier,
    SharpBalanceEnsembleClassifier,
    metrics,
)
from sklearn_sharpbalance.evaluation import (
    compare,
    gradient_passes,
    match_passes,
    tradeoff_curve,
)
from sklearn_sharpbalance.exceptions import InvalidInputError, SharpBalanceWarning
from sklearn_sharpbalance.networks import MLP
from sklearn_sharpbalance.plotting import TradeoffDisplay

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

SMALL = {"estimator": MLP, "estimator__module__hidden": (8,), "batch_size": 64}


@pytest.fixture(scope="module")
def data():
    return make_classification(
        160, 5, n_informative=4, n_redundant=0, n_classes=3, flip_y=0.2, random_state=0
    )


def sharpbalance(**kwargs):
    return SharpBalanceEnsembleClassifier(**SMALL | kwargs)


# Cost -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "passes"),
    [
        (DeepEnsembleClassifier(n_estimators=4, max_epochs=10), 40),
        (DeepEnsembleClassifier(), 150),  # three members, fifty epochs
        (sharpbalance(selection="all", max_epochs=10), 3 * 20),
        (sharpbalance(selection="none", warmup="sgd", max_epochs=10), 3 * 10),
        # Five epochs of SAM, five of descent.
        (sharpbalance(selection="none", max_epochs=10), 3 * 15),
        (sharpbalance(selection="none", warmup_epochs=2, max_epochs=10), 3 * 12),
        # The warm-up, and balanced epochs with a share of 1 - 0.6^2.
        (sharpbalance(max_epochs=10), 3 * (10 + 5 * 1.64)),
        (sharpbalance(n_estimators=2, max_epochs=4), 2 * (4 + 2 * 1.4)),
        (sharpbalance(selection="random", warmup="sgd", max_epochs=4), 3 * (2 + 3.28)),
        # Leftover: in nobody's lowest, 0.6^3; a third of it, or two thirds.
        (
            sharpbalance(selection="reference_union", warmup_epochs=0, max_epochs=2),
            3 * 2 * (1.64 + 0.6**3 / 3),
        ),
        (
            sharpbalance(selection="reference_boost", warmup_epochs=0, max_epochs=2),
            3 * 2 * (1.64 + 0.6**3 * 2 / 3),
        ),
        (DiversifiedEnsembleClassifier(n_estimators=4, max_epochs=10), 40),
        # Two of four members see the unlabelled samples.
        (
            DiversifiedEnsembleClassifier(loss="a2d", n_estimators=4, max_epochs=10),
            4 * 15,
        ),
        (make_pipeline(StandardScaler(), DeepEnsembleClassifier(max_epochs=7)), 21),
    ],
)
def test_passes_before_the_fit_by_hand(estimator, passes):
    assert gradient_passes(estimator) == pytest.approx(passes, rel=0.01)


def test_passes_after_the_fit_count_the_real_sets(data):
    X, y = data
    clf = sharpbalance(max_epochs=5, warmup_epochs=2, random_state=0).fit(X, y)
    share = clf.sam_masks_.sum() / clf.sam_masks_.size
    assert gradient_passes(clf) == pytest.approx(3 * (2 * 2 + 3 * (1 + share)))
    plain = sharpbalance(max_epochs=4, warmup="sgd", selection="all").fit(X, y)
    assert gradient_passes(plain) == pytest.approx(3 * (2 * 1 + 2 * 2))
    stopped = DeepEnsembleClassifier(
        **SMALL,
        max_epochs=20,
        early_stopping=1,
        validation_fraction=0.3,
        random_state=0,
    ).fit(X, y)
    assert gradient_passes(stopped) < 3 * 20
    joint = DiversifiedEnsembleClassifier(**SMALL, max_epochs=3, loss="divdis")
    joint.fit(X, y, X_unlabeled=X)
    assert gradient_passes(joint) == pytest.approx(3 * 3 * (1 + 2 / 3))


@pytest.mark.parametrize(
    ("estimator", "passes", "params"),
    [
        (sharpbalance(selection="all"), 150, {"max_epochs": 25}),
        (DeepEnsembleClassifier(n_estimators=5), 150, {"max_epochs": 30}),
        # 3 * (2 * 4 + 1 * 4) = 36 passes in eight epochs.
        (sharpbalance(selection="none"), 36, {"max_epochs": 8}),
        # A fifth of the training is a fifth of it afterwards: 3 * (2 * 2 + 8).
        (
            sharpbalance(selection="none", warmup_epochs=10, max_epochs=50),
            36,
            {"max_epochs": 10, "warmup_epochs": 2},
        ),
        (
            sharpbalance(selection="none", warmup_epochs=np.int64(10), max_epochs=50),
            36,
            {"max_epochs": 10, "warmup_epochs": 2},
        ),
        (DeepEnsembleClassifier(n_estimators=5), 1, {"max_epochs": 1}),
    ],
)
def test_epochs_that_match_by_hand(estimator, passes, params):
    assert match_passes(estimator, passes) == params


def test_matched_epochs_are_the_nearest():
    clf = sharpbalance(n_estimators=3)
    for passes in (20, 77, 150):
        n = match_passes(clf, passes)["max_epochs"]
        costs = [
            abs(gradient_passes(clf.set_params(max_epochs=k)) - passes)
            for k in range(1, 60)
        ]
        assert costs[n - 1] == min(costs)


def test_cost_of_other_classifiers_is_not_known():
    with pytest.raises(InvalidInputError, match="counted for the ensembles of this"):
        gradient_passes(LogisticRegression())


# Comparison -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def methods():
    return {
        "deep": DeepEnsembleClassifier(**SMALL, max_epochs=8),
        "SAM": sharpbalance(selection="all", max_epochs=50),
        "linear": LogisticRegression(),
    }


@pytest.fixture(scope="module")
def comparison(data, methods):
    return compare(methods, *data, cv=2, seeds=[3, 4], n_bootstrap=50)


def test_matched_methods_take_the_same_passes(comparison):
    for name, epochs in {"deep": 8, "SAM": 4}.items():
        assert comparison.run_values(name, "epochs").tolist() == [epochs] * 4
        assert comparison.run_values(name, "gradient_passes").tolist() == [24.0] * 4
    assert not comparison.has("linear", "gradient_passes")


def test_runs_are_folds_times_seeds_by_a_loop(data, comparison, methods):
    X, y = data
    folds = StratifiedKFold(2, shuffle=True, random_state=0).split(X, y)
    expected = []
    for train, test in folds:
        for seed in (3, 4):
            clf = DeepEnsembleClassifier(**SMALL, max_epochs=8, random_state=seed)
            expected.append(clf.fit(X[train], y[train]).score(X[test], y[test]))
    assert comparison.run_values("deep", "accuracy").tolist() == expected
    assert comparison.n_samples == len(y)
    assert methods["SAM"].max_epochs == 50  # the caller's own object
    assert not hasattr(methods["deep"], "estimators_")


def test_ranking_is_that_of_the_accuracy(comparison):
    ranking = comparison.ranking
    means = {m: comparison.row(m, "accuracy")["mean"] for m in comparison.methods}
    assert ranking.best == max(means, key=means.get)
    assert (ranking["rank_low"] <= ranking["rank"]).all()
    assert (ranking["rank"] <= ranking["rank_high"]).all()
    assert ranking["best_share"].sum() == pytest.approx(1)
    assert comparison.rank("nll")["method"].tolist() != []
    assert "Ranking by Accuracy" in comparison.to_html()


def test_comparison_is_a_function_of_random_state(data, methods):
    X, y = data
    only = {name: methods[name] for name in ("deep", "SAM")}
    options = {"cv": 0.3, "seeds": 2, "n_bootstrap": 20}
    one, two = (compare(only, X, y, random_state=1, **options) for _ in range(2))
    other = compare(only, X, y, random_state=2, **options)
    np.testing.assert_array_equal(one["mean"], two["mean"])
    np.testing.assert_array_equal(one["low"], two["low"])
    assert not np.array_equal(one["mean"], other["mean"])
    assert one.row("deep", "accuracy")["n_runs"] == 2


def test_another_reference_and_no_matching(data, methods):
    X, y = data
    only = {name: methods[name] for name in ("deep", "SAM")}
    only["SAM"] = sharpbalance(selection="all", max_epochs=2)
    splits = [(np.arange(100), np.arange(100, 160))]
    options = {"cv": splits, "n_bootstrap": 0}
    report = compare(only, X, y, reference="SAM", **options)
    assert report.row("deep", "epochs")["mean"] == 4
    report = compare(only, X, y, matched_compute=False, **options)
    assert report.row("deep", "epochs")["mean"] == 8
    assert report.n_samples == 60


def test_frames_pipelines_and_more_arguments_of_fit(data, capsys):
    X, y = data
    frame = pd.DataFrame(X, columns=list("abcde"))
    methods = {
        "deep": make_pipeline(
            StandardScaler(), DeepEnsembleClassifier(**SMALL, max_epochs=4)
        ),
        "A2D": DiversifiedEnsembleClassifier(**SMALL, loss="a2d"),
    }
    report = compare(
        methods,
        frame,
        y,
        cv=0.5,
        fit_params={"A2D": {"X_unlabeled": frame}},
        corruptions=["feature_noise"],
        severities=[5],
        n_bootstrap=0,
        verbose=1,
    )
    assert "fold 1: A2D, random_state=" in capsys.readouterr().out
    # 12 passes: three members at 1 + 2/3 an epoch take 5 with two epochs, 10 or 15.
    assert report.row("A2D", "epochs")["mean"] == 2
    assert report.has("deep", "corrupted_accuracy", "members", "severity 5")


class Counted(DeepEnsembleClassifier):
    """Tells with which weights it was fitted."""

    weights: list = []

    def fit(self, X, y=None, sample_weight=None):
        self.weights.append(sample_weight)
        return super().fit(X, y, sample_weight=sample_weight)


def test_what_cannot_be_ranked_is_refused_before_any_training(data):
    X, y = data
    Counted.weights.clear()
    method = {"deep": Counted(max_epochs=1)}
    for metric, message in (
        ("acuracy", "by 'acuracy': no such metric. Choose one of 'accuracy'"),
        ("der", "no better direction"),
        ("corrupted_accuracy", "Pass corruptions= too"),
        ("sharpness", "Pass sharpness= too"),
        ("ood_auroc", "Pass ood= too"),
        (("nll", "membres"), "the 'nll' of 'membres'. Choose one of 'members'"),
        (("nll", "ensemble", "", 3), r"must be a metric, or \(metric, part, detail\)"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            compare(method, X, y, rank_by=metric)
    for by in ("ood_auroc", ("ood_auroc", "members")):
        with pytest.raises(InvalidInputError, match="one for each score"):
            compare(method, X, y, ood=X, rank_by=by)
    assert not Counted.weights


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"corruptions": ["foggy"]}, "Unknown tabular corruption 'foggy'"),
        ({"corruptions": "label_shift", "severities": [6]}, "integer from 1 to 5, got"),
        ({"corruptions": {"fog": 1}}, r"pairs \(kind, severity\).*the key 'fog'"),
        ({"corruptions": {("mine", 1): 1}}, r"no set \('mine', 2\)"),
        ({"sharpness": {"radius": 1}}, "adaptive_sharpness has no option 'radius'"),
        ({"sharpness": None}, "True, False, a dictionary of options or a function"),
        ({"n_bootstrap": None}, "n_bootstrap must not be negative, got None"),
        ({"ood": np.zeros((9, 2))}, r"samples such as those of X, .* got \(9, 2\)"),
        ({"ood": {"a": np.zeros((9, 2))}}, r"such as those of X, .* got \(9, 2\)"),
        ({"ood": np.zeros((0, 5))}, r"such as those of X, .* got \(0, 5\)"),
        ({"ood": np.float64(1)}, r"such as those of X, .* got \(\)"),
        ({"ood": {1: 0, "1": 0}}, r"sets must differ as text, got \[1, '1'\]"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_training(data, what, message):
    Counted.weights.clear()
    with pytest.raises(InvalidInputError, match=message):
        compare({"deep": Counted(max_epochs=1)}, *data, cv=2, **what)
    assert not Counted.weights


def test_channels_of_foreign_pictures_may_lie_elsewhere():
    X, y = np.random.default_rng(0).random((40, 8, 8, 3)), np.arange(40) % 2
    method = {"deep": DeepEnsembleClassifier(max_epochs=1, n_estimators=2)}
    reports = [
        compare(method, X, y, ood=samples, cv=0.5, n_bootstrap=0)
        for samples in (X, X.transpose(0, 3, 1, 2))
    ]
    np.testing.assert_array_equal(reports[0]["mean"], reports[1]["mean"])


def test_pipelines_pick_columns_of_foreign_samples(data):
    X, y = data
    frame = pd.DataFrame(X, columns=list("abcde"))
    columns = make_column_transformer((StandardScaler(), list("abc")))
    deep = DeepEnsembleClassifier(max_epochs=1, n_estimators=2)
    report = compare(
        {"deep": make_pipeline(columns, deep)},
        *(frame, y),
        ood=frame.assign(f=0.0),
        **{"cv": 0.5, "n_bootstrap": 0},
    )
    assert report.has("deep", "ood_auroc", detail="MSP")


def test_kinds_of_pictures_are_refused_before_any_training(data):
    Counted.weights.clear()
    X = np.zeros((160, 8, 8, 3), dtype=np.uint8)
    deep = {"deep": Counted(max_epochs=1)}
    with pytest.raises(InvalidInputError, match="Unknown corruption 'foggy'"):
        compare(deep, X, data[1], corruptions=["noise", "foggy"])
    assert not Counted.weights


def test_every_fold_reads_the_same_iterators(data):
    X, y = data
    kinds, severities = ["feature_noise", "label_shift"], [2, 4]
    method = {"line": LogisticRegression()}
    reports = [
        compare(
            *(method, X, y),
            **{"cv": 2, "matched_compute": False, "n_bootstrap": 0},
            corruptions=make(kinds),
            severities=make(severities),
        )
        for make in (list, iter)
    ]
    np.testing.assert_array_equal(reports[0]["mean"], reports[1]["mean"])


def test_frames_of_polars_stay_frames(data):
    polars = pytest.importorskip("polars")
    X, y = data
    names = list("abcde")
    columns = make_column_transformer((StandardScaler(), names[:3]))
    method = {"p": make_pipeline(columns, LogisticRegression())}
    reports = [
        compare(
            *(method, frame, y),
            **{"cv": 2, "matched_compute": False, "n_bootstrap": 0},
            corruptions=["feature_noise", "label_shift"],
            severities=3,
        )
        for frame in (pd.DataFrame(X, columns=names), polars.DataFrame(X, names))
    ]
    np.testing.assert_array_equal(reports[0]["mean"], reports[1]["mean"])


def test_a_report_outlives_a_ranking_that_fails(data):
    X, y = data
    methods = {"deep": Counted(max_epochs=1), "line": LogisticRegression()}
    with pytest.warns(SharpBalanceWarning, match="No ranking: .*no 'eir'") as told:
        report = compare(methods, X, y, cv=2, rank_by="eir", n_bootstrap=0)
    assert told[0].filename == __file__
    assert report.ranking is None
    assert report.has("deep", "eir")
    by_members = compare(
        *({"deep": methods["deep"]}, X, y),
        cv=2,
        sharpness=metrics.mean_fisher_trace,
        rank_by="sharpness",
        n_bootstrap=0,
    )
    assert by_members.ranking.metric.startswith("Sharpness")


def test_weights_are_cut_into_folds(data):
    X, y = data
    Counted.weights.clear()
    weight = np.arange(1.0, len(y) + 1)
    compare(
        *({"deep": Counted(max_epochs=1)}, X, y),
        cv=2,
        fit_params={"deep": {"sample_weight": weight}},
        n_bootstrap=0,
    )
    np.testing.assert_array_equal(np.sort(np.concatenate(Counted.weights)), weight)
    Counted.weights.clear()
    without = {"deep": {"sample_weight": None}}
    deep = {"deep": Counted(max_epochs=1)}
    compare(deep, X, y, cv=2, fit_params=without, n_bootstrap=0)
    assert Counted.weights == [None, None]


def test_dictionaries_of_arrays_are_cut_into_folds(data):
    from torch import nn

    X, y = data

    class TwoInputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, a, b):
            import torch

            return self.layer(torch.cat([a, b], dim=1))

    inputs = {"a": X[:, :2].astype("float32"), "b": X[:, 2:].astype("float32")}
    deep = DeepEnsembleClassifier(TwoInputs, max_epochs=2, n_estimators=2)
    report = compare([deep], inputs, y, cv=2, n_bootstrap=0)
    assert report.row("DeepEnsembleClassifier", "accuracy")["n_runs"] == 2


def test_comparisons_that_cannot_be_made_are_refused(data, methods):
    X, y = data
    with pytest.raises(InvalidInputError, match="Unknown reference 'best'"):
        compare(methods, X, y, reference="best")
    with pytest.raises(InvalidInputError, match="cost of the reference 'linear'"):
        compare(methods, X, y, reference="linear")
    with pytest.raises(InvalidInputError, match="one estimator per method, got 2"):
        compare({"a": [LogisticRegression()] * 2}, X, y)
    with pytest.raises(InvalidInputError, match=r"fit_params names \['x'\]"):
        compare(methods, X, y, fit_params={"x": {}})
    with pytest.raises(InvalidInputError, match="seeds must be at least 1"):
        compare(methods, X, y, seeds=0)
    with pytest.raises(InvalidInputError, match="X has 10 samples, y has 160"):
        compare(methods, X[:10], y)


# The study --------------------------------------------------------------------------


def test_study_equals_a_loop(data):
    X, y = data
    sam = sharpbalance(selection="all", max_epochs=3)
    curve = tradeoff_curve(
        sam,
        X[:100],
        y[:100],
        rho=[0.01, 0.5],
        other={"estimator__module__hidden": [(4,), (8, 4)], "max_epochs": [2]},
        seeds=[5],
        X_test=X[100:],
        y_test=y[100:],
        sharpness={"n_batches": 2},
    )
    assert curve.n_rows == 4
    assert curve.parameters == ("rho", "estimator__module__hidden", "max_epochs")
    for i in (0, 3):
        params = {name: curve[name][i] for name in curve.parameters}
        params |= {"rho": float(params["rho"]), "max_epochs": int(params["max_epochs"])}
        clf = sharpbalance(
            selection="all", **params, random_state=int(curve["seed"][i])
        )
        clf.fit(X[:100], y[:100])
        probas = clf.member_predict_proba(X[100:])
        flat = metrics.adaptive_sharpness(
            clf, X[:100], y[:100], n_batches=2, random_state=0
        )
        assert curve["sharpness"][i] == pytest.approx(flat)
        assert curve["ensemble_accuracy"][i] == clf.score(X[100:], y[100:])
        der = metrics.disagreement_error_ratio(y[100:], probas)
        assert curve["disagreement_error_ratio"][i] == pytest.approx(der)
        assert curve["kl_diversity"][i] == pytest.approx(metrics.kl_diversity(probas))


@pytest.fixture(scope="module")
def curve(data):
    X, y = data
    sam = sharpbalance(selection="all", max_epochs=2, n_estimators=2)
    return tradeoff_curve(
        sam,
        X,
        y,
        rho=[0.01, 0.1, 0.5],
        other={"flat_ratio": [0.2, 0.4]},
        seeds=2,
        sharpness=lambda clf, X, y: clf.rho + clf.flat_ratio,
        sharpness_name="Made up",
    )


def test_figure_shows_the_means_over_seeds(curve):
    display = curve.display()
    assert isinstance(display, TradeoffDisplay)
    assert display.sharpness.shape == (6,)
    np.testing.assert_allclose(display.sharpness[:3], [0.21, 0.3, 0.7])
    pairs = curve["disagreement_error_ratio"].reshape(6, 2)
    np.testing.assert_allclose(display.diversity, pairs.mean(1))
    assert display.labels == ["0.01", "0.1", "0.5"] * 2
    assert display.groups == ["flat_ratio 0.2"] * 3 + ["flat_ratio 0.4"] * 3
    assert set(display.fits_) == {"flat_ratio 0.2", "flat_ratio 0.4"}
    assert display.ax_.get_xlabel() == "Made up"
    every = curve.display(average=False, diversity="kl_diversity", color=None)
    np.testing.assert_array_equal(every.diversity, curve["kl_diversity"])


def test_study_is_a_table(curve):
    frame = curve.to_frame()
    assert list(frame.columns[:3]) == ["rho", "flat_ratio", "seed"]
    means = frame.groupby(["flat_ratio", "rho"])["improvement"].mean()
    np.testing.assert_allclose(curve.mean()["improvement"], means)
    assert frame["seed"].nunique() == 2


def test_study_of_a_pipeline_varies_its_last_step(data):
    X, y = data
    X = 100 * X
    settings = {"rho": [0.05, 0.5], "sharpness": {"n_batches": 2}}
    alone = tradeoff_curve(sharpbalance(), scaled(X), y, **settings)
    inside = make_pipeline(FunctionTransformer(scaled), sharpbalance())
    nested = make_pipeline(FunctionTransformer(), inside)
    for pipeline in (inside, nested):
        curve = tradeoff_curve(pipeline, X, y, **settings)
        for name in ("rho", "sharpness", "kl_diversity"):
            np.testing.assert_allclose(curve[name], alone[name], rtol=1e-5)
    with pytest.raises(InvalidInputError, match="LogisticRegression has no parameter"):
        tradeoff_curve(make_pipeline(LogisticRegression()), X, y, rho=[0.1])


def scaled(X):
    return X / 100


def test_studies_that_cannot_be_made_are_refused(data, curve):
    X, y = data
    with pytest.raises(InvalidInputError, match="has no parameter rho to vary"):
        tradeoff_curve(DeepEnsembleClassifier(), X, y, rho=[0.1])
    with pytest.raises(InvalidInputError, match="rho has no values"):
        tradeoff_curve(sharpbalance(), X, y, rho=[])
    with pytest.raises(InvalidInputError, match=r"rho must be .* got 0.1"):
        tradeoff_curve(sharpbalance(), X, y, rho=0.1)
    with pytest.raises(InvalidInputError, match=r"sam must be .* Pass \['asam'\]"):
        tradeoff_curve(sharpbalance(), X, y, rho=[0.1], other={"sam": "asam"})
    with pytest.raises(InvalidInputError, match="without y_test"):
        tradeoff_curve(sharpbalance(), X, y, rho=[0.1], X_test=X)
    with pytest.raises(InvalidInputError, match="Unknown diversity 'beauty'"):
        curve.display(diversity="beauty")
    with pytest.raises(InvalidInputError, match="Unknown color 'red'"):
        curve.display(color="red")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"y_test": [0, 1]}, "y_test was passed without X_test"),
        ({"other": {"rho": [0.2]}}, "other varies 'rho'. Pass rho="),
        ({"other": {"random_state": [1, 2]}}, "'random_state'. Pass seeds="),
        ({"sharpness": True}, "sharpness must be None, a dictionary"),
        ({"X_test": np.ones((3, 5)), "y_test": [0]}, "3 samples, y_test has 1"),
    ],
)
def test_what_a_study_would_ignore_is_refused_before_it_trains(data, options, message):
    X, y = data
    with pytest.raises(InvalidInputError, match=message):
        tradeoff_curve(sharpbalance(), X, y, rho=[0.1], **options)


def test_a_study_of_a_pipeline_sets_rho_once(data):
    pipeline = make_pipeline(StandardScaler(), sharpbalance())
    name = f"{pipeline.steps[-1][0]}__rho"
    with pytest.raises(InvalidInputError, match=f"other varies '{name}'. Pass rho="):
        tradeoff_curve(pipeline, *data, rho=[0.1, 0.2], other={name: [0.3]})


def test_a_study_counts_its_labels(data):
    X, y = data
    message = f"X has {len(y)} samples, y has {len(y) - 9}"
    with pytest.raises(InvalidInputError, match=message):
        tradeoff_curve(sharpbalance(), X, y[:-9], rho=[0.1])
