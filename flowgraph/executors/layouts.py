"""The layouts that each executor can run, as data without torch: what a search may choose from."""

from __future__ import annotations

from dataclasses import dataclass

POOL_WIDE = 2**16  # as many ranks as a pool has devices


@dataclass(frozen=True)
class Offer:
    """What one engine can run: its verbs, device kinds, and the largest degree of each way to split a model.

    Verbs of `alone` are offered on one device only. `handle` is the class that hosts a model, as `module:name`, none
    for an engine that no executor of ours drives; `meets` says that its ranks talk to each other, and so meet before
    they load. `settled` says that it leaves the settings of `Running` as they are by default.
    """

    verbs: frozenset[str]
    devices: frozenset[str]
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    sharding: frozenset[str] = frozenset({"none"})
    alone: frozenset[str] = frozenset()
    handle: str = ""
    meets: bool = False
    expert: int = 1
    sequence: int = 1
    settled: bool = True


JOIN = "flowgraph.executors.ranks:join"
"""How the ranks of a pool meet, as `module:name`."""

LAYOUTS: dict[str, Offer] = {
    "local": Offer(
        handle="flowgraph.executors.local:LocalModel",
        verbs=frozenset({"token_stats", "sample", "step", "weights"}),
        devices=frozenset({"cpu", "gpu"}),
        data=POOL_WIDE,
        alone=frozenset({"step"}),
    ),
    "fsdp": Offer(
        handle="flowgraph.executors.fsdp:FsdpModel",
        verbs=frozenset({"token_stats", "step", "weights"}),
        devices=frozenset({"cpu", "gpu"}),
        data=POOL_WIDE,
        sharding=frozenset({"full"}),
        meets=True,
    ),
}

_EVERYWHERE = frozenset({"none", "optimizer", "gradients", "full"})

COSTED: dict[str, Offer] = {
    "fsdp": Offer(
        verbs=frozenset({"token_stats", "step", "weights"}),
        devices=frozenset({"gpu"}),
        data=POOL_WIDE,
        tensor=8,
        sequence=8,
        expert=POOL_WIDE,
        sharding=frozenset({"none", "full"}),
        settled=False,
    ),
    "megatron": Offer(
        verbs=frozenset({"token_stats", "step", "weights"}),
        devices=frozenset({"gpu"}),
        data=POOL_WIDE,
        tensor=64,
        pipeline=64,
        sequence=64,
        expert=POOL_WIDE,
        sharding=_EVERYWHERE,
        settled=False,
    ),
    **{
        name: Offer(
            verbs=frozenset({"sample", "weights"}),
            devices=frozenset({"gpu"}),
            data=POOL_WIDE,
            tensor=64,
            expert=POOL_WIDE,
            settled=False,
        )
        for name in ("sglang", "vllm", "trtllm")
    },
}
"""What engines of the field can run, for plans that are costed and exported; `LAYOUTS` says what runs here.

Source: FSDP2 with tensor parallelism (torch's DeviceMesh), Megatron-LM's parallel state, the server arguments of
SGLang, vLLM and TensorRT-LLM; the degrees are those that fit a machine's domain, or no bound that is known.
"""
