"""`doctor`: what this machine has, as a person pastes it into a report of a fault."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flowgraph.cli.listings import print_table
from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.this_machine import available_cores, laptop
from flowgraph.runtime.ray.open_ports import listening
from nodes.confinement import here

PACKAGES = (
    "flowgraph",
    "torch",
    "transformers",
    "ray",
    "sglang",
    "pyarrow",
    "pydantic",
    "networkx",
    "rich",
    "gguf",
    "reasoning-gym",
    "sandlock",
)


def examine(as_json: bool) -> None:
    """Print versions, cores, memory, GPUs, shared memory, free disk, how rules are held, and what Ray listens on."""
    facts = machine()
    if as_json:
        print(json.dumps(facts, indent=1))
    else:
        print_table(["what", "here"], [(name.replace("_", " "), _shown(value)) for name, value in facts.items()])


def machine() -> dict[str, Any]:
    """Collect what this machine has; what cannot be told is None."""
    node = laptop(1).nodes[0]
    return {
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        **{package: _version(package) for package in PACKAGES},
        "cores": available_cores(),
        "memory_free_bytes": node.devices[0].memory_bytes,
        "gpus": _gpus(),
        "shared_memory_free_bytes": _free(Path("/dev/shm")),
        "disk_free_bytes": _free(Path.cwd()),
        "rules_run": here(),
        "ray_asks_for": _asks_for(),
        "ray_and_engines_listen": [str(each) for each in listening()],
    }


def _asks_for() -> str:
    """Say what a Ray that a run starts here asks of who connects: its own default, or what the environment sets."""
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    return "a token of the run's own, on loopback" if mode == "token" else f"RAY_AUTH_MODE={mode}, so anyone is let in"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _free(path: Path) -> int | None:
    return shutil.disk_usage(path).free if path.is_dir() else None


def _gpus() -> list[str]:
    """Name the GPUs that torch sees."""
    try:
        import torch
    except ImportError:
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _shown(value: Any) -> str:

    if value is None:
        return "not installed"
    if isinstance(value, list):
        return "\n".join(map(str, value)) or "none"
    return show_bytes(value) if isinstance(value, int) and value > 1_000_000 else str(value)
