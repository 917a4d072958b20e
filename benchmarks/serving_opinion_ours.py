"""The planner's answers to the questions of `serving_opinion_grid`."""

from __future__ import annotations

from functools import cache

from benchmarks.forecast.latency import request_seconds
from benchmarks.forecast.serving_models import device, links_within, release
from benchmarks.serving_opinion_answers import Answer
from benchmarks.serving_opinion_grid import Question, Setup
from flowgraph.cluster.plan import Layout
from placements.hardware.device_profiles import DeviceProfile, PoolLinks, Precision
from placements.hardware.engine_constants import ServingConstants, constants
from placements.time.decode import (
    ServingReplica,
    cache_bytes,
    prefill_seconds,
    replica_of,
    reserved_bytes,
    step_seconds,
    weight_bytes,
)


def device_of(setup: Setup) -> DeviceProfile:
    """Return the device; raises KeyError for one that is not known."""
    found = device(setup.system)
    if found is None:
        raise KeyError(setup.system)
    return found


def forecast(question: Question, version: str) -> Answer:
    """Forecast a case, as of a release of the engine."""
    setup = question.setup
    prompt, response, batch = question.prompt_tokens, question.response_tokens, question.batch
    engine, links, layout = _engine(setup.engine, version), _links(setup), _layout(setup)
    cached: Precision = "fp8" if setup.cache == "fp8" else "bfloat16"
    replica = replica_of(setup.shape, layout, links, engine, setup.precision, cached)
    times = request_seconds(
        setup.shape, prompt, response, batch, layout, links, engine, setup.precision, cache_precision=cached
    )
    if times is None:
        raise KeyError(setup.system)
    return Answer(
        first_s=times[0],
        each_s=times[1],
        prefill_s=batch * prefill_seconds(replica, prompt, prompt**2),
        step_s=step_seconds(replica, batch, prompt + response / 2).total_s or 0.0,
        weights_bytes=weight_bytes(replica),
        memory_bytes=memory_bytes(replica, prompt + response, batch),
    )


def overhead_share(question: Question, version: str) -> float:
    """Return the part of a step that the planner lays to the engine, and not to kernels or messages."""
    setup = question.setup
    replica = replica_of(setup.shape, _layout(setup), _links(setup), _engine(setup.engine, version), setup.precision)
    found = step_seconds(replica, question.batch, question.prompt_tokens + question.response_tokens / 2)
    return (found.parts["overhead"] or 0.0) / (found.total_s or 1.0)


def memory_bytes(replica: ServingReplica, tokens: int, batch: int) -> float:
    """Return the bytes of each device with a cache for so many tokens of each request, and what the engine reserves."""
    held = weight_bytes(replica) + batch * cache_bytes(replica, tokens)
    return held + reserved_bytes(replica.tensor, replica.constants)


def fits(question: Question) -> bool:
    """Return whether the planner finds place for all tokens of the batch."""
    setup = question.setup
    cached: Precision = "fp8" if setup.cache == "fp8" else "bfloat16"
    engine = _engine(setup.engine, "")
    replica = replica_of(setup.shape, _layout(setup), _links(setup), engine, setup.precision, cached)
    tokens = question.prompt_tokens + question.response_tokens
    return memory_bytes(replica, tokens, question.batch) <= device_of(setup).memory_bytes


@cache
def _engine(name: str, version: str) -> ServingConstants:
    return constants(ServingConstants, name, release(name, version))


@cache
def _links(setup: Setup) -> PoolLinks:
    return links_within(device_of(setup))


def _layout(setup: Setup) -> Layout:
    return Layout(data=setup.ranks, tensor=setup.tensor, expert=setup.expert)
