"""Tests of scikit-learn for its own searches, run on EnsembleSearchCV."""

import pytest
from sklearn.model_selection.tests import test_search as of_sklearn

from sklearn_sharpbalance.model_selection import EnsembleSearchCV

NAMES = [
    "test_grid_search",
    "test_grid_search_pipeline_steps",
    "test_grid_search_no_score",
    "test_grid_search_score_method",
    "test_grid_search_groups",
    "test_classes__property",
    "test_no_refit",
    "test_grid_search_error",
    "test_grid_search_one_grid_point",
    "test_grid_search_when_param_grid_includes_range",
    "test_grid_search_bad_param_grid",
    "test_grid_search_precomputed_kernel",
    "test_refit",
    "test_refit_callable",
    "test_refit_callable_invalid_type",
    "test_refit_callable_multi_metric",
    "test_gridsearch_nd",
    "test_X_as_list",
    "test_y_as_list",
    "test_pandas_input",
    "test_unsupervised_grid_search",
    "test_gridsearch_no_predict",
    "test_grid_search_cv_results",
    "test_grid_search_cv_results_multimetric",
    "test_search_cv_results_none_param",
    "test_grid_search_correct_score_results",
    "test_predict_proba_disabled",
    "test_grid_search_allows_nans",
    "test_grid_search_failing_classifier",
    "test_grid_search_classifier_all_fits_fail",
    "test_grid_search_failing_classifier_raise",
    "test_search_train_scores_set_to_false",
    "test_grid_search_cv_splits_consistency",
    "test_transform_inverse_transform_round_trip",
    "test_callable_multimetric_confusion_matrix",
    "test_callable_multimetric_same_as_list_of_strings",
    "test_callable_single_metric_same_as_single_string",
    "test_callable_multimetric_error_on_invalid_key",
    "test_callable_multimetric_error_failing_clf",
    "test_callable_multimetric_clf_all_fits_fail",
]
RANDOMIZED = [
    "test_trivial_cv_results_attr",
    "test_random_search_cv_results",
    "test_search_cv_results_rank_tie_breaking",
    "test_search_cv_timing",
    "test_empty_cv_iterator_error",
    "test_random_search_bad_cv",
    "test_n_features_in",
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES + RANDOMIZED)
def test_of_sklearn(name, monkeypatch):
    if not hasattr(of_sklearn, name):
        pytest.skip("this version of scikit-learn has no such test")
    monkeypatch.setattr(of_sklearn, "GridSearchCV", EnsembleSearchCV)
    monkeypatch.setattr(of_sklearn, "RandomizedSearchCV", randomized)
    getattr(of_sklearn, name)()


def randomized(estimator, param_distributions, *, n_iter=10, **options):
    return EnsembleSearchCV(estimator, param_distributions, n_iter=n_iter, **options)
