"""What `--help` and `--version` print: sections, whole lines, plain English, within the columns of the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer

from flowgraph.cli.application import SECTIONS, commands
from flowgraph.cli.help_pages import first_sentence
from flowgraph.errors.distribution import installed_version
from flowgraph.errors.exit_codes import MEANINGS
from tests.cli.said import text_of

Run = Callable[..., Any]

GROUP: Any = typer.main.get_command(commands)
NAMES = [name for members in SECTIONS.values() for name in members]
RIDDLES = ("what draws", "so many", "of which", "is no ", "tell these", "beside")


def options() -> Iterator[tuple[str, Any]]:
    """Yield each option and argument with the command it is of."""
    for name, command in [*GROUP.commands.items(), *GROUP.commands["engines"].commands.items()]:
        for param in command.params:
            yield name, param


def test_help_lists_every_command_in_its_section_with_its_whole_first_sentence(
    flowgraph: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = text_of(flowgraph("--help")).splitlines()
    assert max(map(len, lines)) <= 80
    assert "..." not in "\n".join(lines[1:])
    assert [line[:-1] for line in lines if line[:-1] in SECTIONS and line.endswith(":")] == list(SECTIONS)
    assert sorted(NAMES) == sorted(GROUP.commands)
    for name in NAMES:
        sentence = first_sentence(GROUP.commands[name].help)
        assert any(re.fullmatch(rf"  {name} +{re.escape(sentence)}", line) for line in lines), name


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_fits(name: str, columns: int, flowgraph: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = text_of(flowgraph(name, "--help")).splitlines()
    assert max(map(len, lines)) <= columns
    assert not re.search(r"<\w|\d<=x|x>=|…", "\n".join(lines)), "types and ranges are in words"
    wide = text_of(flowgraph("plan", "--help")).splitlines()
    assert columns == 80 or max(map(len, wide)) > 80, "a wider terminal is used"


def test_every_option_says_what_it_is_in_a_sentence() -> None:
    for name, param in options():
        text = param.help or ""
        assert re.match(r"[A-Z]|\S+[ ,]", text) and text.rstrip().endswith("."), (name, param.name, text)
        assert not any(riddle in text for riddle in RIDDLES), (name, param.name, text)
        takes = param.param_type_name == "option" and not param.is_flag
        assert not takes or param.metavar, (name, param.name, "a type says less than a name")


def test_version_prints_the_installed_version(flowgraph: Run) -> None:
    assert text_of(flowgraph("--version")) == f"flowgraph {installed_version() or 'unknown'}\n"


def test_help_lists_the_exit_codes(flowgraph: Run) -> None:
    lines = text_of(flowgraph("--help")).splitlines()
    for code, meaning in MEANINGS.items():
        assert f"    {int(code):<4} {meaning}" in lines
