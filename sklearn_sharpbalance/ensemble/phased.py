"""The fit of SharpBalance and its baselines, in phases."""

from dataclasses import replace

from sklearn_sharpbalance.engine import choose_engine
from sklearn_sharpbalance.ensemble.base import BaseDeepEnsemble
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.members.member_params import (
    give_settings,
    member_settings,
    own_settings,
)
from sklearn_sharpbalance.members.schedules import constant
from sklearn_sharpbalance.members.state import state_of
from sklearn_sharpbalance.runtime.devices import resolve_devices
from sklearn_sharpbalance.runtime.process import own_torch_modes, torch_threads
from sklearn_sharpbalance.selection import SUBSET_SELECTORS
from sklearn_sharpbalance.sharpness import SHARPNESS_SCORERS
from sklearn_sharpbalance.training.image_recipe import image_schedule
from sklearn_sharpbalance.training.loop import fitted_or_before
from sklearn_sharpbalance.training.net_building import (
    base_rate,
    build_net,
    renewed_member,
    renewed_net,
)
from sklearn_sharpbalance.training.partial_fit import (
    check_partial_fit,
    check_unchanged,
    fixed_settings,
)
from sklearn_sharpbalance.training.plan import (
    EnsembleState,
    pruning_epoch,
    warmup_length,
)
from sklearn_sharpbalance.training.prepare import prepare
from sklearn_sharpbalance.training.progress import has_callbacks, with_callbacks
from sklearn_sharpbalance.training.table_recipe import table_recipe
from sklearn_sharpbalance.training.trainer import PhasedTrainer


