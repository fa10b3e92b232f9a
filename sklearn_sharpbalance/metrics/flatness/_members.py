"""Measure the nets of an ensemble on batches of samples, and average the values."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from sklearn_sharpbalance._validation import (
    POSITIVE_INTEGER,
    check_generator,
    check_numbers,
    check_optional_numbers,
)
from sklearn_sharpbalance.arrays import dataset_labels, to_array, to_tensor
from sklearn_sharpbalance.autodiff import (
    Rows,
    device_of,
    evaluation_mode,
    in_chunks,
    map_tensors,
    sample_losses,
)
from sklearn_sharpbalance.exceptions import DivergenceError, InvalidInputError
from sklearn_sharpbalance.metrics._checks import encode_labels

__all__ = [
    "Batches",
    "average_values",
    "check_finite",
    "measure_batches",
    "measure_members",
]


class Batches:
    """Samples for one net, in batches on its device.

    Parameters
    ----------
    net : NeuralNetClassifier
        Initialised.
    rows : Rows
        The samples, on the net's device.
    size : int
        Samples per batch; the last batch may be smaller.
    seed : int
        Seed of all random numbers of the measurement.
    """

    def __init__(self, net: Any, rows: Rows, size: int, seed: int):
        self.net = net
        self.rows = rows
        self.seed = seed
        n = len(rows)
        self.slices = [slice(i, min(i + size, n)) for i in range(0, n, size)]

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def sizes(self) -> list[int]:
        """Number of samples in each batch."""
        return [batch.stop - batch.start for batch in self.slices]

    def joined(self, n: int) -> list[slice]:
        """Return the samples of each ``n`` consecutive batches."""
        return [
            slice(group[0].start, group[-1].stop)
            for group in (self.slices[i : i + n] for i in range(0, len(self.slices), n))
        ]

    def losses(self, x: Any, y: Tensor) -> Tensor:
        """Return the loss of each sample, (B,)."""
        return sample_losses(self.net, self.net.infer(x), y)

    def normal_like(self, tensor: Tensor, draw: int = 0) -> Tensor:
        """Return standard normal numbers of the tensor's shape, fixed by ``draw``."""
        generator = torch.Generator(tensor.device).manual_seed(self.seed + draw)
        return torch.empty_like(tensor).normal_(generator=generator)

    def per_sample(self, fn: Callable[[Any, Tensor], Tensor]) -> Tensor:
        """Return ``fn(x, y)``, one value per sample, computed in chunks; (N,)."""
        n_rows = 128 if self.device.type == "cpu" else 1024

        def values_of_chunk(chunk):
            x, y = self.rows[chunk]
            return fn(x, y)

        return in_chunks(values_of_chunk, len(self.rows), n_rows)

    def means(self, values: Tensor) -> np.ndarray:
        """Return the mean of the samples' values over each batch, (n_batches,)."""
        array = values.detach().double().cpu().numpy()  # (N,)
        return np.array([array[batch].mean() for batch in self.slices])


class _Samples(NamedTuple):
    X: Any
    y: np.ndarray  # (N,) codes


def _nets_and_samples(model: Any, X: Any, y: Any) -> tuple[list, _Samples]:
    """Return the nets of a model, and the samples as their modules take them."""
    if hasattr(model, "estimators_") and hasattr(model, "classes_"):
        nets = list(model.estimators_)
        _refuse_own_columns(model)
        if hasattr(model, "member_inputs"):
            # Ensembles of this package convert X: channels last, tables.
            X = model.member_inputs(X)
        labels = model.classes_
    else:
        nets, labels = [model], None
    for net in nets:
        if not hasattr(net, "module_") or not hasattr(net, "infer"):
            raise InvalidInputError(
                "Flatness is measured on an initialised skorch net or on a fitted "
                f"ensemble with `estimators_` and `classes_`, got {type(net).__name__}."
                " Call fit (or net.initialize()) first."
            )
    return nets, _Samples(X, _codes(X, y, labels))


def _refuse_own_columns(model):
    """Raise if each member takes its own columns of X, as in scikit-learn's bagging."""
    columns = getattr(model, "estimators_features_", ())
    if any(list(own) != list(range(model.n_features_in_)) for own in columns):
        raise InvalidInputError(
            f"Each member of {type(model).__name__} takes its own columns of X "
            "(`estimators_features_`). Measure each of `estimators_` on its columns."
        )


def _codes(X, y, labels):
    """Return the class codes of the samples, (N,)."""
    if y is None and isinstance(X, Dataset):
        y = dataset_labels(X)
    if y is None:
        raise InvalidInputError(
            "y is None, but the loss needs a label for each sample. Pass the labels as "
            "y; only a torch Dataset can contain them."
        )
    y = to_array(y)
    if labels is not None:
        return encode_labels(
            y, n_classes=len(labels), n_samples=len(y), labels=labels, name="X"
        )
    if y.ndim != 1 or y.dtype.kind not in "iu" or (len(y) and y.min() < 0):
        raise InvalidInputError(
            "y must contain non-negative integer class codes, one per sample, got "
            f"dtype {y.dtype} and shape {y.shape}. For other labels pass the ensemble, "
            "which has `classes_`."
        )
    return y.astype(np.int64)


