"""Write a timeline as Mermaid's gantt chart: a section for each lane. Checked against mermaid 11 and 12."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from flowgraph.diagrams.model.charts import Bar, Lane, Lanes
from flowgraph.diagrams.write.mermaid.flowchart import escaped
from flowgraph.diagrams.write.palette import BAR_INKS, TEXT
from flowgraph.diagrams.write.svg.text_lines import cut

_LONGEST_S = 10.0 * 365 * 86400  # a longer timeline is cut there, where Mermaid's dates end
_BARS_PX = 640.0  # the room of all bars where the page is narrow

# Mermaid has four looks of a bar. Idle time is grey, moves are white, updates stand out; the rest is one colour.
_TAGS: Mapping[str, str] = {
    "idle": "done",
    "sync": "active",
    "transfer": "active",
    "offload": "active",
    "update": "crit",
}
_PLAIN, _MOVE, _UPDATE, _IDLE = BAR_INKS["logprob"], BAR_INKS["sync"], BAR_INKS["update"], BAR_INKS["idle"]
_COLOURS = {
    "taskBkgColor": _PLAIN.fill,
    "taskBorderColor": _PLAIN.border,
    "activeTaskBkgColor": _MOVE.fill,
    "activeTaskBorderColor": _MOVE.border,
    "doneTaskBkgColor": _IDLE.fill,
    "doneTaskBorderColor": _IDLE.border,
    "critBkgColor": _UPDATE.fill,
    "critBorderColor": _UPDATE.border,
    **dict.fromkeys(("taskTextColor", "taskTextDarkColor", "taskTextLightColor"), TEXT),
    "taskTextOutsideColor": "#6b6b6b",
}
_SETTINGS = {
    "look": "classic",
    "theme": "base",
    "gantt": {"displayMode": "compact", "leftPadding": 140, "barHeight": 22},
    "themeVariables": _COLOURS,
}
# A bar whose label began with one of these would be read as another line of the chart.
_OTHER_LINES = re.compile(
    r"\d|gantt|title|section|click|call|href|dateFormat|axisFormat|tickInterval|todayMarker|topAxis|accTitle|accDescr"
    r"|includes|excludes|inclusive|week|display|calendar",
    re.IGNORECASE,
)
_START = datetime(2001, 1, 1)  # noqa: DTZ001  # local time, as Mermaid's axis is: both cancel out


def mermaid_gantt(lanes: Lanes) -> str:
    """Return a timeline as Mermaid's gantt chart, the time from its start along its axis.

    A bar of less than a millisecond is drawn as one millisecond.
    """
    lines = [
        f"%%{{init: {json.dumps(_SETTINGS)}}}%%",
        "gantt",
        f"    accTitle: {escaped(lanes.title)}",
        f"    title {escaped(lanes.title)}",
        "    dateFormat YYYY-MM-DD HH:mm:ss.SSS",
        f"    axisFormat {_axis(lanes.end_s)}",
    ]
    for number, lane in enumerate(lanes.lanes):
        name = f"{lane.label} (measured)" if lane.measured else lane.label
        lines += [f"    section {escaped(name)}", *_bars(lane, number, lanes.end_s)]
    return "\n".join(lines) + "\n"


def _axis(end_s: float) -> str:
    """Return the format of the axis: thousandths for a short time, hours for a long one.

    >>> _axis(0.5), _axis(90), _axis(7200)
    ('%S.%L s', '%M:%S', '%H:%M:%S')
    """
    if end_s < 20:
        return "%S.%L s"
    return "%M:%S" if end_s < 3600 else "%H:%M:%S"


def _bars(lane: Lane, number: int, end_s: float) -> Iterator[str]:
    """Yield the bars of a lane, each with as much of its label as fits: Mermaid would write it over the next bars."""
    for place, (bar, (start_ms, stop_ms)) in enumerate(zip(lane.bars, _spans_ms(lane.bars), strict=True)):
        share = (bar.end_s - bar.start_s) / end_s if end_s else 1.0
        label = cut(bar.label, share * _BARS_PX - 6, "small") or "·"
        tag = f"{_TAGS[bar.kind]}, " if bar.kind in _TAGS else ""
        yield f"    {_task(label)} :{tag}b{number}x{place}, {_date(start_ms)}, {stop_ms - start_ms}ms"


def _spans_ms(bars: Sequence[Bar]) -> list[tuple[int, int]]:
    """Return each bar's first and last millisecond; a bar that follows another starts no sooner than that one ends.

    Otherwise Mermaid would give it a row of its own.

    >>> _spans_ms([Bar(0, 0.0004, "a", "sync"), Bar(0.0004, 2, "b", "idle")])
    [(0, 1), (1, 2000)]
    """
    spans, last_s, last_ms = list[tuple[int, int]](), 0.0, 0
    for bar in bars:
        start_s, stop_s = min(bar.start_s, _LONGEST_S), min(bar.end_s, _LONGEST_S)
        start_ms = round(start_s * 1000)
        start_ms = max(start_ms, last_ms) if start_s >= last_s else start_ms
        spans.append((start_ms, max(start_ms + 1, round(stop_s * 1000))))
        last_s, last_ms = stop_s, spans[-1][1]
    return spans


def _task(label: str) -> str:
    """Write a bar's label so that it is read as one, whatever its first word is.

    >>> _task("policy.update"), _task("section x")
    ('policy.update', '#115;ection x')
    """
    return f"#{ord(label[0])};{escaped(label)[1:]}" if _OTHER_LINES.match(label) else escaped(label)


def _date(start_ms: int) -> str:
    """Return a moment as a date.

    >>> _date(61_500)
    '2001-01-01 00:01:01.500'
    """
    return (_START + timedelta(milliseconds=start_ms)).isoformat(" ", "milliseconds")
