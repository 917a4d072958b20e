"""Seconds of generation of a whole batch of responses on replicas of a model, including the end of the batch.

Not here: one step of an engine (`decode`), weight syncs and sleep (`transitions`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

from placements.time.decode import ServingReplica, prefill_seconds, replica_of, step_s, step_seconds
from placements.time.kernels import peak_flops
from placements.time.seconds import Seconds

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Layout
    from flowgraph.models import ModelShape
    from placements.hardware.device_profiles import PoolLinks, Precision
    from placements.hardware.engine_constants import ServingConstants
    from placements.workload.lengths import LengthDistribution

MIXING = 4
"""Responses whose lengths spread by a quarter of their mean or more end at any time, not in waves.

Source: the simulation in the tests, which it is within 3% of; 2 is within 4%, 8 within 6%.
"""

LEVELS = 24  # pieces in which a batch of any size shrinks to one


def generate_seconds(
    shape: ModelShape,
    rows: int,
    prompt: LengthDistribution,
    response: LengthDistribution,
    layout: Layout,
    links: PoolLinks | None,
    constants: ServingConstants,
    *,
    cache_tokens: float,
    precision: Precision = "bfloat16",
    shared_prompts: int = 1,
    streamed: bool = False,
    cache_precision: Precision = "bfloat16",
    rollout: bool = True,
) -> Seconds:
    """Return the seconds in which `layout.data` replicas generate `rows` responses, by kind of work.

    Each replica gets an equal number of rows, rounded up, and runs as many at a time as fit into its cache of
    `cache_tokens` tokens; when one ends, the next is prefilled. `shared_prompts` responses share a prompt, which is
    prefilled and cached once. With `rollout`, a training framework drives the engine (see `ServingReplica`).

    The keys are `prefill`, reading the prompts; `matmul`, `cache`, `collectives` and `overhead`, the steps that
    generate all tokens in full batches, where `overhead` also has the engine's work on each request; and `tail`, the
    time added at the end because batches shrink until the longest response runs alone and because one replica gets more
    tokens than the others, 0 if rollouts are `streamed` across steps. If `links` is None or the devices' peak is
    unknown, the only keys are `prefill`, `matmul` and `tail`, all None.

    Source: Graham 1969 for scheduling on parallel machines; Kwon et al. 2023, arXiv 2309.06180, and Zheng et al. 2024,
    arXiv 2312.07104, for shared prompts.
    """
    if links is None or not is_known(links, precision):
        return Seconds({"prefill": None, "matmul": None, "tail": None})
    replica = replica_of(shape, layout, links, constants, precision, cache_precision, rollout=rollout)
    replica_rows = ceil(rows / layout.data)
    running = running_rows(replica, replica_rows, prompt.mean / shared_prompts + response.age, cache_tokens)
    steps = replica_rows * response.mean / running
    parts = dict(step_seconds(replica, running, prompt.mean + response.age).times(steps).parts)
    parts["overhead"] = (parts["overhead"] or 0.0) + replica_rows * constants.request_s
    read_s = replica_rows / shared_prompts * prefill_seconds(replica, prompt.mean, prompt.square_mean)
    tail_s = 0.0 if streamed else _tail_s(replica, prompt, response, rows, running, min(rows, layout.data))
    return Seconds({"prefill": read_s, **parts, "tail": tail_s})


def _tail_s(
    replica: ServingReplica,
    prompt: LengthDistribution,
    response: LengthDistribution,
    rows: int,
    running: float,
    replicas: int,
) -> float:
    """Return how much longer the last responses take than the same tokens in full batches, on the slowest replica.

    If no row waits, all start together. If some wait, the rows that run when the last one starts have any part left
    (`mixed`); but responses of similar lengths run in waves, and the last wave is whole. In addition, rows are assigned
    before their lengths are known, so that one replica has the most tokens.
    """
    replica_rows = ceil(rows / replicas)
    waits = replica_rows > running
    spread = sqrt(max(0.0, response.square_mean / response.mean**2 - 1))
    mixed = min(1.0, MIXING * spread) if waits else 0.0
    full_s = step_s(replica, running, prompt.mean + response.age)

    def beyond_s(left: LengthDistribution, alive: float, before: float) -> float:
        def decode_s(sequences: float, generated: float) -> float:
            return step_s(replica, sequences, prompt.mean + before + generated)

        drained_s = drained_seconds(left, alive, left.longest_of(min(rows, alive * replicas)), decode_s)
        return max(0.0, drained_s - left.mean * alive / running * full_s)

    last_wave = max(1.0, replica_rows - running * (ceil(replica_rows / running) - 1))
    tail_s = (1 - mixed) * beyond_s(response, last_wave, 0.0) if mixed < 1 else 0.0
    tail_s += mixed * beyond_s(response.remaining, running, response.age) if mixed else 0.0
    token_s = full_s / running  # of one token more: that part of a full step, or one more sequence in a step
    if not waits:  # the longest has its own steps already; with one row each it waits for nothing
        alone_s = step_s(replica, 1, prompt.mean + response.age)
        token_s = (full_s - alone_s) / (running - 1) if running > 1 else 0.0
    return tail_s + token_s * uneven_tokens(response, replica_rows, replicas)


def cache_wanted(
    rows: int,
    prompt: LengthDistribution,
    response: LengthDistribution,
    layout: Layout,
    constants: ServingConstants,
    shared_prompts: int = 1,
) -> float:
    """Return the smallest cache of a replica, in tokens, with which no row has to wait for memory on average.

    `rows` responses are generated by all replicas together; `shared_prompts` of them share each prompt. No replica runs
    more rows at a time than its engine's maximum.
    """
    running = min(ceil(rows / layout.data), constants.most_rows)
    return running * (prompt.mean / shared_prompts + response.age)


def running_rows(replica: ServingReplica, rows: float, row_tokens: float, cache_tokens: float | None) -> float:
    """Return how many of `rows` sequences a replica runs at a time, if each has `row_tokens` cached tokens on average.

    The limits are the cache of `cache_tokens` tokens (None: unlimited) and the engine's maximum; the minimum is 1.
    """
    room = float("inf") if cache_tokens is None else max(1.0, cache_tokens / row_tokens)
    return max(1.0, min(rows, room, replica.constants.most_rows))


def is_known(links: PoolLinks, precision: Precision) -> bool:
    """Return whether `peak_flops` finds a positive peak for the devices of these links in a precision."""
    try:
        return peak_flops(links.device, precision) > 0
    except ValueError:
        return False


def drained_seconds(
    left: LengthDistribution, rows: float, longest_tokens: float, step_s: Callable[[float, float], float]
) -> float:
    """Return the seconds until all of `rows` sequences, which run at once with `left` tokens to generate, have ended.

    No other sequence starts when one ends. `longest_tokens` is the maximum left for any sequence of any replica.
    `step_s(sequences, generated)` returns the seconds of a step, given the tokens that each sequence has generated.

    >>> from placements.workload.lengths import LengthDistribution
    >>> drained_seconds(LengthDistribution((100.0, 300.0)), 2, 300.0, lambda rows, generated: 1.0)
    300.0
    """
    generated = min(longest_tokens, left.quantile(0.0))
    total_s, running = generated * step_s(rows, generated / 2), float(rows)
    for level in range(1, LEVELS + 1):
        after = rows ** (1 - level / LEVELS)
        until = min(longest_tokens, left.quantile(1 - after / rows))
        total_s += (until - generated) * step_s((running * after) ** 0.5, (generated + until) / 2)
        running, generated = after, until
    return total_s + (longest_tokens - generated) * step_s(1.0, (generated + longest_tokens) / 2)


def uneven_tokens(lengths: LengthDistribution, rows: int, replicas: int) -> float:
    """Return how many tokens more than the mean replica the fullest replica is expected to get, with `rows` rows each.

    The result is 0 for a single replica. Rows are assigned before their lengths are known, and a sum of many lengths is
    nearly normal. Source: Blom 1958, for the largest of n normal deviates.

    >>> from placements.workload.lengths import LengthDistribution
    >>> mixed = LengthDistribution((100.0, 300.0))
    >>> uneven_tokens(LengthDistribution.fixed(100), 64, 8), round(uneven_tokens(mixed, 64, 8))
    (0.0, 1147)
    """
    if replicas < 2:
        return 0.0
    spread = sqrt(rows * max(0.0, lengths.square_mean - lengths.mean**2))
    return spread * NormalDist().inv_cdf((replicas - 0.375) / (replicas + 0.25))
