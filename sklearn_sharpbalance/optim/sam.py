"""Sharpness-aware minimization, and the step that all its relatives share."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import SGD

from sklearn_sharpbalance._validation import NON_NEGATIVE, Interval
from sklearn_sharpbalance.exceptions import InvalidInputError
from sklearn_sharpbalance.optim._buckets import (
    Bucket,
    add_scaled_,
    all_finite,
    gather,
    joint_norm,
    restore,
)
from sklearn_sharpbalance.optim._wrapper import WrappingOptimizer
from sklearn_sharpbalance.optim.batchnorm import frozen_batch_statistics
from sklearn_sharpbalance.runtime.torch_internals import step_of

TINY = 1e-12


class SharpnessAwareOptimizer(WrappingOptimizer):
    r"""Base of the optimizers that use the gradient at perturbed weights.

    A step computes the gradient :math:`g` at the weights :math:`w`, moves to
    :math:`w + \epsilon(g)`, computes the gradient there, moves back exactly, and
    passes that gradient to a base optimizer. A subclass defines :math:`\epsilon` in
    ``_direction`` and may combine the two gradients in ``_combine``.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor) or of dict
        Parameters or parameter groups, as for any torch optimizer. A group may set
        each option of its own, e.g. ``{"params": ..., "rho": 0.1}``.
    base_optimizer : type
        Class of the optimizer that makes the update, or a function with its
        signature such as a ``functools.partial``.
    options : dict
        Default of each option of the method, ``rho`` and ``stacked`` among them.
    base_kwargs : dict
        Arguments of the base optimizer, e.g. ``lr``.

    Attributes
    ----------
    base_optimizer : torch.optim.Optimizer
        Shares ``param_groups`` and ``state`` with this optimizer: a scheduler of one
        is a scheduler of both, and both can load each other's ``state_dict``.
    clean_pass : bool
        Whether a step needs the gradient at the unperturbed weights. It is False for
        :class:`MomentumSAM` only, whose steps make one pass.
    perturbs : bool
        Whether the next step needs the gradient at the perturbed weights. It changes
        from step to step for :class:`LookSAM` only.
    count : int
        Number of sharpness-aware steps so far, if the method counts them, else 0.

    Notes
    -----
    If the base optimizer has an option of the same name (``rho`` of Adadelta,
    ``alpha`` of RMSprop and ASGD), the method's own is called ``sam_rho`` or
    ``sam_alpha`` in the parameter groups, and the base optimizer's can be set by
    ``functools.partial(torch.optim.Adadelta, rho=0.9)``.

    With ``stacked=True`` each parameter has a leading axis of ``M`` members. Norms are
    then computed per member, ``rho`` may have one value per member, and the result is
    the same as with ``M`` separate optimizers.

    A ``base_optimizer`` with ``maximize=True`` reverses the perturbation.
    """

    clean_pass: ClassVar[bool] = True
    count: int = 0

    _rules: ClassVar[dict[str, Interval]] = {"rho": NON_NEGATIVE}
    _keeps_gradients: ClassVar[bool] = False

    @property
    def perturbs(self) -> bool:
        return True

    @classmethod
    def passes_per_sample(cls, options: Mapping[str, Any]) -> float:
        """Return how many times a step passes each sample, on average.

        Parameters
        ----------
        options : dict
            Options of the optimizer by name. Missing ones have their default.

        Examples
        --------
        >>> from sklearn_sharpbalance.optim import SAM, LookSAM
        >>> SAM.passes_per_sample({}), LookSAM.passes_per_sample({"k": 4})
        (2.0, 1.25)
        """
        return 2.0

    # The step -------------------------------------------------------------------

    def step(self, closure=None, *, scaler=None, freeze_norms=True):
        """Make one sharpness-aware update.

        Parameters
        ----------
        closure : callable
            Clears the gradients, computes the loss, calls ``backward`` (once, or
            several times to accumulate) and returns the loss. It is called twice.
        scaler : torch.amp.GradScaler, default=None
            Required if the closure calls ``scaler.scale(loss).backward()``. Both
            gradients are unscaled; if either is not finite, the update is skipped.
            Call ``scaler.update()`` afterwards, as usual.
        freeze_norms : bool or nn.Module, default=True
            As in :meth:`perturbed`, for the second call.

        Returns
        -------
        loss
            The value that the closure returned at the unperturbed weights.
        """
        evaluate = self._evaluation(closure)
        loss = evaluate()
        if scaler is not None and scaler.is_enabled():
            self._step_scaled(evaluate, scaler, freeze_norms)
        else:
            with self.perturbed(freeze_norms=freeze_norms):
                evaluate()
            self.descend()
        return loss

    def _evaluation(self, closure: Callable | None) -> Callable:
        """Return the closure with gradients enabled; raise if there is none."""
        if closure is None:
            raise InvalidInputError(
                f"{type(self).__name__}.step() needs a closure, because it evaluates "
                "the loss at other weights. Pass one that clears the gradients, calls "
                "backward and returns the loss (with a GradScaler: `step(closure, "
                "scaler=scaler)`), or use `perturbed()` and `descend()`."
            )
        return torch.enable_grad()(closure)

    def _step_scaled(self, evaluate: Callable, scaler: Any, freeze_norms: Any) -> None:
        # A scaler keeps one record per optimizer and update: this optimizer has the
        # record of the first pass, the base optimizer that of the second, and the
        # scaler uses both to adapt its scale.
        scaler.unscale_(self)
        if not self._finite_gradients():
            return
        with self._moved(freeze_norms) as buckets:
            evaluate()
        scaler.unscale_(self.base_optimizer)
        if self._finite_gradients():
            self._combine(buckets)
        self.descend(scaler=scaler)

    @contextmanager
    def perturbed(self, *, freeze_norms=True, set_to_none=True, grad_scale=None):
        """Move to the perturbed weights inside the ``with`` block.

        Reads the gradients in ``.grad``, moves the weights in place and clears the
        gradients. On exit the weights are restored bit for bit, also after an
        exception; then the method may combine the gradients.

        Parameters
        ----------
        freeze_norms : bool or nn.Module, default=True
            Do not update the running statistics of batch norms: of every module that
            is called (True), or of this module (faster, and works with compiled
            functions and CUDA graphs). False updates them. See
            :func:`frozen_batch_statistics`.
        set_to_none : bool, default=True
            Set the gradients to None, or to zero in place.
        grad_scale : float or Tensor of shape () or (M,), default=None
            Factor of the loss in ``backward``, if it changes between steps. Only
            :class:`FriendlySAM` needs it, since it averages gradients over steps. A
            factor of 0 means that there is no gradient to average.

        Examples
        --------
        An update that is sharpness-aware for a fraction ``s`` of the batch:

        >>> from sklearn_sharpbalance.optim import SAM
        >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> opt, s = SAM([w], rho=1.0, lr=0.1), 0.5
        >>> (s * w.square().sum() / 2).backward()
        >>> with opt.perturbed():
        ...     (s * w.square().sum() / 2).backward()  # at 1.2 w
        >>> ((1 - s) * w.sum()).backward()
        >>> opt.descend()
        >>> [round(x, 4) for x in w.tolist()]
        [2.77, 3.71]
        """
        with self._moved(freeze_norms, set_to_none, grad_scale) as buckets:
            yield
        self._combine(buckets)

    @contextmanager
    def _moved(
        self,
        freeze_norms: bool | nn.Module = True,
        set_to_none: bool = True,
        grad_scale: float | Tensor | None = None,
    ) -> Iterator[list[Bucket]]:
        # An enclosing autocast caches casts of the weights until it ends, so its cache
        # must be cleared whenever the weights move.
        buckets, norms = self._moving(), _norms(freeze_norms)
        try:
            self._ascend(buckets, grad_scale)
            torch.clear_autocast_cache()
            for bucket in buckets:
                # The next pass may overwrite their memory, e.g. with buckets of DDP.
                kept = bucket.grads if self._keeps_gradients else []
                bucket.grads = [grad.clone() for grad in kept]
            self.zero_grad(set_to_none=set_to_none)
            with norms:
                yield buckets
        finally:
            with torch.no_grad():
                restore(buckets)
            torch.clear_autocast_cache()

    def zero_grad(self, set_to_none=True):
        """Clear the gradients.

        torch's method also calls its profiler, which takes longer than the rest.

        Parameters
        ----------
        set_to_none : bool, default=True
            Set the gradients to None, or to zero in place.
        """
        if not set_to_none:
            super().zero_grad(set_to_none=False)
            return
        for group in self.param_groups:
            for param in group["params"]:
                param.grad = None

    def descend(self, *, scaler=None):
        """Make a step of the base optimizer along ``.grad``, without a perturbation.

        Parameters
        ----------
        scaler : torch.amp.GradScaler, default=None
            Required if the gradients are scaled: it unscales them, and skips the
            update if they are not finite.
        """
        # Schedulers of torch warn that no optimizer has stepped unless this is set.
        self._opt_called = True
        if scaler is None or not scaler.is_enabled():
            step_of(self.base_optimizer)
        else:
            scaler.step(self.base_optimizer)
        torch.clear_autocast_cache()  # the weights have moved, as in `_moved`

    def reuse(self):
        """Complete a step that needs no pass at perturbed weights.

        Call it in place of :meth:`perturbed` if ``perturbs`` is False.
        """
        raise InvalidInputError(
            f"{type(self).__name__} needs the gradient at perturbed weights in every "
            "step. Use `perturbed()`; only LookSAM has steps without it."
        )

    def advance(self):
        """Count a step that a CUDA graph replays without calling this optimizer."""

    # Defined by each method --------------------------------------------------------

    def _moving(self) -> list[Bucket]:
        """Return the parameters to move."""
        return gather(self.param_groups)

    def _direction(
        self, bucket: Bucket, grad_scale: float | Tensor | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the direction, and the vector whose norm over all buckets divides it.

        It is the gradient, for SAM and for those that change what follows it.
        """
        return bucket.grads, bucket.grads

    def _combine(self, buckets: list[Bucket]) -> None:
        """Change ``.grad`` after the perturbed pass, at the restored weights."""

    # Implementation ---------------------------------------------------------------

    @torch.no_grad()
    def _ascend(self, buckets: list[Bucket], grad_scale: float | Tensor | None) -> None:
        """Move the weights of all buckets by ``rho * direction / norm``."""
        moves = [(bucket, *self._direction(bucket, grad_scale)) for bucket in buckets]
        if not moves:
            return
        norm = joint_norm([divisor for _, _, divisor in moves], self._stacked)
        for bucket, direction, _ in moves:
            bucket.norm = norm
            bucket.keep_weights()
            factor = self._radius(bucket, norm) / (norm + TINY)
            add_scaled_(bucket.params, direction, factor)

    @property
    def _stacked(self) -> bool:
        """Whether parameters have a leading axis of members, in all groups."""
        return self.param_groups[0]["stacked"]

    def _radius(self, bucket: Bucket, norm: Tensor) -> float | Tensor:
        rho = self._option(bucket.group, "rho")
        if not isinstance(rho, int | float):
            rho = torch.as_tensor(rho, dtype=norm.dtype, device=norm.device)
        return self._sign(bucket.group) * rho

    def _sign(self, group: Mapping[str, Any]) -> float:
        """Return the sign of the perturbation along the direction."""
        return -1.0 if group.get("maximize") else 1.0

    def _finite_gradients(self) -> bool:
        return all_finite([bucket.grads for bucket in gather(self.param_groups)])


