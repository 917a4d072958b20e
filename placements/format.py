"""Plans as text: short, stable and diff-able, with at most 100 columns (or `text_columns`) unless a name is long."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import groupby
from math import inf

from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import Plan, Pool

COLUMNS = 100
NARROW = 30  # with fewer columns, nothing is broken into lines
BENEATH = " " * 6

_columns = ContextVar("columns", default=COLUMNS)


@contextmanager
def text_columns(columns: int) -> Generator[None]:
    """Set the width, in columns, of texts that are formatted inside this context, and restore the old width after it.

    >>> with text_columns(40):
    ...     flowing([["a", "one two three four five six seven eight"]])
    ['  a  one two three four five six seven', '     eight']
    """
    token = _columns.set(columns)
    try:
        yield
    finally:
        _columns.reset(token)


def pool_sizes(plan: Plan, pool: Pool) -> list[int]:
    """Return the memory of each device of a pool in bytes; devices that the plan's cluster lacks are left out."""
    devices = [plan.cluster.device(node, index) for node, index in pool.devices]
    return [device.memory_bytes for device in devices if device is not None]


def show_devices(devices: Sequence[tuple[str, int]]) -> str:
    """Return devices, each (machine, index), as text in their order; "" for none.

    Three or more consecutive devices of a machine become a range; so do three or more machines in a row that have the
    same devices.

    >>> show_devices([("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)])
    'a/0, a/1, b/0-2'
    >>> show_devices([(f"n{i}", k) for i in range(4) for k in range(8)])
    'n0/0-7 to n3/0-7'
    """
    runs = list[tuple[str, list[int]]]()
    for node, index in devices:
        if runs and runs[-1][0] == node and runs[-1][1][-1] + 1 == index:
            runs[-1][1].append(index)
        else:
            runs.append((node, [index]))
    texts = list[str]()
    for _, alike in groupby(runs, key=lambda run: run[1]):
        machines = [
            f"{node}/{places[0]}-{places[-1]}" if len(places) > 2 else ", ".join(f"{node}/{place}" for place in places)
            for node, places in alike
        ]
        texts += [f"{machines[0]} to {machines[-1]}"] if len(machines) > 2 else machines
    return ", ".join(texts)


def show_range(sizes: Sequence[int]) -> str:
    """Return sizes in bytes as text: one size if all look alike when printed, else the smallest and the largest.

    >>> show_range([1024, 1024]), show_range([2048, 1024]), show_range([])
    ('1.0 KiB', '1.0 KiB to 2.0 KiB', 'unknown memory')
    """
    if not sizes:
        return "unknown memory"
    smallest, largest = show_bytes(min(sizes)), show_bytes(max(sizes))
    return smallest if smallest == largest else f"{smallest} to {largest}"


def show_parts(parts: Mapping[str, int]) -> str:
    """Return the bytes of each part as text on one line, in the order of `parts`.

    >>> show_parts({"weights": 1024, "logits": 2048})
    'weights 1.0 KiB · logits 2.0 KiB'
    """
    return " · ".join(f"{part} {show_bytes(count)}" for part, count in parts.items())


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with aligned columns, two spaces apart and indented by two spaces.

    Raises ValueError if rows have different numbers of cells.
    """
    return flowing(rows, columns=inf)


def flowing(rows: Sequence[Sequence[str]], at: str = " ", columns: float | None = None) -> list[str]:
    """Return rows of cells as lines with aligned columns; the last cell may take several lines, broken after `at`.

    Lines have at most `columns` columns (None: those of `text_columns`, 100 by default) unless a word or another cell
    is longer. If there is little room next to the other cells, the last cell starts on the line below them. Raises
    ValueError if rows have different numbers of cells.

    >>> flowing([["a", "one, two, three"], ["long", "four"]], ", ", columns=40)
    ['  a     one, two, three', '  long  four']
    >>> flowing([["a", "one, two, three and four, five and six"]], ", ", columns=40)
    ['  a  one, two, three and four,', '     five and six']
    >>> flowing([["a name that is long", "one, two, three and four"]], ", ", columns=40)
    ['  a name that is long', '      one, two, three and four']
    """
    columns = columns or _columns.get()
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)][:-1]
    result = list[str]()
    for *cells, last in rows:
        head = "  " + "".join(f"{cell.ljust(width)}  " for cell, width in zip(cells, widths, strict=True))
        longest = max(map(len, last.split()), default=0)
        if len(head + last) > columns and columns - len(head) < max(NARROW, longest):
            result.append(head.rstrip())
            head = BENEATH
        for line in broken(last, at, columns - len(head)):
            result.append(f"{head}{line}".rstrip())
            head = " " * len(head)
    return result


def broken(text: str, at: str, columns: float | None = None) -> Iterator[str]:
    """Yield the lines of a text that is broken after `at`, each at most `columns` wide (None: those of `text_columns`).

    A piece that is longer than a line is broken between words; a single word is never broken. An empty text is one
    empty line.

    >>> list(broken("one, two, three", ", ", 10)), list(broken("one two, three", ", ", 5))
    (['one, two,', 'three'], ['one', 'two,', 'three'])
    """
    line, columns = "", columns or _columns.get()
    for piece in _pieces(text, at, columns):
        if line and len((line + piece).rstrip()) > columns:
            yield line.rstrip()
            line = ""
        line += piece
    yield line


def _pieces(text: str, at: str, columns: float) -> Iterator[str]:
    *first, last = text.split(at)
    for piece in [*(f"{piece}{at}" for piece in first), last]:
        if len(piece.rstrip()) <= columns or at == " ":
            yield piece
        else:
            yield from _pieces(piece, " ", columns)
