"""Resolve the parameters ``device`` and ``precision``."""

import torch

from sklearn_sharpbalance._validation import in_a_sentence
from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["resolve_device", "resolve_devices", "resolve_precision"]


def resolve_device(device):
    """Return the name of a device that works, for "auto", a name or a torch.device."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError) as error:
        raise InvalidInputError(
            f"Unknown device {device!r}. Use 'auto', 'cpu', 'cuda' or 'cuda:0'."
        ) from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise InvalidInputError(
            f"device={device!r} needs CUDA, but torch finds no CUDA device. Use "
            "device='auto' or 'cpu'."
        )
    try:
        torch.zeros(1, device=device).item()
    except Exception as error:  # the type depends on the device
        raise InvalidInputError(
            f"device={device!r} cannot be used: {in_a_sentence(error)}. Use "
            "device='auto' or 'cpu'."
        ) from error
    return str(device)


def resolve_devices(device):
    """Return the names of the devices that members are distributed over."""
    if isinstance(device, list | tuple):
        if not device:
            raise InvalidInputError(
                "device is an empty list. Pass at least one device."
            )
        return [resolve_device(one) for one in device]
    return [resolve_device(device)]


def resolve_precision(precision, device, fmt):
    """Return the precision of forward and backward passes for "auto" or a name.

    "auto" is "bf16" for pictures on a GPU, else "float32".

    Parameters
    ----------
    precision : str
    device : str or torch.device
    fmt : InputFormat
    """
    if precision != "auto":
        return precision
    on_gpu = torch.device(device).type == "cuda"
    has_pictures = fmt.shape is not None and len(fmt.shape) == 3
    return "bf16" if on_gpu and has_pictures else "float32"
