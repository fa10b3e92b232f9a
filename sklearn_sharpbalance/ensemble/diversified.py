"""Ensembles that are trained jointly to be diverse: SED, A2D and DivDis."""

import torch
from skorch import NeuralNetClassifier

from sklearn_sharpbalance._parameters import without_sam
from sklearn_sharpbalance.ensemble.base import BaseDeepEnsemble
from sklearn_sharpbalance.joint.members import JointObjective, choose_team
from sklearn_sharpbalance.joint.trainer import (
    JointTrainer,
    check_one_device,
    read_unlabeled,
)
from sklearn_sharpbalance.runtime.process import own_torch_modes
from sklearn_sharpbalance.training.loop import fitted_or_before
from sklearn_sharpbalance.training.net_building import build_net
from sklearn_sharpbalance.training.progress import with_callbacks


class DiversifiedEnsembleClassifier(BaseDeepEnsemble):
    r"""Deep ensemble whose members are trained jointly to disagree.

    Each member learns the labels; a second term penalises pairs of members that agree.
    "sed" applies it to training samples that are hard for the ensemble; "a2d" and
    "divdis" apply it to samples without labels, from a region where predictions should
    not be trusted. Members then disagree on samples unlike the training samples, which
    :func:`~sklearn_sharpbalance.metrics.predictive_diversity_score` detects.

    Parameters
    ----------
    estimator : None, nn.Module class, instance or factory, or NeuralNetClassifier, \
            default=None
        Network of a member, as in :class:`SharpBalanceEnsembleClassifier`. With a
        shared trunk, the network of its head.
    n_estimators : int, default=3
        Number of members.
    loss : {"sed", "a2d", "divdis"}, default="sed"
        Diversity loss. "a2d" and "divdis" need ``X_unlabeled`` in ``fit``.
    diversity_weight : float, default=0.1
        Weight of the diversity loss, lambda in the paper; 0 trains a deep ensemble.
    pair_members : int or None, default=2
        Members drawn in every step for the diversity loss, so that its cost does not
        grow with the ensemble. None takes all members; the objective is the same.
    shared_trunk : nn.Module, callable, str or None, default=None
        Frozen network that computes features for all members, as in
        :class:`SharpBalanceEnsembleClassifier`. With ``train_transform``, features of
        augmented samples are computed in every epoch.
    max_epochs : int or None, default=None
        Epochs; None is 50, or the setting of a configured net.
    lr : float or None, default=None
        Learning rate; None is 0.003, or the setting of a configured net.
    lr_schedule : {"cosine", "steps", "one_cycle", "constant"} or callable, default=None
        As in :class:`SharpBalanceEnsembleClassifier`.
    batch_size : int or None, default=None
        Samples in a batch; None is 128, or the setting of a configured net.
    optimizer : torch.optim.Optimizer class or None, default=None
        None is AdamW, or the setting of a configured net. Prefer an optimizer with
        adaptive steps, because the weight of the "sed" loss grows as a batch is fitted
        better.
    standardize : bool, default=True
        Scale what the members see: features by median and quartiles, with a bound for
        outliers, channels of images by mean and variance.
    train_transform : {"auto", "crop_flip"}, callable or None, default="auto"
        Augmentation of a batch on the device, the same for all members. "auto" is that
        of :class:`SharpBalanceEnsembleClassifier`; with ``shared_trunk`` it is None.
    n_buffer : int or None, default=None
        Items of a Dataset to keep in memory; None is what needs half of the free
        memory. More are kept in a temporary file. 0 reads an item whenever it is used,
        as is done with random items.
    aggregation : str, Aggregation or callable, default="mean_logit"
        How members are combined: "mean_logit", "mean_proba", "majority",
        "uniform_soup", "greedy_soup", "best_member" or "temperature", an object, or a
        function of logits (M, N, C).
    validation_fraction : float or None, default=None
        Fraction of the samples in the validation set, stratified.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes in the loss.
    warm_start : bool, default=False
        Start the next ``fit`` from the fitted weights.
    device : str, default="auto"
        "auto" uses CUDA if available. All members share one device.
    precision : {"auto", "float32", "tf32", "bf16", "fp16"}, default="auto"
        Precision of forward and backward passes; "auto" is bf16 for images on a GPU.
    checkpoint_dir : str, path-like or None, default=None
        Folder in which ``fit`` saves its state; the same fit resumes from it.
    callbacks : list or None, default=None
        skorch callbacks of each member, which are called at the start and the end of
        epochs. Members stop together, when callbacks have stopped each of them.
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
    train_indices_ : ndarray of shape (N,)
        Rows of X that were used for training, without the validation set.
    history_ : list of list of dict
        Records of each member, one per epoch, with the common ``diversity_loss``.
    engine_ : EngineChoice
        "stacked", one batched computation for MLP-like members, or "modules", one
        member after the other, the reason for the choice, and the threads of torch.
    settings_ : dict
        Settings that the fit used, with defaults filled in: ``lr``, ``lr_schedule``,
        ``max_epochs``, ``batch_size``, ``optimizer``, ``weight_decay``,
        ``train_transform``, ``device``, ``precision`` and ``threads``; if they are
        set, ``width``, ``label_smoothing`` and ``nesterov``.
    n_iter_ : int
        Epochs that were run.

    Notes
    -----
    With a set :math:`I` of K drawn members and the A2D loss of
    :func:`~sklearn_sharpbalance.joint.losses.agree_to_disagree`, SED
    minimises

    .. math:: \frac1M \sum_m \mathrm{CE}^m + \frac{\lambda}{K(K-1)} \sum_{m<l \in I}
       \frac1B \sum_n a_n \mathrm{A2D}(p^m(x_n), p^l(x_n)),
       \quad a_n = \frac{\mathrm{CE}_n}{(\frac1B \sum_b \mathrm{CE}_b)^2}

    with :math:`\mathrm{CE}_n` of the mean logits and without gradient through
    :math:`a_n`. The pair term over a random :math:`I` is an unbiased estimate of the
    term over all members. Steps use M times this gradient: each member descends its own
    loss, and learning rates have the same effect as in a deep ensemble. All members see
    the same batches. Unlabelled samples do not change running BatchNorm statistics.

    The pair loss dominates, also on easy samples, when the loss of a batch is below
    about :math:`\sqrt{\lambda / 2}`. Lower ``diversity_weight`` if members become
    uncertain on easy samples.

    References
    ----------
    Rubinstein et al., Scalable ensemble diversification for OOD generalization and
    detection, 2024.
    Pagliardini et al., Agree to disagree: diversity through disagreement for better
    transferability, ICLR 2023.
    Lee, Yao and Finn, Diversify and disambiguate: out-of-distribution robustness via
    disagreement, ICLR 2023.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_sharpbalance import DiversifiedEnsembleClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = DiversifiedEnsembleClassifier(max_epochs=20, random_state=0).fit(X, y)
    >>> clf.member_predict_proba(X).shape
    (3, 150, 3)
    """

    phase = "joint"
    _nested_parts = ("estimator", "aggregation")

    def __init__(
        self,
        estimator=None,
        n_estimators=3,
        *,
        loss="sed",
        diversity_weight=0.1,
        pair_members=2,
        shared_trunk=None,
        max_epochs=None,
        lr=None,
        lr_schedule=None,
        batch_size=None,
        optimizer=None,
        standardize=True,
        train_transform="auto",
        n_buffer=None,
        aggregation="mean_logit",
        validation_fraction=None,
        class_weight=None,
        warm_start=False,
        device="auto",
        precision="auto",
        checkpoint_dir=None,
        callbacks=None,
        random_state=None,
        verbose=0,
        **nested,
    ):
        self.estimator = estimator
        self.n_estimators = n_estimators
        self.loss = loss
        self.diversity_weight = diversity_weight
        self.pair_members = pair_members
        self.shared_trunk = shared_trunk
        self.max_epochs = max_epochs
        self.lr = lr
        self.lr_schedule = lr_schedule
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.standardize = standardize
        self.train_transform = train_transform
        self.n_buffer = n_buffer
        self.aggregation = aggregation
        self.validation_fraction = validation_fraction
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.device = device
        self.precision = precision
        self.checkpoint_dir = checkpoint_dir
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose
        self._keep_nested(nested)

    @with_callbacks
    def fit(self, X, y=None, sample_weight=None, X_unlabeled=None):
        """Train the members jointly.

        Parameters
        ----------
        X : array-like of shape (N, ...), dict of arrays, or Dataset
            As in :meth:`SharpBalanceEnsembleClassifier.fit`.
        y : array-like of shape (N,), default=None
            Labels of any type; None takes those of a Dataset.
        sample_weight : array-like of shape (N,), default=None
            Weight of each sample in the losses.
        X_unlabeled : array-like of shape (N', ...), dict or Dataset, default=None
            Samples on which "a2d" and "divdis" make members disagree. "sed" ignores
            them, so that a search can compare all three losses.

        Returns
        -------
        self : estimator instance
        """
        with fitted_or_before(self), own_torch_modes():
            self._run(X, y, sample_weight, X_unlabeled)
        return self

    def _full_params(self):
        return without_sam(self.get_params(deep=False))

    def _read_unlabeled(self, X_unlabeled, given):
        check_one_device(self.device)
        return read_unlabeled(self, X_unlabeled, given)

    def _recipe(self, params, nested, inputs, *, n_classes, continues, whole_fit):
        """Return parameters with AdamW, as in the paper, unless the user sets one.

        SGD with momentum is unstable under the pair loss of SED, whose weight has no
        upper bound as the loss of a batch decreases.
        """
        if isinstance(params["estimator"], NeuralNetClassifier):
            return params, nested
        chosen = {
            name: value
            for name, value in {"optimizer": torch.optim.AdamW, "lr": 0.003}.items()
            if params[name] is None and name not in nested
        }
        return params | chosen, nested

    def _make_net(self, params, nested, inputs, *, start, classes, continues):
        return build_net(
            params,
            nested,
            fmt=inputs.format,
            data=inputs.data,
            n_classes=len(classes),
            seed=start.seeds.split,
        )

    def _make_trainer(self, params, net, inputs, training, *, start, n_classes):
        team, choice = choose_team(net, inputs.data, training)
        trainer = JointTrainer(
            net,
            inputs,
            training,
            seeds=start.seeds,
            n_classes=n_classes,
            warm_nets=start.warm_nets,
            objective=JointObjective(params["loss"], params["diversity_weight"]),
            pair_members=params["pair_members"],
            team=team,
        )
        return trainer, choice
