"""SGLang's servers. Modelled besides: experts over replicas, narrower weights. Source: its server arguments."""

from __future__ import annotations

from flowgraph.engines.capabilities import EVERYWHERE, MAX_RANKS, EngineCapabilities, Support
from flowgraph.engines.sglang.environment import SGLANG_CPU
from flowgraph.engines.sglang.versions import SGLANG

ENGINE = EngineCapabilities(
    name="sglang",
    order=2,
    versions=SGLANG,
    environment=SGLANG_CPU,
    extra="sglang",
    verbs=frozenset({"sample", "weights"}),
    supported=Support(
        devices=EVERYWHERE,
        data=MAX_RANKS,
        tensor=64,
        settings={"precision": ("float32", "bfloat16"), "cache_share": (), "sleeps": (), "weights_by": ()},
    ),
    modelled=Support(devices=EVERYWHERE, data=MAX_RANKS, tensor=64, expert=MAX_RANKS, settings=None),
    server="flowgraph.engines.sglang.server:Sglang",
)
