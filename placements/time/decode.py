"""Seconds of one step of an inference engine, in which each running sequence gets a token, and of one prompt's prefill.

A roofline by parts: weights and products, the cache, collectives, and the engine's overhead; also the cache's size.
Not here: the number of sequences that run at a time (`generation`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import log2
from typing import TYPE_CHECKING

from flowgraph.cluster.plan import Layout
from placements.hardware.architectures import AttainedShares, attained
from placements.hardware.device_profiles import PoolLinks
from placements.hardware.engine_constants import ServingConstants
from placements.memory.model_shards import WEIGHT_BYTES, sequence_bytes
from placements.time.kernels import WIDTH_BYTES, peak_flops
from placements.time.seconds import Seconds

if TYPE_CHECKING:
    from flowgraph.models import ModelShape
    from placements.hardware.device_profiles import DeviceProfile, Precision

QUANTISED_SHARE: dict[Precision, float] = {"float32": 1.0, "bfloat16": 1.0, "fp8": 0.74, "fp4": 0.55}
"""The share of its peak that a precision attains in a model, relative to bfloat16: inputs are quantised on the way.

Source: fitted to serving rows of aiconfigurator-core 0.12.0 on H100, H200, B200 and B300, all models at once;
without one device or another each moves by less than 0.05.
"""

CACHE_SHARE = 0.88
"""The rate of attention among other kernels of a layer, as a share of its rate alone. Source: as QUANTISED_SHARE."""

EXCHANGE_S = 3e-6
"""The least seconds of an all-reduce inside a captured graph, for each doubling of its devices.

Source: fitted with QUANTISED_SHARE, and between 2.3 and 3.5 µs without one device or another. Through NCCL outside of a
graph, 8 devices take 15 to 25 µs (`collectives`).
"""

CROSSING_S = 30e-6
"""Seconds that an all-reduce takes longer over several machines: it leaves each and comes back through NCCL.

Source: all-reduces of a few KB on 16 devices of two machines take 35 to 60 µs through NCCL, those of 8 in one 10 to 15.
"""

SHORT_SHARE, LONG_S = 0.45, 15e-6
"""The rate of an all-reduce of up to a few MB, as a share of that of long messages, and the seconds that a long one
waits before it begins.

Source: NCCL tables of aiconfigurator-core 0.12.0: on 8 H200 each MB takes 11 µs up to 2 MB, and 5 µs from 8 MB on.
"""

LAYER_ALL_REDUCES = 2  # after attention, and after the MLP

LONG_TOKENS = 4096  # a context so long that states and windows count for little

STEP_PARTS = ("matmul", "cache", "collectives", "overhead")


@dataclass(frozen=True)
class ServingReplica:
    """One copy of a serving model on `tensor` devices. Experts are spread over `joined` copies that step together.

    With `whole_experts`, each device holds whole experts rather than slices of all. With `rollout`, a training
    framework drives the engine, rather than clients of a server.
    """

    shape: ModelShape
    links: PoolLinks
    constants: ServingConstants
    tensor: int = 1
    joined: int = 1
    whole_experts: bool = False
    precision: Precision = "bfloat16"
    cache_precision: Precision = "bfloat16"
    rollout: bool = False

    @cached_property
    def attains(self) -> AttainedShares:
        """Return the fractions of peak performance that kernels reach on the replica's devices."""
        return attained(self.links.device)

    @cached_property
    def memory_bytes_per_s(self) -> float:
        """Return the bytes per second at which all devices of the replica together read weights."""
        return self.tensor * self.links.device.memory_bytes_per_s * self.attains.memory

    @cached_property
    def flops_per_s(self) -> float:
        """Return the FLOPs per second that dense products reach on all devices of the replica together.

        Raises ValueError if the devices' peak is unknown.
        """
        peak = peak_flops(self.links.device, self.precision)
        return self.tensor * peak * self.attains.matmul * QUANTISED_SHARE[self.precision]

    @cached_property
    def products(self) -> float:
        """Return the FLOPs of one token in the layers, scaled so that all matrix products reach `flops_per_s`.

        The FLOPs of routed experts are divided by the relative rate of their products (`expert_share`).
        """
        return 2 * (self.dense + self.expert_active / self.constants.expert_share)

    @cached_property
    def overhead_s(self) -> float:
        """Return the engine's overhead of a step in seconds, except the part that grows with the number of rows."""
        constants, shape = self.constants, self.shape
        experts_s = constants.expert_layer_s + self.whole_experts * constants.expert_exchange_s
        driven_s = constants.rollout_step_s + (self.tensor > 1) * constants.rollout_joined_s if self.rollout else 0.0
        return constants.step_s + driven_s + shape.layers * constants.layer_s + shape.expert_layers * experts_s

    @cached_property
    def dense(self) -> int:
        """Return the number of matrix parameters that every token is multiplied with: all but routed experts."""
        return self.shape.matmul_parameters - self.expert_active

    @cached_property
    def expert_active(self) -> int:
        """Return the number of parameters in the routed experts that one token is sent to; 0 without experts."""
        experts = self.shape.experts
        return self.shape.expert_parameters * self.shape.experts_per_token // experts if experts else 0


