"""Write sequence diagrams, timelines (as gantt charts) and charts of memory (as bars) as Mermaid's text.

Checked against mermaid 11 and 12.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from flowgraph.diagrams.model.charts import Lanes, MemoryChart
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.picture import ArrowStyle, MessageStyle, SequenceDiagram
from flowgraph.diagrams.write.mermaid.flowchart import escaped
from flowgraph.diagrams.write.palette import ARROW_INKS, BAR_INKS, INKS, TEXT
from flowgraph.diagrams.write.svg.text_lines import clean_and_cut

# A transfer has an open head; a sync of weights is dashed too, for Mermaid has no bold line here.
_ARROWS: Mapping[MessageStyle, str] = {"call": "->>", "reply": "-->>", "transfer": "-)", "sync": "--)"}
_SEQUENCE = '%%{init: {"look": "classic", "sequence": {"mirrorActors": false, "showSequenceNumbers": true}}}%%'

_LONGEST_S = 10.0 * 365 * 86400  # a longer timeline is cut there, where Mermaid's dates end
_BARS_PX = 640.0  # the room of all bars where the page is narrow
_START = datetime(2001, 1, 1)  # noqa: DTZ001  # local time, as Mermaid's axis is: both cancel out

# Mermaid has four looks of a bar. Idle time is grey, moves are white, updates stand out; the rest is one colour.
_TAGS: Mapping[str, str] = {
    "idle": "done",
    "sync": "active",
    "transfer": "active",
    "offload": "active",
    "update": "crit",
}
_LOOKS = {
    "task": BAR_INKS["logprob"],
    "activeTask": BAR_INKS["sync"],
    "doneTask": BAR_INKS["idle"],
    "crit": BAR_INKS["update"],
}
_GANTT = {
    "look": "classic",
    "theme": "base",
    "gantt": {"displayMode": "compact", "leftPadding": 140, "barHeight": 22},
    "themeVariables": {
        **{
            f"{prefix}{part}Color": colour
            for prefix, ink in _LOOKS.items()
            for part, colour in (("Bkg", ink.fill), ("Border", ink.border))
        },
        **dict.fromkeys(("taskTextColor", "taskTextDarkColor", "taskTextLightColor"), TEXT),
        "taskTextOutsideColor": "#6b6b6b",
    },
}
# A bar whose label began with one of these would be read as another line of the chart.
_OTHER_LINES = re.compile(
    r"\d|gantt|title|section|click|call|href|dateFormat|axisFormat|tickInterval|todayMarker|topAxis|accTitle|accDescr"
    r"|includes|excludes|inclusive|week|display|calendar",
    re.IGNORECASE,
)

_GIB = 2**30
_BAR_PX, _MARGIN_PX = 34, 110
_LABEL_CHARACTERS = 24  # Mermaid leaves all labels out when one takes too much of the width
_SYNTAX = re.compile(r"""["`#;:&<>%\\]""")


def mermaid_sequence(diagram: SequenceDiagram) -> str:
    """Return a sequence diagram as Mermaid text, with an instruction to Mermaid to number the messages."""
    lines = [_SEQUENCE, "sequenceDiagram", f"    accTitle: {escaped(diagram.title)}"]
    for actor in diagram.actors:
        label = "<br/>".join(map(escaped, [*actor.label, *([actor.pool] if actor.pool else [])]))
        lines.append(f"    participant {actor.id} as {label}")
    lines += [
        f"    {message.source}{_ARROWS[message.style]}{message.target}: {escaped(message.label)}"
        for message in diagram.messages
    ]
    return "\n".join(lines) + "\n"


