"""The fit of SharpBalance and its baselines, in phases."""

from dataclasses import replace
from functools import partial

from sklearn_sharpbalance.aggregation.rules import AGGREGATIONS
from sklearn_sharpbalance.aggregation.soups import final_net
from sklearn_sharpbalance.engine import choose_engine
from sklearn_sharpbalance.ensemble.base import BaseDeepEnsemble
from sklearn_sharpbalance.ensemble.fitted_state import FittedState
from sklearn_sharpbalance.ensemble.settings import settings_in_force
from sklearn_sharpbalance.members.member_params import member_settings
from sklearn_sharpbalance.members.own_settings import give_settings, own_settings
from sklearn_sharpbalance.members.schedules import check_factors, constant
from sklearn_sharpbalance.members.state import state_of
from sklearn_sharpbalance.runtime.devices import resolve_devices
from sklearn_sharpbalance.runtime.rng import random_stream
from sklearn_sharpbalance.runtime.threads import torch_threads
from sklearn_sharpbalance.runtime.torch_modes import own_torch_modes
from sklearn_sharpbalance.selection import SUBSET_SELECTORS
from sklearn_sharpbalance.sharpness import SHARPNESS_SCORERS
from sklearn_sharpbalance.training.early_stopping import (
    EarlyStopping,
    check_early_stopping,
)
from sklearn_sharpbalance.training.fixed_settings import check_unchanged, fixed_settings
from sklearn_sharpbalance.training.net_building import (
    base_rate,
    build_net,
    renewed_member,
    renewed_net,
)
from sklearn_sharpbalance.training.picture_recipe import picture_recipe
from sklearn_sharpbalance.training.plan import cut_length, plan_segments, warmup_length
from sklearn_sharpbalance.training.progress import has_callbacks, with_callbacks
from sklearn_sharpbalance.training.setup import (
    FitSetup,
    check_partial_fit,
    check_same_classes,
    first_members,
    make_checkpoints,
    make_training,
    pruning_epoch,
    split_and_encode,
    training_data,
)
from sklearn_sharpbalance.training.sharing import active_sharing
from sklearn_sharpbalance.training.state import EnsembleState, draw_seeds
from sklearn_sharpbalance.training.table_recipe import table_recipe
from sklearn_sharpbalance.training.trainer import PhasedTrainer

__all__ = ["PhasedEnsemble"]


