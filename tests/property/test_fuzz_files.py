"""Files and command lines changed at random: an answer or an error of ours, in 2 s and 200 MB; never a traceback.

`python -m tests.property.fuzz_files FIRST LAST FOLDER` runs any seeds, and prints each new fault and counts.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.property.fuzz_files import (
    CHECKPOINT,
    KINDS,
    LAPTOP,
    RUN,
    WEIGHTS,
    Case,
    carried_out,
    chosen_kind,
    good_files,
    sealed,
    tried,
    twice_if_slow,
)

OF_EACH_KIND, ALL_CASES = 2, 10_000


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a good file of each kind."""
    return good_files(tmp_path_factory.mktemp("good"))


def judged(seeds: Iterable[int], good: Path, folder: Path) -> Counter[str]:
    """Run the cases of these seeds; return how many there were of each kind."""
    found, counts = list[str](), Counter[str]()
    with sealed():
        for seed in seeds:
            case = tried(seed, good, folder)
            counts[case.kind] += 1
            found += [f"{case}\n{fault}" for fault in case.faults()]
    assert not found, "\n\n".join(found)
    return counts


def test_no_changed_file_or_odd_command_gives_a_traceback(good: Path, tmp_path: Path) -> None:
    kinds = [(seed, chosen_kind(random.Random(seed))) for seed in range(200)]
    seeds = [seed for each in WEIGHTS for seed in [seed for seed, kind in kinds if kind == each][:OF_EACH_KIND]]
    assert judged(seeds, good, tmp_path / "case") == dict.fromkeys(WEIGHTS, OF_EACH_KIND)


@pytest.mark.slow
def test_none_of_ten_thousand_does(good: Path, tmp_path: Path) -> None:
    counts = judged(range(ALL_CASES), good, tmp_path / "case")
    assert min(counts.values()) > ALL_CASES // 100, counts


def said(good: Path, folder: Path, *command: str) -> Case:
    """Run a command, up to where its work begins, in a folder that was changed."""
    with sealed():
        case = twice_if_slow(lambda: carried_out(Case(0, "one", command, ""), folder))
    assert not list(case.faults()), f"{case}\n{list(case.faults())}"
    return case


@pytest.fixture
def copied(good: Path, tmp_path: Path) -> Path:
    """Return a copy of the good folder, to be changed."""
    return Path(shutil.copytree(good, tmp_path / "copy"))


def test_a_manifest_that_is_nested_too_deep_leaves_the_checkpoint_before_it(good: Path, copied: Path) -> None:
    (copied / CHECKPOINT / "MANIFEST.json").write_text("[" * 100_000)
    case = said(good, copied, "resume", RUN, "--steps", "5")
    assert "MANIFEST.json cannot be read: it is nested more than 100 deep" in case.err
    assert "continuing after step 1 of 5" in case.err


def test_a_state_that_is_none_leaves_the_checkpoint_before_it_whatever_its_hash(good: Path, copied: Path) -> None:
    from flowgraph.runtime.record.checkpoint import manifest_of

    folder = copied / CHECKPOINT
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    (folder / "state.json").write_text('{"software": []}')
    about = {name: manifest[name] for name in manifest if name not in ("schema", "files")}
    (folder / "MANIFEST.json").write_text(json.dumps(manifest_of(folder, about)))
    case = said(good, copied, "resume", RUN, "--steps", "5")
    assert "state.json cannot be read: software: " in case.err
    assert "continuing after step 1 of 5" in case.err


def test_going_back_removes_only_what_a_run_has_written(copied: Path) -> None:
    from flowgraph.runtime.record.run_folder import RunFolder

    rollouts = copied / RUN / "rollouts" / "policy.generate"
    for name in ("notes.txt", "mine.parquet", "12.parquet", "000009.part"):
        (rollouts / name).touch()
    (rollouts / "000007.parquet").mkdir()
    RunFolder(copied / RUN).rewind(1, {})
    kept = {"000000.parquet", "000007.parquet", "notes.txt", "mine.parquet", "12.parquet"}
    assert {path.name for path in rollouts.iterdir()} == kept


@pytest.mark.parametrize("kind", ["pipe", "endless", "huge", "loop", "folder"])
def test_what_is_no_plain_file_is_refused_at_once(good: Path, copied: Path, kind: str) -> None:
    for name, command in {
        LAPTOP: ("check", LAPTOP),
        "program.json": ("draw", "program.json"),
        "c.toml": ("check", "grpo", "--cluster", "c.toml"),
        "p.toml": ("plan", "grpo", "--cluster", "laptop", "--profile", "p.toml"),
        "job.sh": ("import", "job.sh"),
    }.items():
        path = copied / name
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "huge":
            path.touch()
            os.truncate(path, 10 * 2**30)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to("/dev/zero" if kind == "endless" else path)
        case = said(good, copied, *command)
        assert case.code in (1, 2), case
        assert case.cpu_s < 1.5 or said(good, copied, *command).cpu_s < 1.5, "twice, since others may use the caches"


def test_every_kind_of_case_has_files() -> None:
    assert set(KINDS) == set(WEIGHTS)
