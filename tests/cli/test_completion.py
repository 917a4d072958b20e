"""What a shell offers: names that exist, cheaply, and only those that its scripts can evaluate safely."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from flowgraph.app.drawing.pictures import PICTURES
from flowgraph.cli import completion
from flowgraph.cli.application import commands
from flowgraph.engines.table import ENGINES
from nodes.data.sets import NAMES
from placements.search.named_placements import VARIANTS

Run = Callable[..., Any]

FLOW = "from flowgraph import flow\n\n@flow\ndef mine(prompts): ...\n"
HEAVY = ("torch", "numpy", "pyarrow", "ray", "transformers")


def offered(flowgraph: Run, monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """Return what bash is offered for the last word of a command line."""
    words = line.split(" ")
    monkeypatch.setenv("_FLOWGRAPH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    said = flowgraph()
    assert said.code == 0, said
    return [each for each in said.out.split("\n") if each]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder in which the commands run, with files of every kind."""
    (tmp_path / "mine.py").write_text(FLOW)
    (tmp_path / "other.py").write_text("print('no flow')\n")
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "cluster.toml").write_text("")
    (tmp_path / "rows.parquet").write_bytes(b"")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for run in ("runs/grpo-1", "elsewhere/ppo-2", "alone"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "run.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("flowgraph gen", ["generate"]),
        ("flowgraph show gsp", ["gspo"]),
        ("flowgraph show mi", ["mine.py"]),
        ("flowgraph show ot", []),
        ("flowgraph check pl", ["plan.json"]),
        ("flowgraph cp rem", ["remax"]),
        ("flowgraph explain p", ["plan.json"]),
        ("flowgraph plan grpo --model smol", ["smollm2-135m"]),
        ("flowgraph plan grpo --model policy=smol", ["policy=smollm2-135m"]),
        ("flowgraph plan grpo --model Qwen/Qwen3-8", ["Qwen/Qwen3-8B"]),
        ("flowgraph plan grpo --model ./mo", ["./model"]),
        ("flowgraph plan grpo --placement s", ["split", "standalone"]),
        ("flowgraph plan grpo --placement split:o", ["split:openrlhf"]),
        ("flowgraph plan grpo --cluster c", ["cluster.toml"]),
        ("flowgraph plan grpo --cluster 2x8xh200", ["2x8xh200-sxm-141g"]),
        ("flowgraph plan grpo --engine sample=v", ["sample=vllm"]),
        ("flowgraph run grpo --data add", ["addition"]),
        ("flowgraph run grpo --data ro", ["rows.parquet"]),
        ("flowgraph run grpo --replay gr", []),
        ("flowgraph run grpo --replay runs/", ["runs/grpo-1"]),
        ("flowgraph report ", ["runs/grpo-1", "alone", "elsewhere/", "model/", "runs/"]),
        ("flowgraph report elsewhere/", ["elsewhere/ppo-2"]),
        ("flowgraph draw al", ["alone"]),
        ("flowgraph draw grpo --picture t", ["timeline"]),
        ("flowgraph eval tin", ["tiny"]),
        ("flowgraph export plan.json --to n", ["nemo-rl"]),
        ("flowgraph engines install v", ["vllm-cpu"]),
    ],
)
def test_a_word_is_completed(
    line: str, wanted: list[str], folder: Path, flowgraph: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offered(flowgraph, monkeypatch, line) == wanted


def test_names_that_a_shell_might_evaluate_are_not_offered(
    folder: Path, flowgraph: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("plan $(touch x).json", "plan`id`.json", "plan\x1b[31m.json", "plan\\$(id).json", "plan'.json"):
        (folder / name).write_text("{}")
    assert offered(flowgraph, monkeypatch, "flowgraph explain pl") == ["plan.json"]
    assert offered(flowgraph, monkeypatch, "flowgraph explain pl[") == []


def test_what_completion_lists_is_what_there_is() -> None:
    assert tuple(each.name for each in VARIANTS) == completion.VARIANTS
    assert tuple(dict.fromkeys(each.placement for each in VARIANTS)) == completion.PLACEMENTS
    assert set(NAMES) <= set(completion.data(""))
    assert set(completion.pictures("")) == set(PICTURES)
    assert {each.partition("=")[2] for each in completion.engines("")} == set(ENGINES)


def test_what_names_something_is_completed() -> None:
    group: Any = typer.main.get_command(commands)
    named = {"FLOW", "CLUSTER", "PLACEMENT", "PLAN.json", "RUN", "DATA", "[PARAM=]MODEL", "WHAT", "USE=ENGINE"}
    for command in group.commands.values():
        for param in command.params:
            if param.metavar in named and "-o" not in param.opts:
                assert param._custom_shell_complete is not None or param.name == "found", (command.name, param.name)


@pytest.mark.processes
def test_completing_loads_nothing_slow(tmp_path: Path) -> None:
    lines = (
        "show g",
        "run grpo --model q",
        "run grpo --data d",
        "plan grpo --engine s",
        "plan grpo --cluster 8xh",
        "report r",
    )
    code = (
        "import os, sys, io, contextlib\nfrom flowgraph.cli import main\n"
        "os.environ['_FLOWGRAPH_COMPLETE'] = 'complete_bash'\nsys.argv = ['flowgraph']\n"
        f"for line in {lines!r}:\n"
        "    os.environ['COMP_WORDS'], os.environ['COMP_CWORD'] = f'flowgraph {line}', str(len(line.split()))\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n        main()\n"
        f"assert not set(sys.modules) & set({HEAVY!r}), set(sys.modules) & set({HEAVY!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
