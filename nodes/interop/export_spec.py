"""What an export is filled from: a plan, the algorithm of its graph, and which model is the policy, the critic, etc.

Not here: the names that any system has for that.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from flowgraph.analysis.roles import Use, roles
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, PlanAssumptions, RoleSettings
from flowgraph.errors import PlanError, UsageError
from flowgraph.language.graph import Graph
from nodes.interop.algorithm import Algorithm, read_algorithm

Part = Literal["policy", "critic", "reference", "reward", "judge"]
DEFAULT_PROMPT_TOKENS = 1024
_TOKENS = re.compile(r"(\d+(?:\.\d+)?)([km]?)", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000}


@dataclass(frozen=True)
class ExportDevices:
    """Devices by machine: the number of each. The systems need the same number on each machine."""

    counts: tuple[int, ...]
    machines: frozenset[str] = frozenset()

    @property
    def nodes(self) -> int:
        """Return the number of machines."""
        return len(self.counts)

    @property
    def per_node(self) -> int:
        """Return the devices that a system uses on each machine: the minimum."""
        return min(self.counts)

    @property
    def devices(self) -> int:
        """Return the devices that a system uses in all."""
        return self.nodes * self.per_node


@dataclass(frozen=True)
class ExportModel:
    """A model's name, and the rank and alpha of its adapters, 0 without any."""

    name: str
    rank: int = 0
    alpha: int = 0

    @classmethod
    def read(cls, text: str) -> ExportModel:
        """Return a model from its name in a plan; raises PlanError for adapters without a rank.

        >>> ExportModel.read("org/name+lora=8"), ExportModel.read("org/name")
        (ExportModel(name='org/name', rank=8, alpha=16), ExportModel(name='org/name', rank=0, alpha=0))
        """
        base, plus, options = text.rpartition("+lora=")
        if not plus:
            return cls(text)
        match = re.fullmatch(r"(\d+)(?:,\w*=(\d+))?", options)
        if match is None:
            raise PlanError(f"the adapters of the model `{text}` have no rank", where="assumed.models")
        return cls(base, int(match[1]), int(match[2] or 2 * int(match[1])))


@dataclass(frozen=True)
class LongestLengths:
    """The longest prompt and response that a plan was forecast for, in tokens; None for the flow's own."""

    prompt_tokens: int
    response_tokens: int | None = None


