"""The frame of all measures: samples, the nets of an ensemble, and their weights."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from sklearn_sharpbalance._validation import (
    POSITIVE_INTEGER,
    check_generator,
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
    trainable_parameters,
)
from sklearn_sharpbalance.exceptions import DivergenceError, InvalidInputError
from sklearn_sharpbalance.metrics._checks import encode_labels
from sklearn_sharpbalance.runtime.torch_internals import foreach_copy_


class Member(NamedTuple):
    """A net, the samples on its device, and the seed of all random numbers."""

    net: Any
    rows: Rows
    seed: int

    def losses(self, x: Any, y: Tensor) -> Tensor:
        """Return the loss of each sample, (B,)."""
        return sample_losses(self.net, self.net.infer(x), y)

    def normal_like(self, tensor: Tensor, draw: int = 0) -> Tensor:
        """Return standard normal numbers of the tensor's shape, fixed by ``draw``."""
        generator = torch.Generator(tensor.device).manual_seed(self.seed + draw)
        return torch.empty_like(tensor).normal_(generator=generator)

    def mean(self, fn: Callable[[Any, Tensor], Tensor]) -> float:
        """Return the mean of ``fn(x, y)``, a value for each sample, in chunks."""
        n_rows = 128 if self.rows.device.type == "cpu" else 1024
        values = in_chunks(lambda chunk: fn(*self.rows[chunk]), len(self.rows), n_rows)
        return values.double().mean().item()


def _nets_and_samples(model: Any, X: Any, y: Any) -> tuple[list, Any, np.ndarray]:
    """Return the nets of a model, their input, and the codes of the classes (N,)."""
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
    return nets, X, _codes(X, y, labels)


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


def _choose(X, y, *, n_samples, batch_size, rng):
    """Return all samples or random ones; a multiple of ``batch_size`` if not fewer."""
    n = len(Rows(X, y))
    wanted = n if n_samples is None else min(n, n_samples)
    if wanted > batch_size:
        wanted -= wanted % batch_size
    if n_samples is None and wanted == n:
        return X, y
    chosen = rng.permutation(n)[:wanted]
    if isinstance(X, Dataset):
        return Subset(X, chosen.tolist()), y[chosen]
    return map_tensors(lambda part: _take(part, chosen), X), y[chosen]


def _take(part, chosen):
    if isinstance(part, Tensor):
        return part[torch.as_tensor(chosen, device=part.device)]
    return np.asarray(part)[chosen]


def _on_device(net, X, y):
    """Return the samples on the net's device, floats in the precision of its weights.

    Codes without an output raise: on a GPU they would end the process.
    """
    device = device_of(net.module_)
    floats = [p.dtype for p in net.module_.parameters() if p.is_floating_point()]

    def move(part):
        tensor = to_tensor(part)
        dtype = floats[0] if tensor.is_floating_point() and floats else tensor.dtype
        return tensor.to(device, dtype)

    X = X if isinstance(X, Dataset) else map_tensors(move, X)
    rows = Rows(X, move(y), device)
    with evaluation_mode(net.module_), torch.no_grad():
        shape: tuple = getattr(net.infer(rows[:1][0]), "shape", ())
    if len(shape) == 2 and 1 < shape[1] <= y.max():
        raise InvalidInputError(
            f"y contains the class code {y.max()}, but the net has only {shape[1]} "
            "outputs. Pass the codes that it was trained with."
        )
    return rows


def check_finite(values: np.ndarray) -> None:
    """Raise if a loss, or a derivative of it, is infinite or not a number."""
    if not np.isfinite(values).all():
        raise DivergenceError(
            "The loss of a member on X is infinite or not a number, at its weights or "
            "near them. Check the net's training, or use a smaller rho."
        )


def measure_members(
    measure: Callable[[Member], Any],
    model: Any,
    X: Any,
    y: Any,
    *,
    n_samples: int | None,
    random_state: Any,
    batch_size: int = 1,
) -> np.ndarray:
    """Return ``measure(member)`` of each, on the same samples and with the same seed.

    Samples beyond a multiple of ``batch_size`` are left out, unless there are fewer.
    """
    check_optional_numbers(POSITIVE_INTEGER, n_samples=n_samples)
    rng = check_generator(random_state)
    nets, X, y = _nets_and_samples(model, X, y)
    X, y = _choose(X, y, n_samples=n_samples, batch_size=batch_size, rng=rng)
    seed = int(rng.integers(2**62))
    # Tensors made in an enclosing inference mode would have no derivatives.
    with torch.inference_mode(False):
        members = [Member(net, _on_device(net, X, y), seed) for net in nets]
        values = np.stack([measure(member) for member in members])
    check_finite(values)
    return values


def mean_over_members(values: np.ndarray, per_member: bool) -> float | np.ndarray:
    """Return values (n_members,), or their mean."""
    return values if per_member else float(values.mean())


def trainable_or_refuse(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name; raise if there are none."""
    named = trainable_parameters(module)
    if not named:
        raise InvalidInputError(
            f"{type(module).__name__} has no trainable parameters: all have "
            "requires_grad=False. Unfreeze some."
        )
    return named


class Weights:
    """Trainable parameters as one flat vector, restored bit for bit on exit."""

    def __init__(self, module: nn.Module):
        self.params: list[Tensor] = list(trainable_or_refuse(module).values())
        self.sizes = [p.numel() for p in self.params]
        self.origin = self.flatten(p.detach() for p in self.params)  # (d,)

    def flatten(self, tensors: Iterable[Tensor | None]) -> Tensor:
        """Return one vector (d,) from a tensor per parameter; None means zeros."""
        parts = [
            torch.zeros_like(p) if t is None else t
            for t, p in zip(tensors, self.params)
        ]
        return torch.cat([t.to_dense().reshape(-1) for t in parts])

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return a tensor per parameter from a vector (d,)."""
        pieces = vector.split(self.sizes)
        return [v.view_as(p).to(p.dtype) for v, p in zip(pieces, self.params)]

    def write(self, vector: Tensor) -> None:
        """Copy a vector (d,) into the parameters of the module."""
        with torch.no_grad():
            foreach_copy_(self.params, self.split(vector))
        # An enclosing autocast would keep using its casts of the old weights.
        torch.clear_autocast_cache()

    def __enter__(self) -> "Weights":
        return self

    def __exit__(self, *error) -> None:
        self.write(self.origin)
