"""PyTorch's `fully_shard`. Also modelled: tensor parallelism over torch's DeviceMesh, experts, and any precision."""

from __future__ import annotations

from flowgraph.engines.capabilities import EVERYWHERE, MAX_RANKS, EngineCapabilities, Support

ENGINE = EngineCapabilities(
    name="fsdp",
    order=1,
    verbs=frozenset({"token_stats", "step", "weights"}),
    supported=Support(
        devices=EVERYWHERE,
        data=MAX_RANKS,
        sequence=MAX_RANKS,
        replicas=MAX_RANKS,
        sharding=frozenset({"full"}),
        settings={
            "precision": ("float32", "bfloat16"),
            "checkpointing": (),
            "offload": ((), ("optimizer",), ("parameters", "gradients", "optimizer")),
            "micro_batch_tokens": (),
            "logits": ("chunked",),
            "sleeps": (),
        },
    ),
    modelled=Support(
        devices=EVERYWHERE,
        data=MAX_RANKS,
        tensor=8,
        expert=MAX_RANKS,
        sequence=MAX_RANKS,
        replicas=MAX_RANKS,
        sharding=frozenset({"none", "full"}),
        settings=None,
    ),
    handle="flowgraph.engines.fsdp.model:FsdpModel",
    process_group="flowgraph.engines.fsdp.ranks:join",
)
