"""Draw any picture for a terminal, in words and lines; colour adds nothing to them.

Names are plain text: no escape code of a name reaches the terminal, and no sign in it is markup.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from flowgraph.diagrams.model.charts import Comparison, Curves, Drawing, Lanes, MemoryChart, Scatter
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.picture import Picture, SequenceDiagram

if TYPE_CHECKING:
    from rich.console import RenderableType

ABOUT_CHARACTERS = 2000
WIDTH_MIN = 20


def terminal(drawing: Drawing, width: int, colour: bool) -> str:
    """Return a picture of any kind as text for a terminal of `width` columns, with its title above and `about` below.

    At least 20 columns are used. Only the title may be wider than the terminal. `colour` adds escape codes.
    """
    from rich.console import Console
    from rich.text import Text

    columns = max(width, WIDTH_MIN)
    console = Console(
        file=io.StringIO(),
        width=columns,
        height=25,
        force_terminal=colour,
        force_jupyter=False,
        force_interactive=False,
        color_system="truecolor" if colour else None,
        no_color=not colour,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with console.capture() as captured:
        console.print(Text(clean(drawing.title), "bold"), no_wrap=True, overflow="ignore", crop=False)
        for part in _parts(drawing, columns):
            cut = isinstance(part, Text) and part.overflow == "ellipsis"  # rich forgets it as it joins texts
            console.print(part, overflow="ellipsis" if cut else "fold", no_wrap=cut or None, crop=False)
        if drawing.about:
            console.print(Text(clean(drawing.about, ABOUT_CHARACTERS), "dim"))
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def _parts(drawing: Drawing, width: int) -> Iterable[RenderableType]:
    from flowgraph.diagrams.write.terminal import terminal_boxes, terminal_charts

    match drawing:
        case Picture():
            placed = terminal_boxes.is_placed(drawing)
            return terminal_boxes.panels(drawing) if placed else terminal_boxes.flow_lines(drawing, width)
        case SequenceDiagram():
            return terminal_charts.sequence_lines(drawing)
        case Lanes():
            return terminal_charts.lane_lines(drawing, width)
        case MemoryChart():
            return terminal_charts.memory_lines(drawing, width)
        case Comparison():
            return [terminal_charts.comparison_table(drawing)]
        case Scatter():
            return [terminal_charts.scatter_table(drawing)]
        case Curves():
            return [terminal_charts.curves_table(drawing)]