def _norms(freeze: bool | nn.Module) -> AbstractContextManager[None]:
    if isinstance(freeze, nn.Module):
        return frozen_batch_statistics(freeze)
    if not isinstance(freeze, bool):
        raise InvalidInputError(
            "freeze_norms must be True, False or the nn.Module whose norms are frozen; "
            f"got {freeze!r}."
        )
    return frozen_batch_statistics() if freeze else nullcontext()


class SAM(SharpnessAwareOptimizer):
    r"""Sharpness-aware minimization over any torch optimizer.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor) or of dict
        Parameters or parameter groups.
    base_optimizer : type, default=torch.optim.SGD
        Class of the optimizer that makes the update.
    rho : float, or list or Tensor of M floats, default=0.05
        Length of the perturbation; one per member in a stacked group. 0 gives the
        base optimizer, bit for bit if both calls of the closure compute the same
        (dropout, for example, draws new numbers in each).
    stacked : bool, default=False
        Whether each parameter has a leading axis of M members; see
        :class:`SharpnessAwareOptimizer`.
    **base_kwargs
        Arguments of the base optimizer, e.g. ``lr`` and ``momentum``.

    Notes
    -----
    With :math:`g = \nabla L(w)`, the base optimizer descends along

    .. math:: \nabla L(w + \epsilon), \qquad
              \epsilon = \rho \, \frac{g}{\|g\|_2 + 10^{-12}},

    where the norm is over all parameters. A gradient of zero gives no perturbation.

    References
    ----------
    Foret, Kleiner, Mobahi and Neyshabur, "Sharpness-Aware Minimization for Efficiently
    Improving Generalization", ICLR 2021.

    Examples
    --------
    For :math:`L(w) = \|w\|^2 / 2` the gradient at :math:`w + \epsilon` is
    :math:`w + \rho\, w / \|w\|`:

    >>> import torch
    >>> from sklearn_sharpbalance.optim import SAM
    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> optimizer = SAM([w], torch.optim.SGD, rho=1.0, lr=0.5)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = w.square().sum() / 2
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure).item(), [round(x, 4) for x in w.tolist()]
    (12.5, [1.2, 1.6])
    """

    def __init__(
        self, params, base_optimizer=SGD, rho=0.05, *, stacked=False, **base_kwargs
    ):
        options = {"rho": rho, "stacked": stacked}
        super().__init__(params, base_optimizer, options, base_kwargs)
