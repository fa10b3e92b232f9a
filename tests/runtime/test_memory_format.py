"""No network uses a faulty kernel of oneDNN, for any layout of its input."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sklearn_sharpbalance.members import MemberModule
from sklearn_sharpbalance.networks import ResNet18, SmallCNN, SmallResNet, WideResNet
from sklearn_sharpbalance.runtime.devices import allows_channels_last, contiguous_on_cpu

SCRIPT = Path(__file__).with_name("cpu_kernels.py")
ON_X86 = platform.machine().lower() in ("x86_64", "amd64")


AVX2_MARKS = [pytest.mark.slow, pytest.mark.skipif(not ON_X86, reason="needs x86-64")]


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


class Own(SmallCNN):
    """A network of the user."""


def strided():
    network = SmallCNN(3, 2, width=4)
    network[4] = torch.nn.Conv2d(4, 8, 1, stride=2)
    return network


@pytest.mark.parametrize(
    ("make", "allowed"),
    [
        (lambda: SmallCNN(3, 2, width=4), True),
        (lambda: SmallResNet(3, 2, width=4), True),
        (lambda: ResNet18(width=16), False),
        (lambda: WideResNet(10, 1), False),
        (lambda: Own(3, 2, width=4), False),
        (strided, False),
    ],
)
def test_networks_without_strided_convolutions_get_channels_last_input(make, allowed):
    network = make()
    assert allows_channels_last(network) is allowed
    module = MemberModule(lambda: network).eval()
    seen = []
    network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].stride()))
    x = torch.rand(5, 3, 8, 8)
    output = module(x)
    assert seen == [(192, 1, 24, 3) if allowed else x.stride()]
    torch.testing.assert_close(output, network(x))


def strides(module):
    return [weight.stride() for weight in module.parameters()]
