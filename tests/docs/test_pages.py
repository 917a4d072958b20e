"""The pages do what they say: their blocks run, their output is what is printed, their commands are real ones."""

from __future__ import annotations

import doctest
import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import typer

from flowgraph.cli.app import app
from flowgraph.passes import compile_graph
from flowgraph.store import full_hash

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


pages: Any = script("pages")
generate: Any = script("generate")

PAGES = {str(page.path.relative_to(ROOT)): page.path for page in generate.pages()}
REFERENCE = {str(path.relative_to(ROOT)): path for path in sorted((DOCS / "reference").rglob("*.md"))}
HINT = "python docs/generate.py writes it anew"


@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_a_page_run_and_print_what_it_shows(name: str, tmp_path: Path) -> None:
    (page,) = [each for each in generate.pages() if each.path == PAGES[name]]
    assert page.rewritten(tmp_path) == PAGES[name].read_text(encoding="utf-8"), HINT


def test_the_reference_is_what_the_sources_say() -> None:
    wanted = {f"docs/reference/{name}": text for name, text in generate.reference().items()}
    there = {name: path.read_text(encoding="utf-8") for name, path in REFERENCE.items()}
    assert sorted(there.keys() ^ wanted.keys()) == [], HINT
    assert [name for name, text in wanted.items() if there[name] != text] == [], HINT


def test_the_reference_names_no_place_of_a_machine_and_no_line_of_our_sources() -> None:
    for name, path in REFERENCE.items():
        text = path.read_text(encoding="utf-8")
        assert str(ROOT) not in text, name
        assert not re.search(r"/tmp/|0x[0-9a-f]{6,}", text), name
        assert re.findall(r"(?:flowgraph|nodes|placements)/[\w/]+\.py:\d+", text) == [], name


def commands() -> list[tuple[str, list[str]]]:
    """Give every command of a `bash` block, with its page and line."""
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
        group: Any = typer.main.get_command(app)
        assert arguments[0] in group.commands, f"{where}: flowgraph has no verb `{arguments[0]}`"
        try:
            group.commands[arguments[0]].make_context(arguments[0], arguments[1:])
        except click.ClickException as error:
            pytest.fail(f"{where}: {shlex.join(command)}: {error.format_message()}", pytrace=False)
    elif program == "make":
        targets = re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert set(arguments) <= set(targets), where
    else:
        assert program in ("python", "pip", "cd"), where
        assert program != "python" or arguments[0].startswith("-") or (ROOT / arguments[0]).is_file(), where


def test_the_readmes_flow_is_the_one_that_is_shipped(tmp_path: Path) -> None:
    from examples.grpo import grpo

    (page,) = [each for each in generate.pages() if each.path == ROOT / "README.md"]
    page.rewritten(tmp_path)
    shown: Any = page.module.__dict__["grpo"]
    assert full_hash(compile_graph(shown.graph())) == full_hash(compile_graph(grpo.graph()))


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


@pytest.mark.parametrize("module", [pages, generate], ids=lambda module: module.__name__)
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
