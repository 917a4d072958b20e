"""Generation takes what was measured of serving engines, and devices, replicas, experts and the cache count as they
should.

The measured rows are of silicon_sample.csv of aiconfigurator-core 0.12.0 and of TensorRT-LLM 1.0's performance overview
(both Apache-2.0), and of splitwise-sim's perf_model.csv (MIT), drawn by chance.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.forecast.latency import request_seconds
from flowgraph.cluster.plan import Layout
from flowgraph.models import ModelShape
from flowgraph.models.sizes import shape_of
from flowgraph.models.table import full_name, listed
from placements.hardware.device_profiles import PoolLinks, Precision, profile
from placements.hardware.engine_constants import ServingConstants, bounds, constants
from placements.time.decode import (
    CROSSING_S,
    QUANTISED_SHARE,
    ServingReplica,
    cache_bytes,
    cache_tokens,
    prefill_seconds,
    replica_of,
    reserved_bytes,
    step_seconds,
    weight_bytes,
)
from placements.time.generation import generate_seconds
from placements.time.seconds import Seconds
from placements.workload.lengths import LengthDistribution
from tests.looped import looped

# model, device, engine, precision, devices, prompt and response tokens, requests at a time, ms to the first token and
# between others.
ROWS: list[tuple[str, str, str, Precision, int, int, int, int, float, float]] = [
    ("Llama-3.1-8B", "h100", "trtllm", "bfloat16", 1, 1024, 512, 32, 226, 9.88),
    ("Llama-3.1-8B", "h100", "trtllm", "bfloat16", 2, 4096, 256, 64, 430, 24.22),
    ("Llama-3.1-8B", "h100", "trtllm", "bfloat16", 8, 2048, 512, 16, 162, 3.58),
    ("Llama-3.1-70B", "h200", "trtllm", "fp8", 4, 8192, 1024, 32, 1016, 22.14),
    ("Llama-3.1-70B", "b200", "trtllm", "fp4", 2, 1024, 8192, 64, 175, 14.37),
    ("Llama-3.1-70B", "b200", "trtllm", "fp8", 1, 1024, 1024, 128, 1016, 29.4),
    ("Llama-3.1-70B", "h100", "vllm", "fp8", 2, 1024, 1024, 16, 253, 19.74),
    ("Llama-3.1-70B", "h200", "vllm", "fp8", 8, 1024, 8192, 64, 180, 13.58),
    ("Llama-3.1-70B", "b200", "vllm", "fp4", 4, 8192, 1024, 8, 333, 8.93),
    ("Llama-3.1-8B", "h200", "sglang", "fp8", 1, 2000, 2000, 240, 887, 36.52),
    ("Llama-3.1-8B", "h200", "sglang", "fp8", 4, 4000, 100, 80, 383, 26.63),
    ("Qwen3.5-397B-A17B", "b200", "sglang", "bfloat16", 8, 1024, 8192, 32, 499, 16.15),
    ("Qwen3.5-397B-A17B", "b300", "sglang", "fp4", 4, 8192, 1024, 16, 472, 9.68),
]

GB = 10**9
PROMPT = LengthDistribution.fixed(512)
RESPONSE = LengthDistribution.parse("mean=2k,p99=16k,max=20k")


def shape(name: str) -> ModelShape:
    """Return the sizes of a model of the table."""
    entry = listed(full_name(name) or "")
    assert entry is not None
    return shape_of(entry.config, name)


def links(device: str) -> PoolLinks:
    """Return links of machines of one device."""
    kind = profile(device)
    return PoolLinks(kind, kind.domain, kind.domain, kind.network_bytes_per_s or 25e9)


def engine(name: str = "sglang", version: str = "") -> ServingConstants:
    """Return the constants of an engine."""
    return constants(ServingConstants, name, version)


def batch_seconds(
    layout: Layout, rows: int = 4096, device: str = "h100", model: str = "Qwen3-8B", **changed: object
) -> Seconds:
    """Forecast a batch of responses."""
    given = {"cache_tokens": 400_000, **changed}
    return generate_seconds(shape(model), rows, PROMPT, RESPONSE, layout, links(device), engine(), **given)  # type: ignore[arg-type]


def total_s(found: Seconds) -> float:
    """Return a sum that is known."""
    assert found.total_s is not None
    return found.total_s


def errors() -> list[float]:
    """Return the errors of the forecasts of the rows, with their signs."""
    found = list[float]()
    for model, device, name, precision, tensor, prompt, response, batch, first_ms, each_ms in ROWS:
        quantised: Precision = "bfloat16" if name == "sglang" and model == "Llama-3.1-8B" else precision
        held: Precision = "bfloat16" if quantised == "bfloat16" else "fp8"
        asked = engine(name, "0.5.6" if model == "Llama-3.1-8B" and name == "sglang" else "")
        room = cache_tokens(shape(model), profile(device), tensor, 0.9, asked, precision, cache_precision=held)
        told = request_seconds(
            shape(model), prompt, response, batch, Layout(tensor=tensor), links(device), asked, precision,
            cache_tokens=room, cache_precision=held,
        )  # fmt: skip
        assert told is not None
        measured = first_ms + (response - 1) * each_ms
        found.append(1e3 * (told[0] + (response - 1) * told[1]) / measured - 1)
    return found


def test_a_request_takes_what_was_measured_on_four_devices_and_three_engines() -> None:
    sizes = [abs(each) for each in errors()]
    assert max(sizes) < 0.25
    assert median(sizes) < 0.10


@pytest.mark.parametrize(
    ("device", "batch", "each_ms"), [("a100", 1, 48.8), ("a100", 32, 65.4), ("h100", 1, 36.1), ("h100", 32, 45.8)]
)
def test_an_engine_of_2023_took_as_long_again_beside_its_arithmetic(device: str, batch: int, each_ms: float) -> None:
    bloom, layout = shape("bloom"), Layout(tensor=8)
    old = step_seconds(replica_of(bloom, layout, links(device), engine("vllm", "0.2"), "bfloat16"), batch, 576)
    new = step_seconds(replica_of(bloom, layout, links(device), engine("vllm"), "bfloat16"), batch, 576)
    assert 1e3 * total_s(old) == pytest.approx(each_ms, rel=0.15)
    assert (old.parts["overhead"] or 0) > 4 * (new.parts["overhead"] or 1)


@pytest.mark.parametrize(
    ("model", "device", "precision", "layout", "prompt", "response", "tokens_per_s"),
    [
        ("Llama-3.3-70B", "h200", "fp8", Layout(tensor=1), 1000, 2000, 2994),
        ("Llama-3.3-70B", "b200", "fp4", Layout(tensor=1), 2048, 2048, 4783),
        ("Llama-3.1-405B", "h200", "fp8", Layout(tensor=8), 500, 2000, 4724),
        ("Qwen3-235B-A22B", "h200", "fp8", Layout(data=8, expert=8), 1000, 2000, 22061),
    ],
)
def test_a_stream_of_requests_has_the_throughput_that_was_measured(
    model: str, device: str, precision: Precision, layout: Layout, prompt: int, response: int, tokens_per_s: float
) -> None:
    asked, kind = engine("trtllm"), profile(device)
    room = cache_tokens(
        shape(model), kind, layout.tensor, 0.9, asked, precision, expert=layout.expert, cache_precision="fp8"
    )
    found = generate_seconds(
        shape(model), 80_000, LengthDistribution.fixed(prompt), LengthDistribution.fixed(response), layout,
        links(device), asked,
        cache_tokens=room, precision=precision, streamed=True, cache_precision="fp8", rollout=False,
    )  # fmt: skip
    assert 80_000 * response / total_s(found) == pytest.approx(tokens_per_s, rel=0.2)


def test_parts_are_named_and_a_stream_has_no_tail() -> None:
    whole, streamed = batch_seconds(Layout(data=8)), batch_seconds(Layout(data=8), streamed=True)
    assert list(whole.parts) == ["prefill", "matmul", "cache", "collectives", "overhead", "tail"]
    assert streamed.parts == {**whole.parts, "tail": 0.0}
    assert (whole.parts["tail"] or 0) > 0


def test_a_device_that_nobody_knows_leaves_it_unknown() -> None:
    odd = PoolLinks(replace(profile("h100"), peak_flops={}), 8, 8, 1e9)
    for none in (None, odd):
        found = generate_seconds(shape("Qwen3-8B"), 8, PROMPT, RESPONSE, Layout(), none, engine(), cache_tokens=400_000)
        assert found.total_s is None
        assert request_seconds(shape("Qwen3-8B"), 512, 512, 8, Layout(), none, engine()) is None


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 5000))
def test_more_replicas_never_take_longer(replicas: int, rows: int) -> None:
    few, more = (total_s(batch_seconds(Layout(data=each), rows)) for each in (replicas, 2 * replicas))
    assert more <= few * 1.02


@given(st.integers(1, 4000), st.integers(1, 500))
def test_more_rows_never_take_less(rows: int, more: int) -> None:
    assert total_s(batch_seconds(Layout(data=4), rows)) <= total_s(batch_seconds(Layout(data=4), rows + more)) * 1.02


@given(st.integers(1, 512), st.integers(1, 30_000), st.sampled_from(["Qwen3-8B", "Qwen3-30B-A3B", "Llama-3.1-70B"]))
def test_a_step_of_more_rows_or_longer_ones_takes_no_less(rows: int, context: int, model: str) -> None:
    replica = replica_of(shape(model), Layout(tensor=2), links("h100"), engine(), "bfloat16")
    base = total_s(step_seconds(replica, rows, context))
    assert total_s(step_seconds(replica, rows + 1, context)) > base
    assert total_s(step_seconds(replica, rows, context + 100)) > base


@pytest.mark.parametrize("faster", ["memory_bytes_per_s", "link_bytes_per_s"])
def test_a_faster_memory_or_link_makes_a_step_shorter(faster: str) -> None:
    slow = links("h100")
    fast = replace(slow, device=replace(slow.device, **{faster: 2 * getattr(slow.device, faster)}))
    steps = [
        total_s(step_seconds(replica_of(shape("Qwen3-32B"), Layout(tensor=4), each, engine(), "bfloat16"), 64, 2000))
        for each in (slow, fast)
    ]
    assert steps[1] < 0.99 * steps[0]


def test_a_tensor_group_over_machines_adds_up_at_the_network_s_rate() -> None:
    inside, across = (
        step_seconds(replica_of(shape("Qwen3-32B"), Layout(tensor=each), links("h100"), engine(), "bfloat16"), 64, 2000)
        for each in (8, 16)
    )
    assert (across.parts["collectives"] or 0) > 3 * (inside.parts["collectives"] or 1)


def test_each_all_reduce_over_machines_goes_out_of_them_and_back_in() -> None:
    """A network as fast as the links inside: what an all-reduce waits for is left."""
    inside = links("h100")
    cut = replace(inside, domain=4, node_devices=4, network_bytes_per_s=inside.device.link_bytes_per_s)
    model = shape("Qwen3-32B")
    one, two = (
        step_seconds(replica_of(model, Layout(tensor=8), each, engine(), "bfloat16"), 64, 2000).parts["collectives"]
        for each in (inside, cut)
    )
    assert (two or 0) - (one or 0) == pytest.approx(2 * model.layers * CROSSING_S)


def test_a_device_without_fp8_reads_half_the_bytes_and_multiplies_as_in_bfloat16() -> None:
    plain, narrow = (
        replica_of(shape("Llama-3.1-70B"), Layout(tensor=8), links("a100"), engine(), precision)
        for precision in ("bfloat16", "fp8")
    )
    read = [step_seconds(each, 1, 1).parts["matmul"] or 0 for each in (plain, narrow)]
    assert read[1] / read[0] == pytest.approx(0.5, abs=0.02)
    assert narrow.flops_per_s == pytest.approx(plain.flops_per_s * QUANTISED_SHARE["fp8"])
    assert weight_bytes(narrow) / weight_bytes(plain) == pytest.approx(0.5, abs=0.02)


def test_few_tokens_read_few_experts_and_many_read_all() -> None:
    moe = shape("Qwen3-30B-A3B")
    asked = replace(engine(), expert_read_share=1.0)
    replica = replica_of(moe, Layout(), links("h200"), asked, "bfloat16")
    head = moe.vocabulary * moe.hidden
    assert read_numbers(replica, 1) == pytest.approx(moe.matmul_parameters + head, rel=1e-3)
    assert read_numbers(replica, 128) == pytest.approx(moe.parameters - head, rel=1e-2)


def read_numbers(replica: ServingReplica, rows: int) -> float:
    """Return the weights that a step of so many rows takes as long as to read, at the rate of dense ones."""
    return (step_seconds(replica, rows, 1).parts["matmul"] or 0) * replica.memory_bytes_per_s / 2


@pytest.mark.parametrize("name", ["sglang", "vllm", "trtllm"])
def test_weights_of_experts_are_read_below_the_rate_of_dense_ones(name: str) -> None:
    moe, dense, asked = shape("Qwen3-30B-A3B"), shape("Qwen3-8B"), engine(name)
    share, even = asked.expert_read_share, replace(asked, expert_read_share=1.0)
    assert share < 1
    told, least = (replica_of(moe, Layout(), links("h200"), each, "bfloat16") for each in (asked, even))
    touched = moe.expert_parameters * moe.experts_per_token / moe.experts
    assert read_numbers(told, 1) - read_numbers(least, 1) == pytest.approx(touched * (1 / share - 1), rel=1e-3)
    plain = (replica_of(dense, Layout(), links("h200"), each, "bfloat16") for each in (asked, even))
    assert len({read_numbers(each, 1) for each in plain}) == 1


@looped("name", ["sglang", "vllm", "trtllm"])
@looped("tensor", [1, 2])
def test_a_training_framework_adds_to_each_step_of_an_engine_more_where_ranks_are_told_of_it(
    name: str, tensor: int
) -> None:
    served, driven = (
        replica_of(shape("Qwen3-8B"), Layout(tensor=tensor), links("h100"), engine(name), "bfloat16", rollout=each)
        for each in (False, True)
    )
    more_s = engine(name).rollout_step_s + (tensor > 1) * engine(name).rollout_joined_s
    assert more_s > 0
    assert driven.overhead_s - served.overhead_s == pytest.approx(more_s)


def test_responses_are_drawn_by_an_engine_that_is_driven_unless_it_serves_clients() -> None:
    drawn, served = batch_seconds(Layout()), batch_seconds(Layout(), rollout=False)
    assert (drawn.parts["overhead"] or 0) > (served.parts["overhead"] or 0)
    assert {**drawn.parts, "overhead": 0, "tail": 0} == {**served.parts, "overhead": 0, "tail": 0}


def test_experts_over_data_ranks_hold_one_copy_of_them_and_read_each_others_tokens() -> None:
    moe = shape("Qwen3-235B-A22B")
    alone, joined = (
        replica_of(moe, layout, links("h200"), engine(), "fp8")
        for layout in (Layout(tensor=8), Layout(data=8, expert=8))
    )
    experts = moe.expert_parameters / 8
    assert weight_bytes(joined) - experts == pytest.approx(8 * (weight_bytes(alone) - experts), rel=1e-6)
    assert cache_bytes(joined, 1000) == 4 * cache_bytes(alone, 1000)  # 4 heads of keys: half of the ranks hold a copy


@pytest.mark.parametrize(("model", "cuts"), [("Qwen3-8B", 8), ("Qwen3-30B-A3B", 4), ("DeepSeek-V3", 1)])
def test_a_cache_is_cut_by_heads_of_keys_and_latents_not_at_all(model: str, cuts: int) -> None:
    whole, cut = (
        cache_bytes(replica_of(shape(model), Layout(tensor=each), links("h200"), engine(), "bfloat16"), 4096)
        for each in (1, 8)
    )
    assert whole / cut == pytest.approx(cuts)
    assert whole == pytest.approx(2 * shape(model).cache_numbers(4096))


def test_a_cache_holds_what_weights_and_the_engine_leave_of_the_memory() -> None:
    kind, model, asked = profile("h100"), shape("Qwen3-8B"), engine("vllm")
    found = cache_tokens(model, kind, 1, 0.9, asked)
    taken = found * 2 * model.cache_numbers(1) + 2 * model.parameters + reserved_bytes(1, asked)
    assert taken == pytest.approx(0.9 * kind.memory_bytes, rel=1e-3)
    assert cache_tokens(shape("Llama-3.1-70B"), kind, 1, 0.9, asked) == 0
    assert cache_tokens(model, kind, 1, 0.9, engine("sglang")) > found  # SGLang keeps its buffers beside its share


def test_what_has_no_place_in_the_cache_waits_for_it_before_the_first_token() -> None:
    def asked(tokens: float | None) -> tuple[float, float]:
        found = request_seconds(
            shape("Qwen3-8B"), 1000, 2000, 64, Layout(), links("h100"), engine(), cache_tokens=tokens
        )
        assert found is not None
        return found

    assert asked(None) == asked(64 * 2000)
    free, short = asked(None), asked(32 * 2000)
    assert short[0] > 20 * free[0]
    assert short[1] < free[1]


def test_samples_of_one_prompt_read_it_once_and_prefill_is_small_beside_drawing() -> None:
    alone, shared = batch_seconds(Layout(data=4)), batch_seconds(Layout(data=4), shared_prompts=8)
    assert shared.parts["prefill"] == pytest.approx((alone.parts["prefill"] or 0) / 8)
    assert total_s(shared) < total_s(alone)


def test_a_prompt_twice_as_long_takes_more_than_twice_the_seconds() -> None:
    replica = replica_of(shape("Qwen3-8B"), Layout(), links("h100"), engine(), "bfloat16")
    read = [prefill_seconds(replica, tokens, tokens**2) for tokens in (2048, 4096, 8192, 32768)]
    assert all(2 * short < long for short, long in pairwise(read))


@looped("name, version", [("sglang", "0.5.6"), ("sglang", ""), ("vllm", "0.2"), ("vllm", ""), ("trtllm", "")])
def test_every_constant_lies_within_its_bounds_and_has_a_source(name: str, version: str) -> None:
    found = bounds(name, version)
    assert {each.name for each in fields(ServingConstants)} <= set(found)
    assert all(each.low <= each.value <= each.high and each.source for each in found.values())
