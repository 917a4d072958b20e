"""Seconds of passes and updates: what must hold of any, and what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.cluster.plan import Layout
from flowgraph.models.sizes import ModelShape, shape_of
from flowgraph.models.table import listed
from placements.hardware.device_profiles import PoolLinks, profile
from placements.hardware.engine_constants import TrainingConstants, bounds, constant_names, constants, engines
from placements.time.kernels import matmul_seconds
from placements.time.seconds import Seconds
from placements.time.training import forward_pass, forward_seconds, layer_passes, update_seconds
from placements.time.training_layers import (
    MicroBatch,
    activation_bytes,
    blocks,
    every,
    expert_seconds,
    merges,
    tensor_seconds,
)
from placements.workload.node_workload import PassTokens
from tests.looped import looped

H100, A100 = profile("h100-sxm-80g"), profile("a100-sxm-80g")
FSDP, MEGATRON = constants(TrainingConstants, "fsdp"), constants(TrainingConstants, "megatron")
EAGER = constants(TrainingConstants, "megatron", "2022")


def listed_shape(name: str, rank: int = 0) -> ModelShape:
    entry = listed(name)
    assert entry is not None
    return shape_of(entry.config, entry.name, rank=rank)


def gpt(hidden: int, layers: int, heads: int) -> ModelShape:
    sizes = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": 2048, "vocab_size": 51_200}
    return shape_of({"model_type": "gpt2", **sizes}, "gpt")


def rows(count: float, length: float) -> PassTokens:
    return PassTokens(count * length, count * length * length / 2, count * length, count)


def on(devices: int, kind=H100) -> PoolLinks:
    return PoolLinks(kind, 8, min(8, devices), kind.network_bytes_per_s or 0.0)


def total(found: Seconds) -> float:
    assert found.total_s is not None
    return found.total_s


QWEN, LLAMA = listed_shape("Qwen/Qwen3-8B"), listed_shape("meta-llama/Llama-3.1-70B")
MOE, HYBRID = listed_shape("Qwen/Qwen3-30B-A3B"), listed_shape("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")


@looped("shape", [QWEN, LLAMA, MOE, HYBRID, gpt(2048, 24, 16)])
def test_the_blocks_of_a_layer_have_all_weights_that_a_token_passes(shape: ModelShape):
    found = sum(each.width * (each.into + each.out) * each.copies * each.share for each in blocks(shape))
    assert found * shape.layers == pytest.approx(shape.matmul_parameters, rel=1e-3)


def test_gpt_holds_34_bytes_of_each_hidden_number_and_shares_24_of_them():
    """Source: Korthikanti et al. 2022, arXiv 2205.05198, equations 1 and 2, without attention scores."""
    shape = gpt(6144, 48, 64)
    assert activation_bytes(shape, Layout(), 1, replicated=1.0) == pytest.approx(34 * 6144, rel=1e-3)
    assert activation_bytes(shape, Layout(tensor=8), 1, replicated=1.0) == pytest.approx(13 * 6144, rel=1e-3)
    assert activation_bytes(shape, Layout(tensor=8), 1, replicated=0.0) == pytest.approx(34 / 8 * 6144, rel=1e-3)


def test_a_layer_that_is_mamba_or_attention_or_experts_has_one_residual():
    assert (merges(QWEN), merges(MOE), merges(HYBRID)) == (2, 2, 1)


def test_products_of_a_pass_are_those_of_the_kernels_at_the_share_that_is_attained():
    tokens = 4096.0
    shape, one = QWEN, layer_passes(QWEN, Layout(), on(1), FSDP, "bfloat16")
    sizes = ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288))
    bare_s = sum(matmul_seconds(tokens, n, k, H100) for n, k in sizes)
    found = forward_pass(one, MicroBatch(tokens, 0.0, 0.0))
    assert shape.hidden == 4096
    assert found["matmul"] * FSDP.matmul_share == pytest.approx(bare_s, rel=1e-3)


def test_a_forward_pass_of_a_long_batch_takes_two_flops_a_weight_and_token():
    found = forward_seconds(QWEN, rows(64, 4096), Layout(), on(1), MEGATRON, micro_batch_tokens=16_384)
    flops = 2 * (QWEN.matmul_parameters + QWEN.vocabulary * QWEN.hidden) * 64 * 4096
    share = flops / (found.parts["matmul"] or 0.0) / H100.peak_flops["bfloat16"]
    assert 0.7 < share < 0.8  # products of this size alone attain 742 of 989 TFLOP/s: aiconfigurator-core 0.12.0


def test_computing_layers_again_costs_one_forward_pass_of_them():
    layout, read = Layout(data=8, sharding="full"), rows(64, 4096)
    found = {
        kind: update_seconds(QWEN, read, layout, on(8), FSDP, micro_batch_tokens=8192, checkpointing=kind).parts
        for kind in ("none", "selective", "full")
    }
    forward = forward_seconds(QWEN, replace(read, read_out=0.0), layout, on(8), FSDP, micro_batch_tokens=8192).parts
    for part in ("matmul", "attention", "memory"):
        extra = (found["full"][part] or 0.0) - (found["none"][part] or 0.0)
        assert extra == pytest.approx(forward[part] or 0.0)
    assert found["selective"]["attention"] == pytest.approx(found["full"]["attention"])
    assert found["selective"]["matmul"] == found["none"]["matmul"]


def test_tensor_parallelism_reduces_twice_a_pass_and_layer():
    read, layout = rows(8, 2048), Layout(tensor=4)
    once = tensor_seconds(QWEN, layout, 2048.0, on(4))
    found = update_seconds(QWEN, read, layout, on(4), EAGER, micro_batch_tokens=2048)
    assert found.parts["tensor"] == pytest.approx(8 * QWEN.layers * 3 * once)


def test_adapters_need_no_gradient_of_the_weights_that_stay():
    plain = update_seconds(QWEN, rows(8, 8192), Layout(), on(1), FSDP, checkpointing="none").parts
    adapted = listed_shape("Qwen/Qwen3-8B", rank=16)
    found = update_seconds(adapted, rows(8, 8192), Layout(), on(1), FSDP, checkpointing="none").parts
    assert found["matmul"] == pytest.approx(2 / 3 * (plain["matmul"] or 0.0), rel=0.03)
    assert (found["optimizer"] or 0.0) < 0.02 * (plain["optimizer"] or 0.0)


def test_a_pipeline_of_equal_stages_waits_stages_less_one_over_micro_batches():
    """Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1: (p - 1) / m of the ideal time."""
    read = replace(rows(32, 2048), read_out=0.0)
    layout, shape = Layout(pipeline=4), replace(QWEN, layers=36)
    free = replace(on(4), network_bytes_per_s=1e15, device=replace(H100, link_bytes_per_s=1e15))
    found = update_seconds(shape, read, layout, free, MEGATRON.moved({"exposed": 0.0}), micro_batch_tokens=2048)
    work = sum(found.parts[part] or 0.0 for part in ("matmul", "attention", "memory", "launch") if part in found.parts)
    assert found.parts["pipeline"] == pytest.approx(work * 3 / 32, rel=1e-6)
    chunked = MEGATRON.moved({"exposed": 0.0, "chunks": 3.0})
    again = update_seconds(shape, read, layout, free, chunked, micro_batch_tokens=2048)
    assert again.parts["pipeline"] == pytest.approx(work * 1 / 32, rel=1e-6)


def test_sharded_weights_are_gathered_for_every_micro_batch_but_once_in_a_pipeline():
    def data_s(layout: Layout, micro: int) -> float:
        found = update_seconds(LLAMA, rows(256, 2048), layout, on(64), FSDP, micro_batch_tokens=micro)
        return found.parts["data"] or 0.0

    flat, piped = Layout(data=64, sharding="full"), Layout(data=16, pipeline=4, sharding="full")
    assert data_s(flat, 2048) == pytest.approx(4 * data_s(flat, 8192))
    assert data_s(piped, 2048) == pytest.approx(data_s(piped, 8192))


def test_groups_that_cross_machines_side_by_side_share_what_the_machine_has():
    """Of tensor parallelism within a machine, each rank's data group has the adapter of one device."""
    apart = every(on(64), 8)
    assert (apart.domain, apart.node_devices, apart.network_bytes_per_s) == (1, 1, H100.network_bytes_per_s)
    one = update_seconds(LLAMA, rows(64, 2048), Layout(data=8, tensor=8), on(64), EAGER).parts["data"]
    flat = update_seconds(LLAMA, rows(64, 2048), Layout(data=64), on(64), EAGER).parts["data"]
    assert one == pytest.approx(flat, rel=0.35)  # an eighth of the bytes, over an eighth of the adapters


