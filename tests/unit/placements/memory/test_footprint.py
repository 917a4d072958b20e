"""What roles hold on devices of production: the formulas against published figures, and laws that any layout keeps."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.cluster.plan import Checkpointing, Layout, Offloaded, Sharding
from flowgraph.models.sizes import ModelShape, shape_of
from flowgraph.models.table import listed
from placements.memory.activations import EAGER, PLAIN, kept_numbers
from placements.memory.footprint import (
    BOUNDS,
    FITS_SHARE,
    PARTS,
    Footprint,
    MemoryConstants,
    fits,
    room_bytes,
    total_bytes,
)
from placements.memory.model_shards import model_numbers, stages
from placements.memory.pool_peaks import PhaseTurn, PoolResident, pool_peaks, worst
from placements.memory.serving import (
    awake_bytes,
    cache_bytes,
    generation_bytes,
    inference_bytes,
)
from placements.memory.training import TrainingFootprint, TrainingSettings, training_bytes, waiting_bytes
from tests.looped import looped

GIB = 2**30
H100 = 85_469_849_190
NOTHING_ELSE = MemoryConstants(context_bytes=0, communicator_bytes=0, unused_share=0)
MODES: tuple[Checkpointing, ...] = ("none", "selective", "full")


def model(name: str, rank: int = 0) -> ModelShape:
    entry = listed(name)
    assert entry is not None
    return shape_of(entry.config, name, rank=rank)


def gpt(hidden: int, layers: int, heads: int) -> ModelShape:
    sizes = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": 2048, "vocab_size": 51_200}
    return shape_of({"model_type": "gpt2", **sizes}, "gpt")


SMALL, LARGE = model("Qwen/Qwen3-0.6B"), model("Qwen/Qwen3-8B")
SPARSE = model("Qwen/Qwen3-30B-A3B")
SHAPES = st.sampled_from((SMALL, LARGE, SPARSE))


# ------------------------------------------------------------------------------------------------------ activations


def test_a_gpt_layer_keeps_34_bytes_of_each_hidden_width() -> None:
    """Korthikanti et al. 2022, arXiv 2205.05198, equation 1, without scores, which flash attention does not keep."""
    assert 2 * kept_numbers(gpt(6144, 48, 64), Layout(), PLAIN) == 34 * 6144


@pytest.mark.parametrize(
    ("shape", "layout", "pieces", "rows", "measured"),
    [
        (gpt(6144, 48, 64), Layout(tensor=8), 1, 4, 9.5625),
        (gpt(12288, 96, 96), Layout(tensor=8, pipeline=8), 3, 1, 12.3515625),
    ],
)
def test_activations_of_megatron_are_as_published(
    shape: ModelShape, layout: Layout, pieces: int, rows: int, measured: float
) -> None:
    """The same, of 22 and 175 billion parameters with sequence parallelism and selective recomputation."""
    training = TrainingSettings(
        layout=layout, checkpointing="none", micro_batch_tokens=rows * 2048, widths=PLAIN, interleaved=pieces
    )
    assert waiting_bytes(shape, training) / GIB == pytest.approx(measured, rel=1e-6)


def test_what_a_layer_of_qwen3_keeps_is_counted_from_its_graph() -> None:
    hidden, queries, keys, inner = 1024, 16 * 128, 8 * 128, 3072
    assert kept_numbers(SMALL, Layout(), EAGER) == 8 * hidden + 5 * (queries + keys) + 4 * inner


def test_experts_keep_copies_of_what_they_are_sent() -> None:
    routed = 8 * (2 * 2048 + 4 * 768) + 2 * 128
    assert kept_numbers(SPARSE, Layout(), EAGER) == 8 * 2048 + 5 * (32 + 4) * 128 + routed


@pytest.mark.parametrize("shape", [SMALL, LARGE, SPARSE])
def test_the_more_is_computed_again_the_less_is_held(shape: ModelShape) -> None:
    held = [
        training_bytes(
            shape, TrainingSettings(Layout(data=8, sharding="full"), checkpointing=mode, micro_batch_tokens=65_536)
        ).working["activations"]
        for mode in MODES
    ]
    assert held == sorted(held, reverse=True)
    assert len(set(held)) == len(held)


# ----------------------------------------------------------------------------------------------------------- states


@looped(
    "sharding, ranks, each",
    [("none", 8, 18), ("optimizer", 8, 6 + 12 / 8), ("gradients", 8, 2 + 16 / 8), ("full", 8, 16 / 8), ("none", 1, 16)],
)
def test_states_take_the_bytes_of_each_parameter_that_zero_says(sharding: str, ranks: int, each: float) -> None:
    """Rajbhandari et al. 2020, arXiv 1910.02054, figure 1, with gradients in float32."""
    layout = Layout.model_validate({"data": ranks, "sharding": sharding})
    found = training_bytes(LARGE, TrainingSettings(layout=layout))
    states = found.resident["weights"] + found.resident["optimizer"] + found.at_work["gradients"]
    assert states == pytest.approx(each * LARGE.parameters, rel=1e-3)


def test_a_step_makes_temporary_numbers_where_weights_are_cut_with_their_states() -> None:
    few = TrainingSettings(layout=Layout(data=8, sharding="full"), micro_batch_tokens=1)
    found = training_bytes(gpt(12288, 96, 96), few)
    assert found.working["optimizer"] == pytest.approx(found.resident["optimizer"] / 2, rel=1e-6)


def test_adapters_alone_have_gradients_and_moments() -> None:
    shape = model("Qwen/Qwen3-8B", rank=16)
    found = training_bytes(shape, TrainingSettings(layout=Layout(data=4, sharding="full")))
    assert found.resident["weights"] == pytest.approx(4 * (shape.parameters - shape.adapters) / 4, rel=1e-3)
    assert found.resident["adapters"] == pytest.approx(4 * shape.adapters / 4, rel=1e-3)
    assert found.resident["optimizer"] == pytest.approx(8 * shape.adapters / 4, rel=1e-3)
    assert found.working["gradients"] == pytest.approx(4 * shape.adapters / 4, rel=1e-3)


def test_a_frozen_base_may_lie_in_four_bits_but_its_tables_do_not() -> None:
    """Dettmers et al. 2023, arXiv 2305.14314: half a byte, and a float32 scale for each 64."""
    shape = model("Qwen/Qwen3-8B", rank=16)
    tables = 2 * shape.vocabulary * shape.hidden
    found = training_bytes(shape, TrainingSettings(frozen="fp4", master="bfloat16")).resident["weights"]
    expected = 0.5625 * (shape.parameters - shape.adapters - tables) + 2 * tables
    assert found == pytest.approx(expected, rel=1e-3)


def test_experts_are_cut_over_their_ranks_and_the_rest_is_not() -> None:
    (stage,) = stages(SPARSE, Layout(data=8))
    whole, spread = (model_numbers(SPARSE, Layout(data=8, expert=degree), stage) for degree in (1, 8))
    assert whole.rest == spread.rest
    assert whole.experts == 8 * spread.experts == SPARSE.expert_parameters
    assert whole.count == pytest.approx(SPARSE.parameters, rel=1e-9)
    assert whole.held(cut=True) == pytest.approx(spread.held(cut=True), rel=1e-9)


def test_stages_of_a_pipeline_add_up_to_the_model() -> None:
    layout = Layout(pipeline=2)
    first, last = stages(LARGE, layout)
    assert (first.in_flight, last.in_flight) == (2, 1)
    both = model_numbers(LARGE, layout, first).count + model_numbers(LARGE, layout, last).count
    assert both == pytest.approx(LARGE.parameters, rel=1e-6)


def test_what_is_offloaded_lies_on_the_host_byte_for_byte() -> None:
    layout = Layout(data=4, sharding="full")
    there = training_bytes(LARGE, TrainingSettings(layout=layout))
    away = training_bytes(
        LARGE, TrainingSettings(layout=layout, offload=frozenset({"parameters", "gradients", "optimizer"}))
    )
    assert set(away.host) == {"weights", "gradients", "optimizer"}
    assert not set(away.at_work) & set(away.host)
    assert away.host["weights"] == there.resident["weights"]
    assert away.host["optimizer"] == there.resident["optimizer"]
    assert away.peak_bytes < there.peak_bytes


def test_activations_on_the_host_leave_only_the_layer_in_progress() -> None:
    """prime-rl measured 3.5 GiB less for Qwen3-0.6B at 65,536 tokens: 28 layers' inputs."""
    plain = TrainingSettings(micro_batch_tokens=65_536)
    there, away = (training_bytes(SMALL, replace(plain, offload_activations=way)) for way in (False, True))
    assert there.working["activations"] - away.working["activations"] == 28 * 65_536 * 1024 * 2
    assert away.host["activations"] == 3.5 * GIB


