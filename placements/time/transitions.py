"""Seconds of the transitions between phases: weights to another pool, to another layout, to the host and back.

Not here: how often a plan needs them, and what overlaps them (`step.tasks`, `step.timeline`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from placements.time.collectives import collective_seconds, link_bytes_per_s, machine_devices, network_bytes_per_s
from placements.time.seconds import Seconds

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Layout
    from flowgraph.models import ModelShape
    from placements.hardware.device_profiles import DeviceProfile, PoolLinks

Method = Literal["broadcast", "staged", "bucketed", "parallel", "delta"]
Resharding = Literal["all", "model", "micro"]

HOST_SHARE = 0.75  # of the host's link, pinned: 20 to 25 of 32 GB/s and 50 of 64 as measured, by direction; 0.5 to 0.9
WAKE_S = 0.1  # of a sleeping engine, without its weights. Source: vLLM's blog of 2025-10-26, 0.1 to 0.4 s; 0 to 1
PAUSE_S = 0.2  # in which generation stops and goes on with its requests; 0.05 to 5, where they are finished or flushed
RESHARD_S, RESHARD_BYTES_PER_S, RESHARD_TENSOR_S = 2.0, 20e9, 0.2e-3
"""Software overhead where an engine takes new weights from the trainer on the same devices: fixed seconds, bytes per
second and seconds for each tensor. All bytes and tensors pass each machine.

