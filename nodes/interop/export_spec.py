"""What an export is filled from: a plan, the algorithm of its graph, and who plays which part.

Not here: what any system calls that.
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
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([km]?)", re.IGNORECASE)
_FACTOR = {"": 1, "k": 1_000, "m": 1_000_000}


@dataclass(frozen=True)
class ExportDevices:
    """Devices on machines: how many each machine gives. The systems want the same number of each."""

    counts: tuple[int, ...]
    machines: frozenset[str] = frozenset()

    @property
    def nodes(self) -> int:
        """Give the number of machines."""
        return len(self.counts)

    @property
    def per_node(self) -> int:
        """Give the devices of each machine: the least where they differ."""
        return min(self.counts)

    @property
    def devices(self) -> int:
        """Give the devices that a system takes of it."""
        return self.nodes * self.per_node

    @property
    def uneven(self) -> bool:
        """Say whether machines give different numbers, so that a system takes fewer."""
        return len(set(self.counts)) > 1


@dataclass(frozen=True)
class ExportModel:
    """A model as a system is told it: its name, and the rank and alpha of adapters, 0 without any."""

    name: str
    rank: int = 0
    alpha: int = 0

    @classmethod
    def read(cls, text: str) -> ExportModel:
        """Read a model as a plan names it.

        >>> ExportModel.read("org/name+lora=8"), ExportModel.read("org/name")
        (ExportModel(name='org/name', rank=8, alpha=16), ExportModel(name='org/name', rank=0, alpha=0))
        """
        base, plus, options = text.rpartition("+lora=")
        if not plus:
            return cls(text)
        rank, _, rest = options.partition(",")
        alpha = rest.partition("=")[2]
        if not rank.isdecimal() or not (alpha.isdecimal() or not rest):
            raise PlanError(f"the model `{text}` has adapters of no rank", where="assumed.models")
        return cls(base, int(rank), int(alpha) if rest else 2 * int(rank))


@dataclass(frozen=True)
class LongestLengths:
    """The longest prompt and the longest response that a plan was forecast for, in tokens; None: the flow's own."""

    prompt_tokens: int
    response_tokens: int | None = None