# ------------------------------------------------------------------------------------------------------------ peaks


@pytest.mark.parametrize(
    ("rank", "tokens", "logits", "measured_gib"),
    [
        (0, 16_384, "chunked", 12.5),
        (0, 65_536, "chunked", 19.6),
        (16, 65_536, "chunked", 11.5),
        (0, 8192, "naive", 31.7),
    ],
)
def test_peaks_of_fsdp2_are_within_a_tenth_of_those_measured(
    rank: int, tokens: int, logits: str, measured_gib: float
) -> None:
    """prime-rl, 2026-02-01: Qwen3-0.6B on one H100, as PyTorch reserves them; of four adapters one is trained."""
    constants = MemoryConstants(context_bytes=0, communicator_bytes=0)
    training = TrainingSettings(
        layout=Layout(sharding="full"),
        micro_batch_tokens=tokens,
        logits="naive" if logits == "naive" else "chunked",
        spare_adapters=3 if rank else 0,
    )
    found = training_bytes(model("Qwen/Qwen3-0.6B", rank=rank), training, constants=constants)
    assert found.peak_bytes / GIB == pytest.approx(measured_gib, rel=0.1)


def test_logits_that_are_all_there_at_once_take_16_bytes_each() -> None:
    found = training_bytes(SMALL, TrainingSettings(micro_batch_tokens=16_384, logits="naive"))
    assert found.working["logits"] == 16 * 16_384 * 151_936


