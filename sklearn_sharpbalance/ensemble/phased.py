"""The fit that SharpBalance and its baselines share: phases over skorch members."""

from dataclasses import replace
from functools import partial
from operator import methodcaller

import numpy as np

from sklearn_sharpbalance.aggregation.rules import AGGREGATIONS
from sklearn_sharpbalance.aggregation.soups import final_net
from sklearn_sharpbalance.data.validation_split import hold_out
from sklearn_sharpbalance.engine import choose_engine
from sklearn_sharpbalance.ensemble.base import BaseDeepEnsemble
from sklearn_sharpbalance.members.member_params import member_settings
from sklearn_sharpbalance.members.own_settings import give_settings, own_settings
from sklearn_sharpbalance.members.schedules import constant
from sklearn_sharpbalance.members.state import own_draws, state_of
from sklearn_sharpbalance.runtime.devices import resolve_devices
from sklearn_sharpbalance.runtime.torch_modes import own_torch_modes
from sklearn_sharpbalance.selection import SUBSET_SELECTORS
from sklearn_sharpbalance.sharpness import SHARPNESS_SCORERS
from sklearn_sharpbalance.training.checkpoint import remaining
from sklearn_sharpbalance.training.course import follow_course, start_course
from sklearn_sharpbalance.training.early_stopping import (
    EarlyStopping,
    check_early_stopping,
)
from sklearn_sharpbalance.training.fitting import (
    base_rate,
    build_net,
    check_partial_fit,
    draw_seeds,
    make_settings,
    renewed_member,
    renewed_net,
    training_data,
)
from sklearn_sharpbalance.training.fixed_settings import check_unchanged, fixed_settings
from sklearn_sharpbalance.training.loop import EnsembleState, Trainer
from sklearn_sharpbalance.training.plan import (
    Segment,
    cut_length,
    plan_segments,
    warmup_length,
)
from sklearn_sharpbalance.training.progress import (
    FitMonitor,
    has_callbacks,
    with_callbacks,
)
from sklearn_sharpbalance.training.setup import (
    FitJob,
    FittedState,
    check_same_classes,
    first_members,
    make_checkpoints,
)

__all__ = ["PhasedEnsemble"]


