"""The one table of engines: what each can run here, and what a plan may name for a forecast and an export.

It gathers the folders beside this file: a new engine is a folder with an `ENGINE`, and nothing else is edited.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from flowgraph.engines.capabilities import EngineCapabilities
from flowgraph.engines.servers.environments import Environment
from flowgraph.errors import WorkerError, nearest


def _engines() -> Iterator[EngineCapabilities]:
    """Yield the `ENGINE` of every folder beside this file that has one."""
    for folder in pkgutil.iter_modules([str(Path(__file__).parent)], f"{__package__}."):
        found: object = getattr(importlib.import_module(folder.name), "ENGINE", None) if folder.ispkg else None
        if isinstance(found, EngineCapabilities):
            yield found


ENGINES: Mapping[str, EngineCapabilities] = {
    each.name: each for each in sorted(_engines(), key=lambda each: (each.order, each.name))
}

VERBS = {"train": ("step", "token_stats"), "sample": ("sample",), "infer": ("token_stats",)}
"""What an engine must offer to run a role of each use."""


def is_server(engine: str) -> bool:
    """Return whether an engine has processes of its own.

    >>> is_server("sglang"), is_server("fsdp")
    (True, False)
    """
    found = ENGINES.get(engine)
    return found is not None and bool(found.server)


def shares_process(engine: str) -> bool:
    """Return whether an engine's models live in the process of their device, beside those of other engines.

    >>> shares_process("fsdp"), shares_process("sglang"), shares_process("megatron")
    (True, False, False)
    """
    return bool(ENGINES[engine].handle)


def ranks_of(engine: str, data: int) -> int:
    """Return over how many ranks an engine's rows are split: its data ranks, or the one that speaks for a server.

    >>> ranks_of("fsdp", 4), ranks_of("sglang", 4)
    (4, 1)
    """
    return 1 if is_server(engine) else data


def engines_for(use: str, *, supported: bool = False) -> list[str]:
    """Return the engines that have the verbs of a use, or of these the `supported` ones, in the table's order.

    >>> engines_for("sample", supported=True)
    ['local', 'sglang', 'vllm']
    """
    found = [each for each in ENGINES.values() if each.verbs.issuperset(VERBS[use])]
    return [each.name for each in found if each.supported is not None or not supported]


ENVIRONMENTS = {each.environment.name: each.environment for each in ENGINES.values() if each.environment is not None}


def environment(name: str) -> Environment:
    """Give the environment of this name; raise WorkerError if none has it."""
    if name not in ENVIRONMENTS:
        raise WorkerError(f"no engine's environment `{name}`", hint=nearest(name, ENVIRONMENTS))
    return ENVIRONMENTS[name]
