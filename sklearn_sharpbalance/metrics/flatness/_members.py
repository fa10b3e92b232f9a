"""From what the user passed to nets, samples on their device, and a mean."""

from collections.abc import Callable
from math import inf
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from sklearn_sharpbalance.autodiff.chunks import in_chunks
from sklearn_sharpbalance.autodiff.losses import sample_losses
from sklearn_sharpbalance.autodiff.rows import (
    Rows,
    dataset_labels,
    map_tensors,
    to_array,
    to_tensor,
)
from sklearn_sharpbalance.autodiff.state import device_of, evaluation_mode
from sklearn_sharpbalance.exceptions import DivergenceError, InvalidInputError
from sklearn_sharpbalance.metrics._checks import as_generator, encode_labels

__all__ = [
    "Batches",
    "check_count",
    "check_finite",
    "check_positive",
    "measure_members",
]


class Batches:
    """Samples of one net, cut into batches on its device.

    Parameters
    ----------
    net : NeuralNetClassifier
        Initialised.
    rows : Rows
        The samples, on the net's device.
    size : int
        Samples per batch; the last batch may be smaller.
    seed : int
        For whatever the measurement draws.
    """

    def __init__(self, net: Any, rows: Rows, size: int, seed: int):
        self.net, self.rows, self.seed = net, rows, seed
        self.slices = [slice(i, i + size) for i in range(0, len(rows), size)]

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def losses(self, x: Any, y: Tensor) -> Tensor:
        """Loss of each sample, (B,)."""
        return sample_losses(self.net, self.net.infer(x), y)

    def normal_like(self, tensor: Tensor, draw: int = 0) -> Tensor:
        """Standard normal numbers of the tensor's shape; the same for the same draw."""
        generator = torch.Generator(tensor.device).manual_seed(self.seed + draw)
        return torch.empty_like(tensor).normal_(generator=generator)

    def per_sample(self, fn: Callable[[Any, Tensor], Tensor]) -> Tensor:
        """``fn(x, y)``, one value a sample, over all samples in bounded chunks."""
        chunk = 128 if self.device.type == "cpu" else 1024
        return in_chunks(lambda rows: fn(*self.rows[rows]), len(self.rows), chunk)

    def means(self, values: Tensor) -> np.ndarray:
        """Mean over each batch, (n_batches,), of one value a sample."""
        array = values.detach().double().cpu().numpy()  # (N,)
        return np.array([array[batch].mean() for batch in self.slices])


class _Samples(NamedTuple):
    X: Any
    y: np.ndarray  # (N,) codes


def nets_and_samples(model: Any, X: Any, y: Any) -> tuple[list, _Samples]:
    """The nets of a net or of an ensemble, and samples as their modules take them."""
    if hasattr(model, "estimators_") and hasattr(model, "classes_"):
        nets = list(model.estimators_)
        _refuse_own_columns(model)
        # Our ensembles take layouts that their modules do not: channels last, tables.
        X = getattr(model, "member_inputs", lambda X: X)(X)
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
    """Bagging may give each member some columns, and repeat or reorder them."""
    columns = getattr(model, "estimators_features_", ())
    if any(list(own) != list(range(model.n_features_in_)) for own in columns):
        raise InvalidInputError(
            f"The members of {type(model).__name__} take columns of their own "
            "(`estimators_features_`), not X as it is. Measure each of `estimators_` "
            "on its columns."
        )


def _codes(X, y, labels):
    if y is None and isinstance(X, Dataset):
        y = dataset_labels(X)
    if y is None:
        raise InvalidInputError(
            "y is None, but the loss needs a label for each sample. Pass them as y; "
            "only a torch Dataset can have its own."
        )
    y = to_array(y)
    if labels is not None:
        return encode_labels(y, len(labels), len(y), labels, "X")
    if y.ndim != 1 or y.dtype.kind not in "iu" or (len(y) and y.min() < 0):
        raise InvalidInputError(
            "y must hold integer class codes from 0 on, one per sample, got dtype "
            f"{y.dtype} and shape {y.shape}. For other labels pass the ensemble, which "
            "knows its classes."
        )
    return y.astype(np.int64)


