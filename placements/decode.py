"""Seconds of one step of an inference engine, in which each running sequence gets a token, and of reading one prompt.

A roofline by parts: weights and products, the cache, collectives, and what the engine adds. Not here: how many
sequences run at a time, and for how long (`generation`), and how much cache there is (`cache_room`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import log2
from typing import TYPE_CHECKING

from placements.architectures import Attained, attained
from placements.constants import Constants
from placements.kernels import WIDTH_BYTES, peak_flops
from placements.kv_cache import sequence_bytes
from placements.seconds import Seconds

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Layout
    from flowgraph.models import ModelShape
    from placements.profiles import Links, Precision

SCALED_BYTES = 0.5625
"""Of a number of fp4: sixteen share a scale of one byte. Source: NVIDIA, NVFP4."""

QUANTISED_SHARE: dict[Precision, float] = {"float32": 1.0, "bfloat16": 1.0, "fp8": 0.74, "fp4": 0.55}
"""What products attain in a model, of what those of bfloat16 attain at their peak: inputs are quantised on the way.

Source: fitted to serving rows of aiconfigurator-core 0.12.0 on H100, H200, B200 and B300, all models at once;
without one device or another each moves by less than 0.05.
"""

CACHE_SHARE = 0.88
"""What attention attains among the other kernels of a layer, of what it attains alone. Source: as QUANTISED_SHARE."""

EXCHANGE_S = 3e-6
"""What an all-reduce inside a captured graph takes at least, for each doubling of its devices.

Source: fitted with QUANTISED_SHARE, and between 2.3 and 3.5 µs without one device or another. Through NCCL outside of a
graph, 8 devices take 15 to 25 µs (`collectives`).
"""

CROSSING_S = 30e-6
"""What an all-reduce over several machines takes besides: it goes out of each and back in through NCCL.

Source: all-reduces of a few KB on 16 devices of two machines take 35 to 60 µs through NCCL, those of 8 in one 10 to 15.
"""

SHORT_SHARE, LONG_S = 0.45, 15e-6
"""Of the rate of long messages, what an all-reduce of up to a few MB has, and what a long one waits before.

