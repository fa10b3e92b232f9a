"""Memory formats that are safe to compute with."""

import torch
from torch.nn.parameter import is_lazy

__all__ = [
    "allows_channels_last",
    "channels_last_on_cpu",
    "contiguous_on_cpu",
    "contiguous_weights_on_cpu",
]

# oneDNN corrupts the heap, hangs or returns wrong weight gradients for a strided 1x1
# convolution whose input or weight is channels-last in memory and has fewer than 16
# channels (uxlfoundation/oneDNN#6035; x86-64, torch 2.10 to 2.15):
#     x = torch.randn(17, 8, 16, 16).contiguous(memory_format=torch.channels_last)
#     w = torch.randn(16, 8, 1, 1, requires_grad=True)
#     for _ in range(300):
#         torch.conv2d(x, w, stride=2).sum().backward()
# It also fails for a contiguous x and a w of strides (8, 1, 8, 8). One channels-last
# tensor makes everything after it channels-last, so on a CPU neither an input nor a
# weight may be, except for networks whose convolutions all have a stride of 1.


def contiguous_on_cpu(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor on a CPU in C order, any other one as it is.

    ``Tensor.contiguous`` is not enough: it ignores the strides of axes of length 1, and
    convolutions use these to recognise channels-last tensors.

    Examples
    --------
    >>> grey = torch.zeros(2, 4, 4, 1).permute(0, 3, 1, 2)
    >>> grey.contiguous().stride()
    (16, 1, 4, 1)
    >>> contiguous_on_cpu(grey).stride()
    (16, 16, 4, 1)
    """
    if x.device.type != "cpu" or x.layout is not torch.strided:
        return x
    if x.stride() == torch.empty(x.shape, device="meta").stride():
        return x
    return x.clone(memory_format=torch.contiguous_format)


def allows_channels_last(module: torch.nn.Module) -> bool:
    """Whether the input of a network may be channels-last on a CPU.

    Its own class must have ``safe_channels_last = True``, since a subclass may call
    convolutions as functions, and none of its layers may be a strided convolution.
    """
    if not vars(type(module)).get("safe_channels_last", False):
        return False
    convolutions = (m for m in module.modules() if isinstance(m, torch.nn.Conv2d))
    return all(convolution.stride == (1, 1) for convolution in convolutions)


def channels_last_on_cpu(x: torch.Tensor) -> torch.Tensor:
    """Return float32 images (N, C, H, W) on a CPU channels-last in memory.

    Pooling and convolutions are faster then. For networks of
    :func:`allows_channels_last` only. Other tensors are returned as by
    :func:`contiguous_on_cpu`.

    Examples
    --------
    >>> channels_last_on_cpu(torch.zeros(2, 3, 4, 4)).stride()
    (48, 1, 12, 3)
    """
    is_image = x.ndim == 4 and x.dtype is torch.float32 and x.device.type == "cpu"
    if not is_image or torch.compiler.is_compiling():  # a compiler chooses itself
        return contiguous_on_cpu(x)
    # vmap does not support Tensor.contiguous(memory_format=torch.channels_last).
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def contiguous_weights_on_cpu(module: torch.nn.Module) -> None:
    """Convert weights and buffers on a CPU to C order."""
    for tensor in (*module.parameters(), *module.buffers()):
        if not is_lazy(tensor):
            tensor.data = contiguous_on_cpu(tensor.data)
