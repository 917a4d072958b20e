"""Seconds of what lies between phases: weights to another pool, to another layout of their own, to the host and back.

Not here: how often a plan asks for one, and whether anything overlaps it (`steps`, `timeline`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from placements.collectives import collective_seconds, link_bytes_per_s, machine_devices, network_bytes_per_s
from placements.seconds import Seconds

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Layout
    from placements.profiles import Links, Profile

Method = Literal["broadcast", "staged", "bucketed", "parallel", "delta"]
Resharding = Literal["all", "model", "micro"]

HOST_SHARE = 0.75  # of the host's link, pinned: 20 to 25 of 32 GB/s and 50 of 64 as measured, by direction; 0.5 to 0.9
WAKE_S = 0.1  # of an engine that sleeps, without its weights. Source: vLLM's blog of 2025-10-26, 0.1 to 0.4 s; 0 to 1
PAUSE_S = 0.2  # of generation that stops and goes on, its requests kept; 0.05 to 5, where they are finished or flushed
RESHARD_S, RESHARD_BYTES_PER_S, RESHARD_TENSOR_S = 2.0, 20e9, 0.2e-3
"""What software adds where an engine takes new weights from the trainer on its own devices: at least, and for its bytes
and tensors, all of which pass each machine.

Source: NeMo-RL's blog of 2025-07-21, 5 to 14 s for 8B to 70B and 12 s for Qwen3-30B-A3B, in buckets that are passed
from process to process; verl's logs, 3.5 to 5.8 s for 4B and 9B; between half and twice as much.
"""
WRITTEN = 2  # passes through memory of a weight that arrives: it is read and written


@dataclass(frozen=True)
class Sending:
    """How a method brings weights over. The numbers are those of software, not of links, and hold within a factor of 2.

    `gathers` whole tensors on the way to one sender, `senders` else each send their part. Whole tensors go through the
    host at `staged` of its link. A `tensor_s` is spent on each tensor, and `shard_bytes_per_s` found on each source.
    """

    gathers: bool
    senders: Literal["one", "all"]
    tensor_s: float
    staged: float | None = None
    shard_bytes_per_s: float | None = None


# Source of the numbers: near the medians of the rows that verl and Moonshot's checkpoint-engine publish, docs/advance/
# fully_async.md and delta_weight_sync.md, and README; how many is said beside each. In brackets, between what.
METHODS: Mapping[Method, Sending] = {
    # Each tensor gathered, then broadcast: 2 rows, on vLLM with Megatron or FSDP (0.3 to 2 ms a tensor).
    "broadcast": Sending(gathers=True, senders="one", tensor_s=1e-3),
    # The same through the host's memory, where trainers offload: 9 rows, on SGLang (0.03 to 0.2 of its link).
    "staged": Sending(gathers=True, senders="one", tensor_s=1e-3, staged=0.078),
    # Tensors packed into buckets of gigabytes, one after another: 2 rows (0.03 to 0.3 ms a tensor).
    "bucketed": Sending(gathers=True, senders="one", tensor_s=1e-4),
    # Each source its own part, packed: a checkpoint engine, or RDMA from peer to peer; 4 rows (0.03 to 0.3 ms).
    "parallel": Sending(gathers=False, senders="all", tensor_s=1e-4),
    # Only what changed, 1 to 3% of the numbers, found shard by shard: 9 rows (0.3 to 1.2 GB/s).
    "delta": Sending(gathers=False, senders="all", tensor_s=0.0, shard_bytes_per_s=0.6e9),
}
DELTA_SHARE = 0.03 * 3  # of the bytes: 3% of the numbers, each with four bytes of place beside its two


def sync_seconds(
    size_bytes: float,
    tensors: int,
    source: Links,
    source_devices: int,
    target: Links,
    target_devices: int,
    replicas: int = 1,
    method: Method = "bucketed",
    *,
    together: bool = False,
    pause_s: float = PAUSE_S,
) -> Seconds:
    """Return the seconds until every replica of the target pool has the weights of the source pool, by part.

    `size_bytes` and `tensors` are those of the whole model as it is sent; `together` says that both pools share one
    domain, so that the network is not needed. The parts follow each other: nothing overlaps.
    Deviation: finding what changed is not split from packing it, as no table does.
    """
    how = METHODS[method]
    sent_bytes = size_bytes * (DELTA_SHARE if method == "delta" else 1.0)
    gather_s = collective_seconds("all_gather", size_bytes, source_devices, source) if how.gathers else 0.0
    pack_s = 0.0
    if how.staged is not None:
        pack_s = size_bytes / (source.device.host_bytes_per_s * how.staged)
    elif how.shard_bytes_per_s is not None:
        pack_s = size_bytes / source_devices / how.shard_bytes_per_s
    held_bytes = size_bytes * replicas / target_devices
    return Seconds(
        {
            "gather": gather_s,
            "pack": pack_s,
            "transfer": _transfer_s(sent_bytes, how, source, source_devices, target, target_devices, together),
            "install": tensors * how.tensor_s + WRITTEN * held_bytes / target.device.memory_bytes_per_s,
            "pause": pause_s,
        }
    )


def _transfer_s(
    sent_bytes: float,
    how: Sending,
    source: Links,
    source_devices: int,
    target: Links,
    target_devices: int,
    together: bool,
) -> float:
    """Return the seconds on the wire: what every machine of the target takes in, passed on from machine to machine.

    One sender has one adapter; all of them together fill those of a target's machine. Inside a machine, weights that
    arrive once are passed on over its links.
    """
    inside_s = sent_bytes / link_bytes_per_s(target, target_devices) if target_devices > 1 else 0.0
    if together:
        return max(inside_s, sent_bytes / link_bytes_per_s(source, source_devices + target_devices))
    out = source_devices if how.senders == "all" else 1
    into = machine_devices(target_devices, target) if how.senders == "all" else 1
    between = min(out * network_bytes_per_s(source), into * network_bytes_per_s(target))
    return max(inside_s, sent_bytes / between)


def resharding(training: Layout, generation: Layout) -> Resharding:
    """Say how far weights are gathered from a training layout to a generation layout of the same devices.

    Over all devices where each holds a part of every weight; else over the tensor and pipeline ranks, or only over
    those of them that end up with one part, where the generation's degrees divide the training's.

    >>> from flowgraph.cluster.plan import Layout
    >>> resharding(Layout(data=2, tensor=8), Layout(data=8, tensor=2)), resharding(Layout(data=8, sharding="full"),
    ...     Layout(data=4, tensor=2))
    ('micro', 'all')
    """
    if training.sharding == "full":
        return "all"
    divides = training.tensor % generation.tensor == 0 and training.pipeline % generation.pipeline == 0
    return "micro" if divides else "model"


def resharding_bytes(size_bytes: float, training: Layout, generation: Layout, how: Resharding) -> float:
    """Return the bytes that each device receives: those of what it ends up gathering that it did not hold.

    With M the model, t·p·d the training's degrees and t_g·p_g the generation's: (tpd - 1)/(tpd) M, (tp - 1)/(tp) M, and
    (tp - t_g·p_g)/(t_g·p_g·tp) M. Source: Sheng et al. 2024, arXiv 2409.19256, table 2 (DeepSpeed-Chat, HybridFlow-V
    and HybridFlow).

    >>> from flowgraph.cluster.plan import Layout
    >>> resharding_bytes(16.0, Layout(data=2, tensor=8), Layout(data=8, tensor=2), "micro")
    6.0
    """
    ranks, gathered_bytes = _gathering(size_bytes, training, generation, how)
    return gathered_bytes * (ranks - 1) / ranks


def reshard_seconds(
    size_bytes: float, tensors: int, training: Layout, generation: Layout, links: Links, how: Resharding | None = None
) -> Seconds:
    """Return the seconds in which a pool's weights get from training's layout to the generation's, tensor by tensor.

    Ways that gather less go over ranks that are nearer each other. Weights that end up sliced are written once more.
    Beside what links take, software does (`RESHARD_S`), but not in one process on a CPU, which reads its own weights.
    Source: as of `resharding_bytes`; the collective is an all-gather.
    """
    ranks, gathered_bytes = _gathering(size_bytes, training, generation, how or resharding(training, generation))
    each_s = collective_seconds("all_gather", gathered_bytes / tensors, ranks, links)
    held_bytes = size_bytes / (generation.tensor * generation.pipeline)
    software_s = RESHARD_S + size_bytes / RESHARD_BYTES_PER_S + tensors * RESHARD_TENSOR_S
    return Seconds(
        {
            "gather": tensors * each_s,
            "install": WRITTEN * held_bytes / links.device.memory_bytes_per_s,
            "software": 0.0 if links.device.kind == "cpu" else software_s,
        }
    )


def _gathering(size_bytes: float, training: Layout, generation: Layout, how: Resharding) -> tuple[int, float]:
    """Return over how many ranks weights are gathered, and the bytes that each then has."""
    model = training.tensor * training.pipeline
    if how == "all":
        return training.devices, size_bytes
    if how == "model":
        return model, size_bytes
    kept = generation.tensor * generation.pipeline
    return max(1, model // kept), size_bytes / kept


def offload_seconds(size_bytes: float, device: Profile) -> float:
    """Return the seconds in which a device copies so many bytes to the host, or back, over its own link.

    >>> from placements.profiles import profile
    >>> round(offload_seconds(48e9, profile("h100")), 3)
    1.0
    """
    return size_bytes / (device.host_bytes_per_s * HOST_SHARE)


def wake_seconds(size_bytes: float, device: Profile) -> Seconds:
    """Return the seconds in which an engine that slept has its weights on the device again, and answers."""
    return Seconds({"copy": offload_seconds(size_bytes, device), "wake": WAKE_S})
