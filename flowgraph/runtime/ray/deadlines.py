"""Compute how long a task may take before a run is ended: from the plan's forecast, and from earlier durations.

Forecasts of host nodes are guesses about a user's functions, so only their earlier durations are used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from flowgraph.cluster.plan import Plan
from flowgraph.lowering.task_names import without_chunk

FACTOR = 20.0  # times the forecast or the longest time so far: a shared machine, a long tail, a first compile
FLOOR_S = 300.0
UNKNOWN_S = 3600.0  # for the first run of a task without a forecast


@dataclass(eq=False)
class Deadlines:
    """The seconds that tasks may take, by the names of their nodes; `forecast_s` is the plan's forecast.

    `floor_s` is the part of a limit that does not depend on the task; `unknown_s` is the limit without a forecast.
    """

    forecast_s: Mapping[str, float] = field(default_factory=dict[str, float])
    floor_s: float = FLOOR_S
    unknown_s: float = UNKNOWN_S
    _longest_s: dict[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def of(cls, plan: Plan) -> Deadlines:
        """Return deadlines with the forecast that a plan has for its tasks, except host nodes.

        The forecast is empty if the plan has none, or if the model of one of its devices is unknown.
        """
        speeds_known = all(device.model for device in plan.used())
        tasks = plan.step.tasks if plan.step is not None and speeds_known else ()
        forecast_s = defaultdict[str, float](float)
        for task in tasks:
            if task.seconds is not None and task.kind != "host":
                forecast_s[without_chunk(task.name)] += task.seconds
        return cls(dict(forecast_s))

    def limit_s(self, task: str) -> float:
        """Return how long a task may take, in seconds.

        `task` is the names of its nodes, such as `score, group_normalize`. The limit is `floor_s` plus 20 times the
        forecast or the longest time so far, whichever is larger; `unknown_s` if neither is known. The forecast is the
        sum of those of all tasks that have one of these nodes: in a replay, a task that lacks its recorded nodes has
        the limit of the whole task.

        >>> deadlines = Deadlines({"policy.generate": 30.0, "ref.logprobs, ref.entropy": 10.0})
        >>> deadlines.limit_s("policy.generate"), deadlines.limit_s("ref.entropy")
        (900.0, 500.0)
        >>> deadlines.limit_s("score")
        3600.0
        """
        nodes = {*task.split(", ")}
        forecast = [seconds for name, seconds in self.forecast_s.items() if nodes.intersection(name.split(", "))]
        expected = [sum(forecast)] if forecast else []
        expected += [self._longest_s[task]] if task in self._longest_s else []
        return self.floor_s + FACTOR * max(expected) if expected else self.unknown_s

    def took(self, task: str, seconds: float) -> None:
        """Record that a task took `seconds`; only the longest time per task is stored."""
        self._longest_s[task] = max(seconds, self._longest_s.get(task, 0.0))
