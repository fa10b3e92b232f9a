"""The deep ensemble, which trains without SAM."""

from sklearn_sharpbalance._parameters import without_sam
from sklearn_sharpbalance.ensemble.phased import PhasedEnsemble


class DeepEnsembleClassifier(PhasedEnsemble):
    r"""Deep ensemble: members differ only in initial weights and batches.

    This is the baseline of comparisons. It trains like
    :class:`SharpBalanceEnsembleClassifier`, which documents the parameters in more
    detail, with ``selection="none"`` and without warm-up.

    Parameters
    ----------
    estimator : None, nn.Module class, instance or factory, or NeuralNetClassifier, \
            default=None
        Network of a member. None chooses a network by the shape of X.
    n_estimators : int, default=3
        Number of members.
    max_epochs, lr, lr_schedule, batch_size, optimizer
        Training of a member; None chooses a setting by the kind and the number of the
        samples, or takes that of a configured net.
    member_params : list of dict or None, default=None
        Settings that differ between members, one dictionary per member; a
        :class:`~sklearn.model_selection.ParameterSampler` draws them. With this
        parameter, the ensemble is a hyperparameter ensemble (Wenzel et al.).
    shared_trunk : nn.Module, callable, str or None, default=None
        Frozen network that computes features for all members, or a function that
        returns one, or the name of a pretrained torchvision model.
    standardize, train_transform, n_buffer
        Scaling of the input, augmentation of batches, and items of a Dataset that are
        kept in memory.
    aggregation : str, Aggregation or callable, default="mean_logit"
        How members are combined.
    validation_fraction, early_stopping
        Validation set, and whether to return to the ensemble's best epoch on it.
    class_weight, warm_start, weight_averaging
        Weights of the classes in the loss, a start from the fitted weights, and
        predictions with an average of a member's weights over the later epochs.
    prune : float or None, default=None
        Fraction of each member's weights to set to zero half-way.
    engine, device, precision, memory, checkpoint_dir, callbacks, random_state, verbose
        How and where members train, what is kept of it, and what is printed.
    **nested
        ``estimator__...`` and ``aggregation__...`` set parameters of these parts.

    Attributes
    ----------
    classes_, estimators_, heads_, trunk_, member_params_, train_indices_, history_
        See :class:`SharpBalanceEnsembleClassifier`.
    validation_scores_, engine_, settings_, n_iter_, n_passes_
        See :class:`SharpBalanceEnsembleClassifier`. ``settings_`` has the defaults that
        were chosen.

    References
    ----------
    Lakshminarayanan et al., Simple and scalable predictive uncertainty estimation
    using deep ensembles, NeurIPS 2017.

    Wenzel et al., Hyperparameter ensembles for robustness and uncertainty
    quantification, NeurIPS 2020.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_sharpbalance import DeepEnsembleClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = DeepEnsembleClassifier(max_epochs=20, random_state=0).fit(X, y)
    >>> clf.predict_proba(X).shape
    (150, 3)

    Learning rates and widths drawn for each member:

    >>> from scipy.stats import loguniform
    >>> from sklearn.model_selection import ParameterSampler
    >>> rates = loguniform(0.001, 0.01)
    >>> space = {"lr": rates, "module__hidden": [(64,), (128, 128)]}
    >>> drawn = list(ParameterSampler(space, n_iter=3, random_state=1))
    >>> clf = DeepEnsembleClassifier(max_epochs=20, member_params=drawn, random_state=0)
    >>> clf = clf.fit(X, y)
    >>> clf.engine_.reason
    'not stacked: members differ in module__hidden, and share one step...'
    """

    _nested_parts = ("estimator", "aggregation")

    def __init__(
        self,
        estimator=None,
        n_estimators=3,
        *,
        max_epochs=None,
        lr=None,
        lr_schedule=None,
        batch_size=None,
        optimizer=None,
        member_params=None,
        shared_trunk=None,
        standardize=True,
        train_transform="auto",
        n_buffer=None,
        aggregation="mean_logit",
        validation_fraction=None,
        early_stopping=False,
        class_weight=None,
        warm_start=False,
        weight_averaging=None,
        prune=None,
        engine="auto",
        device="auto",
        precision="auto",
        memory=None,
        checkpoint_dir=None,
        callbacks=None,
        random_state=None,
        verbose=0,
        **nested,
    ):
        self.estimator = estimator
        self.n_estimators = n_estimators
        self.max_epochs = max_epochs
        self.lr = lr
        self.lr_schedule = lr_schedule
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.member_params = member_params
        self.shared_trunk = shared_trunk
        self.standardize = standardize
        self.train_transform = train_transform
        self.n_buffer = n_buffer
        self.aggregation = aggregation
        self.validation_fraction = validation_fraction
        self.early_stopping = early_stopping
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.weight_averaging = weight_averaging
        self.prune = prune
        self.engine = engine
        self.device = device
        self.precision = precision
        self.memory = memory
        self.checkpoint_dir = checkpoint_dir
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose
        self._keep_nested(nested)

    def _full_params(self):
        return without_sam(self.get_params(deep=False))
