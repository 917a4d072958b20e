"""The bytes of a role on each of its devices and on their host, by part: while it waits, works and sleeps.

Not here: how they are computed (`training`, `serving`; on CPU devices `process`), and several roles on one device
(`pool_peaks`).
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
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

GIB = 2**30

BOUNDS: Mapping[str, ConstantBounds] = {
    name: ConstantBounds(**constant)
    for name, constant in tomllib.loads(Path(__file__).with_name("constants.toml").read_text("utf-8")).items()
}
"""Each constant of `MemoryConstants` with its source, and the bounds within which it may be moved."""


@dataclass(frozen=True)
class MemoryConstants(EngineConstants):
    """The memory that devices need beyond exactly counted tensors; `constants.toml` has the source of each number."""

    context_bytes: float = BOUNDS["context_bytes"].value  # of a process on its device
    communicator_bytes: float = BOUNDS["communicator_bytes"].value  # of such a process that talks to other devices
    unused_share: float = BOUNDS["unused_share"].value  # of tensors that come and go, what an allocator keeps beyond
    logit_bytes: float = BOUNDS["logit_bytes"].value  # of one logit in training, if a loss copies them
    whole_logit_bytes: float = BOUNDS["whole_logit_bytes"].value  # if it does not
    read_logit_bytes: float = BOUNDS["read_logit_bytes"].value  # without gradients
    entropy_logit_bytes: float = BOUNDS["entropy_logit_bytes"].value  # added for entropy
    chunk_logits: float = BOUNDS["chunk_logits"].value  # that exist at once where they come in chunks
    bucket_bytes: float = BOUNDS["bucket_bytes"].value  # of the buffer that weights are synced through
    graph_bytes: float = BOUNDS["graph_bytes"].value  # of one row of the largest batch that is captured in a graph
    process_bytes: float = BOUNDS["process_bytes"].value  # of a process on a CPU device
    worker_bytes: float = BOUNDS["worker_bytes"].value  # added in a worker of Ray
    ray_bytes: float = BOUNDS["ray_bytes"].value  # of Ray's own processes on a machine
    server_bytes: float = BOUNDS["server_bytes"].value  # of an inference server on a CPU device
    kept_block_bytes: float = BOUNDS["kept_block_bytes"].value  # freed blocks up to this size stay with the process
    fragmented_share: float = BOUNDS["fragmented_share"].value  # of those, what cannot be used again
    rollout_token_bytes: float = BOUNDS["rollout_token_bytes"].value  # of one token of a response
    engine_bytes: float = BOUNDS["engine_bytes"].value  # reserved by an inference engine for what is not counted


SHIPPED = MemoryConstants()


@dataclass(frozen=True)
class Footprint:
    """The bytes of one role on each of its devices, and on the host for each device, by part.

    `resident` is held whenever the role is awake; `working` is added while it works; `asleep` remains on the device
    while it sleeps so that other roles can work. `host` is host memory that it always holds; `asleep_host` is added
    while it sleeps. `kept_bytes` remain in its process after it has worked, for the role that works there next.
    """

    resident: Bytes = field(default_factory=dict[Part, int])
    working: Bytes = field(default_factory=dict[Part, int])
    host: Bytes = field(default_factory=dict[Part, int])
    asleep: Bytes = field(default_factory=dict[Part, int])
    asleep_host: Bytes = field(default_factory=dict[Part, int])
    kept_bytes: int = 0

    def at(self, phase: str) -> Bytes:
        """Return the bytes on a device in a phase of a step (`generate`, `logprob` or `update`), by part.

        Here every phase counts as work; subclasses distinguish phases.
        """
        return self.at_work

    @property
    def at_work(self) -> Bytes:
        """Return the bytes on a device while the role works, by part."""
        return added((self.resident, self.working))

    @property
    def peak_bytes(self) -> int:
        """Return the bytes that the role has on a device while it works: the sum of all parts of `at_work`."""
        return total_bytes(self.at_work)


def room_bytes(usable_bytes: int, kind: DeviceKind = "gpu") -> int:
    """Return the bytes of a device that a plan may fill: nine tenths of a GPU, rounded down, or all of a CPU device.

    >>> room_bytes(100), room_bytes(100, "cpu")
    (90, 100)
    """
    return int(FILLS[kind] * usable_bytes)


def fits(needed_bytes: int, usable_bytes: int, kind: DeviceKind = "gpu") -> bool:
    """Return whether forecast bytes fit in the part of a device's memory that a plan may fill.

    This part is nine tenths of the `usable_bytes` of a GPU, and all `usable_bytes` of a CPU device.

    >>> fits(90, 100), fits(91, 100), fits(100, 100, "cpu")
    (True, False, True)
    """
    return needed_bytes <= FILLS[kind] * usable_bytes


def total_bytes(parts: Bytes) -> int:
    """Return the sum of the bytes of all parts of a footprint; 0 without parts."""
    return sum(parts.values())


def added(footprints: Iterable[Bytes]) -> dict[Part, int]:
    """Return the bytes of several footprints added part by part, in the order of `PARTS`; absent parts are left out.

    >>> added([{"logits": 3}, {"weights": 1, "logits": 2}])
    {'weights': 1, 'logits': 5}
    """
    sums = Counter[Part]()
    for parts in footprints:
        sums.update(parts)
    return {part: sums[part] for part in PARTS if part in sums}


def with_parts(footprint: Footprint, parts: Bytes) -> Footprint:
    """Return a footprint with `parts` (bytes on the device) added to both `resident` and `asleep`."""
    resident, asleep = added((footprint.resident, parts)), added((footprint.asleep, parts))
    return replace(footprint, resident=resident, asleep=asleep)


def whole(parts: Mapping[Part, float]) -> dict[Part, int]:
    """Return the bytes of each part rounded up to whole bytes, in the order of `PARTS`, without parts of zero bytes.

    >>> whole({"logits": 1.5, "weights": 0.0})
    {'logits': 2}
    """
    return {part: ceil(parts[part]) for part in PARTS if parts.get(part, 0) > 0}


def process_bytes(devices: int, constants: MemoryConstants) -> float:
    """Return the bytes that a process takes on its device before any tensor.

    These are its context and, if it works with other devices (`devices` > 1), its communicators.
    """
    return constants.context_bytes + constants.communicator_bytes * (devices > 1)


def logits_bytes(
    shape: ModelShape, layout: Layout, tokens: float, logits: Logits, logit_bytes: float, constants: MemoryConstants
) -> float:
    """Return the bytes of the logits of `tokens` tokens on one device; the `tensor` ranks share them equally.

    Each logit takes `logit_bytes`, copies and gradients included. Unless `logits` is "naive" or "whole", at most one
    chunk exists at a time. Returns 0 if `logits` is "none", and for a head with a single output per token.
    """
    if logits == "none" or shape.outputs == 1:
        return 0.0
    entries = tokens * shape.outputs / layout.tensor
    return logit_bytes * (entries if logits in ("naive", "whole") else min(entries, constants.chunk_logits))