def test_a_token_goes_to_another_machine_once_however_many_of_its_experts_are_there():
    near = expert_seconds(MOE, Layout(data=64, expert=8), 8192.0, on(64))
    far = expert_seconds(MOE, Layout(data=64, expert=64), 8192.0, on(64))
    assert near < far < 8 * 8192 * MOE.layers * MOE.hidden * 2 * 8 / 50e9
    assert expert_seconds(QWEN, Layout(data=8, expert=8), 8192.0, on(8)) == 0.0


def test_many_small_experts_on_a_device_take_longer_than_few():
    def found(expert: int) -> float:
        passes = layer_passes(MOE, Layout(data=64, expert=expert), on(64), MEGATRON, "bfloat16")
        return forward_pass(passes, MicroBatch(4096.0, 4096.0 * 2048, 0.0))["matmul"]

    assert found(64) < found(8) < found(1)


def test_what_lies_in_host_memory_comes_and_goes_over_the_hosts_link():
    layout = Layout(data=8, sharding="full")
    found = update_seconds(QWEN, rows(8, 2048), layout, on(8), FSDP, offload=("parameters", "optimizer"))
    assert found.parts["offload"] == pytest.approx(2 * 12 * QWEN.parameters / 8 / H100.host_bytes_per_s)


def test_optimizer_steps_cut_micro_batches_and_repeat_what_each_step_adds():
    layout = Layout(data=8, sharding="full")
    one = update_seconds(QWEN, rows(64, 2048), layout, on(8), FSDP, micro_batch_tokens=4096).parts
    four = update_seconds(QWEN, rows(64, 2048), layout, on(8), FSDP, micro_batch_tokens=4096, steps=4).parts
    assert four["step"] == pytest.approx(4 * FSDP.step_s)
    assert four["matmul"] == pytest.approx(one["matmul"])
    assert four["optimizer"] == pytest.approx(4 * (one["optimizer"] or 0.0))


