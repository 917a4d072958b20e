"""What a role holds on each of its devices and on their host, part by part: while it waits, works and sleeps.

Not here: how it comes to that
(`footprint_training`, `footprint_serving`; on CPU devices `footprint_process`), and several roles on one device
(`pool_peaks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING, Literal, get_args

from flowgraph.cluster.cluster import DeviceKind
from placements.constants import Bounds, Constants

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Layout
    from flowgraph.models import ModelShape

Part = Literal[
    "weights",
    "adapters",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "gathered",
    "kv_cache",
    "sync",
    "rollout",
    "working",
    "heap",
    "reserved",
    "context",
]
PARTS: tuple[Part, ...] = get_args(Part)
Bytes = Mapping[Part, int]
Logits = Literal["naive", "whole", "chunked", "none"]
"""Whether all logits of a micro-batch are there at once, and if so, whether the loss copies them ("naive") or not."""

FITS_SHARE = 0.9
"""The most of a device's usable memory that a forecast may take and count as fitting.

Of 41 measured peaks of FSDP2 (prime-rl, 2026), a plain formula missed the dense ones by 4 to 8 percent on average, most
of them from below; a tenth is left for that, and for what other processes hold.
"""

FILLS: Mapping[DeviceKind, float] = {"gpu": FITS_SHARE, "cpu": 1.0}
"""The most of a device's memory that a forecast may take, by the kind of device.

