"""How long a task may take before a run gives it up: from the plan's forecast, and from how long it took before.

What is forecast of the host is a guess at a user's own functions, so that only what they took before counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flowgraph.cluster.plan import Plan

FACTOR = 20.0  # a task may take so many times what was forecast or seen: a shared machine, a long tail, a first compile
FLOOR_S = 300.0
UNKNOWN_S = 3600.0  # of a task with no forecast, the first time


@dataclass(eq=False)
class Deadlines:
    """The seconds that tasks may take, by the names of their nodes; `forecast_s` is what the plan says of each run."""

    forecast_s: Mapping[str, float] = field(default_factory=dict[str, float])
    floor_s: float = FLOOR_S
    unknown_s: float = UNKNOWN_S
    _longest_s: dict[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def of(cls, plan: Plan) -> Deadlines:
        """Read the forecast of a plan, if it has one for devices whose speed is known."""
        known = all(device.model for device in plan.used())
        tasks = plan.step.tasks if plan.step is not None and known else ()
        return cls({each.name: each.seconds for each in tasks if each.seconds is not None and each.kind != "host"})

    def limit_s(self, task: str) -> float:
        """Give how long a task may take, which is named by its nodes, as `score, group_normalize`.

        A run without its recorded nodes may take as long as all of it.

        >>> deadlines = Deadlines({"policy.generate": 30.0, "ref.logprobs, ref.entropy": 10.0})
        >>> deadlines.limit_s("policy.generate"), deadlines.limit_s("ref.entropy")
        (900.0, 500.0)
        >>> deadlines.limit_s("score")
        3600.0
        """
        nodes = {*task.split(", ")}
        forecast = [seconds for name, seconds in self.forecast_s.items() if nodes.intersection(name.split(", "))]
        known = [sum(forecast)] if forecast else []
        known += [self._longest_s[task]] if task in self._longest_s else []
        return self.floor_s + FACTOR * max(known) if known else self.unknown_s

    def took(self, task: str, seconds: float) -> None:
        """Learn how long a task took."""
        self._longest_s[task] = max(seconds, self._longest_s.get(task, 0.0))