class PhasedEnsemble(BaseDeepEnsemble):
    """Ensemble that trains in phases: warm-up, score, select, train.

    A subclass defines its parameters; :meth:`_full_params` adds defaults for those that
    it does not have.
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
            A table (N, F), as an array of numbers or as a DataFrame of pandas or
            polars, which may have categories, text and missing values; pictures
            (N, H, W, C) or (N, C, H, W) of uint8 or float, or (N, H, W) of uint8 (grey
            ones of float need a channel axis: ``X[:, None]``); any array with
            one row per sample for your own module; a dictionary of arrays, passed to
            the module as keywords; or a Dataset of (x, label) pairs. Searches split
            dictionaries and Datasets as skorch's ``SliceDict`` and ``SliceDataset``.
        y : array-like of shape (N,), default=None
            Labels of any type; None takes those of a Dataset.
        sample_weight : array-like of shape (N,), default=None
            Weight of each sample in the loss, the sharpness and held-out scores.

        Returns
        -------
        self : estimator instance
        """
        with FittedState(self) as fitted, own_torch_modes():
            setup = self._prepare(X, y, sample_weight, checkpoints=True)
            if not self._is_fitted_by_search(setup):
                self._fit(setup, X, y, fitted)
        return self

    def _is_fitted_by_search(self, setup):
        """Whether a search trains this fit later, or has trained it before."""
        shared = active_sharing()
        if shared is None:
            return False
        if shared.collecting is not None:
            shared.collecting.append(setup)
            return True
        trained = shared.fit_of(setup.key)
        if trained is None:
            return False
        trained_setup, loop = trained
        self._keep_result(trained_setup, loop)
        return True

    @with_callbacks
    def partial_fit(self, X, y=None, classes=None, sample_weight=None):
        """Train every member for one more epoch on the given samples.

        The first ``warmup_epochs`` calls are the warm-up; each later call scores the
        given samples, selects, and trains on them. Members keep their weights and
        momentum, and the statistics of the input from the first call. The learning rate
        is constant, because the number of calls is not known. ``callbacks`` start again
        in each call. Most parameters may change between calls, but not those that
        members were created with: ``estimator``, ``n_estimators``, ``sam``,
        ``optimizer``, ``member_params``, ``standardize``, and arguments of the module,
        the criterion and the optimizer, except for the learning rate. Parameters that
        need a whole fit are not supported: ``weight_averaging``, ``prune``,
        ``early_stopping`` and ``checkpoint_dir``.

        Parameters
        ----------
        X : array-like of shape (N, ...), dict of arrays, or Dataset
            Samples, as in ``fit``.
        y : array-like of shape (N,), default=None
            Labels; not needed for a Dataset.
        classes : array-like of shape (C,), default=None
            All classes; needed in the first call if ``y`` does not contain all of
            them. Later calls may omit it or pass the same classes again.
        sample_weight : array-like of shape (N,), default=None
            Weight of each sample in the loss.

        Returns
        -------
        self : estimator instance
        """
        with FittedState(self), own_torch_modes():
            is_first = not hasattr(self, "estimators_")
            self._validate_params()
            known = None if is_first else self.classes_
            check_partial_fit(self._full_params(), classes, known)
            setup = self._prepare(
                X, y, sample_weight, classes=classes, resume=not is_first
            )
            if is_first:
                members = setup.trainer.first_members()
            else:
                members = self._resumed_members(setup.trainer.net)
            self._train_one_epoch(setup, members)
        return self

    def _prepare(
        self, X, y, sample_weight, *, classes=None, resume=False, checkpoints=False
    ):
        """Validate everything and prepare the training.

        Parameters
        ----------
        X, y, sample_weight, classes
            Arguments of ``fit`` or ``partial_fit``.
        resume : bool, default=False
            Whether to continue with the fitted members.
        checkpoints : bool, default=False
            Whether ``checkpoint_dir`` is used; False in ``partial_fit``.
        """
        self._validate_params()
        params = self._full_params()
        data, fmt, classes = training_data(
            self,
            X,
            y,
            sample_weight=sample_weight,
            class_weight=params["class_weight"],
            classes=self.classes_ if resume else classes,
            reset=not resume,
        )
        if resume:  # the defaults are those of the first call
            fmt = replace(fmt, dtype=self.input_format_.dtype)
        nested = self._nested("estimator")
        params = picture_recipe(params, nested, fmt=fmt)
        warm = self._warm_nets()
        if warm:
            check_same_classes(classes, self.classes_)
        n_members = len(self.estimators_) if resume else params["n_estimators"]
        seeds, saved = draw_seeds(params["random_state"], n_members), None
        shared, key = active_sharing(), None
        memory, make_members = params["memory"], first_members
        if shared is not None:
            key = shared.fit_key(params, data, classes)
            trained = shared.fit_of(key)
            if trained is not None:
                return trained[0]
            if shared.collecting is not None and memory is None and key is not None:
                memory, make_members = shared, shared.cached(first_members)
        if checkpoints:
            saved = make_checkpoints(params, data, classes, seeds=seeds, warm_nets=warm)
        if saved is not None:
            seeds = saved.seeds
        data, fmt = split_and_encode(
            data,
            fmt,
            params,
            seeds=seeds,
            sample_weight=sample_weight,
            columns=self._warm_columns(),
        )
        if shared is not None:
            data = shared.one_of_equal(data)
        check_early_stopping(params["early_stopping"], data)
        params, nested = table_recipe(
            params,
            nested,
            fmt=fmt,
            n_rows=len(data),
            n_classes=len(classes),
            whole_fit=checkpoints,
            fitted=self.net_ if resume else None,
        )
        if resume:
            net = self._resumed_net(params, nested, fmt=fmt)
        else:
            net = build_net(
                params,
                nested,
                fmt=fmt,
                data=data,
                n_classes=len(classes),
                seed=seeds.split,
            )
            net = self._with_own_settings(net, params, seeds.members)
        aggregation = self._aggregation(params)
        aggregation.check(data)
        aggregation.check_settings(net)
        aggregation.try_out(n_members, len(classes))
        training = make_training(params, net, fmt=fmt, n_members=n_members)
        engine, choice = choose_engine(
            params["engine"],
            net=net,
            data=data,
            training=training,
            n_jobs=params["n_jobs"],
            any_device=params["device"] == "auto",
            devices=resolve_devices(params["device"]),
        )
        n_warmup = warmup_length(params["warmup_epochs"], training.n_epochs)
        early_stopping = EarlyStopping.of(params["early_stopping"], aggregation)
        trainer = PhasedTrainer(
            net,
            data,
            training,
            warmup=params["warmup"],
            n_warmup=n_warmup,
            make_members=partial(
                make_members,
                net=net,
                seeds=seeds,
                data=data,
                n_classes=len(classes),
                warm_nets=warm,
            ),
            scorer=self._scorer(params),
            selector=self._selector(params),
            engine=engine,
            selection_seed=seeds.selection,
            prune_epoch=pruning_epoch(params, training.n_epochs),
            memory=memory,
            has_callbacks=has_callbacks(self),
        )
        trainer.check()
        check_factors(training, len(data))
        return FitSetup(
            params=params,
            trainer=trainer,
            plan=self._plan(params, trainer, early_stopping),
            aggregation=aggregation,
            seeds=seeds,
            input_format=fmt,
            classes=classes,
            engine=choice,
            checkpoints=saved,
            early_stopping=early_stopping,
            key=key,
        )

    def _plan(self, params, trainer, early_stopping):
        """Return the segments of the whole fit."""
        cut_every = cut_length(
            trainer.training.n_epochs,
            params["checkpoint_every"],
            whole_phases=trainer.memory is not None or has_callbacks(self),
        )
        return plan_segments(
            trainer.training,
            n_warmup=trainer.n_warmup,
            reselect_every=params["reselect_every"],
            cut_every=cut_every if early_stopping is None else 1,
            prune_epoch=trainer.prune_epoch,
        )

    def _resumed_net(self, params, nested, fmt):
        """Return the net for the current parameters; raise if fixed ones changed."""
        n_members = {"n_estimators": len(self.estimators_)}
        check_unchanged(n_members, {name: params[name] for name in n_members})
        net = renewed_net(
            self.net_,
            params,
            nested,
            fmt=fmt,
            n_classes=len(self.classes_),
        )
        net = self._with_own_settings(net, params, self.member_seeds_)
        now = fixed_settings(net)
        if fmt.kind != "dict":  # dictionaries are never standardised
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

    def _fitted_members(self):
        return [
            state_of(net, i, seed)
            for i, (net, seed) in enumerate(zip(self.estimators_, self.member_seeds_))
        ]

    def _resumed_members(self, net):
        """Return the fitted members with the current learning rate."""
        members = self._fitted_members()
        if base_rate(net) == base_rate(self.net_):
            return members  # keep a rate that a scheduler has set
        return [renewed_member(net, member) for member in members]

    def _train_one_epoch(self, setup, members):
        """Train the members for one epoch, in a call of ``partial_fit``."""
        trainer, epoch = setup.trainer, getattr(self, "n_iter_", 0)
        is_balanced = epoch >= trainer.n_warmup
        segment = replace(
            trainer.training,
            name="balanced" if is_balanced else "warmup",
            start=epoch,
            stop=epoch + 1,
            lr_schedule=constant,
        )
        state = EnsembleState(
            members, epoch=epoch, passes=getattr(self, "n_passes_", 0.0)
        )
        with torch_threads(setup.engine.threads), trainer.open(members) as run:
            if is_balanced:
                state = trainer.select(run, state, segment)
            state = trainer.train(run, state, segment)
        self.__dict__.pop("validation_scores_", None)  # of an earlier fit
        self._keep(setup, state)
        self.settings_["lr_schedule"] = "constant"  # whatever a whole fit would use
        self.n_iter_, self.n_passes_ = epoch + 1, state.passes

    def _keep_result(self, setup, loop):
        super()._keep_result(setup, loop)
        self.n_passes_ = loop.state.passes

    def _keep(self, setup, state):
        """Set the fitted attributes."""
        trainer = setup.trainer
        self.classes_ = setup.classes
        self.input_format_ = setup.input_format
        self.net_ = trainer.net
        self.member_seeds_ = [member.seed for member in state.members]
        self.member_params_ = [dict(settings) for settings in own_settings(trainer.net)]
        if not self.member_params_:
            self.member_params_ = [{} for _ in state.members]
        self.aggregation_ = setup.aggregation
        data = trainer.as_trained()
        with random_stream(trainer.net.device, seed=setup.seeds.split):
            self.estimators_ = [final_net(trainer.net, m, data) for m in state.members]
            self.predictors_ = setup.aggregation.prepare(self.estimators_, data)
        self.sam_masks_ = trainer.masks(state)
        self.sharpness_ = state.sharpness
        self.history_ = [member.history for member in state.members]
        self.engine_ = setup.engine
        self.settings_ = settings_in_force(setup)
        self.train_indices_ = trainer.data.rows