def test_entropy_takes_two_more_numbers_of_each_logit_in_training_and_one_in_reading() -> None:
    plain = TrainingSettings(micro_batch_tokens=16_384, logits="naive")
    entries = 16_384 * 151_936
    more, less = (training_bytes(SMALL, each) for each in (replace(plain, stats=frozenset({"entropy"})), plain))
    assert more.working["logits"] - less.working["logits"] == 8 * entries
    read = inference_bytes(SMALL, Layout(), 16_384, stats=("entropy",))
    assert read.working["logits"] == (6 + 4) * entries


def test_a_model_of_values_has_no_logits() -> None:
    critic = replace(SMALL, head="values")
    assert "logits" not in training_bytes(critic, TrainingSettings(micro_batch_tokens=65_536, logits="naive")).working
    assert "logits" not in inference_bytes(critic, Layout(), 65_536).working


def test_a_micro_batch_has_at_least_a_row() -> None:
    short, long = (
        training_bytes(SMALL, TrainingSettings(micro_batch_tokens=size), sequence_tokens=8192) for size in (512, 8192)
    )
    assert short == long


@given(SHAPES, st.sampled_from((1, 2, 4, 8, 16)), st.integers(1, 2**17), st.sampled_from(MODES))
def test_more_ranks_never_hold_more_and_more_tokens_never_less(
    shape: ModelShape, ranks: int, tokens: int, mode: Checkpointing
) -> None:
    def peak(data: int, size: int) -> int:
        training = TrainingSettings(
            layout=Layout(data=data, sharding="full"), checkpointing=mode, micro_batch_tokens=size, logits="naive"
        )
        return training_bytes(shape, training, constants=NOTHING_ELSE).peak_bytes

    assert peak(ranks, 2 * tokens) >= peak(ranks, tokens)
    if ranks > 1:  # a single device gathers nothing ahead
        assert peak(2 * ranks, tokens) <= peak(ranks, tokens)


@given(SHAPES, st.sampled_from((2, 4, 8)), st.integers(1, 2**17), st.sampled_from(MODES))
def test_parts_are_counted_once_and_named(shape: ModelShape, ranks: int, tokens: int, mode: Checkpointing) -> None:
    training = TrainingSettings(layout=Layout(data=ranks, tensor=2), checkpointing=mode, micro_batch_tokens=tokens)
    found = training_bytes(shape, training)
    for parts in (found.resident, found.working, found.host, found.asleep):
        assert set(parts) <= set(PARTS)
        assert all(count > 0 for count in parts.values())
    assert found.peak_bytes == total_bytes(found.resident) + total_bytes(found.working)
    assert total_bytes(found.asleep) <= total_bytes(found.resident)


