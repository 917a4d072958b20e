"""Seconds of generation: of one request beside others, and of a whole batch of responses on copies of a model.

Not here: what one step takes (`decode`), how much cache there is (`cache_room`), syncs of weights, sleeping engines.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import TYPE_CHECKING

from placements.cache_room import cache_tokens, reserved_bytes
from placements.decode import Replica, ServingConstants, prefill_seconds, replica_of, step_s, step_seconds
from placements.kernels import peak_flops
from placements.long_tail import drained_seconds, uneven_tokens
from placements.seconds import Seconds

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Layout
    from flowgraph.models import ModelShape
    from placements.lengths import Lengths
    from placements.profiles import Links, Precision

MIXING = 4
"""Responses whose lengths spread by a quarter of their mean or more end at any time, not in waves.

Source: the simulation in the tests, which it is within 3% of; 2 is within 4%, 8 within 6%.
"""

__all__ = ["ServingConstants", "cache_tokens", "generate_seconds", "request_seconds", "reserved_bytes"]


def request_seconds(
    shape: ModelShape,
    prompt_tokens: float,
    response_tokens: float,
    batch: float,
    layout: Layout,
    links: Links | None,
    constants: ServingConstants,
    precision: Precision = "bfloat16",
    *,
    cache_tokens: float | None = None,
    cache_precision: Precision = "bfloat16",
) -> tuple[float, float] | None:
    """Return a request's seconds to its first token, and for each one after it; None where a device is not known.

    `batch` requests of these lengths are always under way at the replica, the next one sent as one ends. While a
    request draws its response, each of the others is read once: those prefills lie between its tokens. Requests that
    the cache has no place for wait, before their first token.
    Source: Little 1961 for the closed loop; Agrawal et al. 2024, arXiv 2403.02310, for prefills between steps.
    """
    if links is None or not _known(links, precision):
        return None
    replica = replica_of(shape, layout, links, constants, precision, cache_precision)
    context = prompt_tokens + response_tokens / 2
    at_once = _at_once(replica, batch, context, cache_tokens)
    own_s = step_s(replica, at_once, context)
    read_s = prefill_seconds(replica, prompt_tokens, prompt_tokens**2) + constants.request_s
    others_s = (at_once - 1) * read_s / max(1.0, response_tokens - 1)
    alive_s = read_s + (response_tokens - 1) * (own_s + others_s)
    return read_s + (batch / at_once - 1) * alive_s, own_s + others_s


def generate_seconds(
    shape: ModelShape,
    rows: int,
    prompt: Lengths,
    response: Lengths,
    layout: Layout,
    links: Links | None,
    constants: ServingConstants,
    *,
    cache_tokens: float,
    precision: Precision = "bfloat16",
    shared_prompts: int = 1,
    streamed: bool = False,
    cache_precision: Precision = "bfloat16",
    rollout: bool = True,
) -> Seconds:
    """Return the seconds of drawing `rows` responses on `layout.data` replicas, by part; None if a device is unknown.

    The replicas have equal parts of the rows, and run as many at a time as their `cache_tokens` have place for; the
    next is read as one ends. `matmul`, `cache`, `collectives` and `overhead` are the steps of full batches that would
    draw all tokens, `prefill` lies between them, and `tail` is what they take longer because batches shrink in the end,
    until the longest response is drawn alone. Where rollouts are `streamed` or continued, other rows fill those places
    and there is no tail. Of `shared_prompts` responses to one prompt the prompt is read, and kept, once. `rollout` says
    that a training framework drives the engine, as of a `Replica`.
    Source: Graham 1969 for work over machines and the longest piece; Kwon et al. 2023, arXiv 2309.06180, and Zheng et
    al. 2024, arXiv 2312.07104, for prompts that are shared.
    """
    if links is None or not _known(links, precision):
        return Seconds({"prefill": None, "matmul": None, "tail": None})
    replica = replica_of(shape, layout, links, constants, precision, cache_precision, rollout=rollout)
    each = ceil(rows / layout.data)
    at_once = _at_once(replica, each, prompt.mean / shared_prompts + response.age, cache_tokens)
    steps = each * response.mean / at_once
    drawn = step_seconds(replica, at_once, prompt.mean + response.age).times(steps)
    read_s = each / shared_prompts * prefill_seconds(replica, prompt.mean, prompt.square_mean)
    tail_s = 0.0 if streamed else _tail_s(replica, prompt, response, rows, at_once, min(rows, layout.data))
    parts = dict(drawn.parts)
    parts["overhead"] = (parts["overhead"] or 0.0) + each * constants.request_s
    return Seconds({"prefill": read_s, **parts, "tail": tail_s})


def _tail_s(replica: Replica, prompt: Lengths, response: Lengths, rows: int, at_once: float, replicas: int) -> float:
    """Return what the last responses take beyond the same tokens in full batches, on the slowest replica.

    If all have a place they start together. If some wait, those that run when the last has got one have any part left
    (`mixed`); but responses of about one length run in waves, and the last wave is whole. Beside that, rows are dealt
    out before their lengths are known, so that one replica has the most tokens.
    """
    each = ceil(rows / replicas)
    waits = each > at_once
    spread = sqrt(max(0.0, response.square_mean / response.mean**2 - 1))
    mixed = min(1.0, MIXING * spread) if waits else 0.0
    full_s = step_s(replica, at_once, prompt.mean + response.age)

    def beyond_s(left: Lengths, running: float, drawn_before: float) -> float:
        def each_s(alive: float, drawn: float) -> float:
            return step_s(replica, alive, prompt.mean + drawn_before + drawn)

        drained_s = drained_seconds(left, running, left.longest_of(min(rows, running * replicas)), each_s)
        return max(0.0, drained_s - left.mean * running / at_once * full_s)

    last_wave = max(1.0, each - at_once * (ceil(each / at_once) - 1))
    tail_s = (1 - mixed) * beyond_s(response, last_wave, 0.0) if mixed < 1 else 0.0
    tail_s += mixed * beyond_s(response.remaining, at_once, response.age) if mixed else 0.0
    more_s = full_s / at_once  # of one token more: that part of a full step, or one more sequence in a step
    if not waits:  # the longest has its own steps already; with one row each there are no others to wait for
        alone_s = step_s(replica, 1, prompt.mean + response.age)
        more_s = (full_s - alone_s) / (at_once - 1) if at_once > 1 else 0.0
    return tail_s + more_s * uneven_tokens(response, each, replicas)


def cache_wanted(
    rows: int,
    prompt: Lengths,
    response: Lengths,
    layout: Layout,
    constants: ServingConstants,
    shared_prompts: int = 1,
) -> float:
    """Return the tokens of a replica's cache with which no row waits for a place: more would save nothing."""
    each = min(ceil(rows / layout.data), constants.most_rows)
    return each * (prompt.mean / shared_prompts + response.age)


def _at_once(replica: Replica, rows: float, held_tokens: float, cache_tokens: float | None) -> float:
    """Return how many sequences run at a time, each of which holds so many tokens of the cache on average."""
    room = float("inf") if cache_tokens is None else max(1.0, cache_tokens / held_tokens)
    return max(1.0, min(rows, room, replica.constants.most_rows))


def _known(links: Links, precision: Precision) -> bool:
    try:
        return peak_flops(links.device, precision) > 0
    except ValueError:
        return False