def test_a_device_that_does_not_multiply_fp8_widens_it():
    wide = update_seconds(QWEN, rows(8, 2048), Layout(), on(1, A100), FSDP, precision="bfloat16")
    narrow = update_seconds(QWEN, rows(8, 2048), Layout(), on(1, A100), FSDP, precision="fp8")
    assert total(narrow) >= total(wide)


LAYOUTS = st.sampled_from(
    [
        Layout(data=16, sharding="full"),
        Layout(data=16),
        Layout(data=4, tensor=4, sharding="optimizer"),
        Layout(data=2, tensor=4, pipeline=2),
        Layout(data=4, sequence=4, sharding="full"),
        Layout(data=16, expert=8, sharding="full"),
    ]
)
SHAPES = st.sampled_from([QWEN, MOE, HYBRID])
ENGINES = st.sampled_from([FSDP, MEGATRON, EAGER])


@given(SHAPES, LAYOUTS, ENGINES, st.floats(1, 4), st.sampled_from(["link_bytes_per_s", "memory_bytes_per_s"]))
def test_a_faster_link_network_or_memory_never_makes_an_update_slower(
    shape: ModelShape, layout: Layout, engine: TrainingConstants, factor: float, name: str
):
    links, read = on(16), rows(64, 2048)
    faster = replace(
        links,
        device=replace(H100, **{name: factor * getattr(H100, name)}),
        network_bytes_per_s=factor * links.network_bytes_per_s,
    )
    plain = total(update_seconds(shape, read, layout, links, engine, micro_batch_tokens=4096))
    assert total(update_seconds(shape, read, layout, faster, engine, micro_batch_tokens=4096)) <= plain * (1 + 1e-9)


