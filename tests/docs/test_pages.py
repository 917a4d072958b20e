"""The pages do what they say: their blocks run, their output is what is printed, their commands are real ones."""

from __future__ import annotations

import doctest
import functools
import importlib.util
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import typer

import nodes
from benchmarks import curves
from flowgraph import Flow, Loss
from flowgraph.analysis.flat_graph import full_hash
from flowgraph.app.planning.flow_inputs import read_inputs
from flowgraph.app.request import Workload
from flowgraph.cli.application import commands as application
from flowgraph.passes import compile_graph

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def script(name: str) -> ModuleType:
    """Import a script of `docs`."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@dataclass(frozen=True)
class Ran:
    """A page of `docs/pages.py` whose blocks ran in a folder, and its text as it should be."""

    page: Any
    text: str
    folder: Path


pages: Any = script("pages")
generate: Any = script("generate")
flows: Any = script("flows")

SLOW = pytest.mark.slow(group="docs")
PLANNING = ("README.md", "docs/diagrams.md", "docs/placement.md", "docs/plans.md")  # search plans for seconds
PAGES = {str(page.path.relative_to(ROOT)): page.path for page in generate.pages()}
GENERATED = {str(path.relative_to(DOCS)): path for path in generate.there()}
SHIPPED = [each.name for each in flows.shipped()]
HINT = "python docs/generate.py writes it anew"


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Ran]:
    """Return `ran(path)`: a page whose blocks ran, once."""

    @functools.cache
    def run_once(path: Path) -> Ran:
        folder = tmp_path_factory.mktemp("page")
        found = [each for each in generate.pages() if each.path == path]
        page = found[0] if found else pages.Page(path, generate.FLOW_IMPORTS)
        return Ran(page, page.rewritten(folder), folder)

    return run_once


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW if name in PLANNING else ()) for name in PAGES])
def test_the_blocks_of_a_page_run_and_print_what_it_shows(name: str, ran: Callable[[Path], Ran]) -> None:
    assert ran(PAGES[name]).text == PAGES[name].read_text(encoding="utf-8"), HINT


def test_what_is_generated_is_what_the_sources_say() -> None:
    wanted = generate.generated()
    there = {name: path.read_text(encoding="utf-8") for name, path in GENERATED.items()}
    assert sorted(there.keys() ^ wanted.keys()) == [], HINT
    assert [name for name, text in wanted.items() if there[name] != text] == [], HINT


@SLOW
def test_the_pictures_are_what_the_commands_above_them_draw_now(ran: Callable[[Path], Ran]) -> None:
    pytest.importorskip("pygraphviz")
    diagrams = ran(DOCS / "diagrams.md")
    drawn = generate.pictures_of(diagrams.page, diagrams.folder)
    by_hand = {DOCS / "pictures" / "run.svg"}  # of a run, which takes a minute
    assert drawn.keys() | by_hand == set((DOCS / "pictures").glob("*.svg")), HINT
    assert [path.name for path, text in drawn.items() if path.read_text(encoding="utf-8") != text] == [], HINT


def test_what_is_generated_names_no_place_of_a_machine_and_no_line_of_our_sources() -> None:
    for name, path in GENERATED.items():
        text = path.read_text(encoding="utf-8")
        assert str(ROOT) not in text, name
        assert not re.search(r"/tmp/|0x[0-9a-f]{6,}", text), name
        assert re.findall(r"(?:flowgraph|nodes|placements)/[\w/]+\.py:\d+", text) == [], name


def commands() -> list[tuple[str, list[str]]]:
    """Return every command of a `bash` block, with its page and line."""
    found = [(name, block) for name, path in PAGES.items() for block in pages.blocks(path.read_text(encoding="utf-8"))]
    return [
        (f"{name}:{block.line}", command)
        for name, block in found
        if block.language in ("bash", "console", "sh")
        for command in pages.commands(block)
    ]


COMMANDS = commands()


@pytest.mark.parametrize(("where", "command"), COMMANDS, ids=lambda each: each if isinstance(each, str) else None)
def test_a_command_of_a_page_is_one_that_there_is(where: str, command: list[str]) -> None:
    program, *arguments = command
    if program == "flowgraph":
        group: Any = typer.main.get_command(application)
        assert arguments[0] in group.commands, f"{where}: flowgraph has no verb `{arguments[0]}`"
        try:
            group.commands[arguments[0]].make_context(arguments[0], arguments[1:])
        except click.ClickException as error:
            pytest.fail(f"{where}: {shlex.join(command)}: {error.format_message()}", pytrace=False)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert set(arguments) <= set(targets), where
    else:
        assert program in ("python", "pip", "cd"), where
        assert program != "python" or arguments[0].startswith("-") or (ROOT / arguments[0]).is_file(), where


@SLOW
def test_the_readmes_flow_is_the_one_that_is_shipped(ran: Callable[[Path], Ran]) -> None:
    from examples.grpo import grpo

    shown: Any = ran(ROOT / "README.md").page.module.__dict__["grpo"]
    assert full_hash(compile_graph(shown.graph())) == full_hash(compile_graph(grpo.graph()))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_flow_of_an_algorithms_page_is_the_one_that_is_shipped(name: str, ran: Callable[[Path], Ran]) -> None:
    shown: Any = vars(ran(DOCS / "algorithms" / f"{name}.md").page.module)[name]
    assert full_hash(compile_graph(shown.graph())) == full_hash(flows.read(name).graph)


def test_the_flows_that_show_how_to_compose_obey_the_laws(ran: Callable[[Path], Ran]) -> None:
    module = ran(DOCS / "algorithms" / "README.md").page.module
    shown = {name: each for name, each in vars(module).items() if isinstance(each, Flow) and name not in nodes.__all__}
    assert shown.keys() == {"lengths_and_gates", "adapts", "rejects"}
    for each in shown.values():
        assert compile_graph(each.graph()).nodes


@pytest.mark.parametrize("name", SHIPPED)
def test_the_settings_that_an_algorithms_page_names_are_settings_of_its_flow(name: str) -> None:
    read = flows.read(name)
    sets, own = tuple(each["set"] for each in flows.settings(read)), type(read.graph.settings).model_fields
    resolved = {each.name: each for each in read_inputs(Workload(flow=name, settings=sets)).resolved}
    for each in sets:
        setting = each.partition("=")[0]
        assert setting in own or resolved[setting].origin == "--set", each


def test_each_loss_and_advantage_of_a_shipped_flow_has_its_formula() -> None:
    for shown in map(flows.read, SHIPPED):
        wanted = {n.op.name for n in shown.nodes if n.op.kind == "advantage" or issubclass(n.returns[0], Loss)}
        assert wanted <= {each["name"] for each in flows.formulas(shown)}, shown.name


def test_each_advantage_says_what_it_does_in_degenerate_cases() -> None:
    ops = {op.name for module in generate.modules("nodes") for op in generate.ops_of(module) if op.kind == "advantage"}
    told = dict(flows.degenerate(ops))
    assert sorted(ops - told.keys()) == []
    assert [name for name, cases in told.items() if not all(cases.values())] == []


@pytest.mark.parametrize("name", ["README", *SHIPPED])
def test_formulas_keep_to_what_is_rendered_everywhere(name: str) -> None:
    text = (DOCS / "algorithms" / f"{name}.md").read_text(encoding="utf-8")
    found = re.findall(r"^\$\$\n(.*?)\n\$\$$", text, re.MULTILINE | re.DOTALL)
    assert found or name == "README"
    for formula in [*found, *re.findall(r"(?<!\$)\$([^$\n]+)\$(?!\$)", text)]:
        assert formula.count("{") == formula.count("}"), formula
        assert len(re.findall(r"\\left\W", formula)) == len(re.findall(r"\\right\W", formula)), formula
        assert not re.search(r"\\[^a-zA-Z]|operatorname|[<>*]|\n\n", formula), formula


@pytest.mark.parametrize("name", ["README", *SHIPPED])
def test_each_link_of_an_algorithms_page_leads_somewhere(name: str) -> None:
    page = DOCS / "algorithms" / f"{name}.md"
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = page.parent / path
        assert target.exists(), link
        assert not anchor or f"### {anchor}\n" in target.read_text(encoding="utf-8"), link


def test_a_page_tells_when_each_seed_had_learnt_and_that_one_never_did() -> None:
    shown = flows.read("grpo")
    kept = {seed: {"accuracy": [[0, 0.0], [20, top]], "reward": [0.1] * 20} for seed, top in (("0", 0.95), ("1", 0.5))}
    page = generate.rendered("algorithm.md.j2", **flows.page_told(shown, kept))
    assert "- Seed 0: 0.9 from step 20, 0.950 at the end.\n- Seed 1: never 0.9, 0.500 at the end.\n" in page
    assert "No curve was made." in generate.rendered("algorithm.md.j2", **flows.page_told(shown, {}))
    drawn = flows.picture("grpo", kept)
    assert all(f"{what}, seed {seed}" in drawn for what in ("accuracy", "reward") for seed in "01")


def test_a_formula_is_that_of_the_settings_and_ports_of_the_call() -> None:
    def of(flow: str, op: str) -> Any:
        return next(each for each in flows.formulas(flows.read(flow)) if each["name"] == op)

    assert r"\sigma_g" in of("grpo", "group_normalize")["lines"][0]
    assert r"\sigma_g" not in of("dr_grpo", "group_normalize")["lines"][0]
    assert "w_{i,t}" in of("decoupled_ppo", "clipped")["lines"][0]
    assert r"\frac{1}{n c}" in of("dr_grpo", "clipped")["lines"][0]
    assert list(flows.objectives(flows.read("grpo").graph)) == [
        ("policy", r"\mathcal{L} = \mathcal{L}_{\mathrm{clip}} + 0.1 \mathcal{L}_{\mathrm{k3}}")
    ]


def test_a_page_that_lies_is_caught(tmp_path: Path) -> None:
    def told(text: str) -> str:
        path = tmp_path / "page.md"
        path.write_text(text, encoding="utf-8")
        return str(pages.Page(path).rewritten(tmp_path))

    assert (
        told("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n") == "```python\nprint(1 + 1)\n```\n\n```text\n2\n```\n"
    )
    shown = "<!-- prints: flowgraph show gpg -->\n```text\nflow gpg(prompts: Prompts, policy: Policy)\n…\n```\n"
    assert told(shown) == shown
    with pytest.raises(pages.PageError, match=r"page.md:3: these lines around `…` are not printed now"):
        told(shown.replace("gpg(", "gpp("))
    with pytest.raises(ZeroDivisionError):
        told("```python\n1 / 0\n```\n")
    with pytest.raises(pages.PageError, match=r"page.md:2: say why above it: <!-- not run: … -->"):
        told("```python no-run\n1 / 0\n```\n")
    assert told("<!-- not run: it fails -->\n```python no-run\n1 / 0\n```\n")
    with pytest.raises(
        pages.PageError, match=r"(?s)page.md:2: flowgraph show grpp: exit code .*no shipped flow `grpp`"
    ):
        told("```bash\nflowgraph show grpp\n```\n")


@pytest.mark.parametrize("module", [pages, generate, flows, curves], ids=lambda module: module.__name__)
def test_the_scripts_examples_are_true(module: ModuleType) -> None:
    assert doctest.testmod(module) == (0, doctest.testmod(module).attempted)
    assert doctest.testmod(module).attempted


def test_every_page_is_reached_from_the_index() -> None:
    seen, todo = set[Path](), [DOCS / "README.md"]
    while todo:
        page = todo.pop()
        if page not in seen and page.suffix == ".md" and page.is_file():
            seen.add(page)
            links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8"))
            todo += [(page.parent / link).resolve() for link in links]
    assert sorted(str(path.relative_to(DOCS)) for path in set(DOCS.rglob("*.md")) - seen) == []
