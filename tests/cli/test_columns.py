"""What commands print fits the columns of the terminal, and uses those of a wider one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from flowgraph.cli.output import wrap_lines
from placements.format import COLUMNS
from tests.cli.small_run import quietly

Run = Callable[..., Any]

GPUS = ("--cluster", "2x8xh100", "--model", "qwen3-8b")
LONGEST = pytest.mark.slow(group="commands")
EXACT = ("export",)  # scripts, whose lines are not broken

COMMANDS = (
    ("flows",),
    ("models",),
    ("models", "--all"),
    ("engines",),
    ("doctor",),
    ("data",),
    ("runs",),
    ("report", "runs/grpo-1"),
    ("trace", "runs/grpo-1", "--compare"),
    ("show", "ppo"),
    ("show", "ppo", "--facts"),
    ("show", "grpo", "--stage", "described", "--diff", "described", "named"),
    ("show", "grpo", "--stage", "placed", "--plan", "gpu.json"),
    ("show", "grpo", "--stage", "lowered", "--plan", "gpu.json"),
    ("check", "grpo", "--set", "generate.n=0", "--cluster", "1xl4", "--model", "qwen3-8b"),
    ("diff", "grpo", "ppo"),
    ("diff", "gpu.json", "ppo.json"),
    ("plan", "grpo", *GPUS),
    ("plan", "ppo", *GPUS, "--staleness", "auto", "--what-if", "batch=1024"),
    ("plan", "grpo", "--cluster", "1xl4", "--model", "qwen3-8b"),
    ("fit", "grpo", "--model", "qwen3-8b"),
    ("explain", "ppo.json"),
    ("explain", "ppo.json", "critic.train"),
    ("compare", "gpu.json", "ppo.json"),
    ("simulate", "ppo.json"),
    ("calibrate", "runs/grpo-1"),
    ("draw", "ppo"),
    ("draw", "ppo.json"),
    *(("draw", "ppo.json", "--picture", each) for each in ("memory", "timeline", "sequence", "placements")),
    ("draw", "runs/grpo-1", "--picture", "run"),
    ("export", "gpu.json", "--to", "verl"),
    ("eval", "tiny", "--rows", "2", "--max-tokens", "8", "--cluster", "1xcpu"),
    ("generate", "tiny", "--data", "digits", "--rows", "2", "--cluster", "1xcpu", "-o", "out.parquet", "--overwrite"),
)
WIDER = (
    *(("models", "--all"), ("show", "ppo"), ("plan", "ppo", *GPUS, "--staleness", "auto", "--what-if", "batch=1024")),
    *(("explain", "ppo.json"), ("compare", "gpu.json", "ppo.json"), ("simulate", "ppo.json"), ("draw", "ppo.json")),
    *(("trace", "runs/grpo-1", "--compare"), ("engines",), ("diff", "gpu.json", "ppo.json")),
)
"""Those that have more to print than 80 columns hold."""


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two plans, made once."""
    folder = tmp_path_factory.mktemp("plans")
    quietly(folder, "plan", "grpo", *GPUS, "-o", "gpu.json")
    quietly(folder, "plan", "ppo", *GPUS, "-o", "ppo.json")
    return folder


@pytest.fixture
def here(plans: Path, trained: Path, tmp_path: Path) -> Path:
    """Return the folder in which the commands run, with the plans and a run."""
    for name in ("gpu.json", "ppo.json"):
        shutil.copy(plans / name, tmp_path / name)
    shutil.copytree(trained, tmp_path / "runs" / "grpo-1")
    return tmp_path


def longest(said: Any) -> int:
    """Return the columns of the longest line."""
    return max(map(cell_len, (said.out + said.err).splitlines()), default=0)


@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=LONGEST if "auto" in each else ()) for each in COMMANDS], ids=" ".join
)
def test_what_a_command_prints_fits_and_uses_the_terminal(
    command: tuple[str, ...], here: Path, flowgraph: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths = {}
    for columns in (80, 160):
        monkeypatch.setenv("COLUMNS", str(columns))
        said = flowgraph(*command)
        assert said.out + said.err and "Traceback" not in said.err, said
        widths[columns] = longest(said)
        assert command[0] in EXACT or widths[columns] <= columns, said.out + said.err
    assert command not in WIDER or widths[160] > 80, widths


@pytest.mark.slow(group="commands")
@pytest.mark.parametrize("command", [each for each in COMMANDS if each[0] in ("plan", "explain", "show")], ids=" ".join)
def test_no_word_is_lost_where_lines_are_broken(
    command: tuple[str, ...], here: Path, flowgraph: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = flowgraph(*command)
    assert command[0] != "explain" or longest(whole) <= COLUMNS, "plans are narrow in a pipe too"
    monkeypatch.setenv("COLUMNS", "80")
    assert sorted(flowgraph(*command).out.split()) == sorted(whole.out.split())


def test_json_is_the_same_in_any_terminal(here: Path, flowgraph: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (("explain", "ppo.json"), ("compare", "gpu.json", "ppo.json"), ("runs",), ("show", "ppo")):
        whole = flowgraph(*command, "--json").out
        monkeypatch.setenv("COLUMNS", "40")
        assert flowgraph(*command, "--json").out == whole and json.loads(whole)
        monkeypatch.delenv("COLUMNS")


def test_a_line_is_broken_between_words_under_its_last_cell_that_has_room() -> None:
    assert wrap_lines("short", 80) == "short"
    assert wrap_lines("  a  one two three four five six seven", 32) == "  a  one two three four five six\n     seven"
    assert wrap_lines(f"  {'a' * 20}  one two three", 32) == f"  {'a' * 20}  one two\n      three"
    assert wrap_lines("x" * 100, 80) == "x" * 100, "a word is never broken"
    assert wrap_lines("value = f(x) -> Loss  # host, grpo.py:23", 27) == "value = f(x) -> Loss\n   # host, grpo.py:23"