On CPU devices the forecast was 1.05 to 1.24 times what was measured, of the ten runs that its constants were chosen
with (`benchmarks/memory_on_cpu`), and 1.06 to 1.19 times of three others: what is left is in the forecast itself.
"""

GIB, MIB = 2**30, 2**20

# What a device holds beside what is counted exactly. Each may be moved, within its bounds, to what a machine shows.
BOUNDS: Mapping[str, Bounds] = {
    "context_bytes": Bounds(
        0.6 * GIB, 0.3 * GIB, 1.0 * GIB, "stas00/ml-engineering, debug/pytorch: CUDA's context, 0.5 GiB and kernels"
    ),
    "communicator_bytes": Bounds(
        1.4 * GIB, 0.3 * GIB, 2.0 * GIB, "stas00/ml-engineering, network: 0.55 to 2.0 GiB after a first barrier"
    ),
    "unused_share": Bounds(
        0.08, 0.0, 0.25, "peaks that PyTorch reserved, of Qwen3-0.6B (prime-rl, 2026), against tensors as counted here"
    ),
    "logit_bytes": Bounds(
        16.0, 12.0, 18.0, "prime-rl, SFT at 8k and 16k tokens: 17 reserved for each; FSDPMemTracker: 12 allocated"
    ),
    "whole_logit_bytes": Bounds(
        10.0,
        8.0,
        16.0,
        "Megatron Core, cross_entropy.py: bfloat16 logits, their float32 softmax and its gradient in bfloat16, 8; verl "
        "copies them for the entropy",
    ),
    "read_logit_bytes": Bounds(6.0, 6.0, 10.0, "bfloat16 logits and their float32 copy; 4 more of a log-softmax"),
    "entropy_logit_bytes": Bounds(4.0, 4.0, 8.0, "one more float32 of each logit: softmax, or its gradient"),
    "chunk_logits": Bounds(
        2.0**24, 2.0**22, 2.0**27, "prime-rl: 2,048 tokens by 8,192 entries; Liger: tokens · hidden at once"
    ),
    "bucket_bytes": Bounds(512e6, 100e6, 2e9, "verl: update_weights_bucket_megabytes 512; SGLang and slime likewise"),
    "graph_bytes": Bounds(
        2e6, 1e6, 8e6, "SGLang 0.5, server_args: 2 MB for each row of the largest batch that is captured"
    ),
    "process_bytes": Bounds(
        504 * MIB, 350 * MIB, 700 * MIB, "a run of 0.1M parameters with checks: 501 MiB with torch 2.13"
    ),
    "worker_bytes": Bounds(40 * MIB, 0.0, 200 * MIB, "the same in a worker of Ray 2.60: 505 MiB"),
    "ray_bytes": Bounds(
        640 * MIB,
        400 * MIB,
        2 * GIB,
        "Ray 2.60's servers, agents, host worker and the driver: 388 to 561 MiB of pages of their own (memory_on_cpu)",
    ),
    "server_bytes": Bounds(
        1.5 * GIB, 0.8 * GIB, 3 * GIB, "SGLang 0.5 and vLLM 0.32 on a CPU: their processes before weights; estimated"
    ),
    "kept_block_bytes": Bounds(
        32 * MIB,
        128 * 1024,
        32 * MIB,
        "glibc manual, mallopt, M_MMAP_THRESHOLD: it grows up to 32 MiB on 64-bit systems",
    ),
    "fragmented_share": Bounds(
        0.5, 0.0, 1.1, "chosen with ten runs of memory_on_cpu: one, with adapters, had some 0.46 beyond what it used"
    ),
    "rollout_token_bytes": Bounds(
        128.0, 56.0, 256.0, "counted from types: Python lists of tokens and log-probs 72, columns in Arrow 56"
    ),
    "engine_bytes": Bounds(512e6, 256e6, 2e9, "SGLang 0.5, server_args: 512 MB reserved for what is not counted"),
}


@dataclass(frozen=True)
class MemoryConstants(Constants):
    """What devices hold beside what is counted exactly; the sources and bounds of each are in `BOUNDS`.

    `unused_share` is what an allocator keeps beyond what comes and goes, of that. `logit_bytes` are of one logit in
    training if a loss copies them, `whole_logit_bytes` if it does not, `read_logit_bytes` without gradients;
    `chunk_logits` of them are there at once if they are chunked.
    `context_bytes` and `communicator_bytes` are of a process; `graph_bytes` of one row of a captured batch.
    On a CPU a process has `process_bytes`, a worker of Ray `worker_bytes` more, and a server `server_bytes`; the CPU
    devices of a machine share `ray_bytes`. Freed blocks of up to `kept_block_bytes` stay with the process, and
    `fragmented_share` of them cannot be used again. A response's token takes `rollout_token_bytes`.
    """

    context_bytes: float = BOUNDS["context_bytes"].value
    communicator_bytes: float = BOUNDS["communicator_bytes"].value
    unused_share: float = BOUNDS["unused_share"].value
    logit_bytes: float = BOUNDS["logit_bytes"].value
    whole_logit_bytes: float = BOUNDS["whole_logit_bytes"].value
    read_logit_bytes: float = BOUNDS["read_logit_bytes"].value
    entropy_logit_bytes: float = BOUNDS["entropy_logit_bytes"].value
    chunk_logits: float = BOUNDS["chunk_logits"].value
    bucket_bytes: float = BOUNDS["bucket_bytes"].value
    graph_bytes: float = BOUNDS["graph_bytes"].value
    engine_bytes: float = BOUNDS["engine_bytes"].value
    process_bytes: float = BOUNDS["process_bytes"].value
    worker_bytes: float = BOUNDS["worker_bytes"].value
    ray_bytes: float = BOUNDS["ray_bytes"].value
    server_bytes: float = BOUNDS["server_bytes"].value
    kept_block_bytes: float = BOUNDS["kept_block_bytes"].value
    fragmented_share: float = BOUNDS["fragmented_share"].value
    rollout_token_bytes: float = BOUNDS["rollout_token_bytes"].value


@dataclass(frozen=True)
class Footprint:
    """Bytes of one role on each of its devices, and on the host for each device.

    `resident` is there while it waits, awake; `working` comes on top while it works; `asleep` stays when it has put
    away what it can, so that others can work. `host` is host memory that it always holds, `asleep_host` what it holds
    more while it sleeps. `kept` bytes stay with its process when it has worked, for whoever works there next.
    """

    resident: Bytes = field(default_factory=dict[Part, int])
    working: Bytes = field(default_factory=dict[Part, int])
    host: Bytes = field(default_factory=dict[Part, int])
    asleep: Bytes = field(default_factory=dict[Part, int])
    asleep_host: Bytes = field(default_factory=dict[Part, int])
    kept: int = 0

    def at(self, phase: str) -> Bytes:
        """Return what it holds in a phase, by part."""
        return self.at_work

    @property
    def at_work(self) -> Bytes:
        """Return what a device holds while the role works, part by part."""
        return added((self.resident, self.working))

    @property
    def peak_bytes(self) -> int:
        """Return the most that a device holds of it."""
        return total_bytes(self.at_work)


def room_bytes(usable_bytes: int, kind: DeviceKind = "gpu") -> int:
    """Return what a plan may fill of a device: of a GPU nine tenths, of a CPU device all, as its forecast is a bound.

    >>> room_bytes(100), room_bytes(100, "cpu")
    (90, 100)
    """
    return int(FILLS[kind] * usable_bytes)


def fits(needed_bytes: int, usable_bytes: int, kind: DeviceKind = "gpu") -> bool:
    """Say whether a forecast counts as fitting a device.

    >>> fits(90, 100), fits(91, 100), fits(100, 100, "cpu")
    (True, False, True)
    """
    return needed_bytes <= FILLS[kind] * usable_bytes


def total_bytes(parts: Bytes) -> int:
    """Add up all parts."""
    return sum(parts.values())


def added(all_of: Iterable[Bytes]) -> dict[Part, int]:
    """Add up part by part, in the order of PARTS.

    >>> added([{"logits": 3}, {"weights": 1, "logits": 2}])
    {'weights': 1, 'logits': 5}
    """
    found = dict[Part, int]()
    for parts in all_of:
        for part, count in parts.items():
            found[part] = found.get(part, 0) + count
    return {part: found[part] for part in PARTS if part in found}


def with_more(held: Footprint, more: Bytes) -> Footprint:
    """Return a footprint with more that is always there."""
    return replace(
        held,
        resident=added((held.resident, more)),
        asleep=added((held.asleep, more)),
    )


def whole(parts: Mapping[Part, float]) -> dict[Part, int]:
    """Round bytes up, and leave out parts of none, in the order of PARTS.

    >>> whole({"logits": 1.5, "weights": 0.0})
    {'logits': 2}
    """
    return {part: ceil(parts[part]) for part in PARTS if parts.get(part, 0) > 0}


def process_bytes(devices: int, constants: MemoryConstants) -> float:
    """Return what a process takes on its device before any tensor: its context, and communicators if it talks.

    Without others there is nothing to communicate.
    """
    return constants.context_bytes + constants.communicator_bytes * (devices > 1)


def logits_bytes(
    shape: ModelShape, layout: Layout, tokens: float, logits: Logits, each_bytes: float, constants: MemoryConstants
) -> float:
    """Return the bytes of the logits of so many tokens on one device: all or a chunk at once, cut over `tensor` ranks.

    A head that gives one number for each token has none.
    """
    if logits == "none" or shape.outputs == 1:
        return 0.0
    entries = tokens * shape.outputs / layout.tensor
    return each_bytes * (entries if logits in ("naive", "whole") else min(entries, constants.chunk_logits))


def sync_bytes(shape: ModelShape, constants: MemoryConstants) -> int:
    """Return the bytes of a bucket that weights are synced through: it holds at least the largest matrix whole.

    That is the embedding, in bfloat16.
    """
    return max(int(constants.bucket_bytes), 2 * shape.vocabulary * shape.hidden)
