"""Megatron-LM, for plans that are exported: it cannot run here. Source: Megatron-LM, parallel_state.

It does not offload weights while it computes; between phases, verl moves weights to the host (`param_offload`:
`sleeps`). Its optimizer may step on the host: Megatron Core, `optimizer_cpu_offload`.
"""

from __future__ import annotations

from flowgraph.engines.capabilities import GPUS, MAX_RANKS, SHARDINGS, EngineCapabilities, Support

ENGINE = EngineCapabilities(
    name="megatron",
    order=4,
    verbs=frozenset({"token_stats", "step", "weights"}),
    modelled=Support(
        devices=GPUS,
        data=MAX_RANKS,
        tensor=64,
        pipeline=64,
        sequence=64,
        expert=MAX_RANKS,
        sharding=SHARDINGS,
        settings={
            "precision": (),
            "checkpointing": (),
            "offload": ((), ("optimizer",)),
            "micro_batch_tokens": (),
            "logits": (),
            "sleeps": (),
        },
    ),
    cpu_optimizer=True,
)
