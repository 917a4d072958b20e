"""Every setting and layout of a sharded model against one process: precision, recomputing, offload, copies, state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.parity import settings_ranks
from tests.parity.settings_ranks import COUNT, LAYOUTS, SOME_MOVES
from tests.rank_processes import RankProcesses

pytestmark = [pytest.mark.processes, pytest.mark.slow(group="shards")]

LIMIT, LIMIT_S = 1e-5, 280.0
Told = list[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the ranks write into."""
    return tmp_path_factory.mktemp("settings")


@pytest.fixture(scope="module")
def four(folder: Path) -> Told:
    """Return what each of four ranks told."""
    RankProcesses(str(settings_ranks.__file__), COUNT, folder).wait(LIMIT_S)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(COUNT)]


@pytest.fixture(scope="module")
def two(four: Told) -> Told:
    """Return what the first two ranks told of the model that they hold together."""
    return four[:2]


# ------------------------------------------------------------------------------------------- layouts


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_with_clipping_are_those_of_one_process_in_every_layout(four: Told, layout: str) -> None:
    for rank in four:
        assert rank["layouts"][layout]["steps"] < LIMIT
        assert rank["layouts"][layout]["weights"] < 10 * LIMIT  # AdamW scales small differences up


def test_ranks_that_nodes_see_are_those_with_rows_of_their_own(four: Told) -> None:
    for name, degrees in LAYOUTS.items():
        peers = degrees.get("sequence", 1)
        seen = [rank["layouts"][name]["ranks"] for rank in four]
        assert seen == [[rank // peers, COUNT // peers] for rank in range(COUNT)]
        assert {rank["layouts"][name]["total"][0] for rank in four} == {COUNT / peers}


def test_each_rank_holds_its_share_of_one_copy_and_copies_are_alike_to_the_last_bit(four: Told) -> None:
    for name, degrees in LAYOUTS.items():
        copies = degrees.get("replicas", 1)
        assert [rank["layouts"][name]["share"] for rank in four] == pytest.approx([copies / COUNT] * COUNT, abs=0.02)
        sums, wide = [rank["layouts"][name]["sum"] for rank in four], COUNT // copies
        assert sums == sums[:wide] * copies
        assert len(set(sums)) == wide


# ------------------------------------------------------------------------------------------- settings


def test_recomputing_changes_nothing_but_how_much_is_computed(two: Told) -> None:
    for rank in two:
        told = rank["settings"]
        assert told["selective"]["steps"] == told["full"]["steps"] == told["plain"]["steps"]
        assert told["selective"]["apart"] == told["full"]["apart"] == 0.0
        assert told["plain"]["products"] < told["selective"]["products"] < told["full"]["products"]
        again = told["full"]["products"] - told["plain"]["products"]
        assert told["selective"]["products"] - told["plain"]["products"] == again // 2, "every second product is kept"


def test_what_lies_in_host_memory_is_trained_as_what_does_not(two: Told) -> None:
    for rank in two:
        told = rank["settings"]
        assert told["optimizer"]["apart"] == 0.0
        assert told["optimizer"]["devices"] == told["everything"]["devices"] == ["cpu"]
        assert told["everything"]["apart"] < LIMIT  # its gradients are summed over ranks after each micro-batch


def test_half_precision_computes_in_half_and_keeps_weights_and_optimizer_in_full(two: Told) -> None:
    for rank in two:
        told, plain = rank["settings"]["bfloat16"], rank["settings"]["plain"]
        assert told["types"] == ["torch.float32"]
        for mine, its in zip(told["steps"], plain["steps"], strict=True):
            assert mine == pytest.approx(its, rel=0.03)
            assert mine != its, "nothing is rounded, so nothing is computed in half precision"
        assert rank["settings"]["bfloat16 full"]["steps"] == told["steps"]


def test_ranks_add_up_gradients_once_a_step_or_once_a_micro_batch_with_the_same_sum(two: Told) -> None:
    for rank in two:
        told = rank["sums"]
        assert told["False"] == 3 * told["True"] > 0
        assert told["apart"] < LIMIT
        assert told["chosen"] == [True, False], "where gradients are offloaded, whole ones lie nowhere"


def test_what_cannot_be_run_is_refused(two: Told) -> None:
    assert two[0]["refusals"] == two[1]["refusals"]
    assert two[0]["refusals"] == {
        "fp8": "the engine `fsdp` does not run with precision=fp8\n  hint: it takes float32, bfloat16",
        "cache": (
            "the engine `fsdp` does not run with cache_share=0.5\n"
            "  hint: it supports precision, checkpointing, offload, micro_batch_tokens, logits, sleeps"
        ),
        "gradients": (
            "the engine `fsdp` does not offload gradients alone\n"
            "  hint: offload the optimizer alone, or parameters, gradients and optimizer together"
        ),
        "replicas": "replicas=3 does not divide 2 ranks",
        "sequence": "sequence=0 does not divide 2 ranks",
        "local": "the engine `local` does not run with precision=bfloat16\n  hint: it supports sleeps, contract, hold",
    }


# ------------------------------------------------------------------------------------------- faults, weights, sleep


def test_a_step_that_is_refused_names_the_rows_at_fault_on_every_rank(two: Told) -> None:
    for rank in two:
        told = rank["fault"]
        assert told["advantage"] == [[1, 1, 1]], "row 1 of micro-batch 1 on rank 1 has an advantage that is NaN"
        assert told["loss"] == [[1, 1, -1]], "nothing that is read of its rows is infinite"
        assert told["loss text"].splitlines()[0].startswith("the loss is not finite (norm ")
        assert told["loss text"].splitlines()[1] == "    by micro-batch 1 on rank 1"
        assert told["moved"] == 0.0
        assert told["of the user"] == "ZeroDivisionError", "an error before a model's first pass arrives as itself"
        assert told["after"] < LIMIT, "what the optimizer keeps has changed"


def test_weights_leave_one_after_another_as_they_are(two: Told) -> None:
    for rank in two:
        told = rank["stream"]
        assert [told[kind] for kind in ("tiny", "gpt2", "lora")] == [[0.0, True]] * 3
        assert [told[f"{kind} whole"] for kind in ("tiny", "gpt2", "lora")] == [0.0] * 3


def test_a_model_that_sleeps_refuses_everything_and_trains_on_when_it_wakes(two: Told) -> None:
    for rank in two:
        told = rank["sleep"]
        assert told["refused"] == ["this model is asleep: its weights have left the device\n  hint: wake it first"]
        assert told["asleep"] == [True, True, False], "adapters off and on are one memory"
        assert told["awake"] == [False, False]
        assert told["apart"] == told["weights"] == 0.0


# ------------------------------------------------------------------------------------------- state


def test_what_any_layout_saved_any_other_trains_on(four: Told) -> None:
    every = {f"tiny: {one} to {other}" for one in ("one", "two", "four") for other in ("one", "two", "four")}
    some = {f"{kind}: {one} to {other}" for kind in ("gpt2", "lora") for one, other in SOME_MOVES}
    assert four[0]["states"].keys() == every | some
    for rank in four:
        for version, apart in rank["states"].values():
            assert version == 2
            assert apart < LIMIT


def test_in_the_same_layout_weights_optimizer_and_the_next_step_are_the_same_to_the_last_bit(four: Told) -> None:
    assert [len(rank["bits"]) for rank in four] == [3, 2, 1, 1]
    for rank in four:
        for compared, same in rank["bits"].values():
            assert compared > 10
            assert same


def test_each_rank_of_one_copy_writes_its_rows_and_no_rank_of_another(four: Told, folder: Path) -> None:
    assert four
    for layout, ranks in (("one", 1), ("two", 2), ("four", 2)):
        files = sorted(path.name for path in (folder / "tiny" / layout).iterdir())
        assert files == [f"{rank:05d}.{kind}" for rank in range(ranks) for kind in ("json", "safetensors")]
    sizes = [path.stat().st_size for path in sorted((folder / "tiny" / "two").glob("*.safetensors"))]
    assert max(sizes) < 0.6 * sum(sizes)
