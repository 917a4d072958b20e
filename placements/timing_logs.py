"""Read the seconds that other systems log: verl's console and JSON lines, NeMo RL's metrics, and Chrome traces.

Source of the formats: verl, verl/utils/tracking.py (`FileLogger`: `{"step": 1, "data": {...}}` on each line) and
verl/utils/logger (console: `step:1 - timing_s/gen:9.1 - ...`); NeMo RL, tests/json_dump_tb_logs.py
(`{"timing/train/generation": {"1": 9.1, ...}, ...}`); W&B's history, a flat object on each line. Trace Event Format,
Google, 2016.

Not here: which nodes a timer belongs to (`timing_names`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from flowgraph.errors import DataError
from flowgraph.files.untrusted import parse_json
from placements.measured_runs import medians

System = Literal["verl", "NeMo RL", "trace"]
PREFIXES: Mapping[System, str] = {"verl": "timing_s/", "NeMo RL": "timing/train/"}
KNOWN = "verl's console or JSON lines, NeMo RL's metrics as JSON, or a Chrome trace with the plan's nodes"
PREDICTED = ", predicted"  # how the process of a forecast is named in traces of ours
CONSOLE = re.compile(r"\bstep:(\d{1,12}) - (.*)")
NUMPY = re.compile(r"^np\.\w{1,20}\((.*)\)$")  # how NumPy 2 prints a number of its own
COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")


@dataclass(frozen=True)
class TimingLog:
    """Median seconds by timer, or of a trace by the name of a range, over `steps` steps.

    `other` counts metrics, or events of a trace, that are no timers; `unreadable` names timers whose value is no
    number of seconds.
    """

    system: System
    seconds: Mapping[str, float]
    steps: int
    other: int = 0
    unreadable: tuple[str, ...] = ()

    @property
    def prefix(self) -> str:
        """Return what the names of timers begin with."""
        return PREFIXES.get(self.system, "")


def read_log(text: str, where: str, names: Mapping[str, str]) -> TimingLog:
    """Return the seconds of a log; of a trace those of ranges with one of these `names`, as the task each is of.

    Raises DataError for text in no format that is known, and for a log without a timer.
    """
    whole = _json(text)
    if isinstance(whole, list) or (isinstance(whole, dict) and "traceEvents" in whole):
        return _trace(whole if isinstance(whole, list) else whole["traceEvents"], where, names)
    if whole is not None:
        steps = list(_columns(whole)) if _is_columns(whole) else [_row(whole)]
    else:
        steps = list(_rows(text, where)) if text.lstrip().startswith("{") else list(_console(text))
    return _log(steps, where)


def _json(text: str) -> Any:
    """Return a text as JSON; None where it is not, as JSON lines are not."""
    try:
        return parse_json(text, finite=False)
    except ValueError:
        return None


def _is_columns(whole: Any) -> bool:
    """Return whether an object has a table of steps for each metric."""
    return (
        isinstance(whole, dict)
        and bool(whole)
        and all(
            isinstance(each, dict) and all(step.isascii() and step.isdigit() for step in each)
            for each in whole.values()
        )
    )


def _columns(whole: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Return the metrics of each step from tables of steps by metric."""
    numbers = sorted({step for each in whole.values() for step in each}, key=int)
    for number in numbers:
        yield {metric: each[number] for metric, each in whole.items() if number in each}


def _row(line: Any) -> dict[str, Any]:
    data = line.get("data", line) if isinstance(line, dict) else None
    return data if isinstance(data, dict) else {}


def _rows(text: str, where: str) -> Iterator[dict[str, Any]]:
    """Return the metrics of each line of JSON. Raises DataError for a line that is not, but for a torn last one."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    for place, (number, line) in enumerate(lines):
        try:
            yield _row(parse_json(line, finite=False))
        except ValueError as error:
            if place < len(lines) - 1 or place == 0:
                raise DataError.bad_line(where, number, f"is not JSON: {error}") from None


def _console(text: str) -> Iterator[dict[str, Any]]:
    """Return the metrics of each line that begins with a step, whatever stands before it."""
    for line in text.splitlines():
        if stands := CONSOLE.search(COLOUR.sub("", line)):
            pairs = (part.rpartition(":") for part in stands[2].split(" - "))
            yield {name.strip(): _number(value.strip()) for name, colon, value in pairs if colon}


def _number(text: str) -> float | str:
    plain = stands[1] if (stands := NUMPY.match(text)) else text
    try:
        return float(plain)
    except ValueError:
        return text


def _log(steps: Sequence[Mapping[str, Any]], where: str) -> TimingLog:
    """Return the medians of the timers of one system."""
    metrics = dict.fromkeys(name for step in steps for name in step)
    systems: list[System] = [each for each in PREFIXES if any(name.startswith(PREFIXES[each]) for name in metrics)]
    system = systems[0] if systems else None
    if system is None:
        raise DataError.unusable(where, "has no timers that are known", f"calibrate reads {KNOWN}")
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
    """Return the seconds of the ranges that have one of these names, those of a forecast left out.

    Of ranks that do the same beside each other the slowest counts, in each of its turns.
    """
    if not isinstance(events, list) or not all(isinstance(each, dict) for each in events):
        raise DataError.unusable(where, "is not a Chrome trace: `traceEvents` must be a list of objects")
    forecast = {
        _text(each.get("pid"))
        for each in events
        if each.get("name") == "process_name" and _text(_args(each).get("name")).endswith(PREDICTED)
    }
    ranges = [each for each in events if each.get("ph") == "X" and _text(each.get("pid")) not in forecast]
    by_lane = dict[str, dict[tuple[str, str], list[float]]]()
    for each in sorted(ranges, key=lambda event: _float(event.get("ts"))):
        if (name := _name_in(each.get("name"), names)) and _float(each.get("dur")) > 0:
            lane = _text(each.get("pid")), _text(each.get("tid"))
            by_lane.setdefault(name, {}).setdefault(lane, []).append(_float(each["dur"]) / 1e6)
    if not by_lane:
        hint = f"the plan's tasks are {'; '.join(dict.fromkeys(names.values()))}"
        raise DataError.unusable(where, "is a Chrome trace without a range of the plan's nodes", hint)
    turns = {name: _slowest(list(lanes.values())) for name, lanes in by_lane.items()}
    count = max(map(len, turns.values()))
    steps = [{name: each[place] for name, each in turns.items() if place < len(each)} for place in range(count)]
    matching = sum(len(lane) for lanes in by_lane.values() for lane in lanes.values())
    return TimingLog("trace", medians(steps), count, len(ranges) - matching)


def _slowest(lanes: Sequence[Sequence[float]]) -> list[float]:
    return [max(lane[place] for lane in lanes if place < len(lane)) for place in range(max(map(len, lanes)))]


def _name_in(name: Any, names: Mapping[str, str]) -> str:
    """Return the task of a range, by its name as it is or after the pool and rank that our profiles put before it."""
    text = _text(name)
    bare = re.sub(r"^[A-Za-z0-9._-]{1,64}?-\d{1,6}-", "", text)
    return names.get(text) or names.get(bare, "")


def _args(event: Mapping[str, Any]) -> Mapping[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str | int) else ""


def _float(value: Any) -> float:
    return float(value) if _is_seconds(value) else 0.0
