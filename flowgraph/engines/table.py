"""The one table of engines: what each can run here, and what a plan may name for a forecast and an export."""

from __future__ import annotations

from collections.abc import Mapping

from flowgraph.engines import fsdp, local, megatron, sglang, trtllm, vllm
from flowgraph.engines.capabilities import EngineCapabilities

ENGINES: Mapping[str, EngineCapabilities] = {
    each.ENGINE.name: each.ENGINE for each in (local, fsdp, sglang, vllm, megatron, trtllm)
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