def test_constants_lie_within_their_bounds_and_each_has_a_source() -> None:
    constants = MemoryConstants()
    for each in fields(MemoryConstants):
        bounds = BOUNDS[each.name]
        assert bounds.low <= getattr(constants, each.name) <= bounds.high
        assert bounds.source


# ---------------------------------------------------------------------------------------------------------- serving


def test_a_share_of_the_device_is_weights_and_cache_in_sglang_and_all_in_vllm() -> None:
    sglang, vllm = (
        generation_bytes(LARGE, Layout(), engine=engine, device_bytes=H100, cache_share=0.6)
        for engine in ("sglang", "vllm")
    )
    assert sglang.resident["weights"] + sglang.resident["kv_cache"] == pytest.approx(0.6 * H100, abs=4)
    assert vllm.peak_bytes == pytest.approx(0.6 * H100, abs=16)


def test_a_cache_has_room_for_as_many_tokens_as_it_was_asked_to() -> None:
    layout = Layout(data=4, tensor=2)
    found = generation_bytes(LARGE, layout, device_bytes=H100, cache_tokens=100_000)
    assert found.resident["kv_cache"] // cache_bytes(LARGE, layout, 1) == 100_000
    assert cache_bytes(LARGE, Layout(), 1) == 147_456  # 2 · 2 bytes · 36 layers · 8 heads · 128


def test_more_ranks_than_kv_heads_cut_a_cache_no_further() -> None:
    four, eight = (cache_bytes(SPARSE, Layout(tensor=degree), 1000) for degree in (4, 8))
    assert four == eight == cache_bytes(SPARSE, Layout(), 1000) / 4


def test_every_rank_keeps_all_latents() -> None:
    """DeepSeek-AI 2024, arXiv 2405.04434, section 2.1: 512 + 64 numbers of a token in each of 61 layers."""
    shape = model("deepseek-ai/DeepSeek-V3")
    assert cache_bytes(shape, Layout(tensor=8), 1) == cache_bytes(shape, Layout(), 1) == 2 * 61 * 576


def test_eight_bits_halve_the_layers_of_a_sampler_and_leave_its_tables() -> None:
    wide, narrow = (
        generation_bytes(LARGE, Layout(), precision=precision, device_bytes=H100, cache_tokens=1).resident["weights"]
        for precision in ("bfloat16", "fp8")
    )
    tables = (2 * LARGE.vocabulary + 1) * LARGE.hidden
    assert wide == 2 * LARGE.parameters
    assert narrow == LARGE.parameters + tables


def test_a_cache_needs_a_share_or_a_number_of_tokens() -> None:
    with pytest.raises(ValueError):
        generation_bytes(LARGE, Layout(), device_bytes=H100)
    with pytest.raises(ValueError):
        generation_bytes(LARGE, Layout(), device_bytes=H100, cache_share=0.5, cache_tokens=1)


def test_a_sampler_that_sleeps_keeps_its_graphs_and_its_context() -> None:
    found = generation_bytes(LARGE, Layout(), device_bytes=H100, cache_share=0.8)
    assert set(found.asleep) == {"reserved", "context"}
    assert awake_bytes(found) == found.resident["weights"] + found.resident["kv_cache"]


def test_a_reference_on_the_host_is_gathered_by_the_layer() -> None:
    found = inference_bytes(LARGE, Layout(), 8192, offload=("parameters",))
    assert found.host["weights"] == 2 * LARGE.parameters
    assert "weights" not in found.at_work
    assert 0 < found.working["gathered"] < found.host["weights"] / 3


# ------------------------------------------------------------------------------------------------------------- pools

TRAINER = Footprint(
    resident={"weights": 10, "optimizer": 20, "context": 1},
    working={"gradients": 10, "activations": 30},
    asleep={"context": 1},
    asleep_host={"weights": 10, "optimizer": 20},
)
SAMPLER = Footprint(
    resident={"weights": 5, "kv_cache": 40, "reserved": 2, "context": 1},
    working={"activations": 3},
    asleep={"reserved": 2, "context": 1},
)
READER = Footprint(
    resident={"weights": 5, "context": 1}, working={"activations": 4}, asleep={"context": 1}, asleep_host={"weights": 5}
)
TURNS = (
    PhaseTurn("generate", "policy.sample", synced_from="policy.train"),
    PhaseTurn("logprob", "ref.infer"),
    PhaseTurn("update", "policy.train"),
)


