"""What pytest must not import for its doctests: kernels, where Triton is missing."""

from importlib.util import find_spec

KERNELS = [
    "sklearn_sharpbalance/_triton_probe.py",
    "sklearn_sharpbalance/autodiff/convolution_kernel.py",
    "sklearn_sharpbalance/engine/norm_kernels.py",
    "sklearn_sharpbalance/engine/norm_programs.py",
]
collect_ignore = [] if find_spec("triton") else KERNELS