@given(SHAPES, LAYOUTS, ENGINES, st.integers(2, 5))
def test_more_rows_of_the_same_length_take_longer_and_no_more_than_as_many_times(
    shape: ModelShape, layout: Layout, engine: TrainingConstants, times: int
):
    one = total(update_seconds(shape, rows(64, 2048), layout, on(16), engine, micro_batch_tokens=4096))
    more = total(update_seconds(shape, rows(times * 64, 2048), layout, on(16), engine, micro_batch_tokens=4096))
    assert one < more <= times * one * (1 + 1e-9)


@given(SHAPES, LAYOUTS, ENGINES)
def test_an_update_takes_longer_than_a_forward_pass_and_each_part_is_known(
    shape: ModelShape, layout: Layout, engine: TrainingConstants
):
    forward = forward_seconds(shape, rows(64, 2048), layout, on(16), engine, micro_batch_tokens=4096)
    update = update_seconds(shape, rows(64, 2048), layout, on(16), engine, micro_batch_tokens=4096)
    assert 2.5 * total(forward) < total(update)
    assert None not in forward.parts.values()
    assert all(value is not None and value > 0 for value in update.parts.values())


@pytest.mark.parametrize(
    ("billions", "sizes", "layout", "batch", "measured_s"),
    [
        (22, (6144, 48, 64), Layout(tensor=8), 4, 1.42),
        (175, (12288, 96, 96), Layout(tensor=8, pipeline=8), 64, 18.13),
    ],
)
def test_steps_of_megatron_as_published_are_met_within_a_tenth(
    billions: int, sizes: tuple[int, int, int], layout: Layout, batch: int, measured_s: float
):
    """Source: Korthikanti et al. 2022, arXiv 2205.05198, table 5: full recomputation, micro-batches of one row."""
    engine = EAGER.moved({"chunks": 3.0 if layout.pipeline > 1 else 1.0})
    found = update_seconds(gpt(*sizes), rows(batch, 2048), layout, on(64, A100), engine, micro_batch_tokens=2048)
    assert total(found) == pytest.approx(measured_s, rel=0.1), billions


def test_mpt_7b_on_8_h100_is_met_within_a_tenth():
    """Source: mosaicml/llm-foundry, scripts/train/benchmarking: 85,144 tokens a second, micro-batches of 6."""
    shape = gpt(4096, 32, 32)
    engine = constants(TrainingConstants, "fsdp", "1")
    found = update_seconds(
        shape,
        rows(48, 2048),
        Layout(data=8, sharding="full"),
        on(8),
        engine,
        micro_batch_tokens=6 * 2048,
        checkpointing="none",
    )
    assert total(found) == pytest.approx(48 * 2048 / 85_144, rel=0.1)


@pytest.mark.parametrize("engine", ["fsdp", "megatron"])
@pytest.mark.parametrize("release", [0, -1])
def test_every_constant_has_a_source_and_lies_within_its_bounds(engine: str, release: int):
    assert engine in engines()
    version = {"fsdp": ("1", "2"), "megatron": ("2022", "26")}[engine][release]
    found = bounds(engine, version)
    assert set(constant_names(TrainingConstants)) == set(found)
    for name, each in found.items():
        assert each.low <= each.value <= each.high, name
        assert len(each.source) > 10, name


def test_training_with_reinforcement_attains_less_than_pre_training():
    """Source: shares of the peak, 11 to 36% in RL (prime-rl) and 36 to 64% in pre-training (llm-foundry)."""
    assert FSDP.matmul_share < constants(TrainingConstants, "fsdp", "1").matmul_share
