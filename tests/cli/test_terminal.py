"""What terminals are given: no control or direction character of a file, name or response, whatever the command."""

from __future__ import annotations

import ast
import json
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import flowgraph.cli
from flowgraph.cli.output import escape_controls
from tests.cli.said import text_of

Run = Callable[..., Any]

HOSTILE = "\x1b[31mred\x1b]0;title\x07\r\x08\x9b2J\u202egnp\u2066\u200f\u2028\U000e0041"
PATH = HOSTILE.replace("/", "")
SHOWN = r"\x1b[31mred"
HIDDEN = {"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"}


def refuse_controls(said: Any, where: object) -> None:
    """Refuse output with a character that a terminal would obey."""
    found = {
        letter for letter in said.out + said.err if letter not in "\n\t" and unicodedata.category(letter) in HIDDEN
    }
    assert not found, (where, found, said)


@pytest.fixture
def hostile_run(trained: Path, tmp_path: Path) -> Path:
    """Return a copy of a run in whose files and name every free text is hostile."""
    folder = tmp_path / "runs" / PATH
    shutil.copytree(trained, folder)
    facts = json.loads((folder / "run.json").read_text())
    facts |= {"flow": HOSTILE, "status": HOSTILE, "started": HOSTILE}
    facts["data"]["name"] = HOSTILE
    facts["models"] = {HOSTILE: {**next(iter(facts["models"].values())), "name": HOSTILE}}
    facts["metrics"] = {HOSTILE: {"headline": True, "unit": HOSTILE}}
    (folder / "run.json").write_text(json.dumps(facts))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line[HOSTILE] = 0.5
        if "nodes_s" in line["time"]:
            line["time"]["nodes_s"][HOSTILE] = 0.5
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_the_commands_that_read_runs_print_no_control(hostile_run: Path, flowgraph: Run) -> None:
    for command in (("runs",), ("report", hostile_run), ("draw", hostile_run, "--picture", "run")):
        said = flowgraph(*command)
        refuse_controls(said, command)
        assert said.code == 0 and "red" in said.out, said
    for command in (
        ("trace", hostile_run, "--compare"),
        ("trace", hostile_run),
        ("resume", hostile_run),
        ("draw", hostile_run),
    ):
        refuse_controls(flowgraph(*command), command)
    assert SHOWN in text_of(flowgraph("runs")), "written out, so that you see what it is"
    rows = json.loads(text_of(flowgraph("runs", "--json")))
    assert [(row["flow"], row["run"]) for row in rows] == [(HOSTILE, f"runs/{PATH}")], "JSON is exact"


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each text in data, one for each kind of place."""
    items = data.items() if isinstance(data, dict) else list(enumerate(data))[:1] if isinstance(data, list) else ()
    for key, value in items:
        if isinstance(value, str):
            yield (*path, key)
        yield from leaves(value, (*path, key))


@pytest.mark.slow(group="commands")
def test_the_commands_that_read_plans_print_no_control(flowgraph: Run, trained: Path, tmp_path: Path) -> None:
    text_of(flowgraph("plan", "grpo", "--cluster", "2x8xh100", "--model", "qwen3-8b", "-o", "gpu.json"))
    plan = json.loads(Path("gpu.json").read_text())
    for path in leaves(plan):
        changed = json.loads(json.dumps(plan))
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = HOSTILE
        Path("hostile.json").write_text(json.dumps(changed))
        for command in (
            ("explain", "hostile.json"),
            ("compare", "hostile.json", "gpu.json"),
            ("simulate", "hostile.json"),
        ):
            refuse_controls(flowgraph(*command), (path, command))
    Path(PATH).write_text(json.dumps(plan | {"flow": HOSTILE, "assumed": None}))
    commands: list[tuple[str, ...]] = [
        *((verb, PATH) for verb in ("check", "explain", "compare", "simulate", "draw", "calibrate")),
        *(("show", "grpo", "--stage", stage, "--plan", PATH) for stage in ("placed", "lowered")),
        *(("export", PATH, "--to", to) for to in ("verl", "openrlhf", "nemo-rl")),
        ("diff", PATH, "gpu.json"),
        ("diff", "grpo", PATH),
        ("plan", "grpo", "--plan", PATH),
        ("run", "--plan", PATH),
        ("compare", PATH, "gpu.json"),
    ]
    for command in commands:
        refuse_controls(flowgraph(*command), command)


def test_names_on_the_command_line_come_back_without_controls(flowgraph: Run, tmp_path: Path) -> None:
    Path("script.sh").write_text(
        f"python -m verl.trainer.main_ppo actor_rollout_ref.model.path='{PATH}' data.x={PATH}\n"
    )
    Path(f"{PATH}.py").write_text("from flowgraph import flow\n")
    for command in (
        (HOSTILE,),
        ("plan", HOSTILE),
        ("plan", "grpo", "--cluster", HOSTILE),
        ("plan", "grpo", "--model", HOSTILE),
        ("plan", "grpo", "--set", HOSTILE),
        ("plan", "grpo", f"--{HOSTILE}"),
        ("plan", "grpo", "--batch", HOSTILE),
        ("check", "grpo", HOSTILE, "more"),
        ("check", f"{PATH}.py"),
        ("show", "grpo", "--stage", HOSTILE),
        ("run", "grpo", "--data", HOSTILE),
        ("cp", "grpo", f"{PATH}2.py"),
        ("cp", "grpo", HOSTILE),
        ("data", HOSTILE),
        ("data", "digits", "-o", PATH),
        ("draw", "grpo", "-o", f"{PATH}.svg"),
        ("draw", HOSTILE),
        ("import", "script.sh"),
        ("import", PATH),
        ("engines", "install", HOSTILE),
        ("runs", PATH),
        ("fit", HOSTILE),
        ("models", HOSTILE),
        ("eval", HOSTILE),
        ("generate", "tiny", "--data", HOSTILE),
    ):
        refuse_controls(flowgraph(*command), command)


def test_a_response_is_printed_without_controls_and_exactly_as_json(
    flowgraph: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowgraph.app.responses import sampling

    real = sampling.generate_request

    def responds(*given: Any) -> Any:
        result = real(*given)
        for row in result.rows:
            row["response"] = f"{HOSTILE}\n\tsecond line"
        return result

    monkeypatch.setattr(sampling, "generate_request", responds)
    said = flowgraph("generate", "tiny", "--prompt", "1", "--max-tokens", "2")
    refuse_controls(said, "generate")
    assert said.out == f"{escape_controls(HOSTILE)}\n\tsecond line\n", "lines and tabs stay"
    data = json.loads(text_of(flowgraph("generate", "tiny", "--prompt", "1", "--max-tokens", "2", "--json")))
    assert [row["response"] for row in data] == [f"{HOSTILE}\n\tsecond line"], "JSON is exact"


def test_only_the_output_module_prints() -> None:
    folder = Path(flowgraph.cli.__file__).parent
    prints = [
        f"{path.relative_to(folder)}:{node.lineno}"
        for path in folder.rglob("*.py")
        if path.name != "output.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("print", "typer.echo", "sys.stdout.write", "sys.stderr.write")
    ]
    assert prints == [], "say, note or print_table keep terminals from obeying what they print"


def test_what_is_visible_stays_as_it_is() -> None:
    for text in ("plain", "größe 漢字 é", "a\u200db", "a\tb\nc", "❤\ufe0f", "±·…─━▁"):
        assert escape_controls(text) == text
    assert escape_controls("\x1b\r\u202e\ud800") == r"\x1b\r\u202e\ud800"
