"""Arguments of the theory, checked by name before anything is computed."""

import numpy as np

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["check_divides", "check_grid"]


def check_divides(n_subsets: int, n: int) -> None:
    if n % n_subsets:
        raise InvalidInputError(f"n_subsets must divide n={n}, got {n_subsets}.")


def check_grid(k, eta, rho) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, step sizes and perturbations of a grid, broadcast to one shape."""
    given = {"k": np.asarray(k), "eta": np.asarray(eta), "rho": np.asarray(rho)}
    for name, values in given.items():
        kinds = "iu" if name == "k" else "iuf"
        if values.dtype.kind not in kinds or not np.all(_sound(values)):
            what = "integers" if name == "k" else "finite"
            raise InvalidInputError(
                f"{name} must be {what} and >= 0, got {values.tolist()!r}."
            )
    shapes = ", ".join(f"{name} {v.shape}" for name, v in given.items())
    try:
        k, eta, rho = np.broadcast_arrays(*given.values())
    except ValueError as error:
        raise InvalidInputError(
            f"k, eta and rho must be numbers or broadcast to one shape, got {shapes}."
        ) from error
    if not k.size:
        raise InvalidInputError(
            f"k, eta and rho must give at least one setting, got {shapes}."
        )
    return k, eta, rho


def _sound(values: np.ndarray) -> np.ndarray:
    return np.isfinite(values) & (values >= 0)
