"""How much of a device's memory an inference engine has for its cache, in tokens, and what it keeps for itself.

Not here: how long anything takes (`decode`, `generation`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from flowgraph.cluster.plan import Layout
from placements.decode import ServingConstants, cache_bytes, replica_of, weight_bytes
from placements.profiles import Links

if TYPE_CHECKING:
    from flowgraph.models import ModelShape
    from placements.profiles import Precision, Profile

LONG_TOKENS = 4096  # a context long enough that states and windows count for little


def reserved_bytes(tensor: int, constants: ServingConstants) -> int:
    """Return the bytes of each device that hold neither weights nor cache: context, graphs, activations, buffers.

    Source: the comments of the constants, in `engines`.
    """
    return int(constants.fixed_bytes + (constants.joint_bytes if tensor > 1 else 0.0))


@lru_cache(maxsize=4096)
def cache_tokens(
    shape: ModelShape,
    device: Profile,
    tensor: int,
    cache_share: float,
    constants: ServingConstants,
    precision: Precision = "bfloat16",
    *,
    expert: int = 1,
    cache_precision: Precision = "bfloat16",
) -> int:
    """Return the tokens that the cache of one replica holds; 0 if its weights alone do not fit.

    `cache_share` is the part of a device's memory that the engine is given. SGLang's holds weights and cache
    (`mem_fraction_static`), and what it keeps for itself has to fit beside; vLLM's holds that too
    (`gpu_memory_utilization`), and TensorRT-LLM's as good as that. Experts are spread over `expert` replicas.
    Source: SGLang 0.5 and vLLM 0.12, their server arguments.
    """
    links = Links(device, domain=tensor, node_devices=tensor, network_bytes_per_s=device.link_bytes_per_s)
    layout = Layout(data=expert, tensor=tensor, expert=expert)
    replica = replica_of(shape, layout, links, constants, precision, cache_precision)
    reserved = reserved_bytes(tensor, constants)
    given = cache_share * device.memory_bytes - (reserved if constants.inside else 0)
    free = min(given, device.memory_bytes - reserved) - weight_bytes(replica)
    return max(0, int(free / cache_bytes(replica, LONG_TOKENS) * LONG_TOKENS))
