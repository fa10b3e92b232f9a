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
    max_epochs : int or None, default=None
        Epochs; None is 4 to 40 for tables, by rows and classes, 50 for other data, or
        the setting of a configured net.
    lr : float or None, default=None
        Learning rate; None is chosen as in :class:`SharpBalanceEnsembleClassifier`.
    lr_schedule : {"cosine", "steps", "one_cycle", "constant"}, callable or skorch \
            LRScheduler, default=None
        Schedule of the learning rate; None is "one_cycle" for images of uint8, "cosine"
        for other data, or "constant" for a configured net.
    batch_size : int or None, default=None
        Samples in a batch; None is 128 to 1024 for tables and 64 to 512 for images of
        uint8, by their number, 128 for other data, or the setting of a configured net.
    optimizer : torch.optim.Optimizer class or None, default=None
        None is AdamW for tables, and for other data SGD with momentum 0.9 and weight
        decay 5e-4, or the setting of a configured net.
    member_params : list of dict or None, default=None
        Settings that differ between members, one dictionary per member; a
        :class:`~sklearn.model_selection.ParameterSampler` draws them. With this
        parameter, the ensemble is a hyperparameter ensemble (Wenzel et al.).
    shared_trunk : nn.Module, callable, str or None, default=None
        Frozen network that computes features for all members, or a function that
        returns one, or the name of a pretrained torchvision model.
    standardize : bool, default=True
        Scale features of tables by median and quartiles, with a bound for outliers,
        and channels of images by mean and variance, inside the members.
    train_transform : {"auto", "crop_flip"}, callable or None, default="auto"
        Augmentation of a batch. "auto" are random crops, and flips of colour images,
        for images of uint8 and networks of this package; None for other data.
    n_buffer : int or None, default=None
        Items of a Dataset to keep in memory; None is what needs half of the free
        memory. More are kept in a temporary file. 0 reads an item whenever it is used,
        as is done with random items. Of a stream, the items from which the next one is
        drawn; None is 1000.
    aggregation : str, Aggregation or callable, default="mean_logit"
        How members are combined: "mean_logit", "mean_proba", "majority",
        "uniform_soup", "greedy_soup", "best_member" or "temperature", an object, or a
        function of logits (M, N, C).
    validation_fraction : float or None, default=None
        Fraction of the samples in the validation set, stratified.
    early_stopping : bool or int, default=False
        Stop when the ensemble's accuracy on the validation set has not increased for
        so many epochs (True: 10), and return to its best epoch.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes in the loss.
    warm_start : bool, default=False
        Start the next ``fit`` from the fitted weights.
    weight_averaging : {"uniform", "exponential"}, WeightAveraging or None, default=None
        Let members predict with an average of their weights over the later epochs.
    prune : float or None, default=None
        Fraction of each member's weights to set to zero half-way.
    engine : {"auto", "stacked", "graph", "skorch"}, default="auto"
        How members train; all engines give the same result.
    device : str or list of str, default="auto"
        "auto" uses CUDA if available; a list distributes the members.
    precision : {"auto", "float32", "tf32", "bf16", "fp16"}, default="auto"
        Precision of forward and backward passes; "auto" is bf16 for images on a GPU.
    memory : None, str or joblib.Memory, default=None
        Cache of trained members, which equal fits share.
    checkpoint_dir : str, path-like or None, default=None
        Folder in which ``fit`` saves its state; the same fit resumes from it.
    callbacks : list or None, default=None
        skorch callbacks for each member.
    random_state : int, RandomState instance or None, default=None
        Source of all randomness.
    verbose : int, default=0
        1 prints what is trained and shows a bar with the time left, or a line every 15
        seconds where output is no terminal or notebook. 2 prints every epoch.
    **nested
        ``estimator__...`` and ``aggregation__...`` set parameters of these parts.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Class labels, in the order of the columns of ``predict_proba``.
    estimators_ : list of NeuralNetClassifier
        The fitted members, including the trunk if there is one.
    heads_ : list of NeuralNetClassifier
        The trained nets: members without the trunk.
    trunk_ : Trunk or None
        The shared trunk, if there is one.
    member_params_ : list of dict
        Values of ``member_params`` of each member.
    history_ : list of list of dict
        Records of each member, one per epoch.
    engine_ : EngineChoice
        Name of the engine, the reason for the choice, and the threads of torch.
    settings_ : dict
        Settings that the fit used, with defaults filled in: ``lr``, ``lr_schedule``,
        ``max_epochs``, ``batch_size``, ``optimizer``, ``weight_decay``,
        ``train_transform``, ``device``, ``precision`` and ``threads``; if they are
        set, ``width``, ``label_smoothing`` and ``nesterov``.
    n_iter_ : int
        Epochs run by the member that trained the longest.
    n_passes_ : float
        Passes over the training samples, summed over the members; counted as by
        :func:`~sklearn_sharpbalance.evaluation.gradient_passes`.

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
    >>> clf = DeepEnsembleClassifier(max_epochs=10, random_state=0).fit(X, y)
    >>> clf.predict_proba(X).shape
    (150, 3)

    Learning rates and widths drawn for each member:

    >>> from scipy.stats import loguniform
    >>> from sklearn.model_selection import ParameterSampler
    >>> rates = loguniform(0.001, 0.01)
    >>> space = {"lr": rates, "module__hidden": [(64,), (128, 128)]}
    >>> drawn = list(ParameterSampler(space, n_iter=3, random_state=1))
    >>> clf = DeepEnsembleClassifier(max_epochs=10, member_params=drawn, random_state=0)
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