Source: NeMo-RL's blog of 2025-07-21, 5 to 14 s for 8B to 70B and 12 s for Qwen3-30B-A3B, in buckets that are passed
from process to process; verl's logs, 3.5 to 5.8 s for 4B and 9B; between half and twice as much.
"""
WRITTEN = 2  # passes through memory of an arriving weight: it is read and written


@dataclass(frozen=True)
class SyncMethod:
    """How a method sends weights. The numbers are overheads of software and are correct within a factor of 2.

    With `gathers`, whole tensors are gathered and sent by one device; else every device sends its part. `staged` is the
    share of the host's link at which whole tensors go through the host. `tensor_s` is spent on each tensor. Each source
    device searches its shard for changes at `shard_bytes_per_s`.
    """

    gathers: bool
    tensor_s: float
    staged: float | None = None
    shard_bytes_per_s: float | None = None


# Source of the numbers: near the medians of the rows that verl and Moonshot's checkpoint-engine publish, docs/advance/
# fully_async.md and delta_weight_sync.md, and README; each comment has the number of rows and, in brackets, the range.
METHODS: Mapping[Method, SyncMethod] = {
    # Each tensor gathered, then broadcast: 2 rows, on vLLM with Megatron or FSDP (0.3 to 2 ms a tensor).
    "broadcast": SyncMethod(gathers=True, tensor_s=1e-3),
    # The same through the host's memory, where trainers offload: 9 rows, on SGLang (0.03 to 0.2 of its link).
    "staged": SyncMethod(gathers=True, tensor_s=1e-3, staged=0.078),
    # Tensors packed into buckets of gigabytes, one after another: 2 rows (0.03 to 0.3 ms a tensor).
    "bucketed": SyncMethod(gathers=True, tensor_s=1e-4),
    # Each source device its part, packed: a checkpoint engine, or RDMA from peer to peer; 4 rows (0.03 to 0.3 ms).
    "parallel": SyncMethod(gathers=False, tensor_s=1e-4),
    # Only changed numbers, 1 to 3% of them, looked up shard by shard: 9 rows (0.3 to 1.2 GB/s).
    "delta": SyncMethod(gathers=False, tensor_s=0.0, shard_bytes_per_s=0.6e9),
}
DELTA_SHARE = 0.03 * 3  # of the bytes: 3% of the numbers, each with a position of four bytes and its two


def sync_seconds(
    size_bytes: float,
    tensors: int,
    source: PoolLinks,
    source_devices: int,
    target: PoolLinks,
    target_devices: int,
    replicas: int = 1,
    method: Method = "bucketed",
    *,
    together: bool = False,
) -> Seconds:
    """Return the seconds until every replica of the target pool has the source pool's weights.

    The keys follow one after another: `gather` for gathering whole tensors on the source, `pack` for going through the
    host or finding the changed numbers, `transfer` to and inside the target, `install` for handling and writing each
    tensor, and `pause` for stopping generation. `size_bytes` and `tensors` are for the whole model as it is sent; the
    target's devices hold `replicas` copies. If `together`, both pools are in one domain and the network is not used.
    Each machine of the target receives the weights once, and distributes them to its devices over their links. A single
    sender uses one network adapter; all senders together use all adapters of a target's machine. No published table
    separates finding changed weights from packing them.
    """
    spec = METHODS[method]
    sent_bytes = size_bytes * (DELTA_SHARE if method == "delta" else 1.0)
    pack_s = 0.0
    if spec.staged is not None:
        pack_s = size_bytes / (source.device.host_bytes_per_s * spec.staged)
    elif spec.shard_bytes_per_s is not None:
        pack_s = size_bytes / source_devices / spec.shard_bytes_per_s
    inside_s = sent_bytes / link_bytes_per_s(target, target_devices) if target_devices > 1 else 0.0
    if together:
        bytes_per_s = link_bytes_per_s(source, source_devices + target_devices)
    else:
        senders = 1 if spec.gathers else source_devices
        receivers = 1 if spec.gathers else machine_devices(target_devices, target)
        bytes_per_s = min(senders * network_bytes_per_s(source), receivers * network_bytes_per_s(target))
    device_bytes = size_bytes * replicas / target_devices
    return Seconds(
        {
            "gather": collective_seconds("all_gather", size_bytes, source_devices, source) if spec.gathers else 0.0,
            "pack": pack_s,
            "transfer": max(inside_s, sent_bytes / bytes_per_s),
            "install": tensors * spec.tensor_s + WRITTEN * device_bytes / target.device.memory_bytes_per_s,
            "pause": PAUSE_S,
        }
    )


def resharding(training: Layout, generation: Layout) -> Resharding:
    """Return which devices gather weights together when a pool changes from its training to its generation layout.

    The result is "all" if each device holds a part of every weight; "model" for the tensor and pipeline ranks; or
    "micro" for only those of them that get the same part, if the degrees of generation divide those of training.

    >>> from flowgraph.cluster.plan import Layout
    >>> resharding(Layout(data=2, tensor=8), Layout(data=8, tensor=2)), resharding(Layout(data=8, sharding="full"),
    ...     Layout(data=4, tensor=2))
    ('micro', 'all')
    """
    if training.sharding == "full":
        return "all"
    divides = training.tensor % generation.tensor == 0 and training.pipeline % generation.pipeline == 0
    return "micro" if divides else "model"


def reshard_seconds(
    size_bytes: float,
    tensors: int,
    training: Layout,
    generation: Layout,
    links: PoolLinks,
    how: Resharding | None = None,
) -> Seconds:
    """Return the seconds to convert a pool's weights from the training layout to the generation layout.

    They are the sum of the keys `gather`, `install` and `software`: tensors are gathered one after another and written
    once more on their device, and the engine's software takes time in addition (`RESHARD_S`), but none on a CPU, where
    one process reads its own weights. `size_bytes` and `tensors` are for the whole model. `how` names the devices that
    gather together; None: as `resharding` chooses. Source: that of `gathering`; the collective is an all-gather.
    """
    ranks, gathered_bytes = gathering(size_bytes, training, generation, how or resharding(training, generation))
    tensor_s = collective_seconds("all_gather", gathered_bytes / tensors, ranks, links)
    device_bytes = size_bytes / (generation.tensor * generation.pipeline)
    software_s = RESHARD_S + size_bytes / RESHARD_BYTES_PER_S + tensors * RESHARD_TENSOR_S
    return Seconds(
        {
            "gather": tensors * tensor_s,
            "install": WRITTEN * device_bytes / links.device.memory_bytes_per_s,
            "software": 0.0 if links.device.kind == "cpu" else software_s,
        }
    )


def gathering(size_bytes: float, training: Layout, generation: Layout, how: Resharding) -> tuple[int, float]:
    """Return the number of ranks that gather weights together, and the bytes that each of them holds afterwards.

    Each rank receives these bytes except its own part. With M the model's bytes, t·p·d the degrees of training and
    t_g·p_g those of generation, it receives (tpd - 1)/(tpd) M for "all", (tp - 1)/(tp) M for "model", and (tp -
    t_g·p_g)/(t_g·p_g·tp) M for "micro". Source: Sheng et al. 2024, arXiv 2409.19256, table 2 (DeepSpeed-Chat,
    HybridFlow-V and HybridFlow).

    >>> from flowgraph.cluster.plan import Layout
    >>> gathering(16.0, Layout(data=2, tensor=8), Layout(data=8, tensor=2), "micro")
    (4, 8.0)
    """
    model = training.tensor * training.pipeline
    if how == "all":
        return training.devices, size_bytes
    if how == "model":
        return model, size_bytes
    slices = generation.tensor * generation.pipeline
    return max(1, model // slices), size_bytes / slices


def offload_seconds(size_bytes: float, device: DeviceProfile) -> float:
    """Return the seconds in which a device copies `size_bytes` to its host, or back, over its link.

    >>> from placements.hardware.device_profiles import profile
    >>> round(offload_seconds(48e9, profile("h100")), 3)
    1.0
    """
    return size_bytes / (device.host_bytes_per_s * HOST_SHARE)


def wake_seconds(size_bytes: float, device: DeviceProfile) -> Seconds:
    """Return the seconds until a sleeping engine has its weights on the device again and can answer.

    The keys are `copy` for the weights and `wake` for the rest. `size_bytes` are those of the weights on one device.
    """
    return Seconds({"copy": offload_seconds(size_bytes, device), "wake": WAKE_S})


def tensors(shape: ModelShape) -> int:
    """Return the approximate number of tensors in a weight sync of a decoder.

    It is nine for each layer, three for each expert of a layer, and three more. Adapters have two tensors for each of
    seven matrices of a layer, and only these are counted.
    """
    if shape.adapters:
        return 14 * shape.layers
    return 9 * shape.layers + 3 * shape.experts * shape.expert_layers + 3
