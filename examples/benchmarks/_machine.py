"""What every benchmark prints first and writes with its numbers."""

import json
import os
import platform
from pathlib import Path

import numpy
import sklearn
import skorch
import torch

RESULTS = Path(__file__).parent / "results"


def machine():
    """Processor, GPU and versions as a dictionary."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "scikit-learn": sklearn.__version__,
        "skorch": skorch.__version__,
        "numpy": numpy.__version__,
    }


def write(name, numbers, folder=None):
    """Print the numbers and write them with the machine to ``results/name.json``."""
    folder = Path(folder or RESULTS)
    folder.mkdir(parents=True, exist_ok=True)
    result = {**numbers, "machine": machine()}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return path


def by_processor(name):
    """Return the name of a result: ``name`` on x86-64, ``name_aarch64`` on aarch64."""
    kind = platform.machine()
    return name if kind == "x86_64" else f"{name}_{kind}"
