"""Reading the seconds that other systems log: verl's console and JSON lines, NeMo RL's metrics, and Chrome traces.

Source of the formats: verl, verl/utils/tracking.py (`FileLogger`: `{"step": 1, "data": {...}}` on each line) and
verl/utils/logger (console: `step:1 - timing_s/gen:9.1 - ...`); NeMo RL, tests/json_dump_tb_logs.py
(`{"timing/train/generation": {"1": 9.1, ...}, ...}`); W&B's history, a flat object on each line. Trace Event Format,
Google, 2016.

Not here: the nodes of a timer (`timing_names`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import isfinite
from typing import Any, Literal

from flowgraph.errors import DataError
from flowgraph.files.untrusted import parse_json
from placements.calibration.timings import medians

System = Literal["verl", "NeMo RL", "trace"]
PREFIXES: Mapping[System, str] = {"verl": "timing_s/", "NeMo RL": "timing/train/"}
KNOWN = "verl's console or JSON lines, NeMo RL's metrics as JSON, or a Chrome trace with the plan's nodes"
PREDICTED = ", predicted"  # ends the name of a forecast's process in our traces
CONSOLE = re.compile(r"\bstep:(\d{1,12}) - (.*)")
NUMPY = re.compile(r"^np\.\w{1,20}\((.*)\)$")  # a number as NumPy 2 prints it
COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")


@dataclass(frozen=True)
class TimingLog:
    """Median seconds over `steps` steps, by timer or, for a trace, by the name of a task.

    `other` counts metrics, or events of a trace, that are not timers. `unreadable` are the timers that have a value
    other than a finite number from 0; they are not in `seconds`.
    """

    system: System
    seconds: Mapping[str, float]
    steps: int
    other: int = 0
    unreadable: tuple[str, ...] = ()

    @property
    def prefix(self) -> str:
        """Return the prefix of timer names in this system's logs, such as `timing_s/`; "" for a trace."""
        return PREFIXES.get(self.system, "")


def read_log(text: str, where: str, names: Mapping[str, str]) -> TimingLog:
    """Return the median seconds of each timer in a log of any known format, over the log's steps.

    The first step is a warm-up, and counts only for timers that no later step has. `text` is the content of the log,
    and `where` its file for errors. For a Chrome trace, `names` maps the names of ranges to tasks; other ranges are
    ignored. Raises DataError for an unknown format, for a first or inner line of JSON lines that is not JSON, for a
    trace that is malformed or has no range of `names`, and if no timer has seconds.
    """
    try:
        document = parse_json(text, finite=False)
    except ValueError:  # JSON lines or a console
        steps = _rows(text, where) if text.lstrip().startswith("{") else _console(text)
        return _log(list(steps), where)
    if isinstance(document, list) or (isinstance(document, dict) and "traceEvents" in document):
        return _trace(document if isinstance(document, list) else document["traceEvents"], where, names)
    tables = list(document.values()) if isinstance(document, dict) else []
    by_metric = bool(tables) and all(
        isinstance(table, dict) and all(step.isascii() and step.isdigit() for step in table) for table in tables
    )
    if not by_metric:
        return _log([_row(document)], where)
    numbers = sorted({step for table in tables for step in table}, key=int)
    return _log([{name: table[n] for name, table in document.items() if n in table} for n in numbers], where)


def _row(line: Any) -> dict[str, Any]:
    data = line.get("data", line) if isinstance(line, dict) else None
    return data if isinstance(data, dict) else {}


def _rows(text: str, where: str) -> Iterator[dict[str, Any]]:
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    for place, (number, line) in enumerate(lines):
        try:
            yield _row(parse_json(line, finite=False))
        except ValueError as error:
            if place < len(lines) - 1 or place == 0:
                raise DataError.bad_line(where, number, f"is not JSON: {error}") from None


def _console(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if match := CONSOLE.search(COLOUR.sub("", line)):
            pairs = (part.rpartition(":") for part in match[2].split(" - "))
            yield {name.strip(): _number(value.strip()) for name, colon, value in pairs if colon}


def _number(text: str) -> float | str:
    try:
        return float(NUMPY.sub(r"\1", text))
    except ValueError:
        return text


def _log(steps: Sequence[Mapping[str, Any]], where: str) -> TimingLog:
    metrics = dict.fromkeys(name for step in steps for name in step)
    systems: list[System] = [
        system for system, prefix in PREFIXES.items() if any(name.startswith(prefix) for name in metrics)
    ]
    if not systems:
        raise DataError.unusable(where, "has no known timers", f"calibrate reads {KNOWN}")
    system = systems[0]
    timers = [name for name in metrics if name.startswith(PREFIXES[system])]
    unreadable = [name for name in timers if not all(_is_seconds(step[name]) for step in steps if name in step)]
    timed = [{name: float(step[name]) for name in timers if name in step and name not in unreadable} for step in steps]
    timed = [step for step in timed if step]
    if not timed:
        raise DataError.unusable(where, f"has no seconds: {', '.join(unreadable)} are not numbers", "")
    return TimingLog(system, medians(timed), len(timed), len(metrics) - len(timers), tuple(unreadable))


def _is_seconds(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and isfinite(value) and value >= 0


# ------------------------------------------------------------------------------------------------- traces


def _trace(events: Any, where: str, names: Mapping[str, str]) -> TimingLog:
    """Return the seconds of the ranges in `names`, without forecasts; of ranks side by side, the slowest counts."""
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise DataError.unusable(where, "is not a Chrome trace: `traceEvents` must be a list of objects")
    forecasts = set[str]()
    for event in events:
        args = event.get("args")
        process = _text(args.get("name")) if isinstance(args, dict) else ""
        if event.get("name") == "process_name" and process.endswith(PREDICTED):
            forecasts.add(_text(event.get("pid")))
    ranges = [event for event in events if event.get("ph") == "X" and _text(event.get("pid")) not in forecasts]
    by_lane = dict[str, dict[tuple[str, str], list[float]]]()
    for event in sorted(ranges, key=lambda event: _float(event.get("ts"))):
        text = _text(event.get("name"))
        bare = re.sub(r"^[A-Za-z0-9._-]{1,64}?-\d{1,6}-", "", text)  # our profiles begin names with pool and rank
        name = names.get(text) or names.get(bare, "")
        if name and _float(event.get("dur")) > 0:
            lane = _text(event.get("pid")), _text(event.get("tid"))
            by_lane.setdefault(name, {}).setdefault(lane, []).append(_float(event["dur"]) / 1e6)
    if not by_lane:
        hint = f"the plan's tasks are {'; '.join(dict.fromkeys(names.values()))}"
        raise DataError.unusable(where, "is a Chrome trace without a range of the plan's nodes", hint)
    steps = list[dict[str, float]]()
    for name, lanes in by_lane.items():
        for step, turn in enumerate(zip_longest(*lanes.values(), fillvalue=0.0)):
            steps += [{}] if step == len(steps) else []
            steps[step][name] = max(turn)
    matching = sum(len(lane) for lanes in by_lane.values() for lane in lanes.values())
    return TimingLog("trace", medians(steps), len(steps), len(ranges) - matching)


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str | int) else ""


def _float(value: Any) -> float:
    return float(value) if _is_seconds(value) else 0.0