def replica_of(
    shape: ModelShape,
    layout: Layout,
    links: PoolLinks,
    constants: ServingConstants,
    precision: Precision,
    cache_precision: Precision = "bfloat16",
    *,
    rollout: bool = False,
) -> ServingReplica:
    """Return the replica that a layout makes of a model, on devices with these links.

    Experts are spread over data ranks first, then over tensor ranks. With experts over data ranks, each rank computes
    attention for its rows only: attention data parallelism. `rollout` tells that a training framework drives the
    engine.
    """
    joined = min(layout.expert, layout.data) if shape.experts else 1
    whole_experts = bool(shape.experts) and layout.expert > 1
    return _replica(shape, links, constants, layout.tensor, joined, whole_experts, precision, cache_precision, rollout)


_replica = lru_cache(maxsize=1024)(ServingReplica)  # equal replicas share their cached properties


def _table_width_bytes(replica: ServingReplica) -> float:
    return max(2.0, WIDTH_BYTES[replica.precision])


def weight_bytes(replica: ServingReplica) -> float:
    """Return the bytes of weights on each device of a replica; embedding and head take at least 2 bytes per number."""
    shape, experts = replica.shape, replica.shape.expert_parameters
    tables = shape.tables * shape.vocabulary * shape.hidden
    layers = shape.parameters - tables - experts + experts / replica.joined
    return (layers * WEIGHT_BYTES[replica.precision] + tables * _table_width_bytes(replica)) / replica.tensor


def cache_bytes(replica: ServingReplica, context_tokens: float) -> float:
    """Return the bytes of cache on each device of a replica for a sequence of `context_tokens` tokens."""
    return sequence_bytes(replica.shape, replica.tensor, context_tokens, WIDTH_BYTES[replica.cache_precision])


def step_seconds(replica: ServingReplica, rows: float, context_tokens: float) -> Seconds:
    """Return the seconds of one decoding step, by part: `matmul`, `cache`, `collectives` and `overhead`.

    In a step, `rows` sequences of mean length `context_tokens` get one token each. Weights are read once and multiplied
    by a vector for each row; the slower of the two counts. Only experts to which a token is sent are read. Raises
    ValueError if the devices' peak is unknown. Source: Pope et al. 2022, arXiv 2211.05102, section 3; Williams et al.
    2009.
    """
    return Seconds(dict(zip(STEP_PARTS, _step_parts(replica, rows, context_tokens), strict=True)))


def step_s(replica: ServingReplica, rows: float, context_tokens: float) -> float:
    """Return the total seconds of one decoding step; arguments and errors are those of `step_seconds`."""
    return sum(_step_parts(replica, rows, context_tokens))


def _step_parts(replica: ServingReplica, rows: float, context_tokens: float) -> tuple[float, float, float, float]:
    shape, constants = replica.shape, replica.constants
    experts = 0.0  # parameters of experts that are read on one copy, of those that are spread over all joined copies
    if shape.experts:
        # Each of b tokens is sent to k of E experts at random: all miss an expert with probability (1 - k/E)^b.
        missed: float = (1 - shape.experts_per_token / shape.experts) ** (rows * replica.joined)
        experts = shape.expert_parameters / replica.joined * (1 - missed)
    read = replica.dense + experts / constants.expert_read_share
    read_s = WEIGHT_BYTES[replica.precision] * read / replica.memory_bytes_per_s
    multiplied_s = rows * replica.products / replica.flops_per_s
    head_s = _table_width_bytes(replica) * shape.outputs * shape.hidden / replica.memory_bytes_per_s
    cache_rate = replica.links.device.memory_bytes_per_s * replica.attains.attention * CACHE_SHARE
    return (
        max(read_s, multiplied_s) + head_s,
        rows * cache_bytes(replica, context_tokens) / cache_rate,
        _exchange_s(replica, rows),
        replica.overhead_s + rows * constants.row_s,
    )


