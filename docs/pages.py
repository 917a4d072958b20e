"""Run a page: its Python blocks as one program, its cheap commands, and write what they print into its output blocks.

A block of `text` that follows one of `python` or `bash` holds what that prints; one under `<!-- prints: COMMAND -->`
what the command prints, its error if it is refused. A line `…` in it stands for lines left out. Not here: the generated
reference (`generate.py`).
"""

from __future__ import annotations
import __future__

import contextlib
import io
import os
import re
import shlex
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
# Verbs that load no model and train nothing.
CHEAP = (
    *(
        "show",
        "plan",
        "calibrate",
        "fit",
        "explain",
        "compare",
        "simulate",
        "export",
        "draw",
        "diff",
        "cp",
        "flows",
        "check",
        "nodes",
    ),
    "eval",
)
ELLIPSIS = "…"

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!-- (not run|prints): ([^\n]*?) -->\n+\Z")


class PageError(Exception):
    """A block that does not do what its page says."""


@dataclass(frozen=True)
class Block:
    """One fenced block: its info string, its text, where that begins, and what the comment above it says."""

    info: tuple[str, ...]
    text: str
    start: int  # of the text, in characters of the page
    line: int  # of the text's first line, from 1
    comment: tuple[str, str] = ("", "")
    follows: bool = False  # nothing but blank lines between it and the block before

    @property
    def language(self) -> str:
        """Return the first word of the info string."""
        return self.info[0] if self.info else ""


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page, in order."""
    end = 0
    for found in _FENCE.finditer(page):
        before = page[end : found.start()]
        comment = _COMMENT.search(before)
        line = page.count("\n", 0, found.start("text")) + 1
        said = (comment[1], comment[2]) if comment else ("", "")
        yield Block(
            tuple(found["info"].split()),
            found["text"],
            found.start("text"),
            line,
            said,
            bool(end) and not before.strip(),
        )
        end = found.end()


def commands(block: Block) -> list[list[str]]:
    """Return the commands of a `bash` block as arguments; a line that ends in a backslash goes on."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [found for line in lines if (found := shlex.split(line, comments=True))]


@dataclass
class Page:
    """One page as a program, and the namespace that it runs in."""

    path: Path
    before: str = ""  # lines that the page leaves out, such as the imports of a flow that it shows
    module: types.ModuleType = field(init=False)
    _flags: int = 0  # a block's `from __future__` holds for those below it, as in one file

    def __post_init__(self) -> None:
        self.module = types.ModuleType(f"page_{re.sub(r'[^a-z]', '_', self.path.stem.lower())}")

    def rewritten(self, folder: Path) -> str:
        """Run the page from its top, in `folder`; give its text with every output block as it is printed now.

        Raises `PageError` for a block that fails, and for lines around a `…` that are not printed.
        """
        page = self.path.read_text(encoding="utf-8")
        new, end, printed = list[str](), 0, ""
        with self._at_work(folder):
            if self.before:
                exec(compile(self.before, "before the page", "exec"), vars(self.module))
            for block in blocks(page):
                printed = self._output(block, printed) if block.language == "text" else self._run(block)
                if block.language == "text" and printed:
                    new += [page[end : block.start], printed]
                    end = block.start + len(block.text)
        return "".join([*new, page[end:]])

    @contextlib.contextmanager
    def _at_work(self, folder: Path) -> Iterator[None]:
        """Stand in a folder, as the module that its program is."""
        if not (folder / "examples").exists():
            (folder / "examples").symlink_to(ROOT / "examples")
        sys.modules[self.module.__name__] = self.module
        try:
            with contextlib.chdir(folder):
                yield
        finally:
            del sys.modules[self.module.__name__]

    def _run(self, block: Block) -> str:
        if block.language == "python" and "no-run" in block.info:
            if block.comment[0] != "not run":
                raise PageError(f"{self.path.name}:{block.line}: say why above it: <!-- not run: … -->")
        elif block.language == "python" and len(block.info) > 1:
            Path(block.info[1]).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            return self._python(block)
        elif block.language == "bash":
            said = [self._command(each, block) for each in commands(block)]
            return said[-1] if said else ""
        return ""

    def _python(self, block: Block) -> str:
        code = "\n" * (block.line - 1) + block.text  # so that a line of an error is a line of the page
        self._flags |= __future__.annotations.compiler_flag if "from __future__ import annotations\n" in code else 0
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            exec(compile(code, str(self.path), "exec", self._flags, dont_inherit=True), vars(self.module))
        return told.getvalue()

    def _command(self, command: Sequence[str], block: Block, refused: bool = False) -> str:
        if command[:1] != ["flowgraph"] or command[1] not in CHEAP:
            return ""
        code, out, err = flowgraph(command[1:])
        small = err.startswith("no placement for ")  # what fits depends on the memory of this machine
        absent = code and err.rpartition("\n  hint: ")[0].endswith("which is not installed")  # Graphviz, say
        if code and not (code in (1, 2) and refused) and not (code == 1 and small) and not absent:
            raise PageError(f"{self.path.name}:{block.line}: {shlex.join(command)}: exit code {code}\n{err}")
        return out or err

    def _output(self, block: Block, printed: str) -> str:
        """Return what an output block is to hold, or nothing if it is no output."""
        if block.comment[0] == "prints":
            printed = self._command(shlex.split(block.comment[1]), block, refused=True)
        elif not block.follows:
            return ""
        kept = elided(block.text.splitlines(), printed.splitlines())
        if kept is None:
            where = f"{self.path.name}:{block.line}"
            raise PageError(f"{where}: these lines around `{ELLIPSIS}` are not printed now:\n{block.text}\n{printed}")
        return "".join(f"{line}\n" for line in kept)


def elided(wanted: Sequence[str], printed: Sequence[str]) -> list[str] | None:
    """Return the printed lines; or those wanted, if what is printed has them in order around each `…`; else None.

    >>> elided(["old"], ["new"])
    ['new']
    >>> elided(["a", "…", "c"], ["a", "b", "c"]), elided(["…", "b"], ["b", "a"])
    (['a', '…', 'c'], None)
    """
    if ELLIPSIS not in [line.strip() for line in wanted]:
        return list(printed)
    parts = ["" if line.strip() == ELLIPSIS else re.escape(f"{line}\n") for line in wanted]
    pattern = "".join(part or r"(?:.*\n)*?" for part in parts)
    return list(wanted) if re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) else None


def flowgraph(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Run `flowgraph ARGUMENTS` in this process; give its exit code, stdout and stderr."""
    from flowgraph.cli import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    elsewhere = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # as in a pipe
    environment = mock.patch.dict(os.environ, elsewhere, clear=True)
    with streams[0], streams[1], environment, mock.patch.object(sys, "argv", ["flowgraph", *arguments]):
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return code, out.getvalue(), err.getvalue()
