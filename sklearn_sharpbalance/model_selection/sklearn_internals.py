"""Private functions of scikit-learn that a search needs, in one place.

A search prepares its fits before scikit-learn evaluates them, with the same rows and
the same arguments of ``fit``. scikit-learn has no public function for this, and its
class for own searches is in a private module. The tests in ``tests/model_selection``
fail if a new version changes one of these names.
"""

from sklearn.model_selection._search import BaseSearchCV
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _check_method_params, indexable

__all__ = ["BaseSearchCV", "routed_params", "rows_for_fit"]


def routed_params(search, X, y, params):
    """Return the arguments of ``fit`` of the estimator, and of ``split`` of ``cv``.

    Parameters
    ----------
    search : BaseSearchCV
    X, y
        Arguments of the search's ``fit``.
    params : dict
        Further arguments of it.

    Returns
    -------
    X, y
        With lengths that are checked.
    fit_params, split_params : dict
    """
    X, y = indexable(X, y)
    params = _check_method_params(X, params=params)
    routed = search._get_routed_params_for_fit(params)
    return X, y, dict(routed.estimator.fit), dict(routed.splitter.split)


def rows_for_fit(estimator, X, y, rows, fit_params):
    """Return the rows of X, y and the arguments of ``fit`` for one fold."""
    own_params = _check_method_params(X, params=fit_params, indices=rows)
    own_X, own_y = _safe_split(estimator, X, y, rows)
    return own_X, own_y, own_params