def mermaid_gantt(lanes: Lanes) -> str:
    """Return a timeline as the text of a Mermaid Gantt chart, with a section for each lane and times from the start.

    Labels are cut to the width of their bars, and times to ten years. A bar of less than a millisecond is drawn as one
    millisecond. A bar that follows another starts no sooner than that one ends, so that Mermaid keeps both in one row.
    """
    axis = "%S.%L s" if lanes.end_s < 20 else "%M:%S" if lanes.end_s < 3600 else "%H:%M:%S"
    lines = [
        f"%%{{init: {json.dumps(_GANTT)}}}%%",
        "gantt",
        f"    accTitle: {escaped(lanes.title)}",
        f"    title {escaped(lanes.title)}",
        "    dateFormat YYYY-MM-DD HH:mm:ss.SSS",
        f"    axisFormat {axis}",
    ]
    for number, lane in enumerate(lanes.lanes):
        name = f"{lane.label} (measured)" if lane.measured else lane.label
        lines.append(f"    section {escaped(name)}")
        last_s, last_ms = 0.0, 0
        for place, bar in enumerate(lane.bars):
            # As much of a label as fits: Mermaid would write it over the next bars.
            share = (bar.end_s - bar.start_s) / lanes.end_s if lanes.end_s else 1.0
            text = clean_and_cut(bar.label, share * _BARS_PX - 6, "small") or "·"
            label = f"#{ord(text[0])};{escaped(text)[1:]}" if _OTHER_LINES.match(text) else escaped(text)
            start_s, stop_s = min(bar.start_s, _LONGEST_S), min(bar.end_s, _LONGEST_S)
            start_ms = max(round(start_s * 1000), last_ms if start_s >= last_s else 0)
            stop_ms = max(start_ms + 1, round(stop_s * 1000))
            last_s, last_ms = stop_s, stop_ms
            date = (_START + timedelta(milliseconds=start_ms)).isoformat(" ", "milliseconds")
            tag = f"{_TAGS[bar.kind]}, " if bar.kind in _TAGS else ""
            lines.append(f"    {label} :{tag}b{number}x{place}, {date}, {stop_ms - start_ms}ms")
    return "\n".join(lines) + "\n"


def mermaid_memory(chart: MemoryChart) -> str:
    """Return a memory chart as the text of a Mermaid bar chart: a bar in GiB per phase, and a line at the capacity.

    A bar is the sum of all roles or parts, because Mermaid has no stacked bars. Names of pools and phases are cut to 24
    characters.
    """
    phases = [(store, phase) for store in chart.stores for phase in store.phases]
    labels = [
        quoted(" · ".join(clean(text, _LABEL_CHARACTERS) for text in (store.label, phase.label)))
        for store, phase in phases
    ]
    sizes = [phase.size_bytes / _GIB for _, phase in phases]
    capacities = [store.capacity_bytes / _GIB for store, _ in phases]
    colours = f"{INKS['model'].fill}, {ARROW_INKS[ArrowStyle.CARRY]}"
    settings = {
        "look": "classic",
        "xyChart": {"width": 800, "height": _MARGIN_PX + _BAR_PX * max(1, len(phases))},
        "themeVariables": {"xyChart": {"plotColorPalette": colours}},
    }
    lines = [
        f"%%{{init: {json.dumps(settings)}}}%%",
        "xychart-beta horizontal",
        f"    title {quoted(chart.title)}",
        f"    accTitle: {escaped(chart.title)}",
        f"    x-axis [{', '.join(labels) or quoted('nothing')}]",
        f'    y-axis "GiB" 0 --> {max([*sizes, *capacities, 1.0]) * 1.05:.4g}',
        f"    bar [{_numbers(sizes)}]",
        f"    line [{_numbers(capacities)}]",
    ]
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """Return a label, cleaned by `clean`, as a quoted Mermaid string with syntax characters escaped.

    Other characters are not escaped, because Mermaid would count each character of an escape when it measures labels.

    >>> quoted("train (2) · a;b")
    '"train (2) · a#59;b"'
    """
    return f'"{_SYNTAX.sub(lambda match: f"#{ord(match[0])};", clean(text))}"'


def _numbers(sizes: Iterable[float]) -> str:
    return ", ".join(f"{size:.3f}" for size in sizes) or "0"
