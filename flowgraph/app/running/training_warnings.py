"""Warnings of a run that trains on the wrong thing: a table of rules over its metrics, and the listener that reads it.

A rule that holds after a step adds the metric `warnings.NAME` to the step, so that it is recorded and displayed like
any other metric. Values that nothing reads are found before a run, by the compiler.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from flowgraph.app.request import Say
from flowgraph.errors import UsageError, nearest
from flowgraph.language.graph import Graph
from flowgraph.language.values import Measure
from flowgraph.runtime.driver import HeldOutResult
from flowgraph.runtime.interpreter import StepResult
from flowgraph.runtime.record.run_facts import WARNINGS

Statistic = Literal["smallest", "largest", "spread", "growth"]
"""What a rule compares with its threshold.

`smallest` and `largest` are the extremes of a metric over the steps of the rule, `spread` is their difference, and
`growth` is the newest value divided by the median of those before it.
"""


@dataclass(frozen=True, kw_only=True)
class WarningRule:
    """One rule: a `statistic` of a `metric` over the last `steps` steps, and the values at which it warns.

    The statistic must be at least `at_least` and at most `at_most`, where these are given; a rule of growth also needs
    a newest value of at least `floor`. A node whose setting `unless` is true is left out.
    """

    name: str
    metric: str
    statistic: Statistic
    steps: int
    at_least: float | None = None
    at_most: float | None = None
    floor: float = 0.0
    unless: str = ""
    meaning: str
    hint: str

    @property
    def formula(self) -> str:
        """Return the condition in words, with its threshold."""
        bounds = [f"at least {self.at_least:g}"] if self.at_least is not None else []
        bounds += [f"at most {self.at_most:g}"] if self.at_most is not None else []
        if self.statistic == "growth":
            median_of = f"{bounds[0].removeprefix('at least ')} times its median over the {self.steps - 1} steps before"
            return f"`{self.metric}` is at least {self.floor:g}, and at least {median_of}"
        if self.steps == 1:
            return f"`{self.metric}` is {bounds[0]}"
        what = {"smallest": "smallest", "largest": "largest", "spread": "largest minus smallest"}[self.statistic]
        return f"the {what} `{self.metric}` of {self.steps} steps is {bounds[0]}"

    def holds(self, values: Sequence[float]) -> bool:
        """Return whether the rule warns after the newest of `values`, the last values of its metric, oldest first.

        False with fewer values than `steps`, and if one of these is NaN.
        """
        if len(values) < self.steps or any(math.isnan(value) for value in values):
            return False
        recent = values[-self.steps :]
        result = _STATISTICS[self.statistic](recent)
        within = (self.at_least is None or result >= self.at_least) and (self.at_most is None or result <= self.at_most)
        return within and (self.statistic != "growth" or recent[-1] >= self.floor)


def _growth(values: Sequence[float]) -> float:
    before = median(values[:-1])
    return values[-1] / before if before > 0 else math.inf


_STATISTICS: Mapping[Statistic, Callable[[Sequence[float]], float]] = {
    "smallest": min,
    "largest": max,
    "spread": lambda values: max(values) - min(values),
    "growth": _growth,
}

RULES = (
    WarningRule(
        name="no_signal",
        metric="no_signal",
        statistic="smallest",
        steps=5,
        at_least=1.0,
        meaning="all responses to each prompt have the same score, so no step has a gradient from them",
        hint="look at the responses and scores: flowgraph rollouts RUN; if all are right, use harder prompts",
    ),
    WarningRule(
        name="constant_reward",
        metric="reward",
        statistic="spread",
        steps=10,
        at_most=0.0,
        meaning="the mean score does not change at all",
        hint="look at the responses and scores: flowgraph rollouts RUN; a rule that finds no answer scores all alike",
    ),
    WarningRule(
        name="frozen_entropy",
        metric="entropy",
        statistic="largest",
        steps=10,
        at_most=0.001,
        meaning="the policy gives almost all probability to one response, so it explores nothing",
        hint="raise the temperature of generate, add entropy_bonus to the loss, or lower the learning rate",
    ),
    WarningRule(
        name="exploding_kl",
        metric="kl",
        statistic="growth",
        steps=11,
        at_least=10.0,
        floor=1.0,
        meaning="the policy suddenly moves away from the reference",
        hint="lower the learning rate or max_grad_norm, or raise the weight of the KL",
    ),
    WarningRule(
        name="exploding_kl",
        metric="approx_kl",
        statistic="largest",
        steps=1,
        at_least=1.0,
        meaning="one update moves the policy far from the weights that sampled its rows",
        hint="lower the learning rate, epochs or max_grad_norm",
    ),
    WarningRule(
        name="clip_bound",
        metric="clip_fraction",
        statistic="smallest",
        steps=5,
        at_least=0.5,
        meaning="most tokens are clipped, so they have no gradient",
        hint="lower the learning rate or epochs, or check that `old` has the log-probs of the weights that sampled",
    ),
    WarningRule(
        name="all_cut",
        metric="finished",
        statistic="largest",
        steps=5,
        at_most=0.0,
        unless="ignore_eos",
        meaning="no response ends before max_tokens, so none is complete",
        hint="raise max_tokens of generate, or check that the model ends its responses",
    ),
)
"""The rules; two may have one name. Thresholds are far from what healthy runs of the shipped flows reach."""

NAMES = tuple(dict.fromkeys(rule.name for rule in RULES))


def chosen_rules(text: str) -> tuple[WarningRule, ...]:
    """Return the rules that `text` switches on: "all", "none", names with commas, or names to leave out, each with `-`.

    Raises UsageError for an unknown name, and for names of both kinds.

    >>> [rule.name for rule in chosen_rules("no_signal,all_cut")], len(chosen_rules("none"))
    (['no_signal', 'all_cut'], 0)
    >>> "all_cut" in [rule.name for rule in chosen_rules("-all_cut")]
    False
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words in (["all"], ["none"]):
        return RULES if words == ["all"] else ()
    where = f"--warnings {text}"
    for word in words:
        if word.removeprefix("-") not in NAMES:
            hint = nearest(word.removeprefix("-"), [*NAMES, "all", "none"])
            raise UsageError(f"no warning `{word}`", where=where, hint=hint)
    left_out = {word[1:] for word in words if word.startswith("-")}
    if left_out and len(left_out) < len(set(words)):
        raise UsageError("names warnings to give and others to leave out", where=where, hint="use one of the two")
    return tuple(rule for rule in RULES if (rule.name not in left_out if left_out else rule.name in words))