@dataclass(frozen=True)
class ExportSpec:
    """A plan and its algorithm; `parts` has the flow's parameter of each part: the policy, the critic and so on."""

    plan: Plan
    assumed: PlanAssumptions
    algorithm: Algorithm
    parts: dict[Part, str]
    others: tuple[str, ...]  # parameters without a part: a second reference, a second policy
    longest: LongestLengths | None = None
    flow_max_tokens: int = 0  # of a response; `algorithm` has that of the forecast

    @property
    def prompt_tokens(self) -> int:
        """Return the maximum tokens of a prompt, or a default if the plan does not say."""
        tokens = self.longest.prompt_tokens if self.longest else max_tokens(self.assumed.prompt_tokens)
        return tokens or DEFAULT_PROMPT_TOKENS

    @property
    def total_tokens(self) -> int:
        """Return the maximum tokens of a prompt and its response."""
        return self.prompt_tokens + self.algorithm.max_tokens

    @property
    def recomputes_logprobs(self) -> bool:
        """Return whether the forecast has a pass of the policy over its responses for their log-probs."""
        role, tasks = f"{self.parts['policy']}.train", self.plan.step.tasks if self.plan.step is not None else ()
        return any(task.kind == "logprob" and task.role == role for task in tasks)

    @property
    def batch(self) -> int:
        """Return the prompts that a step trains on: those that a refill keeps."""
        refill = self.algorithm.refill
        return min(refill["groups"], self.assumed.batch) if refill is not None else self.assumed.batch

    @property
    def minibatch(self) -> int:
        """Return the prompts of one optimizer step of the policy."""
        return min(self.algorithm.policy.minibatch or self.batch, self.batch)

    @property
    def lag(self) -> int:
        """Return the age of the weights that generate responses, in updates."""
        placed = self.placed("policy", "sample")
        return placed.lag if placed is not None else 0

    def model(self, part: Part) -> ExportModel:
        """Return the model of a part."""
        return ExportModel.read(self.assumed.models[self.parts[part]])

    def has(self, part: Part) -> bool:
        """Return whether the flow has this part."""
        return part in self.parts

    def placed(self, part: Part, use: Use) -> PlacedRole | None:
        """Return where a part is placed for a use, None if it is not."""
        role = f"{self.parts.get(part, '')}.{use}"
        return next((placed for placed in self.plan.placed if placed.role == role), None)

    def layout(self, part: Part, use: Use) -> Layout:
        """Return the layout of a model for a use, as `critic` and `train`; one device if it is not placed."""
        placed = self.placed(part, use)
        return placed.layout if placed is not None else Layout()

    def running(self, part: Part, use: Use) -> RoleSettings:
        """Return how a part runs."""
        placed = self.placed(part, use)
        return placed.running if placed is not None else RoleSettings()

    def engine(self, part: Part, use: Use, default: str) -> str:
        """Return the engine of a part, or the default if it is not placed."""
        placed = self.placed(part, use)
        return placed.engine if placed is not None else default

    def pool(self, part: Part, use: Use) -> str:
        """Return the pool of a part, "" if it is not placed."""
        placed = self.placed(part, use)
        return placed.pool if placed is not None else ""

    def devices(self, *pools: str) -> ExportDevices:
        """Return the devices of these pools together, by machine."""
        machines = Counter(node for pool in self.plan.pools if pool.name in pools for node, _ in pool.devices)
        return ExportDevices(tuple(machines.values()), frozenset(machines))

    def memory_bytes(self, pool: str) -> tuple[int, ...]:
        """Return the memory of each device of a pool."""
        places = next(own.devices for own in self.plan.pools if own.name == pool)
        devices = (self.plan.cluster.device(node, index) for node, index in places)
        return tuple(device.memory_bytes for device in devices if device is not None)

    def budget_tokens(self, part: Part, use: Use) -> int:
        """Return the tokens of a micro-batch on one device: the plan's, or else those of the flow's update.

        Rows that sequence parallelism spreads count with the share of one device; the longest row has to fit.
        """
        update = (self.algorithm.critic if part == "critic" else None) or self.algorithm.policy
        tokens = self.running(part, use).micro_batch_tokens or update.micro_batch_tokens
        return -(-max(tokens, self.total_tokens) // self.layout(part, use).sequence)


def export_spec(plan: Plan, graph: Graph, longest: LongestLengths | None = None) -> ExportSpec:
    """Return what a plan and its graph are exported from.

    Raises PlanError for a plan that does not say what it was made for, UsageError for a flow that generates nothing.
    """
    if plan.assumed is None:
        hint = "make the plan with `flowgraph plan`, which writes models, batch and lengths into it"
        raise PlanError("the plan does not say for which models and batch it was made", where="assumed", hint=hint)
    algorithm = read_algorithm(graph)
    if algorithm is None:
        what = f"{graph.name} trains no policy on responses that it generates, which these systems do"
        losses = [node.name for node in graph.all_nodes if node.op.name == "cross_entropy"]
        hint = f"{losses[0]} learns given responses; these systems have policy losses only" if losses else ""
        raise UsageError(what, where=graph.name, hint=hint)
    without = set(plan.assumed.without)
    parts: dict[Part, str] = {part: param for part, param in _parts(graph).items() if param not in without}
    if "reference" not in parts:  # a run that leaves out the KL has a weight of 0 in its flow
        algorithm = replace(algorithm, kl_loss=None, kl_reward=None)
    for param in parts.values():
        if param not in plan.assumed.models:
            raise PlanError(f"no model is named for `{param}`", where="assumed.models")
    others = {role.param for role in roles(graph)} - without - set(parts.values())
    tokens = longest.response_tokens if longest is not None else max_tokens(plan.assumed.response_tokens)
    forecast = replace(algorithm, max_tokens=tokens or algorithm.max_tokens)
    return ExportSpec(plan, plan.assumed, forecast, parts, tuple(sorted(others)), longest, algorithm.max_tokens)


def _parts(graph: Graph) -> dict[Part, str]:
    """Return the parts of a flow's models, by what the graph does with them; of several of one kind, the first."""
    kinds = {node.name: node.op.kind for node in graph.all_nodes}
    judged = {node.name for node in graph.all_nodes if node.op.name == "judged"}
    found = roles(graph)
    trained = {role.param for role in found if role.use == "train"}
    sampled = {role.param for role in found if role.use == "sample"}
    parts = dict[Part, str]()
    for role in found:
        part: Part = "reference"
        if role.param in trained:
            part = "policy" if role.param in sampled else "critic"
        elif any(kinds[name] == "score" for name in role.nodes):
            part = "reward"
        elif any(name in judged for name in role.nodes):
            part = "judge"
        parts.setdefault(part, role.param)
    return parts


def max_tokens(text: str) -> int | None:
    """Return the largest number of tokens in a text of lengths; None if it has none.

    >>> max_tokens("512"), max_tokens("mean=2k,p99=16k"), max_tokens("rows.parquet:tokens")
    (512, 16000, None)
    """
    tokens = list[int]()
    for item in text.split(","):
        name, _, amount = item.rpartition("=")
        match = _TOKENS.fullmatch(amount.strip())
        if match is not None and name.strip() != "sigma":
            tokens.append(int(float(match[1]) * _FACTORS[match[2].lower()]))
    return max(tokens, default=None)