def _choose(samples, *, batch_size, n_batches, rng, full_only):
    """Return all samples, or random ones for ``n_batches``."""
    n = len(Rows(samples.X, samples.y))
    wanted = n if n_batches is None else min(n, int(batch_size) * int(n_batches))
    if full_only and wanted > batch_size:
        wanted -= wanted % batch_size
    if n_batches is None and wanted == n:
        return samples
    chosen = rng.permutation(n)[:wanted]
    if isinstance(samples.X, Dataset):
        return _Samples(Subset(samples.X, chosen.tolist()), samples.y[chosen])
    X = map_tensors(lambda part: _take(part, chosen), samples.X)
    return _Samples(X, samples.y[chosen])


def _take(part, chosen):
    if isinstance(part, Tensor):
        return part[torch.as_tensor(chosen, device=part.device)]
    return np.asarray(part)[chosen]


def _on_device(net, samples):
    """Return the samples on the device of one net; check their class codes."""
    device = device_of(net.module_)
    if isinstance(samples.X, Dataset):
        rows = Rows(samples.X, samples.y, device)
    else:
        rows = _moved(net, samples, device)
    _check_codes(net, rows, samples.y)
    return rows


def _moved(net, samples, device):
    """Return arrays moved to the device, floats in the precision of the weights."""
    floats = [p.dtype for p in net.module_.parameters() if p.is_floating_point()]

    def move(part):
        tensor = to_tensor(part)
        if tensor.is_floating_point() and floats:
            return tensor.to(device, floats[0])
        return tensor.to(device)

    return Rows(map_tensors(move, samples.X), move(samples.y), device)


def _check_codes(net, rows, y):
    """Raise for codes without an output: on a GPU they would end the process."""
    with evaluation_mode(net.module_), torch.no_grad():
        output = net.infer(rows[:1][0])
    if (
        isinstance(output, Tensor)
        and output.ndim == 2
        and 1 < output.shape[1] <= y.max()
    ):
        raise InvalidInputError(
            f"y contains the class code {y.max()}, but the net has only "
            f"{output.shape[1]} outputs. Pass the codes that it was trained with."
        )


def check_finite(values: np.ndarray) -> None:
    """Raise if a loss, or a derivative of it, is infinite or not a number."""
    if not np.isfinite(values).all():
        raise DivergenceError(
            "The loss of a member on X is infinite or not a number, at its weights or "
            "near them. Check the net's training, or use a smaller rho."
        )


def measure_batches(
    measure: Callable[..., np.ndarray],
    model: Any,
    X: Any,
    y: Any,
    *,
    batch_size: int,
    n_batches: int | None,
    random_state: Any,
    full_only: bool = False,
    **options: Any,
) -> tuple[np.ndarray, list[int]]:
    """Measure each member on the same batches and with the same seed.

    Parameters
    ----------
    measure : callable
        ``measure(batches, **options)`` returns an array whose last axis is the batch.
    model, X, y, batch_size, n_batches, random_state
        As in the public functions.
    full_only : bool, default=False
        Leave out an incomplete batch, unless it is the only one.

    Returns
    -------
    values : ndarray of shape (n_members, ..., n_batches)
        Finite.
    sizes : list of int
        Number of samples in each batch.
    """
    check_numbers(POSITIVE_INTEGER, batch_size=batch_size)
    check_optional_numbers(POSITIVE_INTEGER, n_batches=n_batches)
    rng = check_generator(random_state)
    nets, samples = _nets_and_samples(model, X, y)
    samples = _choose(
        samples,
        batch_size=batch_size,
        n_batches=n_batches,
        rng=rng,
        full_only=full_only,
    )
    seed = int(rng.integers(2**62))
    # Tensors made in an enclosing inference mode would have no derivatives.
    with torch.inference_mode(False):
        members = [
            Batches(net, _on_device(net, samples), size=batch_size, seed=seed)
            for net in nets
        ]
        values = np.stack([measure(batches, **options) for batches in members])
    check_finite(values)
    return values, members[0].sizes


def average_values(
    values: np.ndarray,
    sizes: list[int] | None,
    *,
    per_member: bool,
    return_batches: bool,
) -> float | np.ndarray:
    """Average values (n_members, n_batches) over the axes that are not returned.

    ``sizes`` are the weights of the batches; None weights them equally.
    """
    if not return_batches:
        values = np.average(values, axis=1, weights=sizes)  # (n_members,)
    if not per_member:
        values = values.mean(axis=0)
    return values if per_member or return_batches else float(values)


def measure_members(
    measure: Callable[..., np.ndarray],
    model: Any,
    X: Any,
    y: Any,
    *,
    per_member: bool,
    return_batches: bool,
    **settings: Any,
) -> float | np.ndarray:
    """Measure each member on each batch, and average over members and batches.

    ``measure(batches, **options)`` returns a value for each batch. ``settings`` are the
    other keyword arguments of :func:`measure_batches`.
    """
    values, sizes = measure_batches(measure, model, X, y, **settings)
    return average_values(
        values, sizes, per_member=per_member, return_batches=return_batches
    )
