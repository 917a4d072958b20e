"""The table of all engines: those that can run here, and those that a plan may name for a forecast or an export.

It collects the packages in this folder: a new engine is a package with an `ENGINE`, without changes elsewhere.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path

from flowgraph.engines.capabilities import EngineCapabilities
from flowgraph.engines.servers.environments import Environment
from flowgraph.errors import WorkerError, nearest

_FOLDERS = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.ispkg]
_FOUND = (getattr(importlib.import_module(f"{__package__}.{name}"), "ENGINE", None) for name in _FOLDERS)
ENGINES: Mapping[str, EngineCapabilities] = {
    engine.name: engine for engine in sorted(filter(None, _FOUND), key=lambda engine: (engine.order, engine.name))
}

VERBS = {"train": ("step", "token_stats"), "sample": ("sample",), "infer": ("token_stats",)}
"""The verbs that an engine needs to run a role of each use."""


def is_server(engine: str) -> bool:
    """Return whether an engine runs in separate server processes; False for an unknown engine.

    >>> is_server("sglang"), is_server("fsdp")
    (True, False)
    """
    return engine in ENGINES and bool(ENGINES[engine].server)


def shares_process(engine: str) -> bool:
    """Return whether an engine's models run in the process of a device, where models of several engines may run.

    The result is False for engines that run in their own server processes or cannot run here. Raises KeyError for an
    unknown engine.

    >>> shares_process("fsdp"), shares_process("sglang"), shares_process("megatron")
    (True, False, False)
    """
    return bool(ENGINES[engine].handle)


def ranks_of(engine: str, data: int) -> int:
    """Return the number of ranks over which the rows of a role are split, for a data-parallel degree of `data`.

    A role is one use of a model: to train, sample or infer. The result is `data`, or 1 for an engine with servers,
    because one rank sends all rows to the servers.

    >>> ranks_of("fsdp", 4), ranks_of("sglang", 4)
    (4, 1)
    """
    return 1 if is_server(engine) else data


def engines_for(use: str, *, supported: bool = False) -> list[str]:
    """Return the names of the engines that can run one use of a model, in order of preference.

    `use` is "train", "sample" or "infer" (else KeyError). With `supported`, engines that can be planned for but cannot
    run here are left out.

    >>> engines_for("train", supported=True)
    ['local', 'fsdp']
    """
    engines = [engine for engine in ENGINES.values() if engine.verbs.issuperset(VERBS[use])]
    return [engine.name for engine in engines if engine.supported is not None or not supported]


ENVIRONMENTS = {engine.environment.name: engine.environment for engine in ENGINES.values() if engine.environment}


def environment(name: str) -> Environment:
    """Return the installable Python environment of this name, such as `vllm-cpu`.

    Raises WorkerError, with the nearest name as a hint, if no engine has an environment of this name.
    """
    if name not in ENVIRONMENTS:
        raise WorkerError(f"no engine's environment `{name}`", hint=nearest(name, ENVIRONMENTS))
    return ENVIRONMENTS[name]
