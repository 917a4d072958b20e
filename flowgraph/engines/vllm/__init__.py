"""vLLM's servers. Modelled besides: experts over replicas, narrower weights. Source: its server arguments."""

from __future__ import annotations

from flowgraph.engines.capabilities import EVERYWHERE, MAX_RANKS, EngineCapabilities, Support
from flowgraph.engines.vllm.environment import VLLM_CPU
from flowgraph.engines.vllm.versions import VLLM

ENGINE = EngineCapabilities(
    name="vllm",
    order=3,
    versions=VLLM,
    environment=VLLM_CPU,
    verbs=frozenset({"sample", "weights"}),
    supported=Support(
        devices=EVERYWHERE,
        data=MAX_RANKS,
        tensor=64,
        settings={"precision": ("float32", "bfloat16"), "cache_share": (), "sleeps": (), "weights_by": ()},
    ),
    modelled=Support(devices=EVERYWHERE, data=MAX_RANKS, tensor=64, expert=MAX_RANKS, settings=None),
    server="flowgraph.engines.vllm.server:Vllm",
    shares_all=True,  # gpu_memory_utilization; SGLang's mem_fraction_static is of weights and cache
)
