"""TensorRT-LLM, for plans that are exported: it cannot run here. Source: its server arguments."""

from __future__ import annotations

from flowgraph.engines.capabilities import GPUS, MAX_RANKS, EngineCapabilities, Support

ENGINE = EngineCapabilities(
    name="trtllm",
    order=5,
    verbs=frozenset({"sample", "weights"}),
    modelled=Support(devices=GPUS, data=MAX_RANKS, tensor=64, expert=MAX_RANKS, settings=None),
)
