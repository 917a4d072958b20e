"""The versions of SGLang that are known, and what differs between them for whoever talks to a server."""

from __future__ import annotations

from flowgraph.engines.servers.versions import EngineVersions, VersionTraits

# Source: the wheels of these versions. 0.5.18 to 0.5.21 pin torch 2.13.0 and transformers 5.12.1; 0.5.22 and 0.5.23
# pin torch 2.14.1. Only 0.5.23 was run by us, on a CPU with torch 2.13.0.
SGLANG = EngineVersions(
    "SGLang",
    {
        "0.5.18": VersionTraits(session=False, spans=False),
        "0.5.19": VersionTraits(session=False, spans=True),
        "0.5.20": VersionTraits(session=False, spans=True),
        "0.5.21": VersionTraits(session=True, spans=True),
        "0.5.22": VersionTraits(session=True, spans=True),
        "0.5.23": VersionTraits(session=True, spans=True, tried=("cpu",)),
    },
    hint="on a CPU: flowgraph engines install sglang-cpu; on a GPU: pip install 'flowgraph[sglang]'",
)