class TrainingWarnings:
    """A listener that adds `warnings.NAME`, 1, to the observations of each step after which a rule holds.

    It must be notified before those that record or display the step. `say` receives a line when a warning begins.
    `earlier` are the lines of `metrics.jsonl` before the first step, so that a resumed run warns at the same steps.
    """

    def __init__(
        self, rules: Sequence[WarningRule], graph: Graph, say: Say, earlier: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self.rules, self.say = rules, say
        self._nodes = {node.name: node.settings for node in graph.all_nodes}
        longest = max((rule.steps for rule in rules), default=1)
        self._values = defaultdict[str, deque[float]](lambda: deque(maxlen=longest))
        self._active = dict[str, WarningRule]()
        for line in earlier:
            means = {name: value for name, value in line.items() if name not in ("step", "time")}
            if not any(name.startswith("eval/") for name in means):
                self._active = self._after(means)

    def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
        """Add the warnings that hold after step `step` (from 0) to its observations, and report those that begin."""
        now = self._after(ran.observed.means())
        for metric, rule in now.items():
            if metric not in self._active:
                self.say(f"warning {rule.name} after step {step + 1}: {rule.meaning} ({metric}: {rule.formula})")
                self.say(f"  hint: {rule.hint}")
        self._active = now
        names = dict.fromkeys(rule.name for rule in now.values())
        ran.observed.add(WARNINGS, [Measure(name, total=1, count=1) for name in names])

    def checked(self, step: int, result: HeldOutResult, seconds: float) -> None:
        """Do nothing: held-out metrics have no rules."""

    def _after(self, means: Mapping[str, float]) -> dict[str, WarningRule]:
        for name, value in means.items():
            self._values[name].append(value)
        return {
            name: rule
            for name in means
            for rule in self.rules
            if name.rpartition(".")[2] == rule.metric and not self._left_out(name.rpartition(".")[0], rule)
            if rule.holds(tuple(self._values[name]))
        }

    def _left_out(self, node: str, rule: WarningRule) -> bool:
        return bool(rule.unless and getattr(self._nodes.get(node), rule.unless, False))