class PhasedEnsemble(BaseDeepEnsemble):
    """Warm-up, score, select, train on.

    A child class names its parameters; :meth:`_full_params` fills in those that it
    does not offer.
    """

    _nested_parts: tuple[str, ...] = (
        "estimator",
        "sharpness",
        "selection",
        "aggregation",
    )

    def _full_params(self):
        return self.get_params(deep=False)

    @with_callbacks
    def fit(self, X, y=None, sample_weight=None):
        """Train the members.

        Parameters
        ----------
        X : array-like of shape (N, ...), dict of arrays, or Dataset
            A table (N, F); pictures (N, H, W, C) or (N, C, H, W) of uint8 or float, or
            (N, H, W) of uint8 (grey ones of float need a channel axis: ``X[:, None]``);
            any array with one row per sample for a module of your own; a dictionary of
            arrays, passed to the module as keywords; or a Dataset of (x, label) pairs.
        y : array-like of shape (N,), default=None
            Labels of any type; None takes those of a Dataset.
        sample_weight : array-like of shape (N,), default=None
            Weight of each sample in the loss, the sharpness and held-out scores.

        Returns
        -------
        self : estimator instance
        """
        with FittedState(self) as fitted, own_torch_modes():
            job = self._prepare(X, y, sample_weight, checkpoints=True)
            self._train(job, X, y, fitted)
        return self

    @with_callbacks
    def partial_fit(self, X, y=None, classes=None, sample_weight=None):
        """Train every member for one more epoch on the given samples.

        The first ``warmup_epochs`` calls warm up; each later one scores the given
        samples, selects, and trains on them. Members keep weights, momentum and the
        statistics of the input from the first call. The learning rate does not
        anneal, since the number of calls is not known. Parameters may be set before
        each call, ``callbacks`` begin anew in each; those that members were made by
        may not: ``estimator``, ``n_estimators``, ``sam``, ``optimizer``,
        ``member_params``, ``standardize``, and arguments of the module, the criterion
        and the optimizer, its learning rate excepted. What follows a whole fit is
        refused: ``weight_averaging``, ``prune``, ``early_stopping`` and
        ``checkpoint_dir``.

        Parameters
        ----------
        X : array-like of shape (N, ...), dict of arrays, or Dataset
            Samples, as in ``fit``.
        y : array-like of shape (N,), default=None
            Labels; not needed for a Dataset.
        classes : array-like of shape (C,), default=None
            All classes there will be; needed in the first call if ``y`` lacks some.
            Later calls may leave it out or name the same classes again.
        sample_weight : array-like of shape (N,), default=None
            Weight of each sample in the loss.

        Returns
        -------
        self : estimator instance
        """
        with FittedState(self), own_torch_modes():
            first = not hasattr(self, "estimators_")
            self._validate_params()
            known = None if first else self.classes_
            check_partial_fit(self._full_params(), classes, known)
            job = self._prepare(X, y, sample_weight, classes=classes, go_on=not first)
            members = self._first_members(job) if first else self._go_on(job)
            self._train_one_epoch(job, members)
        return self

    def _prepare(
        self, X, y, sample_weight, *, classes=None, go_on=False, checkpoints=False
    ):
        """Validate everything and turn names into objects, before any work."""
        self._validate_params()
        params = self._full_params()
        data, fmt, classes = training_data(
            self,
            X,
            y,
            sample_weight,
            params["class_weight"],
            classes=self.classes_ if go_on else classes,
            reset=not go_on,
        )
        warm = self._warm_nets()
        if warm:
            check_same_classes(classes, self.classes_)
        n_members = len(self.estimators_) if go_on else params["n_estimators"]
        seeds, saved = draw_seeds(params["random_state"], n_members), None
        if checkpoints:
            saved = make_checkpoints(params, data, classes, seeds, warm)
        seeds = seeds if saved is None else saved.seeds
        share = params["validation_fraction"]
        data = hold_out(data, share, seeds.split, sample_weight)
        check_early_stopping(params["early_stopping"], data)
        if go_on:
            net = self._net_to_go_on(params, fmt)
        else:
            net = self._net(params, fmt, data, classes, seeds)
        aggregation = self._aggregation(params)
        aggregation.check(data)
        aggregation.check_settings(net)
        settings = make_settings(params, net, fmt, n_members)
        engine, choice = choose_engine(
            params["engine"],
            net,
            data,
            settings,
            n_jobs=params["n_jobs"],
            devices=resolve_devices(params["device"]),
        )
        trainer = Trainer(
            net,
            data,
            settings,
            scorer=self._scorer(params),
            selector=self._selector(params),
            engine=engine,
            selection_seed=seeds.selection,
            any_device=params["device"] == "auto",
            memory=params["memory"],
            watched=has_callbacks(self),
        )
        return FitJob(params, trainer, aggregation, seeds, fmt, classes, choice, saved)

    def _net(self, params, fmt, data, classes, seeds):
        """The net that every member is a copy of, with what members have apart."""
        nested = self._nested("estimator")
        given = (data.X, len(classes), data.weight, seeds.split)
        net = build_net(params, nested, fmt, *given)
        return self._with_own_settings(net, params, seeds.members)

    def _net_to_go_on(self, params, fmt):
        """That net by the parameters of now, unless it would make other members."""
        n_members = {"n_estimators": len(self.estimators_)}
        check_unchanged(n_members, {name: params[name] for name in n_members})
        nested = self._nested("estimator")
        net = renewed_net(self.net_, params, nested, fmt, len(self.classes_))
        net = self._with_own_settings(net, params, self.member_seeds_)
        now = fixed_settings(net)
        if fmt.kind != "dict":  # which is never standardised
            now["standardize"] = params["standardize"]
        check_unchanged(fixed_settings(self.net_), now)
        return net

    def _with_own_settings(self, net, params, seeds):
        settings = member_settings(params["member_params"], net, seeds)
        return net if settings is None else give_settings(net, settings)

    def _scorer(self, params):
        scorer = SHARPNESS_SCORERS.resolve(params["sharpness"])
        return scorer.set_params(**self._nested("sharpness"))

    def _selector(self, params):
        selector = SUBSET_SELECTORS.resolve(params["selection"])
        by_name = isinstance(params["selection"], str)
        if by_name and "flat_ratio" in selector.get_params():
            selector.set_params(flat_ratio=params["flat_ratio"])
        return selector.set_params(**self._nested("selection"))

    def _aggregation(self, params):
        aggregation = AGGREGATIONS.resolve(params["aggregation"])
        return aggregation.set_params(**self._nested("aggregation"))

    def _first_members(self, job):
        trainer = job.trainer
        given = (trainer.net, job.seeds, trainer.data, len(job.classes))
        members = first_members(*given, self._warm_nets())
        n_epochs = trainer.settings.n_epochs
        if warmup_length(job.params["warmup_epochs"], n_epochs) < n_epochs:
            trainer.try_scoring(members)
        return members

    def _fitted_members(self):
        return [
            state_of(net, i, seed)
            for i, (net, seed) in enumerate(zip(self.estimators_, self.member_seeds_))
        ]

    def _go_on(self, job):
        """Members as they were left, at the learning rate that holds now."""
        members, net = self._fitted_members(), job.trainer.net
        if base_rate(net) == base_rate(self.net_):
            return members  # and at what a scheduler has made of it
        return [renewed_member(net, member) for member in members]

    def _train(self, job, X, y, fitted):
        """Run the whole plan, or what is left of it, and keep its result."""
        trainer, checkpoints = job.trainer, job.checkpoints
        stopping = EarlyStopping.of(job.params["early_stopping"], job.aggregation)
        members = partial(self._first_members, job)
        start = (trainer.net, trainer.data, members, checkpoints, stopping)
        state, finished = start_course(*start)
        segments = [] if finished else self._segments(job, stopping, state.epoch)
        n_epochs, verbose = trainer.settings.n_epochs, job.params["verbose"]
        monitor = FitMonitor(self, len(state.members), segments, n_epochs, verbose)

        def keep(state):
            self._keep_result(job, state, stopping)

        def offer(state):
            monitor.offer(X, y, methodcaller("_keep", job, state))

        course = (trainer, state, segments, monitor, keep, fitted)
        try:
            follow_course(
                *course, offer=offer, checkpoints=checkpoints, stopping=stopping
            )
        finally:
            trainer.engine.release()

    def _keep_result(self, job, state, stopping):
        self._keep(job, (stopping and stopping.best) or state)
        if stopping:
            self.validation_scores_ = np.asarray(stopping.scores)
        # Not the end of the stretch: callbacks may have ended every member before it.
        self.n_iter_ = max(state.epochs, default=state.epoch)
        self.n_passes_ = state.passes

    def _segments(self, job, stopping, epoch):
        """The plan from ``epoch`` on."""
        params, n_epochs = job.params, job.trainer.settings.n_epochs
        whole_phases = params["memory"] is not None or has_callbacks(self)
        every = params["checkpoint_every"]
        cut = cut_length(n_epochs, every, whole_phases=whole_phases)
        segments = plan_segments(
            n_epochs,
            warmup_length(params["warmup_epochs"], n_epochs),
            reselect_every=params["reselect_every"],
            cut_every=1 if stopping else cut,
            prune_epoch=job.trainer.settings.prune_epoch,
        )
        return remaining(segments, epoch)

    def _train_one_epoch(self, job, members):
        """One epoch on the samples of one ``partial_fit`` call."""
        trainer, epoch = job.trainer, getattr(self, "n_iter_", 0)
        n_warmup = warmup_length(job.params["warmup_epochs"], trainer.settings.n_epochs)
        balanced = epoch >= n_warmup
        name = "balanced" if balanced else "warmup"
        segment = Segment(name, epoch, epoch + 1, select=balanced)
        trainer.settings = replace(trainer.settings, lr_schedule=constant)
        passes = getattr(self, "n_passes_", 0.0)
        state = EnsembleState(members, epoch=epoch, passes=passes)
        state = trainer.run(state, segment)
        trainer.engine.release()
        self._keep(job, state)
        self.n_iter_, self.n_passes_ = epoch + 1, state.passes

    def _keep(self, job, state):
        """Set what ``fit`` leaves behind."""
        self.__dict__.pop("validation_scores_", None)  # of an earlier fit
        trainer = job.trainer
        self.classes_ = job.classes
        self.input_format_ = job.input_format
        self.net_ = trainer.net
        self.member_seeds_ = [member.seed for member in state.members]
        apart = own_settings(trainer.net)
        self.member_params_ = [dict(settings) for settings in apart] or [
            {} for _ in state.members
        ]
        self.aggregation_ = job.aggregation
        data = trainer.as_trained()
        with own_draws(job.seeds.split, trainer.net.device):
            self.estimators_ = [final_net(trainer.net, m, data) for m in state.members]
            self.predictors_ = job.aggregation.prepare(self.estimators_, data)
        self.sam_masks_ = trainer.masks(state)
        self.sharpness_ = state.sharpness
        self.history_ = [member.history for member in state.members]
        self.engine_ = job.engine
        self.train_indices_ = trainer.data.rows
