"""No network uses a faulty kernel of oneDNN, for any layout of its input."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sklearn_sharpbalance.members import MemberModule
from sklearn_sharpbalance.networks import ResNet18
from sklearn_sharpbalance.runtime.memory_format import contiguous_on_cpu

SCRIPT = Path(__file__).with_name("cpu_kernels.py")
ON_X86 = platform.machine().lower() in ("x86_64", "amd64")


AVX2_MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(not ON_X86, reason="needs x86-64"),
]


@pytest.mark.parametrize(
    ("instructions", "length"),
    [
        ("", ["--short"]),  # all instructions of the processor
        pytest.param("", [], marks=pytest.mark.slow),
        pytest.param("AVX2", [], marks=AVX2_MARKS),
    ],
)
def test_all_networks_train_at_odd_sizes_and_layouts(instructions, length):
    environment = os.environ | {
        "LD_PRELOAD": "libc_malloc_debug.so.0",  # needed for glibc to check its heap
        "MALLOC_CHECK_": "3",
        "MALLOC_PERTURB_": "165",
        "OMP_NUM_THREADS": "2",  # some faults need two threads
        "OMP_WAIT_POLICY": "passive",  # other tests run at the same time
    }
    if instructions:
        environment["ONEDNN_MAX_CPU_ISA"] = instructions
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *length],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,  # the process may hang
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "no difference found" in done.stdout


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 4, 4), (2, 3, 1, 1), (0, 3)])
def test_tensors_on_a_cpu_get_the_strides_of_c_order(shape):
    expected = torch.zeros(shape).stride()
    x = torch.zeros(shape)
    if len(shape) == 4:
        x = torch.zeros([shape[i] for i in (0, 2, 3, 1)]).permute(0, 3, 1, 2)
    assert contiguous_on_cpu(x).stride() == expected
    assert contiguous_on_cpu(x).equal(x)


def test_weights_of_members_on_a_cpu_are_in_c_order(tmp_path):
    """After they are built, moved and unpickled."""
    prototype = ResNet18(width=4).to(memory_format=torch.channels_last)
    module = MemberModule(prototype)
    assert strides(module) == strides(ResNet18(width=4))
    module.to(memory_format=torch.channels_last)
    assert strides(module) == strides(ResNet18(width=4)) != strides(prototype)
    module.module.to(memory_format=torch.channels_last)
    torch.save(module, tmp_path / "member.pt")
    module = torch.load(tmp_path / "member.pt", weights_only=False)
    assert strides(module) == strides(ResNet18(width=4))


def strides(module):
    return [weight.stride() for weight in module.parameters()]
