"""Random flows as Python text, right by construction: a list of calls that `flow_faults` can then break.

One call stands on one line, so the line of a fault is known.
"""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from flowgraph import Flow, Graph
from flowgraph.language import op_of
from flowgraph.passes import compile_graph
from tests.property import fuzz_nodes

HEAD = [
    "from __future__ import annotations",
    "from typing import Annotated, Any",
    "from pydantic import Field",
    "from flowgraph import *; from flowgraph.language import *",
    "from flowgraph.language.values import Group, Sample, Tokens, Trajectory",
    "from nodes import *",
    "from nodes.values import *",
    "from tests.property.fuzz_nodes import *",
    "LEAK = []",
]
NAMES = ("ppo", "größe", "策略", "_", "f" * 300, "Ω1", "loss", "flow_of_many_words", "ñandú")
PARTS = {
    "logprobs": "LogProbs",
    "mask": "Mask",
    "group": "Group",
    "tokens": "Tokens",
    "lengths": "Lengths",
    "text": "Text",
    "sample": "Sample",
    "temperature": "Temperature",
}


@dataclass(eq=False)
class Call:
    """One line: `target = op(args)`; `given` are values by port (None: by position), `settings` by name, as text."""

    target: str
    op: str
    given: list[tuple[str | None, str]] = field(default_factory=list[tuple[str | None, str]])
    settings: dict[str, str] = field(default_factory=dict[str, str])
    line: int = 0

    def lines(self, indent: str) -> list[str]:
        """Write it."""
        args = [text if port is None else f"{port}={text}" for port, text in self.given]
        args += [f"{name}={text}" for name, text in self.settings.items()]
        return [f"{indent}{self.target} = {self.op}({', '.join(args)})"]


@dataclass(eq=False)
class Line:
    """A line as it is; `name` is the node on it, if one is."""

    text: str
    name: str = ""
    line: int = 0

    def lines(self, indent: str) -> list[str]:
        """Write it."""
        return [f"{indent}{self.text}"]


@dataclass(eq=False)
class LossFn:
    """A loss function: a line for its head, calls, and what it returns."""

    name: str
    pi: str
    kind: str
    body: list[Call | Line]
    back: Line
    rollout: Rows
    line: int = 0

    def lines(self, indent: str) -> list[str]:
        """Write its head."""
        return [f"{indent}def {self.name}({self.pi}{self.kind}) -> Loss:"]


Stmt = Call | Line | LossFn


@dataclass
class Rows:
    """A rollout in scope: the policy and version that drew it, how late, at which temperature."""

    var: str
    policy: str
    version: str
    temperature: float
    at_most: int = 0
    corrected: bool = True
    scores: str = ""
    advantages: str = ""
    token_level: bool = False

    @property
    def lags(self) -> bool:
        """Return whether a loss on it has to correct."""
        return self.at_most > 0 and self.corrected


@dataclass
class Program:
    """A flow as statements; `types` are the variables in scope with the names of their types."""

    name: str
    params: list[tuple[str, str]]
    settings: list[str] = field(default_factory=list[str])
    body: list[Stmt] = field(default_factory=list[Stmt])
    back: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    extra: list[Line] = field(default_factory=list[Line])
    types: dict[str, str] = field(default_factory=dict[str, str])
    rows: list[Rows] = field(default_factory=list[Rows])
    newest: dict[str, str] = field(default_factory=dict[str, str])
    flow_line: int = 0
    back_line: Line = field(default_factory=lambda: Line(""))
    starts: dict[str, str] = field(default_factory=dict[str, str])  # of parameters, what they start from

    def text(self) -> str:
        """Write the file, and note the line of each statement."""
        lines = list(HEAD)
        for each in self.extra:
            each.line = len(lines) + 1
            lines += each.text.split("\n")
        self.flow_line = len(lines) + 1
        starts = {name: f" = {text}" for name, text in self.starts.items()}
        params = ", ".join(f"{name}: {kind}{starts.get(name, '')}" for name, kind in self.params)
        params += f", *, {', '.join(self.settings)}" if self.settings else ""
        kinds = [kind for _, kind in self.back]
        returns = f"tuple[{', '.join(kinds)}]" if len(kinds) > 1 else "".join(kinds)
        lines += ["@flow", f"def {self.name}({params}) -> {returns}:"]
        for stmt in self.body:
            _write(stmt, lines, "    ")
        if not self.back_line.text:
            self.back_line.text = f"return {', '.join(var for var, _ in self.back)}"
        _write(self.back_line, lines, "    ")
        return "\n".join(lines) + "\n"

    def calls(self) -> Iterator[tuple[Call, LossFn | None]]:
        """Yield every call, with the loss that it is in."""
        for stmt in self.body:
            if isinstance(stmt, Call):
                yield stmt, None
            elif isinstance(stmt, LossFn):
                yield from ((each, stmt) for each in stmt.body if isinstance(each, Call))

    def losses(self) -> list[LossFn]:
        """Return every loss."""
        return [stmt for stmt in self.body if isinstance(stmt, LossFn)]


