"""Megatron-LM, for plans that are exported: no executor of ours runs it. Source: Megatron-LM, parallel_state.

It computes with weights where they lie, so none are offloaded while it works; between phases verl puts weights away
(`param_offload`: `sleeps`). Its optimizer may step on the host: Megatron Core, `optimizer_cpu_offload`.
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
