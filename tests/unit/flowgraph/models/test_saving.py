"""Saving a model: whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flowgraph.errors import ModelError
from flowgraph.files.hashes import SUMS, read_sums
from flowgraph.models import TinySize, load, resolve, save, tiny
from flowgraph.models.saving import whole_folder

SIZE = TinySize(hidden=16, layers=1, heads=2, intermediate=16)


def test_a_saved_model_loads_with_the_same_weights(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = load(resolve("tiny:layers=1", cache=tmp_path), seed=2, cache=tmp_path, say=print)
    folder = save(made.model, made.tokenizer, tmp_path / "deep" / "model")
    assert load(resolve(str(folder), cache=tmp_path), seed=0, cache=tmp_path, say=print).digest == made.digest
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert capfd.readouterr() == ("", "")


def test_no_flipped_bit_of_a_saved_model_is_loaded_and_the_file_is_named(tmp_path: Path) -> None:
    folder = tiny.make(0, tmp_path / "model", SIZE)
    files = sorted(path for path in folder.iterdir())
    assert [path.name for path in files if path.name not in read_sums((folder / SUMS).read_text())] == [SUMS]
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
        with pytest.raises(ModelError, match=rf"(?s){path.name}") as caught:
            load(resolve(str(folder), cache=tmp_path), seed=0, cache=tmp_path, say=print)
        assert "has changed since it was written" in str(caught.value) or path.name in (SUMS, "config.json")
        path.write_bytes(whole)
    (folder / SUMS).unlink()  # of somebody else there may be none
    assert load(resolve(str(folder), cache=tmp_path), seed=0, cache=tmp_path, say=print).digest


def test_weights_that_are_given_are_saved_in_place_of_the_models_own(tmp_path: Path) -> None:
    model, tokenizer = tiny.build(0, SIZE)
    weights = {name: tensor + 1.0 for name, tensor in model.state_dict().items()}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    folder = save(model, tokenizer, tmp_path / "model", weights)
    loaded = load(resolve(str(folder), cache=tmp_path), seed=0, cache=tmp_path, say=print).model
    assert all(tensor.equal(weights[name]) for name, tensor in loaded.state_dict().items())
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())


def test_a_place_that_cannot_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError) as caught:
        tiny.make(0, tmp_path / "file" / "model", SIZE)
    assert str(caught.value) == f"{tmp_path}/file/model: the model could not be saved: File exists ({tmp_path}/file)"


@pytest.mark.slow(group="resume")
def test_a_full_disk_is_an_error_of_ours_and_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from flowgraph.models import tiny, TinySize;"
        "from flowgraph.errors import ModelError\n"
        "made = tiny.build(0)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try: tiny.make(0, Path(sys.argv[1]) / 'model')\n"
        "except ModelError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr == ""
    assert done.stdout.startswith(f"{tmp_path}/model: the model could not be saved: ")
    assert "too large" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_draft_that_fails_is_removed(tmp_path: Path) -> None:
    def stop_halfway() -> None:
        with whole_folder(tmp_path / "model") as draft:
            (draft / "part").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_halfway()
    assert list(tmp_path.iterdir()) == []


def test_of_two_writers_the_first_wins_and_the_second_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "model"

    def race() -> None:
        with whole_folder(target) as slow:
            (slow / "who").write_text("slow")
            with whole_folder(target) as fast:
                (fast / "who").write_text("fast")

    with pytest.raises(OSError, match="not empty"):
        race()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (target / "who").read_text() == "fast"