def _write(stmt: Stmt, lines: list[str], indent: str) -> None:
    stmt.line = len(lines) + 1
    lines += stmt.lines(indent)
    if isinstance(stmt, LossFn):
        for each in (*stmt.body, stmt.back):
            _write(each, lines, indent + "    ")


def load(text: str, file: str = "/fuzz/fuzz_flow.py") -> dict[str, Any]:
    """Import a program's text as the module `fuzz_flow`, and give what it defines."""
    module = types.ModuleType("fuzz_flow")
    sys.modules["fuzz_flow"] = module
    exec(compile(text, file, "exec"), module.__dict__)
    return module.__dict__


def flow_of(program: Program) -> Flow[..., Any]:
    """Return the flow of a program."""
    found = load(program.text())[program.name]
    assert isinstance(found, Flow)
    return found


# ------------------------------------------------------------------------------------------- right programs


class Writer:
    """Writes one random flow; every value that it reads is one that the laws allow."""

    def __init__(self, rng: random.Random, *, runs: bool = False) -> None:
        self.rng, self.runs, self.count = rng, runs, 0
        params = [("prompts", "Prompts"), ("policy", "Policy")]
        if rng.random() < 0.3:
            params.append(("other", "Policy"))
        if rng.random() < 0.6:
            params.append(("ref", "Reference"))
        if rng.random() < 0.2:
            params.append(("coef", "Coef"))
        settings = rng.sample(["samples: Annotated[int, Field(ge=1)] = 2", "weight: float = 0.1"], rng.randrange(3))
        name = "run" if runs else rng.choice(NAMES)
        self.program = Program(name, params, settings, types=dict(params))
        if params[-1][1] == "Coef" and rng.random() < 0.5:
            self.program.starts["coef"] = rng.choice(["Coef(0.5)", "Coef(0)", "Coef(1e-300)", "Coef(-7)"])
        self.program.newest = {name: name for name, kind in params if kind == "Policy"}

    def var(self, stem: str, kind: str) -> str:
        """Return a fresh variable."""
        self.count += 1
        name = f"{stem}{self.count}"
        self.program.types[name] = kind
        return name

    def call(self, stem: str, op: str, *given: str, by: dict[str, str] | None = None, **settings: str) -> str:
        """Write a call, and give its variable."""
        target = self.var(stem, str(getattr(_returns(op), "__name__", "Scores")))
        pairs: list[tuple[str | None, str]] = [(None, each) for each in given]
        self.program.body.append(Call(target, op, [*pairs, *(by or {}).items()], settings))
        return target

    def write(self) -> Program:
        """Write a flow of one to three rounds of sampling, scoring and training."""
        for _ in range(self.rng.randint(1, 3)):
            self.round()
        scored = [rows.scores for rows in self.program.rows if rows.scores]
        if "coef" in self.program.types and scored and self.rng.random() < 0.7:
            self.program.newest["coef"] = self.call("c", "adapt", "coef", by={"scores": scored[0]})
        self._return()
        return self.program

    def round(self) -> None:
        """Draw or take a rollout, judge it, and perhaps update."""
        rows = self.sample() if not self.program.rows or self.rng.random() < 0.7 else self.rng.choice(self.program.rows)
        if not rows.scores:
            self.score(rows)
        if self.rng.random() < 0.85:
            self.update(rows)

    def sample(self) -> Rows:
        """Draw a rollout, perhaps late, perhaps filtered or turned."""
        rng, policy = self.rng, self.rng.choice([each for each in self.program.newest if each != "coef"])
        version, late, temperature = self.program.newest[policy], 0, rng.choice([1.0, 0.7])
        corrected, reads = True, version
        if rng.random() < 0.25:
            late, corrected = rng.randint(1, 5), rng.random() < 0.7
            reads = f"stale({version}, at_most={late}{'' if corrected else ', corrected=False'})"
        elif rng.random() < 0.2:
            return self.attempts(policy, version)
        n = "samples" if rng.random() < 0.3 and any("samples" in each for each in self.program.settings) else "2"
        extra = {"temperature": str(temperature)} if temperature != 1.0 or rng.random() < 0.5 else {}
        var = self.call("r", "generate", reads, "prompts", n=n, max_tokens="3", **extra)
        rows = Rows(var, policy, version, temperature, late, corrected)
        self.program.rows.append(rows)
        if rng.random() < 0.25:
            made = self.call("r", rng.choice(["finished_only", "turned"]), var)
            rows = Rows(made, policy, version, temperature, late, corrected)
            self.program.rows.append(rows)
        return rows

    def attempts(self, policy: str, version: str) -> Rows:
        """Draw and score by a flow of its own."""
        var, scores = self.var("r", "Rollout"), self.var("s", "Scores")
        self.program.body.append(Line(f"{var}, {scores} = attempts(prompts, {version})", "attempts"))
        rows = Rows(var, policy, version, 1.0, scores=scores)
        self.program.rows.append(rows)
        self.advantages(rows)
        return rows

    def score(self, rows: Rows) -> None:
        """Score a rollout in one of several ways, and make advantages of it."""
        rng, how = self.rng, self.rng.randrange(6)
        if how == 0:
            rows.scores = f"{self.call('j', 'judge', rows.var)}.scores"
        elif how == 1 and not self.runs:
            rows.scores = self.call("s", "score", rows.var)
        else:
            rows.scores = self.call("s", "length_score", rows.var)
        if how == 2:
            rows.scores = self.call("s", "rank", rows.scores)
        elif how == 3:
            one, two = self.var("s", "Scores"), self.var("s", "Scores")
            self.program.body.append(Line(f"{one}, {two} = halves({rows.scores})", "halves"))
            rows.scores = rng.choice([one, two])
        elif how == 4:
            total = self.var("s", "Scores")
            self.program.body.append(
                Line(f"{total} = {rows.scores} + {rng.choice(['0.5', '0.0', '-1.0'])} * {rows.scores}")
            )
            rows.scores = total
        self.advantages(rows)

    def advantages(self, rows: Rows) -> None:
        """Make advantages of scores, by row or by token."""
        rng, group, how = self.rng, f"{rows.var}.group", self.rng.randrange(5)
        if how == 0:
            rows.advantages = self.call("a", "gpg_advantages", rows.scores, group)
        elif how == 1:
            other = self.call(
                "r", "generate", self.program.newest[rows.policy], "prompts", temperature="0.0", max_tokens="3"
            )
            greedy = self.call("s", "length_score", other)
            by = {"greedy": greedy, "prompt": f"{other}.group"}
            rows.advantages = self.call("a", "against", rows.scores, group, by=by)
        else:
            rows.advantages = self.call(
                "a", "group_normalize", rows.scores, group, **rng.choice([{}, {"deviation": "False"}])
            )
        if rng.random() < 0.2:
            rows.advantages = self.call("a", "spread", rows.advantages, f"{rows.var}.mask")
            rows.token_level = True
            if rng.random() < 0.5:
                rows.advantages = self.call("a", "damp", rows.advantages)

    def update(self, rows: Rows) -> None:
        """Train a policy on a rollout: the one that drew it, or any if the loss does not ask who drew it."""
        policy = rows.policy
        version = self.program.newest[policy]
        if self.rng.random() < 0.1:
            self.program.newest[policy] = self.call("p", "trained", version, rows.var, rows.advantages)
            self.program.types[self.program.newest[policy]] = "Policy"
            return
        old, weights = f"{rows.var}.logprobs", ""
        if self.rng.random() < 0.3:
            old, weights = self.weights(rows, version)
        elif not rows.at_most and version == rows.version and self.rng.random() < 0.3:
            old = self.call("old", "logprobs", version, rows.var)
        ref = self.reference(rows)
        loss = self.loss(rows, old, ref, weights)
        self.program.body.append(loss)
        settings = self.rng.choice([{}, {"lr": "0.01"}, {"epochs": "2"}, {"minibatch": "1", "lr": "1e-3"}])
        self.program.newest[policy] = self.call("p", "update", version, loss.name, **settings)
        self.program.types[self.program.newest[policy]] = "Policy"

    def weights(self, rows: Rows, version: str) -> tuple[str, str]:
        """Return log-probs of any fixed weights, and what corrects from them to those that drew the rows."""
        rng, drawn, mask = self.rng, {"behaviour": f"{rows.var}.logprobs"}, f"{rows.var}.mask"
        old = self.call("old", "logprobs", version, rows.var)
        if rng.random() < 0.3:  # written twice, it is one value
            again = self.call("old", "smooth", old)
            old, made = self.call("old", "smooth", old), again
        else:
            made = old
        how = rng.choice([{}, {"level": "'sequence'"}, {"cap": "None", "high": "3.0"}])
        weights = self.call("w", "importance_weights", made, mask, by=drawn, **how)
        if rng.random() < 0.3:
            weights = self.call("w", "halved", weights)
        return old, weights

    def reference(self, rows: Rows) -> str:
        """Return log-probs that no loss trains."""
        models = [*(["ref"] if "ref" in self.program.types else []), *self._policies()]
        if self.rng.random() < 0.3:
            return f"{rows.var}.logprobs"
        if self.rng.random() < 0.3:
            at = {"temperature": str(rows.temperature)}
            return self.call("at", "logprobs_at", self.rng.choice(models), rows.var, **at)
        return self.call("ref", "logprobs", self.rng.choice(models), rows.var)

    def _policies(self) -> list[str]:
        return [version for name, version in self.program.newest.items() if name != "coef"]

    def loss(self, rows: Rows, old: str, ref: str, weights: str = "") -> LossFn:
        """Write a loss of one to four terms."""
        rng, mask = self.rng, f"{rows.var}.mask"
        pi, self.count = f"pi{self.count}", self.count + 1
        body: list[Call | Line] = [Call("new", "logprobs", [(None, pi), (None, rows.var)])]
        if rng.random() < 0.2:
            body.append(Call("kept", "chosen", [(None, mask)], {}))
            body[-1].given.append(("advantages", rows.advantages))
            mask = "kept"
        clip: list[tuple[str | None, str]] = [(None, "new"), (None, rows.advantages), (None, mask), ("old", old)]
        plain: list[tuple[str | None, str]] = [(None, "new"), (None, rows.advantages), (None, mask)]
        ratio: list[tuple[str | None, str]] = [(None, "new"), (None, mask), ("old", old)]
        for given in (clip, plain, ratio) if weights else ():
            given.append(("weights", weights))
        kinds = {
            "by_ratio": (ratio, [{}]),
            "corrected": ([(None, "new"), (None, mask), ("weights", weights)], [{}]),
            "clipped": (clip, [{}, {"eps": "0.1"}, {"eps": "0.2", "eps_high": "0.3"}]),
            "policy_gradient": (plain, [{}, {"aggregation": "Aggregation.SEQUENCE_SUM"}, {"aggregation": "7"}]),
            "kl_k3": ([(None, "new"), (None, mask), ("ref", ref)], [{}]),
            "entropy_bonus": ([(None, "h"), (None, mask)], [{}]),
            "likely": ([(None, "new"), (None, mask)], [{}, {"floor": "-3.0"}]),
        }
        others = self.program.newest[rows.policy] != rows.version and rows.corrected  # an update has been since
        corrects = ["clipped", "by_ratio", *(["policy_gradient", "corrected"] if weights else [])]
        kinds_of_first = [*corrects, "likely"] if others else [*corrects, "policy_gradient", "likely"]
        first = rng.choice(corrects if rows.lags else kinds_of_first)
        more = rng.sample(["kl_k3", "entropy_bonus", "likely", "clipped", "by_ratio"], rng.randrange(3))
        terms = list[str]()
        for i, op in enumerate([first, *(each for each in more if each != first)]):
            if op == "entropy_bonus":
                body.append(Call("h", "entropy", [(None, pi), (None, rows.var)]))
            given, settings = kinds[op]
            body.append(Call(f"t{i}", op, list(given), dict(rng.choice(settings))))
            terms.append(f"t{i}" if not i else f"{self.factor()} * t{i}")
        total = " + ".join(terms)
        if "coef" in self.program.types and rng.random() < 0.7:
            body.append(Call("w", "weighed", [(None, "t0"), ("coef", "coef")]))
            total = " + ".join(["w", *terms[1:]])
        name = rng.choice(["loss", "objective", "L", "потеря"])
        return LossFn(name, pi, rng.choice([": Policy", ""]), body, Line(f"return {total}"), rows)

    def factor(self) -> str:
        """Return a factor of a term, sometimes the flow's setting, sometimes 0."""
        if any(each.startswith("weight") for each in self.program.settings) and self.rng.random() < 0.4:
            return "weight"
        return self.rng.choice(["0.1", "0.5", "-0.25", "0.0", "1e-3"])

    def _return(self) -> None:
        program = self.program
        back = [
            (version, program.types.get(name, "Policy")) for name, version in program.newest.items() if version != name
        ]
        more = [(rows.scores, "Scores") for rows in program.rows if rows.scores]
        more += [
            (rows.advantages, "TokenAdvantages" if rows.token_level else "Advantages")
            for rows in program.rows
            if rows.advantages
        ]
        if not back or self.rng.random() < 0.3:
            back += self.rng.sample(more, min(len(more), 1 + self.rng.randrange(2)))
        if not back:
            back.append((program.rows[0].var, "Rollout"))
        program.back = back


def _returns(op: str) -> Any:
    fn = getattr(fuzz_nodes, op, None) or getattr(__import__("nodes"), op)
    found = op_of(fn)
    return found.returns[0] if found is not None and isinstance(found.returns[0], type) else None


def random_program(seed: int, *, runs: bool = False) -> Program:
    """Write the right program of a seed; one that `runs` needs no rule in another process."""
    return Writer(random.Random(seed), runs=runs).write()


@cache
def compiled(seed: int, *, runs: bool = False) -> Graph:
    """Return the compiled graph of the right program of a seed, made once for all tests of a process."""
    return compile_graph(flow_of(random_program(seed, runs=runs)).graph())
