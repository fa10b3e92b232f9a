"""Where members compute and in which precision, for "auto" or a name."""

import torch

from sklearn_sharpbalance.exceptions import InvalidInputError

__all__ = ["resolve_device", "resolve_devices", "resolve_precision"]


def resolve_device(device):
    """Name of the device for "auto", a name, or a torch.device."""
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
            f"device={device!r} asks for CUDA, but torch sees no CUDA device here. Use "
            "device='auto' or 'cpu'."
        )
    try:
        torch.zeros(1, device=device).item()
    except Exception as error:  # of several kinds, by the device
        raise InvalidInputError(
            f"device={device!r} cannot compute here: {error} Use device='auto' or "
            "'cpu'."
        ) from error
    return str(device)


def resolve_devices(device):
    """Names of the devices that members are spread over."""
    if isinstance(device, list | tuple):
        if not device:
            raise InvalidInputError("device is an empty list. Name at least one.")
        return [resolve_device(one) for one in device]
    return [resolve_device(device)]


def resolve_precision(precision, device, fmt):
    """Precision of the forward and backward passes for "auto" or a name."""
    if precision != "auto":
        return precision
    on_gpu = torch.device(device).type == "cuda"
    return (
        "bf16"
        if on_gpu and fmt.shape is not None and len(fmt.shape) == 3
        else "float32"
    )
