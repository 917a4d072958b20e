"""Latency of one request of an inference engine under load, with the planner's steps and prompts."""

from __future__ import annotations

from flowgraph.cluster.plan import Layout
from flowgraph.models import ModelShape
from placements.hardware.device_profiles import PoolLinks, Precision
from placements.hardware.engine_constants import ServingConstants
from placements.time.decode import prefill_seconds, replica_of, step_s
from placements.time.generation import is_known, running_rows


def request_seconds(
    shape: ModelShape,
    prompt_tokens: float,
    response_tokens: float,
    batch: float,
    layout: Layout,
    links: PoolLinks | None,
    constants: ServingConstants,
    precision: Precision = "bfloat16",
    *,
    cache_tokens: float | None = None,
    cache_precision: Precision = "bfloat16",
) -> tuple[float, float] | None:
    """Return a request's seconds to its first token, and for each one after it; None for a device of unknown speed.

    The replica always has `batch` requests of these lengths; the next one is sent as one ends. While a request
    generates its response, each of the others is prefilled once: those prefills lie between its tokens. Requests for
    which the cache has no room wait, before their first token.
    Source: Little 1961 for the closed loop; Agrawal et al. 2024, arXiv 2403.02310, for prefills between steps.
    """
    if links is None or not is_known(links, precision):
        return None
    replica = replica_of(shape, layout, links, constants, precision, cache_precision)
    context = prompt_tokens + response_tokens / 2
    running = running_rows(replica, batch, context, cache_tokens)
    decode_s = step_s(replica, running, context)
    read_s = prefill_seconds(replica, prompt_tokens, prompt_tokens**2) + constants.request_s
    prefills_s = (running - 1) * read_s / max(1.0, response_tokens - 1)
    alive_s = read_s + (response_tokens - 1) * (decode_s + prefills_s)
    return read_s + (batch / running - 1) * alive_s, decode_s + prefills_s