@dataclass(frozen=True)
class ExportSpec:
    """A plan and its algorithm; `parts` says which of the flow's parameters is the policy, the critic, and so on."""

    plan: Plan
    assumed: PlanAssumptions
    algorithm: Algorithm
    parts: dict[Part, str]
    others: tuple[str, ...]  # parameters that no part is left for: a second reference, a second policy
    longest: LongestLengths | None = None
    flow_cuts_at: int = 0  # tokens of a response; `algorithm` has those of the forecast in their place

    @property
    def prompt_tokens(self) -> int:
        """Give the most tokens that a prompt has, as far as it is known."""
        told = self.longest.prompt_tokens if self.longest else most_tokens(self.assumed.prompt_tokens)
        return told or DEFAULT_PROMPT_TOKENS

    @property
    def measures(self) -> bool:
        """Say whether the forecast has a pass of the policy's own log-probs of what was drawn, without gradients."""
        role, tasks = f"{self.parts['policy']}.train", self.plan.step.tasks if self.plan.step is not None else ()
        return any(task.kind == "logprob" and task.role == role for task in tasks)

    @property
    def total_tokens(self) -> int:
        """Give the most tokens of a prompt and its response."""
        return self.prompt_tokens + self.algorithm.max_tokens

    @property
    def minibatch(self) -> int:
        """Give the prompts of one optimizer step of the policy."""
        return min(self.algorithm.policy.minibatch or self.batch, self.batch)

    @property
    def batch(self) -> int:
        """Give the prompts that a step trains on: of those drawn, as many as a refill keeps."""
        refill = self.algorithm.refill
        return min(refill["groups"], self.assumed.batch) if refill is not None else self.assumed.batch

    def model(self, part: Part) -> ExportModel:
        """Give the model of a part."""
        return ExportModel.read(self.assumed.models[self.parts[part]])

    def has(self, part: Part) -> bool:
        """Say whether the flow has this part."""
        return part in self.parts

    def placed(self, part: Part, use: Use) -> PlacedRole | None:
        """Give where a part is placed for a use, if it is."""
        role = f"{self.parts.get(part, '')}.{use}"
        return next((each for each in self.plan.placed if each.role == role), None)

    def layout(self, part: Part, use: Use) -> Layout:
        """Give how a part is cut; one device where it is not placed."""
        found = self.placed(part, use)
        return found.layout if found is not None else Layout()

    def running(self, part: Part, use: Use) -> RoleSettings:
        """Give how a part runs."""
        found = self.placed(part, use)
        return found.running if found is not None else RoleSettings()

    def pool(self, part: Part, use: Use) -> str:
        """Give the pool of a part, "" where it is not placed."""
        found = self.placed(part, use)
        return found.pool if found is not None else ""

    def site(self, *pools: str) -> ExportDevices:
        """Give the devices of these pools together, by machine."""
        taken = [place for pool in self.plan.pools if pool.name in pools for place in pool.devices]
        found = Counter(node for node, _ in taken)
        return ExportDevices(tuple(found.values()), frozenset(found))

    def memory_bytes(self, pool: str) -> tuple[int, ...]:
        """Give the memory of each device of a pool."""
        there = next(each for each in self.plan.pools if each.name == pool)
        found = (self.plan.cluster.device(node, place) for node, place in there.devices)
        return tuple(device.memory_bytes for device in found if device is not None)

    def budget_tokens(self, part: Part, use: Use) -> int:
        """Give the tokens that go through at once on one device: those of the plan, else of the flow's update.

        Rows that sequence parallelism spreads are counted by the share of one device; the longest row has to fit.
        """
        told = self.running(part, use).micro_batch_tokens
        update = self.algorithm.critic if part == "critic" else self.algorithm.policy
        tokens = told or (update or self.algorithm.policy).micro_batch_tokens
        return -(-max(tokens, self.total_tokens) // self.layout(part, use).sequence)


def job_of(plan: Plan, graph: Graph, longest: LongestLengths | None = None) -> ExportSpec:
    """Put a plan and its graph together.

    Raises PlanError for a plan that does not say what it was made for, UsageError for a flow that draws no responses.
    """
    if plan.assumed is None:
        hint = "make the plan with `flowgraph plan`, which writes models, batch and lengths into it"
        raise PlanError("the plan does not say for which models and batch it was made", where="assumed", hint=hint)
    algorithm = read_algorithm(graph)
    if algorithm is None:
        what = f"{graph.name} trains no policy on responses that it draws, which these systems start from"
        losses = [node for node in graph.all_nodes if node.op.name == "cross_entropy"]
        hint = (
            f"{losses[0].name} learns given responses by heart, which is none of their policy losses" if losses else ""
        )
        raise UsageError(what, where=graph.name, hint=hint)
    without = set(plan.assumed.without)
    found: dict[Part, str] = {part: param for part, param in _parts(graph).items() if param not in without}
    if "reference" not in found:  # a KL that is left out of a run has a weight of 0 in its flow
        algorithm = replace(algorithm, kl_loss=None, kl_reward=None)
    lacking = [param for param in found.values() if param not in plan.assumed.models]
    if lacking:
        raise PlanError(f"no model is named for `{lacking[0]}`", where="assumed.models")
    models = {role.param for role in roles(graph)} - without
    told = longest.response_tokens if longest is not None else most_tokens(plan.assumed.response_tokens)
    cut = replace(algorithm, max_tokens=told or algorithm.max_tokens)
    others = tuple(sorted(models - set(found.values())))
    return ExportSpec(plan, plan.assumed, cut, found, others, longest, algorithm.max_tokens)


def _parts(graph: Graph) -> dict[Part, str]:
    """Tell a flow's models apart by what the graph does with them; of several of one kind, the first."""
    kinds = {node.name: node.op.kind for node in graph.all_nodes}
    judged = {node.name for node in graph.all_nodes if node.op.name == "judged"}
    found = roles(graph)
    trained = {role.param for role in found if role.use == "train"}
    drawn = {role.param for role in found if role.use == "sample"} & trained
    parts = dict[Part, str]()
    for role in found:
        part: Part = "reference"
        if role.param in trained:
            part = "policy" if role.param in drawn else "critic"
        elif any(kinds[name] == "score" for name in role.nodes):
            part = "reward"
        elif any(name in judged for name in role.nodes):
            part = "judge"
        parts.setdefault(part, role.param)
    return parts


def most_tokens(text: str) -> int | None:
    """Give the most tokens that a text of lengths names; None where it names none.

    >>> most_tokens("512"), most_tokens("mean=2k,p99=16k"), most_tokens("rows.parquet:tokens")
    (512, 16000, None)
    """
    amounts = [each.rpartition("=") for each in text.split(",")]
    found = [(name, _AMOUNT.fullmatch(amount.strip())) for name, _, amount in amounts]
    tokens = [
        int(float(match[1]) * _FACTOR[match[2].lower()])
        for name, match in found
        if match is not None and name.strip() != "sigma"
    ]
    return max(tokens, default=None)