class PhasedEnsemble(BaseDeepEnsemble):
    """Ensemble that trains in phases: warm-up, score, select, train.

    A subclass defines its parameters; :meth:`_full_params` adds defaults for those that
    it does not have.
    """

    phase = "balanced"
    _nested_parts: tuple[str, ...] = (
        "estimator",
        "sharpness",
        "selection",
        "aggregation",
    )

    @with_callbacks
    def fit(self, X, y=None, sample_weight=None):
        """Train the members.

        Parameters
        ----------
        X : array-like of shape (N, ...), dict of arrays, or Dataset
            A table (N, F) of numbers, or a DataFrame of pandas or polars, which may
            have categories, text and missing values; images (N, H, W, C) or
            (N, C, H, W) of uint8 or float, or (N, H, W) of uint8 (grey ones of float
            need a channel axis: ``X[:, None]``); any array with one row per sample for
            your own module; a dictionary of arrays, its keywords; or a Dataset of
            (x, label) pairs. Searches split dictionaries and Datasets as skorch's
            ``SliceDict`` and ``SliceDataset``.
        y : array-like of shape (N,), default=None
            Labels of any type; None takes those of a Dataset.
        sample_weight : array-like of shape (N,), default=None
            Weight of each sample in the loss, the sharpness and validation scores.

        Returns
        -------
        self : estimator instance
        """
        with fitted_or_before(self), own_torch_modes():
            self._run(X, y, sample_weight)
        return self

    @with_callbacks
    def partial_fit(self, X, y=None, classes=None, sample_weight=None):
        """Train every member for one more epoch on the given samples.

        The first ``warmup_epochs`` calls are the warm-up; each later call scores the
        given samples, selects, and trains on them. The learning rate is constant.
        Members keep their weights and momentum, and the statistics of the input from
        the first call. Parameters that members were created with may not change between
        calls: network, criterion, optimizer without its rate, ``n_estimators``,
        ``sam``, ``member_params`` and ``standardize``. ``weight_averaging``, ``prune``,
        ``early_stopping`` and ``checkpoint_dir`` need a whole fit.

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
        with fitted_or_before(self), own_torch_modes():
            continues = hasattr(self, "estimators_")
            self._validate_params()
            known = self.classes_ if continues else None
            check_partial_fit(self._full_params(), classes, known)
            prepared = prepare(
                self,
                X,
                y,
                sample_weight,
                classes=classes,
                continues=continues,
                whole_fit=False,
            )
            if continues:
                members = self._resumed_members(prepared.trainer.net)
            else:
                members = prepared.trainer.first_members()
            self._train_one_epoch(prepared, members)
        return self

    def _validate_params(self):
        super()._validate_params()
        params = self._full_params()
        augments = params["train_transform"] not in (None, "auto")
        if params["shared_trunk"] is not None and augments:
            raise InvalidInputError(
                "With shared_trunk, features are computed once, before the training, "
                f"but got train_transform={params['train_transform']!r}. Pass None, "
                "use DiversifiedEnsembleClassifier, which passes augmented samples "
                "through the trunk, or make the trunk a part of the estimator."
            )

    def _read_unlabeled(self, X_unlabeled, given):
        return None

    def _recipe(self, params, nested, inputs, *, n_classes, continues, whole_fit):
        fitted, n_rows = self.net_ if continues else None, len(inputs.data)
        if inputs.format.has_three_axes and (whole_fit or continues):
            params, nested = image_schedule(
                params, nested, fmt=inputs.format, n_images=n_rows, fitted=fitted
            )
        return table_recipe(
            params,
            nested,
            fmt=inputs.format,
            n_rows=n_rows,
            n_classes=n_classes,
            whole_fit=whole_fit,
            fitted=fitted,
        )

    def _make_net(self, params, nested, inputs, *, start, classes, continues):
        if continues:
            return self._resumed_net(params, nested, inputs)
        net = build_net(
            params,
            nested,
            fmt=inputs.format,
            data=inputs.data,
            n_classes=len(classes),
            seed=start.seeds.split,
        )
        return self._with_own_settings(net, params, start.seeds.members)

    def _make_trainer(self, params, net, inputs, training, *, start, n_classes):
        engine, choice = choose_engine(
            params["engine"],
            net=net,
            data=inputs.data,
            training=training,
            any_device=params["device"] == "auto",
            devices=resolve_devices(params["device"]),
        )
        scorer = SHARPNESS_SCORERS.resolve(params["sharpness"])
        trainer = PhasedTrainer(
            net,
            inputs.data,
            training,
            warmup=params["warmup"],
            n_warmup=warmup_length(params["warmup_epochs"], training.n_epochs),
            seeds=start.seeds,
            n_classes=n_classes,
            warm_nets=start.warm_nets,
            scorer=scorer.set_params(**self._nested("sharpness")),
            selector=self._selector(params),
            engine=engine,
            prune_epoch=pruning_epoch(params, training.n_epochs),
            memory=params["memory"],
            has_callbacks=has_callbacks(self),
        )
        return trainer, choice

    def _resumed_net(self, params, nested, inputs):
        """Return the net for the current parameters; raise if fixed ones changed."""
        fmt, trunks = inputs.format, (self.trunk_, inputs.trunk)
        before, now = (None if trunk is None else trunk.module for trunk in trunks)
        check_unchanged(
            {"n_estimators": len(self.heads_), "shared_trunk": before},
            {"n_estimators": params["n_estimators"], "shared_trunk": now},
        )
        n_classes = len(self.classes_)
        net = renewed_net(self.net_, params, nested, fmt=fmt, n_classes=n_classes)
        net = self._with_own_settings(net, params, self.member_seeds_)
        now = fixed_settings(net)
        if fmt.kind != "dict":  # dictionaries are never standardised
            now["standardize"] = params["standardize"]
        check_unchanged(fixed_settings(self.net_), now)
        return net

    def _with_own_settings(self, net, params, seeds):
        settings = member_settings(params["member_params"], len(seeds), net)
        return net if settings is None else give_settings(net, settings)

    def _selector(self, params):
        selector = SUBSET_SELECTORS.resolve(params["selection"])
        by_name = isinstance(params["selection"], str)
        if by_name and "flat_ratio" in selector.get_params():
            selector.set_params(flat_ratio=params["flat_ratio"])
        return selector.set_params(**self._nested("selection"))

    def _resumed_members(self, net):
        """Return the fitted members with the current learning rate."""
        members = [
            state_of(net, i, seed)
            for i, (net, seed) in enumerate(zip(self.heads_, self.member_seeds_))
        ]
        if base_rate(net) == base_rate(self.net_):
            return members  # keep a rate that a scheduler has set
        return [renewed_member(net, member) for member in members]

    def _train_one_epoch(self, prepared, members):
        """Train the members for one epoch, in a call of ``partial_fit``."""
        trainer, epoch = prepared.trainer, getattr(self, "n_iter_", 0)
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
        with torch_threads(prepared.engine.threads), trainer.open(members) as run:
            if is_balanced:
                state = trainer.select(run, state, segment)
            state = trainer.train(run, state, segment)
        self.__dict__.pop("validation_scores_", None)  # of an earlier fit
        with torch_threads(prepared.engine.threads):
            self._keep(prepared, state)
        self.settings_["lr_schedule"] = "constant"  # whatever a whole fit would use
        self.n_iter_, self.n_passes_ = epoch + 1, state.passes

    def _keep_result(self, prepared, loop):
        super()._keep_result(prepared, loop)
        self.n_passes_ = loop.state.passes

    def _keep(self, prepared, state):
        super()._keep(prepared, state)
        trainer = prepared.trainer
        self.member_params_ = [dict(settings) for settings in own_settings(trainer.net)]
        if not self.member_params_:
            self.member_params_ = [{} for _ in state.members]
        self.sam_masks_ = trainer.masks(state)
        self.sharpness_ = state.sharpness
