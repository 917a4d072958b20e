"""What is loaded, and how long it takes, before anything is asked of a model."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HELP = "sys.argv = ['flowgraph', '--help']; from flowgraph.cli import main; main()"
LIBRARIES = "import typer; from pydantic import BaseModel"  # what reading a command line cannot do without

# Each of these takes 0.1 to 4 s to import: one alone would break the budget of `--help`.
ENGINES = {
    "torch",
    "ray",
    "transformers",
    "sglang",
    "datasets",
    "peft",
    "accelerate",
    "tokenizers",
    "safetensors",
    "vllm",
}
SLOW = {*ENGINES, "pyarrow", "networkx", "numpy", "pandas"}

HELP_MODULES_AT_MOST = 450  # may only get tighter; 271 at first
HELP_AT_MOST = 3  # 0.3 s of 0.15 s, on a quiet core


def loaded_by(statement: str) -> set[str]:
    """Run a statement in a fresh interpreter and give the modules it has loaded then."""
    code = f"import sys\ntry:\n    {statement}\nexcept SystemExit:\n    pass\nprint()\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def libraries(modules: set[str]) -> set[str]:
    """Give the top-level names of modules."""
    return {name.split(".")[0] for name in modules}


def test_importing_flowgraph_loads_nothing_slow() -> None:
    assert libraries(loaded_by("import flowgraph")) & SLOW == set()


def test_importing_nodes_loads_no_engine() -> None:
    assert libraries(loaded_by("import nodes")) & SLOW == set()


def test_importing_placements_loads_no_engine() -> None:
    assert libraries(loaded_by("import placements")) & ENGINES == set()


def test_describing_a_shipped_flow_loads_no_engine() -> None:
    flows = sorted(path.stem for path in (ROOT / "examples").glob("[!_]*.py"))
    assert flows, "no flow is shipped"
    for name in flows:
        assert libraries(loaded_by(f"import examples.{name} as m; m.{name}.graph()")) & ENGINES == set()


def test_help_loads_nothing_slow_and_few_modules() -> None:
    modules = loaded_by(HELP)
    assert libraries(modules) & SLOW == set()
    assert len(modules) <= HELP_MODULES_AT_MOST


def test_help_takes_less_than_three_times_what_its_libraries_take() -> None:
    """Take turns, and the best of seven each, in seconds of processor: a slow or busy machine slows both alike."""

    def once(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    turns = [(once(f"import sys; {HELP}"), once(LIBRARIES)) for _ in range(7)]
    assert min(ours for ours, _ in turns) < HELP_AT_MOST * min(theirs for _, theirs in turns)


@pytest.mark.parametrize("verb", ["show", "draw"])
def test_reading_a_flow_on_the_command_line_loads_no_engine(verb: str) -> None:
    modules = loaded_by(f"sys.argv = ['flowgraph', {verb!r}, 'grpo']; from flowgraph.cli import main; main()")
    assert libraries(modules) & ENGINES == set()


DRAWING = {"rich", "pygraphviz", "jinja2", "resvg_py"}
NEEDED = {  # what each format may load of these
    "text": {"rich"},
    "mmd": set[str](),
    "md": set[str](),
    "dot": set[str](),
    "json": set[str](),
    "svg": {"pygraphviz", "jinja2"},
}


def said_by(*arguments: str) -> set[str]:
    """Give the libraries that a command has loaded in the end."""
    return libraries(loaded_by(f"sys.argv = ['flowgraph', *{arguments!r}]; from flowgraph.cli import main; main()"))


@pytest.mark.parametrize("to", NEEDED)
def test_drawing_loads_what_its_format_needs_and_no_engine(to: str) -> None:
    loaded = said_by("draw", "grpo", "--to", to)
    assert loaded & ENGINES == set()
    assert loaded & DRAWING <= NEEDED[to]


@pytest.mark.parametrize("name", ["drawn.html", "drawn.png"])
def test_drawing_a_file_loads_no_engine(name: str, tmp_path: Path) -> None:
    assert said_by("draw", "grpo", "-o", str(tmp_path / name)) & ENGINES == set()


def test_drawing_a_searched_plan_loads_no_engine() -> None:
    assert said_by("draw", "grpo", "--cluster", "1x8xh100", "--model", "policy=Qwen/Qwen3-0.6B") & ENGINES == set()


@pytest.mark.parametrize("to", NEEDED)
def test_comparing_loads_what_its_format_needs_and_no_engine(to: str) -> None:
    assert said_by("diff", "grpo", "gpg", "--to", to) & (ENGINES | DRAWING) <= NEEDED[to]


def test_comparing_as_text_loads_nothing_that_draws() -> None:
    assert said_by("diff", "grpo", "gpg") & (ENGINES | DRAWING) == set()
