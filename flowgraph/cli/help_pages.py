"""The layout of `--help`: commands and options in sections, in the columns of the terminal, without cutting lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from flowgraph.cli.output import say
from flowgraph.errors.distribution import installed_version

WIDEST = 120  # columns; longer lines of text are hard to read
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": WIDEST}
Rows = dict[str, list[tuple[str, str]]]

_RANGE = re.compile(r"(\[|; )(?:(\d+(?:\.\d+)?)<=x<=(\d+)|x>=(\d+(?:\.\d+)?))\]")
_TYPE = re.compile(r" <.+>$")
LARGE = 10**6  # a larger maximum only guards against mistakes, and says nothing to a reader


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, in one line and without its full stop.

    >>> first_sentence("Train a flow. The first Ctrl-C stops it.")
    'Train a flow'
    """
    return re.split(r"\.(?:\s|$)", " ".join(text.split()), maxsplit=1)[0]


def plain_range(text: str) -> str:
    """Return an option's help with the range of its number in words: `1 to 100`.

    A minimum alone, and a range whose maximum is a million or more, are removed: they are of no use to a reader.

    >>> plain_range("Steps.  [default: 2; 1<=x<=100]"), plain_range("Seed.  [0<=x<=9999999]")
    ('Steps.  [default: 2; 1 to 100]', 'Seed.')
    >>> plain_range("Number of steps.  [x>=1]"), plain_range("Every N.  [default: 20; x>=0]")
    ('Number of steps.', 'Every N.  [default: 20]')
    """

    def words(match: re.Match[str]) -> str:
        opening, minimum, maximum, _ = match.groups()
        if maximum is not None and int(maximum) < LARGE:
            return f"{opening}{minimum} to {maximum}]"
        return "" if opening == "[" else "]"

    return _RANGE.sub(words, text).rstrip()


def write_rows(formatter: Any, rows: Rows) -> None:
    """Write rows of (name, text) to a help formatter, by section.

    The texts of all sections begin in the same column if no name has more than 28 characters.
    """
    widest = max((len(first) for section in rows.values() for first, _ in section), default=0)
    for name, section in rows.items():
        with formatter.section(name):
            formatter.write_dl([(first.ljust(min(widest, 28)), text) for first, text in section], col_max=30)


def option_rows(params: Iterable[Any], context: Any) -> Rows:
    """Return the rows (name, text) of a command's arguments and options for `--help`, by section.

    Arguments come first, and options without a section last. Hidden ones are left out. `context` is the command's.
    """
    arguments, options, rest = list[tuple[str, str]](), Rows(), list[tuple[str, str]]()
    for param in params:
        record = param.get_help_record(context)
        if record is None:
            continue
        name, text = record[0], plain_range(record[1])
        section = getattr(param, "rich_help_panel", None)
        if param.param_type_name == "argument":
            arguments.append((_TYPE.sub("", name), text.removesuffix("[required]").rstrip()))
        else:
            (options.setdefault(section, []) if section else rest).append((name, text))
    rows = {"Arguments": arguments} if arguments else {}
    return rows | options | {"Options": rest}


class OneCommand(TyperCommand):
    """A command whose help lists its options in sections."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line, such as `[OPTIONS]`, `FLOW`, `[FLOW]` and `RUN...`, without braces."""
        return [re.sub(r"[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options of the command, by section, to the help formatter."""
        write_rows(formatter, option_rows(self.get_params(ctx), ctx))


class Commands(TyperGroup):
    """A group of commands whose help lists them in sections, each with the first sentence of its help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of the group, by section, and then its options to the help formatter."""
        rows = Rows()
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            section = command.rich_help_panel or "Commands"
            rows.setdefault(section, []).append((name, first_sentence(command.help or "")))
        write_rows(formatter, rows)
        write_rows(formatter, option_rows(self.get_params(ctx), ctx))


def show_version(flag: bool) -> None:
    """Print the installed version, or "unknown" if there is none, and raise `typer.Exit`; do nothing without `flag`."""
    if flag:
        say(f"flowgraph {installed_version() or 'unknown'}")
        raise typer.Exit
