"""Time of a GPU by kind of kernel, for the profiles."""

from collections import Counter

KINDS = {  # the first whose words are in a kernel's name
    "norm": (
        "batch_norm",
        "bn_",
        "statistics",
        "normalise",
        "gradient_sums",
        "gradient",
        "native_batch",
    ),
    "squared gradients": ("_tap_norms", "gemm", "gemv", "nvjet"),
    "convolution": ("fprop", "dgrad", "wgrad", "conv", "xmma", "cutlass", "splitK"),
    "weights": ("multi_tensor", "lpnorm"),
    "fused by the compiler": ("triton_",),
    "reduction": ("reduce",),
    "elementwise": ("elementwise", "fill", "Memset", "Memcpy"),
}


def kind_of(name):
    """The kind of a kernel."""
    if any(word in name for word in ("implicit_gemm", "ImplicitGemm")):
        return "convolution"
    for kind, words in KINDS.items():
        if any(word in name for word in words):
            return kind
    return "other"


def by_kind(events, n_times, unit):
    """Launches and milliseconds, of each kind and of the longest kernels.

    Parameters
    ----------
    events : list of averages by key, of a torch profile
    n_times : int
        How often the profiled work was done; the numbers are for one time.
    unit : str
        What was done, for the names of the numbers.
    """
    launches, spent = Counter(), Counter()
    for event in events:
        kind = kind_of(event.key)
        launches[kind] += event.count / n_times
        spent[kind] += event.self_device_time_total / n_times / 1e3
    longest = sorted(events, key=lambda event: -event.self_device_time_total)[:15]
    return {
        f"launches_per_{unit}": dict(launches),
        f"kernel_milliseconds_per_{unit}": dict(spent),
        "longest": {
            event.key[:100]: event.self_device_time_total / n_times / 1e3
            for event in longest
        },
    }