Source: NCCL tables of aiconfigurator-core 0.12.0: on 8 H200 each MB takes 11 µs up to 2 MB, and 5 µs from 8 MB on.
"""

MERGED = 2  # all-reduces in a layer: after attention, and after the MLP


@dataclass(frozen=True)
class ServingConstants(Constants):
    """What an inference engine adds to the arithmetic of a model, and keeps of a device's memory.

    step_s: of a step, whatever is in it: scheduling, sampling, sending tokens.
    layer_s: of each layer in a step: starts and small kernels.
    row_s: of each running sequence in a step.
    request_s: of each request once: tokenizing, scheduling, what its prefill waits for.
    expert_layer_s: what a layer with experts adds: routing and sorting.
    expert_exchange_s: what it adds where whole experts lie on several devices.
    expert_share: what products of experts attain, of what dense products of the precision do.
    expert_read_share: the rate at which weights of experts are read, of that of dense weights.
    rollout_step_s: of a step, what it adds that a training framework drives the engine and reads log-probs.
    rollout_joined_s: what it adds to such a step that a replica's ranks are processes which are told of each step.
    fixed_bytes: of each device, whatever the model: context, graphs, buffers.
    joint_bytes: of each device that talks to others: buffers of collectives.
    inside: 1 if these bytes lie in the share of memory that the engine is given, 0 if they lie beside it.
    most_rows: the most sequences that run at a time on a replica.
    """

    step_s: float
    layer_s: float
    row_s: float
    request_s: float
    expert_layer_s: float
    expert_exchange_s: float
    expert_share: float
    expert_read_share: float
    rollout_step_s: float
    rollout_joined_s: float
    fixed_bytes: float
    joint_bytes: float
    inside: float
    most_rows: float


@dataclass(frozen=True)
class Replica:
    """One copy of a model that draws, on `tensor` devices. Experts are spread over `joined` copies that step together.

    `whole` says that experts are not cut by `tensor`, but whole ones lie on its devices. `rollout` says that a training
    framework drives the engine, rather than clients of a server.
    """

    shape: ModelShape
    links: Links
    constants: ServingConstants
    tensor: int = 1
    joined: int = 1
    whole: bool = False
    precision: Precision = "bfloat16"
    cache_precision: Precision = "bfloat16"
    rollout: bool = False

    @cached_property
    def has(self) -> Attained:
        """Return what kernels attain on its devices."""
        return attained(self.links.device)

    @cached_property
    def memory_bytes_per_s(self) -> float:
        """Return the bytes per second at which its devices together read weights."""
        return self.tensor * self.links.device.memory_bytes_per_s * self.has.memory

    @cached_property
    def flops_per_s(self) -> float:
        """Return the operations per second that dense products attain on its devices together."""
        peak = peak_flops(self.links.device, self.precision)
        return self.tensor * peak * self.has.matmul * QUANTISED_SHARE[self.precision]

    @cached_property
    def products(self) -> float:
        """Count the operations of one token in the layers, as if all went at the rate of dense products."""
        return 2 * (self.dense + self.expert_active / self.constants.expert_share)

    @cached_property
    def overhead_s(self) -> float:
        """Return the seconds that a step takes whatever is in it."""
        constants, shape = self.constants, self.shape
        experts_s = constants.expert_layer_s + self.whole * constants.expert_exchange_s
        driven_s = constants.rollout_step_s + (self.tensor > 1) * constants.rollout_joined_s if self.rollout else 0.0
        return constants.step_s + driven_s + shape.layers * constants.layer_s + shape.expert_layers * experts_s

    @cached_property
    def dense(self) -> int:
        """Count the parameters that every token is multiplied with, whatever experts it is sent to."""
        return self.shape.matmul_parameters - self.expert_active

    @cached_property
    def expert_active(self) -> int:
        """Count the parameters in the routed experts that a token is sent to."""
        experts = self.shape.experts
        return self.shape.expert_parameters * self.shape.experts_per_token // experts if experts else 0


def replica_of(
    shape: ModelShape,
    layout: Layout,
    links: Links,
    constants: ServingConstants,
    precision: Precision,
    cache_precision: Precision = "bfloat16",
    *,
    rollout: bool = False,
) -> Replica:
    """Return the replica of a layout. Experts are spread over data ranks first; if these are few, over tensor ranks.

    Of experts over data ranks, each rank attends to rows of its own: attention data parallelism.
    """
    joined = min(layout.expert, layout.data) if shape.experts else 1
    whole = bool(shape.experts) and layout.expert > 1
    return _replica(shape, links, constants, layout.tensor, joined, whole, precision, cache_precision, rollout)


_replica = lru_cache(maxsize=1024)(Replica)  # what is worked out of one is of use wherever it is asked for again


def weight_width_bytes(precision: Precision) -> float:
    """Return the bytes of a weight in the layers, scales included."""
    return SCALED_BYTES if precision == "fp4" else WIDTH_BYTES[precision]


def weight_bytes(replica: Replica) -> float:
    """Return the bytes of weights on each device; embedding and head are not quantised."""
    shape, experts = replica.shape, replica.shape.expert_parameters
    tables = shape.tables * shape.vocabulary * shape.hidden
    layers = shape.parameters - tables - experts + experts / replica.joined
    return (layers * weight_width_bytes(replica.precision) + tables * _table_bytes(replica)) / replica.tensor


def cache_bytes(replica: Replica, context_tokens: float) -> float:
    """Return the bytes of cache that a sequence of that length has on each device."""
    return sequence_bytes(replica.shape, replica.tensor, context_tokens, WIDTH_BYTES[replica.cache_precision])


def step_seconds(replica: Replica, rows: float, context_tokens: float) -> Seconds:
    """Return the seconds of one step: `rows` sequences of that mean length get a token each.

    Weights are read once and multiplied with a vector for each row, so the slower of both; of experts only those are
    read that a token was sent to. Source: Pope et al. 2022, arXiv 2211.05102, section 3; Williams et al. 2009.
    """
    return Seconds(dict(zip(STEP_PARTS, _step_parts(replica, rows, context_tokens), strict=True)))


def step_s(replica: Replica, rows: float, context_tokens: float) -> float:
    """Return the seconds of one step in all."""
    return sum(_step_parts(replica, rows, context_tokens))


STEP_PARTS = ("matmul", "cache", "collectives", "overhead")


def _step_parts(replica: Replica, rows: float, context_tokens: float) -> tuple[float, float, float, float]:
    shape = replica.shape
    width = weight_width_bytes(replica.precision)
    read = replica.dense + _touched(replica, rows) / replica.constants.expert_read_share
    read_s = width * read / replica.memory_bytes_per_s
    multiplied_s = rows * replica.products / replica.flops_per_s
    head_s = _table_bytes(replica) * shape.outputs * shape.hidden / replica.memory_bytes_per_s
    cache_rate = replica.links.device.memory_bytes_per_s * replica.has.attention * CACHE_SHARE
    return (
        max(read_s, multiplied_s) + head_s,
        rows * cache_bytes(replica, context_tokens) / cache_rate,
        _exchanged_s(replica, rows),
        replica.overhead_s + rows * replica.constants.row_s,
    )


def prefill_seconds(replica: Replica, tokens: float, square_tokens: float) -> float:
    """Return the seconds of reading one prompt of so many tokens; `square_tokens` is their (mean) square.

    2 operations for each weight and token; attention has half the square of pairs. Source: as `step_seconds`.
    """
    device, shape = replica.links.device, replica.shape
    products_s = tokens * replica.products / replica.flops_per_s
    pairs = 2 * shape.attention_products(round(tokens), round(square_tokens / 2))
    attention_s = pairs / (replica.tensor * peak_flops(device, "bfloat16") * replica.has.prefill)
    return products_s + attention_s + _exchanged_s(replica, tokens)


def _touched(replica: Replica, rows: float) -> float:
    """Count the parameters of experts that a step reads on one copy, of what is spread over all joined ones.

    Of E experts, b tokens that are each sent to k at random miss one with (1 - k/E) to the power b.
    """
    shape = replica.shape
    if not shape.experts:
        return 0.0
    missed: float = (1 - shape.experts_per_token / shape.experts) ** (rows * replica.joined)
    return shape.expert_parameters / replica.joined * (1 - missed)


def _table_bytes(replica: Replica) -> float:
    return max(2.0, WIDTH_BYTES[replica.precision])


def _exchanged_s(replica: Replica, tokens: float) -> float:
    """Return the seconds of what devices tell each other of so many tokens in all layers.

    Tensor ranks add up after attention and after the MLP. Where experts lie on other copies, tokens go there and back
    instead of the second, each to as many copies as it has experts.
    """
    shape, message = replica.shape, 2.0 * tokens * replica.shape.hidden
    reduced = MERGED * shape.layers - (shape.expert_layers if replica.joined > 1 else 0)
    reduced_s = reduced * _all_reduced_s(replica, message) if replica.tensor > 1 else 0.0
    if replica.joined == 1:
        return reduced_s
    copies = min(replica.joined, shape.experts_per_token) * (1 - 1 / replica.joined)
    rate = _rate(replica, replica.joined * replica.tensor) * replica.has.all_to_all
    return reduced_s + 2 * shape.expert_layers * message * copies / replica.tensor / rate


def _all_reduced_s(replica: Replica, message_bytes: float) -> float:
    devices = replica.tensor
    rate = _rate(replica, devices) * replica.has.collective
    moved_s = 2 * (devices - 1) / devices * message_bytes / rate
    crossing_s = CROSSING_S if devices > replica.links.domain else 0.0
    return EXCHANGE_S * log2(devices) + crossing_s + min(moved_s / SHORT_SHARE, LONG_S + moved_s)


def _rate(replica: Replica, devices: int) -> float:
    links = replica.links
    return links.device.link_bytes_per_s if devices <= links.domain else links.network_bytes_per_s
