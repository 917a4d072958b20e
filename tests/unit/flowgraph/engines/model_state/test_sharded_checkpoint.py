"""Files of a state: rows that several ranks wrote are read by any number, and what is broken is refused."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flowgraph.engines.local.model import LocalModel
from flowgraph.engines.model_state.sharded_checkpoint import TensorPiece, all_or_none, reading_state, write
from flowgraph.errors import DataError, FlowError, LawError
from flowgraph.language.handle import Optimizer, SingleRank
from tests.looped import looped

Tiny = Callable[..., LocalModel]
ROWS = torch.arange(35.0).reshape(7, 5)


def written(folder: Path, *cuts: int) -> Path:
    """Write a matrix of 7 rows as ranks that hold them up to each cut, and a buffer that all hold."""
    for rank, (start, stop) in enumerate(zip((0, *cuts), (*cuts, 7), strict=True)):
        pieces = {
            "weights/a": TensorPiece(ROWS[start:stop], (7, 5), start),
            "weights/b": TensorPiece.whole(torch.tensor(3)),
        }
        write(folder, (rank, len(cuts) + 1), 4, pieces, {"adamw/step/a": 2.0})
    return folder


def stepped(handle: LocalModel, steps: int = 2) -> LocalModel:
    for _ in range(steps):
        handle.step([lambda: sum((p**3).sum() for p in handle.model.parameters())], Optimizer("adamw", 0.01))  # type: ignore[list-item,return-value]
    handle.version += steps
    return handle


def changed(folder: Path, rank: int, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / f"{rank:05d}.json"
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


def error_of(call: Callable[[], object]) -> FlowError:
    with pytest.raises((DataError, LawError)) as caught:
        call()
    return caught.value


def opened(folder: Path) -> None:
    with reading_state(folder):
        pass


@looped("cuts", [(), (4,), (3, 6), (1, 1, 7), (0, 2)])
@looped("start", [0, 2, 6, 7])
@looped("stop", [2, 5, 7])
def test_any_rows_are_read_of_what_any_ranks_wrote(
    tmp_path: Path, cuts: tuple[int, ...], start: int, stop: int
) -> None:
    mine = TensorPiece(torch.full((max(0, stop - start), 5), -1.0), (7, 5), start)
    number = TensorPiece.whole(torch.tensor(0))
    with reading_state(written(tmp_path, *cuts)) as state:
        state.refuse_misfit({"weights/a": mine, "weights/b": number})
        state.fill("weights/a", mine)
        state.fill("weights/b", number)
        assert (state.version, state.numbers) == (4, {"adamw/step/a": 2.0})
    assert torch.equal(mine.tensor, ROWS[start:stop]) or start > stop
    assert int(number.tensor) == 3


def test_a_trained_model_is_the_same_to_the_last_bit_after_it_was_saved_and_so_is_its_next_step(
    tiny: Tiny, tmp_path: Path
) -> None:
    handle, other = stepped(tiny(trainable=True)), tiny(trainable=True)
    handle.save_state(tmp_path / "state")
    other.load_state(tmp_path / "state")
    assert other.version == 2
    for _ in range(2):
        assert all(torch.equal(tensor, handle.weights()[name]) for name, tensor in other.weights().items())
        stepped(handle, 1)
        stepped(other, 1)
    kept = [each._optimizers.states()["adamw"] for each in (handle, other)]
    for mine, its in zip(*kept, strict=True):
        assert mine.keys() == its.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(mine[name], its[name]) and mine[name].dtype == its[name].dtype for name in mine)


def test_the_state_of_a_frozen_model_is_its_weights(tiny: Tiny, tmp_path: Path) -> None:
    frozen, before = tiny(), tiny().weights()
    frozen.load({name: tensor + 1 for name, tensor in before.items()})
    frozen.save_state(tmp_path)
    again = tiny()
    again.load_state(tmp_path)
    assert all(torch.equal(tensor, before[name] + 1) for name, tensor in again.weights().items())


def test_a_state_with_an_optimizer_is_refused_where_nothing_is_trained(tiny: Tiny, tmp_path: Path) -> None:
    stepped(tiny(trainable=True)).save_state(tmp_path)
    error = error_of(lambda: tiny().load_state(tmp_path))
    assert isinstance(error, LawError)
    assert error.what.startswith("this state belongs to another model: no optimizer here keeps adamw/")


def test_a_model_without_steps_forgets_what_its_optimizer_kept(tiny: Tiny, tmp_path: Path) -> None:
    tiny(trainable=True).save_state(tmp_path)
    other = stepped(tiny(trainable=True))
    other.load_state(tmp_path)
    assert (other.version, other._optimizers.states()) == (0, {})


def test_a_state_of_another_model_is_refused_and_changes_nothing(tiny: Tiny, tmp_path: Path) -> None:
    from flowgraph.models import tiny as tiny_models

    wide = LocalModel(*tiny_models.build(0, tiny_models.TinySize(hidden=16, layers=2, heads=2, intermediate=32)))
    wide.save_state(tmp_path)
    handle = tiny()
    before = handle.weights()
    error = error_of(lambda: handle.load_state(tmp_path))
    assert isinstance(error, LawError)
    assert error.what == "this state belongs to another model"
    assert error.notes[0] == "weights/lm_head.weight: float32 [20, 16], here float32 [20, 64]"
    assert all(torch.equal(tensor, before[name]) for name, tensor in handle.weights().items())


def test_names_that_one_side_lacks_are_told(tmp_path: Path) -> None:
    with reading_state(written(tmp_path, 4)) as state:
        told = error_of(
            lambda: state.refuse_misfit({"weights/a": TensorPiece(ROWS, (7, 5)), "weights/c": TensorPiece.whole(ROWS)})
        )
    assert told.notes == ("missing: weights/c", "unknown: weights/b")


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no files": (lambda folder: [path.unlink() for path in folder.iterdir()], "00000.json is missing"),
    "a rank's rows": (
        lambda folder: (folder / "00001.safetensors").unlink(),
        "3 ranks wrote this state, but 00001.safetensors is missing",
    ),
    "a rank": (
        lambda folder: [path.unlink() for path in folder.glob("00002.*")],
        "3 ranks wrote this state, but 00002.json, 00002.safetensors is missing",
    ),
    "too many ranks": (
        lambda folder: (folder / "00003.json").write_text("{}"),
        "3 ranks wrote this state, but 00003.json is of another",
    ),
    "another version": (
        lambda folder: changed(folder, 1, lambda said: said.update(version=5)),
        "it belongs to another state than 00000.json",
    ),
    "no JSON": (lambda folder: (folder / "00001.json").write_text('{"schema": 1'), "Expecting ',' delimiter"),
    "another schema": (
        lambda folder: changed(folder, 0, lambda said: said.update(schema=2)),
        "schema 2 of 3 ranks; this version reads 1",
    ),
    "no ranks": (lambda folder: changed(folder, 0, lambda said: said.update(ranks=0)), "schema 1 of 0 ranks"),
    "rows twice": (
        lambda folder: changed(folder, 1, lambda said: said["tensors"]["weights/a"].update(rows=[2, 6])),
        "weights/a: rank 1 holds rows 2 to 6 of 7",
    ),
    "rows left out": (
        lambda folder: changed(folder, 2, lambda said: said["tensors"].pop("weights/a")),
        "weights/a: rows 6 to 7 are missing",
    ),
    "rows beyond": (
        lambda folder: changed(folder, 2, lambda said: said["tensors"]["weights/a"].update(rows=[6, 9])),
        "weights/a: rank 2 holds rows 6 to 9 of 7",
    ),
    "another shape": (
        lambda folder: changed(folder, 1, lambda said: said["tensors"]["weights/a"].update(shape=[7, 4])),
        "weights/a: ranks disagree: float32 [7, 5] and float32 [7, 4]",
    ),
    "rows below zero": (
        lambda folder: changed(folder, 0, lambda said: said["tensors"]["weights/a"].update(rows=[-1, 3])),
        "tensors.weights/a.rows.0: Input should be greater than or equal to 0",
    ),
    "a key of nobody": (
        lambda folder: changed(folder, 0, lambda said: said.update(run="this")),
        "run: Extra inputs are not permitted",
    ),
    "half a file": (
        lambda folder: (folder / "00001.safetensors").write_bytes((folder / "00001.safetensors").read_bytes()[:-3]),
        "incomplete metadata",
    ),
}


@looped("fault", FAULTS)
def test_files_that_are_broken_or_do_not_go_together_are_refused(tmp_path: Path, fault: str) -> None:
    damage, wanted = FAULTS[fault]
    damage(written(tmp_path, 3, 6))
    error = error_of(lambda: opened(tmp_path))
    assert isinstance(error, DataError)
    assert error.what.startswith("the state cannot be read: ")
    assert wanted in error.what


def test_rows_that_are_not_as_was_said_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    written(tmp_path, 3)
    for rows, wanted in ((ROWS[:2], "F32 [2, 5], not float32 [3, 5]"), (ROWS[:3].double(), "F64 [3, 5], not float32")):
        save_file({"weights/a": rows, "weights/b": torch.tensor([3])}, tmp_path / "00000.safetensors")
        with reading_state(tmp_path) as state:
            told = error_of(lambda state=state: state.fill("weights/a", TensorPiece(ROWS.clone(), (7, 5))))  # type: ignore[misc]
        assert wanted in told.what
    save_file({"weights/b": torch.tensor([3])}, tmp_path / "00000.safetensors")
    with reading_state(tmp_path) as state:
        assert isinstance(error_of(lambda: state.fill("weights/a", TensorPiece(ROWS.clone(), (7, 5)))), DataError)


def test_an_optimizer_that_kept_half_of_what_it_needs_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    stepped(tiny(trainable=True)).save_state(tmp_path)
    changed(tmp_path, 0, lambda said: said["numbers"].pop("adamw/step/lm_head.weight"))
    error = error_of(lambda: tiny(trainable=True).load_state(tmp_path))
    assert error.what == "this state is incomplete: adamw keeps step of lm_head.weight too"


class Two:
    """Two ranks, the other of which has another story."""

    rank, count = 0, 2

    def __init__(self, other: int) -> None:
        self.other = other

    def union(self, numbers: torch.Tensor) -> torch.Tensor:
        return torch.tensor([*numbers.tolist(), self.other])

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers


def test_a_full_disk_of_one_rank_is_told_by_all_with_its_number(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match=r"No space left on device \(rank 1\)") as caught,
        all_or_none(Two(errno.ENOSPC), tmp_path),
    ):
        pass
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="mine") as caught, all_or_none(Two(errno.EIO), tmp_path):
        raise OSError(errno.EDQUOT, "mine")
    with all_or_none(SingleRank(), tmp_path):
        pass


def test_a_model_that_sleeps_refuses_everything_until_it_wakes(tiny: Tiny, tmp_path: Path) -> None:
    handle = stepped(tiny(trainable=True))
    assert not handle.asleep
    handle.sleep()
    handle.sleep()
    assert handle.asleep
    calls = [handle.weights, handle.whole, lambda: handle.load({}), lambda: handle.save_state(tmp_path)]
    calls += [lambda: handle.save(tmp_path / "saved"), lambda: stepped(handle)]
    for call in calls:
        assert str(error_of(call)).startswith("this model is asleep: its weights have left the device")
    handle.wake()
    handle.wake()
    assert not handle.asleep
    stepped(handle)


def test_weights_of_a_state_that_are_not_finite_are_refused_by_name(tiny: Tiny, tmp_path: Path) -> None:
    handle = tiny(trainable=True)
    with torch.no_grad():
        handle.model.model.norm.weight[0] = float("nan")
    handle.save_state(tmp_path)
    error = error_of(lambda: tiny(trainable=True).load_state(tmp_path))
    assert "contains NaN or infinite values: weights/model.norm.weight" in str(error)