def pool(*, sleeps: bool) -> list[PoolResident]:
    return [
        PoolResident("policy.train", TRAINER, sleeps, "worker"),
        PoolResident("policy.sample", SAMPLER, sleeps, "server"),
        PoolResident("ref.infer", READER, sleeps, "worker"),
    ]


def test_roles_that_sleep_leave_the_device_to_the_one_that_works() -> None:
    peaks = {(each.phase, each.entering): each for each in pool_peaks(pool(sleeps=True), TURNS, bucket_bytes=2)}
    assert peaks["generate", False].peak_bytes == 51 + 1  # the reader's context is the trainer's
    assert peaks["update", False].peak_bytes == 71 + 3
    assert peaks["update", False].roles["policy.sample"] == {"reserved": 2, "context": 1}


def test_while_weights_are_synced_trainer_and_sampler_are_both_there_without_a_cache() -> None:
    found = next(each for each in pool_peaks(pool(sleeps=True), TURNS, bucket_bytes=2) if each.entering)
    assert (found.phase, found.role) == ("generate", "policy.sample")
    assert found.roles["policy.train"] == {"weights": 10, "context": 1}  # its optimizer is put away
    assert found.roles["policy.sample"] == {"weights": 5, "sync": 4, "reserved": 2, "context": 1}
    assert found.peak_bytes == 11 + 12


def test_weights_of_a_third_role_take_the_place_of_the_one_that_leaves_before_the_one_that_draws_wakes() -> None:
    """A critic is updated last: the policy's weights meet it first, and what draws when it is gone."""
    critic = PoolResident("critic.train", TRAINER, True, "worker")
    turns = (*TURNS, PhaseTurn("update", "critic.train"))
    found = next(each for each in pool_peaks([*pool(sleeps=True), critic], turns, bucket_bytes=2) if each.entering)
    assert found.roles["critic.train"] == {"weights": 10, "optimizer": 20}  # the context is the policy's process's
    assert found.roles["policy.sample"] == SAMPLER.asleep
    assert found.peak_bytes == 11 + 30 + 3


def test_a_role_that_wakes_meets_the_one_before_it() -> None:
    found = next(each for each in pool_peaks(pool(sleeps=True), TURNS) if each.entering and each.phase == "update")
    assert found.roles["policy.train"] == TRAINER.resident
    assert found.roles["ref.infer"] == {"weights": 5}


def test_roles_that_stay_awake_are_all_there_in_every_phase() -> None:
    peaks = [each for each in pool_peaks(pool(sleeps=False), TURNS) if not each.entering]
    idle = 31 + 48 + 5
    assert [each.peak_bytes for each in peaks] == [idle + 3, idle + 4, idle + 40]


def test_a_role_that_never_sleeps_has_no_transition() -> None:
    peaks = pool_peaks(pool(sleeps=False), (PhaseTurn("logprob", "ref.infer"), PhaseTurn("update", "policy.train")))
    assert not any(each.entering for each in peaks)


def test_a_role_that_trains_and_reads_has_a_peak_of_its_own_in_each_phase() -> None:
    """A critic: values first, then its update."""
    critic = TrainingFootprint(
        resident={"weights": 10, "optimizer": 20},
        working={"gradients": 10, "activations": 30},
        reading={"weights": 10, "optimizer": 20, "activations": 4},
    )
    turns = PhaseTurn("logprob", "critic.train"), PhaseTurn("update", "critic.train")
    peaks = pool_peaks([PoolResident("critic.train", critic)], turns)
    assert [(each.phase, each.peak_bytes) for each in peaks] == [("logprob", 34), ("update", 70)]
    assert worst(peaks) == peaks[1]


WORKED = ("activations", "logits", "gathered", "reserved")


@pytest.mark.parametrize("sharding", ["none", "full"])
def test_a_role_that_trains_reads_with_what_a_role_that_only_reads_works_with(sharding: Sharding) -> None:
    """Both in bfloat16: the optimizer's states wait beside it, no gradient comes, and nothing is kept for one."""
    layout = Layout(data=8, sharding=sharding)
    for shape in (SMALL, LARGE, SPARSE):
        trained = training_bytes(shape, TrainingSettings(layout=layout, micro_batch_tokens=8192)).reading
        alone = inference_bytes(shape, layout, 8192, logits="chunked")
        assert {part: count for part, count in trained.items() if part in WORKED} == alone.working
        assert "gradients" not in trained
        assert trained["optimizer"] > trained["weights"]