def prefill_seconds(replica: ServingReplica, tokens: float, square_tokens: float) -> float:
    """Return the seconds to prefill one prompt of `tokens` tokens.

    `square_tokens` is the square of its length, or the mean square if `tokens` is a mean. Each weight and token takes 2
    FLOPs; the number of attention pairs is half the square. Raises ValueError if the devices' peak is unknown. Source:
    as `step_seconds`.
    """
    device, shape = replica.links.device, replica.shape
    products_s = tokens * replica.products / replica.flops_per_s
    pairs = 2 * shape.attention_products(round(tokens), round(square_tokens / 2))
    attention_s = pairs / (replica.tensor * peak_flops(device, "bfloat16") * replica.attains.prefill)
    return products_s + attention_s + _exchange_s(replica, tokens)


def _exchange_s(replica: ServingReplica, tokens: float) -> float:
    """Return the seconds of the transfers between devices for these tokens, in all layers.

    Tensor ranks all-reduce after attention and after the MLP. Where experts lie on other copies, the second all-reduce
    gives way to transfers there and back, of each token to as many copies as it has experts.
    """
    shape, devices, message = replica.shape, replica.tensor, 2.0 * tokens * replica.shape.hidden
    exchange_s = 0.0
    if devices > 1:
        rate = _link_rate(replica, devices) * replica.attains.collective
        moved_s = 2 * (devices - 1) / devices * message / rate
        crossing_s = CROSSING_S if devices > replica.links.domain else 0.0
        all_reduce_s = EXCHANGE_S * log2(devices) + crossing_s + min(moved_s / SHORT_SHARE, LONG_S + moved_s)
        all_reduces = LAYER_ALL_REDUCES * shape.layers - (shape.expert_layers if replica.joined > 1 else 0)
        exchange_s = all_reduces * all_reduce_s
    if replica.joined > 1:
        copies = min(replica.joined, shape.experts_per_token) * (1 - 1 / replica.joined)
        rate = _link_rate(replica, replica.joined * devices) * replica.attains.all_to_all
        exchange_s += 2 * shape.expert_layers * message * copies / devices / rate
    return exchange_s


def _link_rate(replica: ServingReplica, devices: int) -> float:
    links = replica.links
    return links.device.link_bytes_per_s if devices <= links.domain else links.network_bytes_per_s


def reserved_bytes(tensor: int, constants: ServingConstants) -> int:
    """Return the bytes that an engine takes on each device in addition to weights and cache.

    They are for its context, graphs, activations and buffers.
    """
    return int(constants.fixed_bytes + (constants.joint_bytes if tensor > 1 else 0.0))


@lru_cache(maxsize=4096)
def cache_tokens(
    shape: ModelShape,
    device: DeviceProfile,
    tensor: int,
    cache_share: float,
    constants: ServingConstants,
    precision: Precision = "bfloat16",
    *,
    expert: int = 1,
    cache_precision: Precision = "bfloat16",
) -> int:
    """Return the number of tokens that the cache of one replica holds; 0 if its weights alone do not fit.

    The bytes per token are the mean over a context of 4,096 tokens. A replica has `tensor` devices, and experts are
    spread over `expert` replicas. `cache_share` is the engine's part of a device's memory. In SGLang it is for weights
    and cache (`mem_fraction_static`), and the engine's own bytes must fit in the rest; in vLLM
    (`gpu_memory_utilization`) it includes these, and in TensorRT-LLM nearly so. Source: SGLang 0.5 and vLLM 0.12,
    server arguments.
    """
    links = PoolLinks(device, domain=tensor, node_devices=tensor, network_bytes_per_s=device.link_bytes_per_s)
    layout = Layout(data=expert, tensor=tensor, expert=expert)
    replica = replica_of(shape, layout, links, constants, precision, cache_precision)
    reserved = reserved_bytes(tensor, constants)
    share_bytes = cache_share * device.memory_bytes - (reserved if constants.inside else 0)
    free = min(share_bytes, device.memory_bytes - reserved) - weight_bytes(replica)
    return max(0, int(free / cache_bytes(replica, LONG_TOKENS) * LONG_TOKENS))
