"""Format rows of cells as aligned columns of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    """Yield each row of cells as a line, with columns aligned and two spaces apart; nothing without rows.

    `right` lists the indices of columns that are aligned on the right. Spaces at the end of a line are removed. Raises
    ValueError if rows differ in their number of cells.

    >>> list(columns([["a", "bc"], ["def", "g"]]))
    ['a    bc', 'def  g']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        padded = (cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in enumerate(cells))
        yield "  ".join(padded).rstrip()
