"""SharpBalance: members that are flat on different samples."""

from sklearn_sharpbalance.ensemble.phased import PhasedEnsemble


class SharpBalanceEnsembleClassifier(PhasedEnsemble):
    r"""Deep ensemble whose members are flat on different samples.

    After a warm-up, each member scores every training sample by its sharpness. After
    that, member i applies sharpness-aware minimization (SAM) to samples that the
    *other* members propose, and plain gradient descent to the rest. Members become flat
    but stay diverse.

    Parameters
    ----------
    estimator : None, nn.Module class, instance or factory, or NeuralNetClassifier, \
            default=None
        Network of a member. None chooses a network by the shape of X. A class or
        factory gets ``n_classes`` and ``n_features`` or ``in_channels`` if its
        signature has them. An instance is copied and re-initialised. A configured
        skorch net keeps its own settings if the parameters below are None.
    n_estimators : int, default=3
        Number of members.
    rho : float, sequence of float or None, default=None
        Radius of the SAM perturbation; a sequence gives one per member. None is 0.3 for
        Momentum-SAM, 0.1 on tables, up to 1 for many images of uint8, and 0.05 for the
        others.
    flat_ratio : float, default=0.4
        Fraction of the samples that each member proposes to the others.
    sam : {"sam", "asam", "gsam", "friendly_sam", "momentum_sam", "look_sam"}, \
            optimizer class or None, default=None
        Sharpness-aware step, which wraps the member's optimizer. "momentum_sam" passes
        every sample once, "look_sam" a SAM sample 1.2 times, the others twice. None is
        "momentum_sam" for tables and images of uint8, with networks of this package and
        the default optimizer, otherwise "sam".
    warmup : {"sam", "sgd"}, default="sam"
        Whether members apply SAM to all samples or to none before the selection.
    warmup_epochs : int or float, default=0.5
        Epochs before the selection, as a count or as a fraction of ``max_epochs``.
    max_epochs : int or None, default=None
        Number of epochs; None is 4 to 40 for tables, 30 to 90 for images of uint8
        (more for fewer samples), 50 for other data, or the setting of a configured net.
    lr : float or None, default=None
        Learning rate; None is 0.003 for tables, ``0.4 * (batch_size / 512) ** 0.5`` for
        images of uint8 and convolutional networks of this package, 0.1 for other data,
        or the setting of a configured net.
    lr_schedule : {"cosine", "steps", "one_cycle", "constant"}, callable or skorch \
            LRScheduler, default=None
        "steps" divides the rate by ten after one half and three quarters of the
        training, as in the paper. A callable maps progress in [0, 1) to a factor. None
        is "one_cycle" for images of uint8, "cosine" for other data, or "constant" for a
        configured net.
    batch_size : int or None, default=None
        Samples in a batch; None is 128 to 1024 for tables and 64 to 512 for images of
        uint8, by their number, 128 for other data, or the setting of a configured net.
    optimizer : torch.optim.Optimizer class or None, default=None
        Base optimizer; None is AdamW for tables, and for other data SGD with momentum
        0.9 and weight decay 5e-4, or the setting of a configured net. The defaults for
        tables need ``estimator=None``. Other optimizers of torch have their own default
        ``lr``.
    member_params : list of dict or None, default=None
        Settings that differ between members, one dictionary per member; a
        :class:`~sklearn.model_selection.ParameterSampler` draws them. Names are those
        after ``estimator__``: ``lr``, ``module__...``, ``optimizer__...``,
        ``criterion__...``. For one radius per member pass ``rho=[...]``.
    shared_trunk : nn.Module, callable, str or None, default=None
        Frozen network that computes features for all members, or a function that
        returns one, or the name of a torchvision model, which has its default weights.
        Features are computed once, in evaluation mode and without standardisation;
        ``estimator`` is the network of a head, and all other parameters apply to the
        features. A module is copied and keeps its weights. ``train_transform`` is not
        possible.
    standardize : bool, default=True
        Scale the input: features of tables by median and quartiles, with a bound for
        outliers, channels of images by mean and variance. The default network gets
        more inputs of tables with many rows. The statistics are stored in the members.
    train_transform : {"auto", "crop_flip"}, callable or None, default="auto"
        Augmentation of a batch on the device, before standardisation; not applied in
        scoring and prediction. ``torchvision.transforms.v2`` transforms can be used.
        "auto" augments images of uint8 for networks of this package other than
        ``SmallCNN``: random crops after reflection by an eighth of the side, and random
        flips if there are three channels. For other data it is None.
    sharpness : str, SharpnessScorer or callable, default="fisher_trace"
        How members score samples: "fisher_trace", "last_layer", "loss", "loss_rise"
        or "input_curvature"
        (:data:`~sklearn_sharpbalance.sharpness.SHARPNESS_SCORERS`), an object, or a
        function ``func(net, X, y)``.
    selection : str, SubsetSelector or callable, default="flattest"
        Which samples get SAM: "flattest", those that are flat for other members, as in
        the paper's code for CIFAR-10; "flattest_union", as in its code for CIFAR-100;
        "sharpest", those that are sharp for other members, as in the paper's text;
        "random", "same", "all" or "none"
        (:data:`~sklearn_sharpbalance.selection.SUBSET_SELECTORS`), an object, or a
        function ``func(sharpness, random_state)``. ``flat_ratio`` applies to a rule
        given by name.
    n_buffer : int or None, default=None
        Items of a Dataset to keep in memory; None is what needs half of the free
        memory. More are kept in a temporary file. 0 reads an item whenever it is used,
        as is done with random items. Of a stream, the items from which the next one is
        drawn; None is 1000.
    aggregation : str, Aggregation or callable, default="mean_logit"
        How members are combined: "mean_logit", "mean_proba", "majority",
        "uniform_soup", "greedy_soup", "best_member" or "temperature"
        (:data:`~sklearn_sharpbalance.aggregation.AGGREGATIONS`), an object, or a
        function of logits (M, N, C).
    validation_fraction : float or None, default=None
        Fraction of the samples in the validation set, stratified.
    early_stopping : bool or int, default=False
        Stop when the *ensemble's* accuracy on the validation set has not increased for
        so many epochs after the warm-up (True: 10), and return to its best epoch. Among
        epochs of equal accuracy, the one with the highest likelihood is best. The
        accuracy is that of the final prediction, weighted by ``sample_weight``.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes in the loss: by label, or "balanced" for weights
        inversely proportional to class frequencies. They multiply ``sample_weight``.
    warm_start : bool, default=False
        Start the next ``fit`` from the fitted weights.
    weight_averaging : {"uniform", "exponential"}, WeightAveraging or None, default=None
        Let members predict with an average of their weights over the later epochs;
        BatchNorm statistics are recomputed for the average.
    prune : float or None, default=None
        Fraction of each member's matrices and filters to set to zero by magnitude when
        the warm-up ends (half-way without a warm-up); they stay zero.
    engine : {"auto", "stacked", "graph", "skorch"}, default="auto"
        How members train; all engines give the same result. "stacked" trains MLP-like
        members as one batched computation; "graph" replays CUDA graphs, with members
        on parallel streams; "skorch" trains one net at a time and supports everything,
        in processes of this machine or of a cluster inside
        ``joblib.parallel_config(n_jobs=2)``. "auto" uses the first of these that
        supports the members, and ``engine_`` has the reason.
    device : str or list of str, default="auto"
        "auto" uses CUDA if available. A list distributes the members over
        several devices, which train in parallel.
    precision : {"auto", "float32", "tf32", "bf16", "fp16"}, default="auto"
        Precision of forward and backward passes; weights are float32. "auto" is bf16
        for images on a GPU, else float32.
    memory : None, str or joblib.Memory, default=None
        Cache of phases and scores, which the fits of a search share. skorch callbacks
        are not called for a phase that is read from the cache.
    checkpoint_dir : str, path-like or None, default=None
        Folder in which ``fit`` saves its state, about ten times. The same fit, with
        the same data and parameters, resumes from it or loads the result; another fit
        raises an error that lists the differences. ``{fit}`` in the name is replaced by
        a digest of data and parameters, so that each fit of a search has a folder.
    callbacks : list or None, default=None
        skorch callbacks of each member, in addition to those of a configured net. One
        that raises ``KeyboardInterrupt`` in ``on_epoch_end``, like skorch's
        ``EarlyStopping``, ends the training of its member.
    random_state : int, RandomState instance or None, default=None
        Source of all randomness; the global RNG is neither used nor changed.
    verbose : int, default=0
        1 prints what is trained and shows a bar with the time left, or a line every 15
        seconds where output is no terminal or notebook. 2 prints every epoch.
    **nested
        ``estimator__...``, ``sharpness__...``, ``selection__...`` and
        ``aggregation__...`` set parameters of these parts.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Class labels, in the order of the columns of ``predict_proba``.
    n_features_in_ : int
        Number of columns of X, if X is a table.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns of X, if it has names.
    estimators_ : list of NeuralNetClassifier
        The fitted members, including the trunk if there is one.
    heads_ : list of NeuralNetClassifier
        The trained nets: members without the trunk.
    trunk_ : Trunk or None
        The shared trunk, if there is one.
    member_params_ : list of dict
        Values of ``member_params`` of each member.
    sharpness_ : ndarray of shape (M, N) or None
        Score of each training sample by each member at the last selection.
    sam_masks_ : ndarray of shape (M, N), dtype bool
        Samples to which each member applied SAM.
    train_indices_ : ndarray of shape (N,)
        Rows of X that were used for training, without the validation set.
    history_ : list of list of dict
        Records of each member, one per epoch.
    validation_scores_ : ndarray
        Accuracy of the ensemble per epoch, with early stopping.
    engine_ : EngineChoice
        Name of the engine, the reason for the choice, and the threads of torch.
    settings_ : dict
        Settings that the fit used, with defaults filled in: ``lr``, ``lr_schedule``,
        ``max_epochs``, ``batch_size``, ``optimizer``, ``weight_decay``,
        ``train_transform``, ``device``, ``precision``, ``threads``, ``sam`` and
        ``rho``; if they are set, ``width``, ``label_smoothing`` and ``nesterov``.
    n_iter_ : int
        Epochs run by the member that trained the longest.
    n_passes_ : float
        Passes over the training samples, summed over the members; counted as by
        :func:`~sklearn_sharpbalance.evaluation.gradient_passes`.

    References
    ----------
    Lu, Zhou, et al., Sharpness-diversity tradeoff: improving flat ensembles with
    SharpBalance, NeurIPS 2024.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_sharpbalance import SharpBalanceEnsembleClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = SharpBalanceEnsembleClassifier(max_epochs=10, random_state=0).fit(X, y)
    >>> clf.predict(X[:2])
    array([0, 0])
    >>> clf.sam_masks_.shape
    (3, 150)

    Members of different width and learning rate:

    >>> params = [{"lr": 0.01}, {"lr": 0.001}, {"module__hidden": (256,)}]
    >>> clf.set_params(member_params=params).fit(X, y).member_params_[1]
    {'lr': 0.001}
    """

    def __init__(
        self,
        estimator=None,
        n_estimators=3,
        *,
        rho=None,
        flat_ratio=0.4,
        sam=None,
        warmup="sam",
        warmup_epochs=0.5,
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
        sharpness="fisher_trace",
        selection="flattest",
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
        self.rho = rho
        self.flat_ratio = flat_ratio
        self.sam = sam
        self.warmup = warmup
        self.warmup_epochs = warmup_epochs
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
        self.sharpness = sharpness
        self.selection = selection
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
