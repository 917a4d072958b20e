"""What a role holds on each of its devices and on their host, part by part: while it waits, works and sleeps.

Not here: how that is computed (`training`, `serving`; on CPU devices `process`), and several roles on one device
(`pool_peaks`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import ceil
from typing import TYPE_CHECKING, Literal, get_args

from flowgraph.cluster.cluster import DeviceKind
from placements.hardware.engine_constants import ConstantBounds, EngineConstants

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
"""Whether all logits of a micro-batch exist at once, and if so, whether the loss copies them ("naive") or not."""

FITS_SHARE = 0.9
"""The share of a device's usable memory that a forecast may fill.

Of 41 measured peaks of FSDP2 (prime-rl, 2026), a plain formula missed the dense ones by 4 to 8 percent on average, most
of them from below; a tenth is left for that, and for what other processes hold.
"""

FILLS: Mapping[DeviceKind, float] = {"gpu": FITS_SHARE, "cpu": 1.0}
"""The share of a device's memory that a forecast may fill, by the kind of device.

On CPU devices the forecast was 1.05 to 1.24 times the measured peaks of the ten runs that its constants were chosen
with (`benchmarks/memory_on_cpu`), and 1.06 to 1.19 times those of three others: its reserve is in the forecast itself.
"""

GIB, MIB = 2**30, 2**20


def _constant(value: float, low: float, high: float, source: str) -> float:
    constant: float = field(default=value, metadata={"bounds": ConstantBounds(value, low, high, source)})
    return constant


@dataclass(frozen=True)
class MemoryConstants(EngineConstants):
    """What devices hold besides what is counted exactly: each constant with its bounds and its source."""

    # Of a process on its device, and of its communicators to other devices.
    context_bytes: float = _constant(
        0.6 * GIB, 0.3 * GIB, 1.0 * GIB, "stas00/ml-engineering, debug/pytorch: CUDA's context, 0.5 GiB and kernels"
    )
    communicator_bytes: float = _constant(
        1.4 * GIB, 0.3 * GIB, 2.0 * GIB, "stas00/ml-engineering, network: 0.55 to 2.0 GiB after a first barrier"
    )
    # What an allocator keeps beyond the tensors that come and go, as a share of these.
    unused_share: float = _constant(
        0.08, 0.0, 0.25, "peaks that PyTorch reserved, of Qwen3-0.6B (prime-rl, 2026), against tensors as counted here"
    )
    # Of one logit: in training if a loss copies them, in training if not, without gradients, and more for entropy.
    logit_bytes: float = _constant(
        16.0, 12.0, 18.0, "prime-rl, SFT at 8k and 16k tokens: 17 reserved for each; FSDPMemTracker: 12 allocated"
    )
    whole_logit_bytes: float = _constant(
        10.0,
        8.0,
        16.0,
        "Megatron Core, cross_entropy.py: bfloat16 logits, their float32 softmax and its gradient in bfloat16, 8; verl "
        "copies them for the entropy",
    )
    read_logit_bytes: float = _constant(
        6.0, 6.0, 10.0, "bfloat16 logits and their float32 copy; 4 more of a log-softmax"
    )
    entropy_logit_bytes: float = _constant(4.0, 4.0, 8.0, "one more float32 of each logit: softmax, or its gradient")
    # Logits that exist at once where they come in chunks.
    chunk_logits: float = _constant(
        2.0**24, 2.0**22, 2.0**27, "prime-rl: 2,048 tokens by 8,192 entries; Liger: tokens · hidden at once"
    )
    # Of the buffer that weights are synced through.
    bucket_bytes: float = _constant(
        512e6, 100e6, 2e9, "verl: update_weights_bucket_megabytes 512; SGLang and slime likewise"
    )
    # Of one row of the largest batch that is captured in a graph.
    graph_bytes: float = _constant(
        2e6, 1e6, 8e6, "SGLang 0.5, server_args: 2 MB for each row of the largest batch that is captured"
    )
    # On CPU devices: of a process, of a worker of Ray besides, of Ray's own processes on a machine, of a server.
    process_bytes: float = _constant(
        504 * MIB, 350 * MIB, 700 * MIB, "a run of 0.1M parameters with checks: 501 MiB with torch 2.13"
    )
    worker_bytes: float = _constant(40 * MIB, 0.0, 200 * MIB, "the same in a worker of Ray 2.60: 505 MiB")
    ray_bytes: float = _constant(
        640 * MIB,
        400 * MIB,
        2 * GIB,
        "Ray 2.60's servers, agents, host worker and the driver: 388 to 561 MiB of pages of their own (memory_on_cpu)",
    )
    server_bytes: float = _constant(
        1.5 * GIB, 0.8 * GIB, 3 * GIB, "SGLang 0.5 and vLLM 0.32 on a CPU: their processes before weights; estimated"
    )
    # Freed blocks of up to this size stay with the process, and a share of them cannot be used again.
    kept_block_bytes: float = _constant(
        32 * MIB,
        128 * 1024,
        32 * MIB,
        "glibc manual, mallopt, M_MMAP_THRESHOLD: it grows up to 32 MiB on 64-bit systems",
    )
    fragmented_share: float = _constant(
        0.5, 0.0, 1.1, "chosen with ten runs of memory_on_cpu: one, with adapters, had some 0.46 beyond what it used"
    )
    # Of one token of a response.
    rollout_token_bytes: float = _constant(
        128.0, 56.0, 256.0, "counted from types: Python lists of tokens and log-probs 72, columns in Arrow 56"
    )
    # Reserved by an inference engine for what is not counted.
    engine_bytes: float = _constant(
        512e6, 256e6, 2e9, "SGLang 0.5, server_args: 512 MB reserved for what is not counted"
    )


BOUNDS: Mapping[str, ConstantBounds] = {each.name: each.metadata["bounds"] for each in fields(MemoryConstants)}
"""Each constant may be moved, within its bounds, to what a machine shows."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of one role on each of its devices, and on the host for each device.

    `resident` is there while it waits, awake; `working` comes on top while it works; `asleep` stays when it sleeps so
    that others can work. `host` is host memory that it always holds, `asleep_host` comes on top while it sleeps. `kept`
    bytes stay with its process when it has worked, for the role that works there next.
    """

    resident: Bytes = field(default_factory=dict[Part, int])
    working: Bytes = field(default_factory=dict[Part, int])
    host: Bytes = field(default_factory=dict[Part, int])
    asleep: Bytes = field(default_factory=dict[Part, int])
    asleep_host: Bytes = field(default_factory=dict[Part, int])
    kept: int = 0

    def at(self, phase: str) -> Bytes:
        """Return what a device holds of it in a phase, part by part."""
        return self.at_work

    @property
    def at_work(self) -> Bytes:
        """Return what a device holds of it while it works, part by part."""
        return added((self.resident, self.working))

    @property
    def peak_bytes(self) -> int:
        """Return the most that a device holds of it."""
        return total_bytes(self.at_work)


def room_bytes(usable_bytes: int, kind: DeviceKind = "gpu") -> int:
    """Return the bytes of a device that a plan may fill: of a GPU nine tenths, of a CPU device all of them.

    >>> room_bytes(100), room_bytes(100, "cpu")
    (90, 100)
    """
    return int(FILLS[kind] * usable_bytes)


def fits(needed_bytes: int, usable_bytes: int, kind: DeviceKind = "gpu") -> bool:
    """Return whether a forecast counts as fitting a device.

    >>> fits(90, 100), fits(91, 100), fits(100, 100, "cpu")
    (True, False, True)
    """
    return needed_bytes <= FILLS[kind] * usable_bytes


def total_bytes(parts: Bytes) -> int:
    """Add up all parts."""
    return sum(parts.values())


def added(footprints: Iterable[Bytes]) -> dict[Part, int]:
    """Add up part by part, in the order of PARTS.

    >>> added([{"logits": 3}, {"weights": 1, "logits": 2}])
    {'weights': 1, 'logits': 5}
    """
    sums = Counter[Part]()
    for parts in footprints:
        sums.update(parts)
    return {part: sums[part] for part in PARTS if part in sums}


def with_more(held: Footprint, more: Bytes) -> Footprint:
    """Return a footprint with more that is always there."""
    return replace(held, resident=added((held.resident, more)), asleep=added((held.asleep, more)))


def whole(parts: Mapping[Part, float]) -> dict[Part, int]:
    """Round bytes up, and leave out empty parts, in the order of PARTS.

    >>> whole({"logits": 1.5, "weights": 0.0})
    {'logits': 2}
    """
    return {part: ceil(parts[part]) for part in PARTS if parts.get(part, 0) > 0}


def process_bytes(devices: int, constants: MemoryConstants) -> float:
    """Return the bytes of a process on its device before any tensor: context, and communicators to other devices."""
    return constants.context_bytes + constants.communicator_bytes * (devices > 1)


def logits_bytes(
    shape: ModelShape, layout: Layout, tokens: float, logits: Logits, logit_bytes: float, constants: MemoryConstants
) -> float:
    """Return the bytes of the logits of `tokens` on one device: all or a chunk at once, cut over `tensor` ranks.

    A head with one number for each token has none.
    """
    if logits == "none" or shape.outputs == 1:
        return 0.0
    entries = tokens * shape.outputs / layout.tensor
    return logit_bytes * (entries if logits in ("naive", "whole") else min(entries, constants.chunk_logits))


def sync_bytes(shape: ModelShape, constants: MemoryConstants) -> int:
    """Return the bytes of a bucket that weights are synced through: at least the embedding whole, in bfloat16."""
    return max(int(constants.bucket_bytes), 2 * shape.vocabulary * shape.hidden)