@given(
    SHAPES,
    st.sampled_from(
        [
            Layout(),
            Layout(data=4),
            Layout(data=4, sharding="full"),
            Layout(data=2, tensor=2),
            Layout(data=2, pipeline=2),
            Layout(data=4, sharding="gradients"),
        ]
    ),
    st.sampled_from(MODES),
    st.integers(1, 2**17),
    st.booleans(),
)
def test_reading_rows_never_takes_more_than_training_on_them(
    shape: ModelShape, layout: Layout, mode: Checkpointing, tokens: int, entropy: bool
) -> None:
    stats = frozenset({"entropy"}) if entropy else frozenset[str]()
    found = training_bytes(
        shape, TrainingSettings(layout=layout, checkpointing=mode, micro_batch_tokens=tokens, stats=stats)
    )
    assert total_bytes(found.resident) < total_bytes(found.reading) <= found.peak_bytes


def test_the_worst_peak_has_its_phase_its_role_and_its_parts() -> None:
    peaks = pool_peaks(pool(sleeps=True), TURNS)
    assert worst(peaks) == peaks[-1]
    assert room_bytes(83) == 74 and room_bytes(80) == 72
    assert [each.phase for each in peaks if each.peak_bytes > room_bytes(83)] == []
    (over,) = (each for each in peaks if each.peak_bytes > room_bytes(80))
    assert (over.phase, over.role, over.peak_bytes) == ("update", "policy.train", 74)
    assert over.parts["optimizer"] == 20


@given(st.integers(0, 2**40), st.integers(1, 2**40))
def test_a_forecast_fits_if_it_leaves_a_tenth(needed: int, usable: int) -> None:
    assert fits(needed, usable) == (needed <= FITS_SHARE * usable)


@given(SHAPES, st.integers(1, 2**16), st.booleans())
def test_another_role_never_makes_a_pool_hold_less(shape: ModelShape, tokens: int, sleeps: bool) -> None:
    layout = Layout(data=8, sharding="full")
    trainer = PoolResident(
        "a.train", training_bytes(shape, TrainingSettings(layout=layout, micro_batch_tokens=tokens)), sleeps
    )
    reader = PoolResident("b.infer", inference_bytes(shape, layout, tokens), sleeps)
    turns = [PhaseTurn("update", "a.train")]
    alone, both = (worst(pool_peaks(held, turns)) for held in ([trainer], [trainer, reader]))
    assert alone is not None
    assert both is not None
    assert both.peak_bytes > alone.peak_bytes


def test_an_offloaded_optimizer_steps_on_the_host_or_comes_to_its_device_for_that() -> None:
    """On the host a step takes no more of the device; else all its states are there, with weights and gradients."""
    layout, away = Layout(data=8, sharding="full"), frozenset[Offloaded]({"optimizer"})
    here = training_bytes(LARGE, TrainingSettings(layout=layout))
    hosted = training_bytes(LARGE, TrainingSettings(layout=layout, offload=away))
    fetched = training_bytes(LARGE, TrainingSettings(layout=layout, offload=away, steps_on_host=False))
    states = here.resident["optimizer"]
    assert hosted.host["optimizer"] == fetched.host["optimizer"] == states
    assert hosted.peak_bytes < fetched.peak_bytes <= here.peak_bytes
    assert fetched.at_work["optimizer"] >= states


def test_gradients_that_lie_there_between_updates_are_freed_while_a_role_sleeps_not_copied() -> None:
    found = training_bytes(LARGE, TrainingSettings(layout=Layout(data=2, tensor=4, sharding="optimizer")))
    assert "gradients" in found.resident
    assert set(found.asleep_host) == {"weights", "optimizer"}


def test_the_fullest_stage_has_one_layer_more_where_stages_are_not_even() -> None:
    first, last = stages(replace(LARGE, layers=61), Layout(pipeline=12))
    (whole,) = stages(LARGE, Layout())
    assert (first.layers, last.layers, whole.layers) == (6, 6, LARGE.layers)
