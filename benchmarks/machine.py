"""What figures were measured on: processor, cores, and versions of what they stand on."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flowgraph.errors.distribution import DISTRIBUTION

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
"""The environment of every process that is measured."""

PACKAGES = ("flowgraph", "torch", "transformers", "pyarrow", "ray")


def machine(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Name the processor, the cores, the load of the last minute, Python, and the versions of packages."""
    names = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    cpu = next((line.partition(": ")[2] for line in names if line.startswith("model name")), platform.machine())
    versions = {name: version(DISTRIBUTION if name == "flowgraph" else name) for name in packages}
    load = os.getloadavg()[0]
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": load,
        "python": platform.python_version(),
        "packages": versions,
    }
