"""What is loaded, and how long it takes, before anything is asked of a model."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

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
MARK = "loaded:"
HELP_AT_MOST = 3  # 0.3 s of 0.15 s, on a quiet core


def loaded_by(*statements: str) -> list[set[str]]:
    """Run statements one after another in a fresh interpreter; return the modules that are loaded after each."""
    code = "import sys\n" + "".join(
        f"try:\n    {each}\nexcept SystemExit:\n    pass\nprint({MARK!r}, *sys.modules)\n" for each in statements
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    told = [set(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith(MARK)]
    assert len(told) == len(statements)
    return told


def said_by(*commands: tuple[str, ...]) -> list[set[str]]:
    """Run commands one after another in a fresh interpreter; return the libraries that are loaded after each."""
    first = "from flowgraph.cli import main"
    runs = (f"sys.argv = ['flowgraph', *{arguments!r}]; main()" for arguments in commands)
    return [libraries(each) for each in loaded_by(first, *runs)[1:]]


def libraries(modules: set[str]) -> set[str]:
    """Return the top-level names of modules."""
    return {name.split(".")[0] for name in modules}


def test_importing_our_packages_loads_no_engine_and_only_placements_what_is_slow() -> None:
    flowgraph, nodes, placements = map(libraries, loaded_by("import flowgraph", "import nodes", "import placements"))
    assert flowgraph & SLOW == set()
    assert nodes & SLOW == set()
    assert placements & ENGINES == set()


def test_importing_nodes_or_placements_first_loads_no_engine() -> None:
    assert libraries(loaded_by("import nodes")[0]) & SLOW == set()
    assert libraries(loaded_by("import placements")[0]) & ENGINES == set()


def test_describing_a_shipped_flow_loads_no_engine() -> None:
    flows = sorted(path.stem for path in (ROOT / "examples").glob("[!_]*.py"))
    assert flows, "no flow is shipped"
    told = loaded_by(*(f"import examples.{name} as m; m.{name}.graph()" for name in flows))
    assert [name for name, modules in zip(flows, told, strict=True) if libraries(modules) & ENGINES] == []


def test_help_loads_nothing_slow_and_few_modules() -> None:
    (modules,) = loaded_by(HELP)
    assert libraries(modules) & SLOW == set()
    assert len(modules) <= HELP_MODULES_AT_MOST


@pytest.mark.slow
def test_help_takes_less_than_three_times_what_its_libraries_take() -> None:
    """Take turns, and the best of seven each, in seconds of processor: a slow or busy machine slows both alike."""

    def once(code: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    turns = [(once(f"import sys; {HELP}"), once(LIBRARIES)) for _ in range(7)]
    assert min(ours for ours, _ in turns) < HELP_AT_MOST * min(theirs for _, theirs in turns)


DRAWING = {"rich", "pygraphviz", "jinja2", "resvg_py"}
PLAIN = ("mmd", "md", "dot", "json")  # load none of these


def test_reading_a_flow_loads_no_engine_and_drawing_it_as_plain_text_nothing_that_draws() -> None:
    draws = [(verb, *names, "--to", to) for to in PLAIN for verb, *names in (("draw", "grpo"), ("diff", "grpo", "gpg"))]
    for command, loaded in zip(draws, said_by(*draws), strict=True):
        assert loaded & (ENGINES | DRAWING) == set(), command
    shown, compared, drawn = said_by(("show", "grpo"), ("diff", "grpo", "gpg"), ("draw", "grpo", "--to", "text"))
    assert shown & ENGINES == set()
    assert compared & (ENGINES | DRAWING) == set()
    assert drawn & (ENGINES | DRAWING) <= {"rich"}


def test_drawing_an_svg_loads_what_that_needs_and_no_engine() -> None:
    for loaded in said_by(("draw", "grpo", "--to", "svg"), ("diff", "grpo", "gpg", "--to", "svg")):
        assert loaded & (ENGINES | DRAWING) <= {"pygraphviz", "jinja2"}


def test_drawing_a_file_or_a_searched_plan_loads_no_engine(tmp_path: Path) -> None:
    files = [("draw", "grpo", "-o", str(tmp_path / name)) for name in ("drawn.html", "drawn.png")]
    searched = ("draw", "grpo", "--cluster", "1x8xh100", "--model", "policy=Qwen/Qwen3-0.6B")
    for loaded in said_by(*files, searched):
        assert loaded & ENGINES == set()