def _choose(samples, batch_size, n_batches, rng, full_only):
    """The samples that are measured on: all, or random ones for ``n_batches``."""
    n = len(Rows(*samples))
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
    """Samples of one net on its device, with codes that it has outputs for."""
    device = device_of(net.module_)
    if isinstance(samples.X, Dataset):
        rows = Rows(samples.X, samples.y, device)
    else:
        rows = _moved(net, samples, device)
    _check_codes(net, rows, samples.y)
    return rows


def _moved(net, samples, device):
    """Arrays moved once, floats in the weights' precision."""
    floats = [p.dtype for p in net.module_.parameters() if p.is_floating_point()]

    def move(part):
        tensor = to_tensor(part)
        cast = tensor.is_floating_point() and floats
        return tensor.to(device, floats[0] if cast else tensor.dtype)

    return Rows(map_tensors(move, samples.X), move(samples.y), device)


def _check_codes(net, rows, y):
    """Refuse codes without an output: on a GPU they would end the whole process."""
    with evaluation_mode(net.module_), torch.no_grad():
        output = net.infer(rows[:1][0])
    if (
        isinstance(output, Tensor)
        and output.ndim == 2
        and 1 < output.shape[1] <= y.max()
    ):
        raise InvalidInputError(
            f"y holds the class code {y.max()}, but the net has {output.shape[1]} "
            "outputs."
        )


def check_count(name, value, optional=False):
    if optional and value is None:
        return
    if not isinstance(value, Integral) or value < 1:
        also = " or None" if optional else ""
        raise InvalidInputError(
            f"{name} must be a positive integer{also}, got {value!r}."
        )


def check_positive(name, value, or_zero=False):
    """Raise unless a setting is a positive, finite number, or zero if that counts."""
    number = isinstance(value, Real) and value < inf
    if not number or not (value >= 0 if or_zero else value > 0):
        kind = "zero or a positive" if or_zero else "a positive"
        raise InvalidInputError(f"{name} must be {kind}, finite number, got {value!r}.")


def check_finite(values):
    """Raise if a measurement met a loss, or a derivative of it, that is no number."""
    if not np.isfinite(values).all():
        raise DivergenceError(
            "The loss of a member on X is infinite or not a number, at its weights or "
            "near them. Check the net's training, or use a smaller rho."
        )


def measure_members(
    model: Any,
    X: Any,
    y: Any,
    measure: Callable[[Batches], np.ndarray],
    *,
    batch_size: int,
    n_batches: int | None,
    random_state: Any,
    per_member: bool,
    return_batches: bool,
    full_only: bool = False,
) -> float | np.ndarray:
    """Mean of ``measure`` over batches and members, or what is asked for instead.

    ``measure`` gives one number per batch; all members get the same batches and the
    same seed, so that their values can be compared.
    """
    check_count("batch_size", batch_size)
    check_count("n_batches", n_batches, optional=True)
    rng = as_generator(random_state)
    nets, samples = nets_and_samples(model, X, y)
    samples = _choose(samples, batch_size, n_batches, rng, full_only)
    seed = int(rng.integers(2**62))
    # Tensors that are made in an inference mode around the call bear no derivatives.
    with torch.inference_mode(False):
        batches = [Batches(n, _on_device(n, samples), batch_size, seed) for n in nets]
        values = np.stack([measure(each) for each in batches])  # (M, n_batches)
    check_finite(values)
    if not return_batches:
        sizes = [len(range(len(samples.y))[s]) for s in batches[0].slices]
        values = np.average(values, axis=1, weights=sizes)  # (M,)
    if per_member:
        return values
    mean = values.mean(axis=0)
    return mean if return_batches else float(mean)
