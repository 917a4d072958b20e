"""The footprint of a model in inference: of one that reads rows (reference, reward, critic), and of a rollout engine.

Not here: a model that is also trained (`training`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from flowgraph.engines.table import ENGINES
from placements.memory.activations import forward_numbers, reading_moment, table_numbers
from placements.memory.footprint import (
    SHIPPED,
    Bytes,
    Footprint,
    MemoryConstants,
    Part,
    added,
    logits_bytes,
    process_bytes,
    total_bytes,
    whole,
)
from placements.memory.model_shards import (
    WEIGHT_BYTES,
    PipelineStage,
    layer_numbers,
    root_numbers,
    sequence_bytes,
    stages,
    weights_bytes,
)

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Layout, Offloaded, Precision, RoleSettings
    from flowgraph.models import ModelShape
    from placements.memory.footprint import Logits

NUMBER_BYTES = 2  # of activations, and of keys and values unless a cache is quantised

GIB = 2**30
LIMITS: tuple[tuple[float, int, int], ...] = (
    (20 * GIB, 2048, 8),
    (35 * GIB, 4096, 48),
    (60 * GIB, 4096, 32),
    (160 * GIB, 8192, 256),
    (float("inf"), 16384, 512),
)
"""Upper limit of a device's memory in bytes, tokens of a prefill's chunk, and rows of the largest captured batch.

A device has the values of the first entry whose limit is above its memory. Source: SGLang 0.5.23, server_args, defaults
by memory.
"""


def inference_bytes(
    shape: ModelShape,
    layout: Layout,
    micro_batch_tokens: int,
    *,
    precision: Precision = "bfloat16",
    offload: Collection[Offloaded] = (),
    logits: Logits = "naive",
    stats: Collection[str] = (),
    constants: MemoryConstants = SHIPPED,
) -> Footprint:
    """Return the bytes on each device of a model that reads rows without gradients, for log-probs, values or scores.

    A micro-batch has `micro_batch_tokens` tokens on each data rank. If `offload` has "parameters", weights are in host
    memory, and copied to the device layer by layer. `precision` is that of the weights. `logits` is explained at
    `logits_bytes`; if `stats` has "entropy", they take more bytes. With several pipeline stages, the bytes are those of
    the stage that has the most.
    """
    tokens, footprints = micro_batch_tokens / layout.sequence, list[Footprint]()
    logit_bytes = constants.read_logit_bytes + constants.entropy_logit_bytes * ("entropy" in stats)
    for stage in stages(shape, layout):
        weights = whole({"weights": weights_bytes(shape, layout, stage, precision, cut=layout.sharding == "full")})
        read = logits_bytes(shape, layout, tokens, logits, logit_bytes, constants) if stage.last else 0.0
        moment = reading_moment(shape, layout, NUMBER_BYTES * tokens, read)
        moment["reserved"] = constants.unused_share * sum(moment.values())
        if "parameters" in offload or (layout.sharding == "full" and layout.data * layout.sequence > 1):
            layers = 2 * layer_numbers(shape, layout).count
            moment["gathered"] = NUMBER_BYTES * (root_numbers(shape, layout, stage) + layers)
        context = whole({"context": process_bytes(layout.devices, constants)})
        on_device: Bytes = {} if "parameters" in offload else weights
        on_host: Bytes = weights if "parameters" in offload else {}
        footprints.append(Footprint(added((on_device, context)), whole(moment), on_host, context, on_device))
    return max(footprints, key=lambda footprint: footprint.peak_bytes)


def generation_bytes(
    shape: ModelShape,
    layout: Layout,
    *,
    precision: Precision = "bfloat16",
    engine: str = "sglang",
    device_bytes: int,
    cache_share: float | None = None,
    cache_tokens: int | None = None,
    constants: MemoryConstants = SHIPPED,
) -> Footprint:
    """Return the bytes of a rollout engine on each device; each of the `data` ranks is a separate replica.

    A replica's cache holds `cache_tokens` tokens, or it takes the share `cache_share` of a device's `device_bytes`
    minus the weights and, for engines whose share covers all memory, minus all other buffers. A sleeping engine has
    freed its weights and cache; its context and graphs remain. Raises ValueError unless exactly one of `cache_share`
    and `cache_tokens` is given, and KeyError for an unknown `engine` with `cache_share`.
    """
    if (cache_share is None) == (cache_tokens is None):
        raise ValueError("give a cache either a share of its device or a number of tokens")
    chunk_tokens, rows = next((chunk, rows) for below, chunk, rows in LIMITS if device_bytes < below)
    weights = max(weights_bytes(shape, layout, stage, precision, cut=False) for stage in stages(shape, layout))
    working = _generating(shape, layout, chunk_tokens, rows, constants)
    fixed: dict[Part, float] = {
        "context": process_bytes(layout.tensor * layout.pipeline, constants),
        "reserved": constants.engine_bytes + constants.graph_bytes * rows,
    }
    if cache_tokens is not None:
        cache = cache_tokens * cache_bytes(shape, layout, 1)
    else:
        counted = sum(working.values()) + sum(fixed.values()) if ENGINES[engine].shares_all else 0.0
        cache = max(0.0, (cache_share or 0.0) * device_bytes - weights - counted)
    resident = whole({"weights": weights, "kv_cache": cache, **fixed})
    return Footprint(resident, whole(working), {}, whole(fixed))


CPU_CACHE_TOKENS, CPU_CHUNK_TOKENS, CPU_ROWS = 16384, 4096, 256
"""Defaults of a server on a CPU: `flowgraph.engines.servers.server_engine`, and vLLM's."""


def server_bytes(
    shape: ModelShape, layout: Layout, running: RoleSettings, process_bytes: float, constants: MemoryConstants
) -> Footprint:
    """Return the bytes of an inference server on a CPU device, and of the process of this project that talks to it.

    `process_bytes` is the size of that process. Sleeping would free nothing, so the server never sleeps. Not measured.
    """
    stage, number_bytes = PipelineStage(float(shape.layers)), WEIGHT_BYTES[running.precision]
    resident = whole(
        {
            "weights": weights_bytes(shape, layout, stage, running.precision, cut=False),
            "kv_cache": CPU_CACHE_TOKENS * cache_bytes(shape, layout, 1, number_bytes),
            "context": process_bytes + constants.server_bytes,
        }
    )
    width = number_bytes / NUMBER_BYTES
    working = _generating(shape, layout, CPU_CHUNK_TOKENS, CPU_ROWS, constants)
    return Footprint(resident, whole({part: width * count for part, count in working.items()}), {}, resident)


def _generating(
    shape: ModelShape, layout: Layout, chunk_tokens: int, rows: int, constants: MemoryConstants
) -> dict[Part, float]:
    return {
        "activations": NUMBER_BYTES * chunk_tokens * (forward_numbers(shape, layout) + table_numbers(shape)),
        "logits": logits_bytes(shape, layout, rows, "naive", constants.read_logit_bytes, constants),
    }


def cache_bytes(shape: ModelShape, layout: Layout, context_tokens: int, number_bytes: float = NUMBER_BYTES) -> float:
    """Return the bytes of the cache of a sequence of `context_tokens` tokens on each device of a replica.

    One number takes `number_bytes` bytes. Pipeline stages have equal parts of the cache.
    """
    return sequence_bytes(shape, layout.tensor, context_tokens, number_bytes) / layout.pipeline


def awake_bytes(footprint: Footprint) -> int:
    """Return how many more bytes a role takes on a device while it is awake but idle than while it sleeps.

    Its cache is included.
    """
    return total_bytes(footprint.resident) - total_bytes(footprint.asleep)
