"""What an export is filled from: a plan, the algorithm of its graph, and which model is the policy, the critic, etc.

Not here: the names that any system has for that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from flowgraph.analysis.roles import Use, roles
from flowgraph.cluster.plan import PlacedRole, Plan, PlanAssumptions
from flowgraph.errors import PlanError, UsageError
from flowgraph.language.graph import Graph
from nodes.interop.algorithm import Algorithm, read_algorithm
from nodes.interop.keys import NAMES, System

Part = Literal["policy", "critic", "reference", "reward", "judge", "process"]
RoleName = Literal["policy", "sampler", "critic", "reference", "reward"]
ROLES: Mapping[RoleName, tuple[Part, Use]] = {
    "policy": ("policy", "train"),
    "sampler": ("policy", "sample"),
    "critic": ("critic", "train"),
    "reference": ("reference", "infer"),
    "reward": ("reward", "infer"),
}
DEFAULT_PROMPT_TOKENS = 1024
_TOKENS = re.compile(r"(\d+(?:\.\d+)?)([km]?)", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000}


@dataclass(frozen=True)
class ExportDevices:
    """The number of devices on each machine, and the machines' names. A system uses the same number on each machine."""

    counts: tuple[int, ...]
    machines: frozenset[str] = frozenset()

    @property
    def nodes(self) -> int:
        """Return the number of machines."""
        return len(self.counts)

    @property
    def per_node(self) -> int:
        """Return how many devices the system uses on each machine: the smallest of `counts`; 0 without machines."""
        return min(self.counts, default=0)

    @property
    def devices(self) -> int:
        """Return the total number of devices that the system uses."""
        return self.nodes * self.per_node


@dataclass(frozen=True)
class ExportModel:
    """A model's name, and the rank and alpha of its adapters, 0 without any."""

    name: str
    rank: int = 0
    alpha: int = 0

    @classmethod
    def read(cls, text: str) -> ExportModel:
        """Return the model that a plan names; alpha is by default twice the rank. Raises PlanError for an invalid rank.

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
    """The longest prompt and response that a plan was forecast for, in tokens; None means the flow's own limit."""

    prompt_tokens: int
    response_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class ExportSpec:
    """A plan and its algorithm for a version of a system, and notes on what the system does differently.

    `parts` has the flow's parameter for each part. `extra_params` are parameters without a part, such as a second
    reference. The algorithm's `max_tokens` are those of the forecast, `flow_max_tokens` those of the flow.
    """

    system: System
    version: str
    plan: Plan
    assumed: PlanAssumptions
    algorithm: Algorithm
    parts: dict[Part, str]
    extra_params: tuple[str, ...]
    longest: LongestLengths | None
    flow_max_tokens: int
    notes: list[str]

    def note(self, text: str) -> None:
        """Add a note, unless it was added before."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def name(self) -> str:
        """Return the name of the system as its authors write it."""
        return NAMES[self.system]

    @property
    def prompt_tokens(self) -> int:
        """Return the maximum length of a prompt in tokens, or 1,024 if the plan does not specify it."""
        tokens = self.longest.prompt_tokens if self.longest else max_tokens(self.assumed.prompt_tokens)
        return tokens or DEFAULT_PROMPT_TOKENS

    @property
    def total_tokens(self) -> int:
        """Return the maximum length of a prompt with its response, in tokens."""
        return self.prompt_tokens + self.algorithm.max_tokens

    @property
    def recomputes_logprobs(self) -> bool:
        """Return whether the forecast step has a forward pass of the policy that recomputes log-probs."""
        role, tasks = self.role("policy").role, self.plan.step.tasks if self.plan.step is not None else ()
        return any(task.kind == "logprob" and task.role == role for task in tasks)

    @property
    def batch(self) -> int:
        """Return the number of prompts that a step trains on; with a refill, at most the groups that it returns."""
        refill = self.algorithm.refill
        return min(refill["groups"], self.assumed.batch) if refill is not None else self.assumed.batch

    @property
    def minibatch(self) -> int:
        """Return the number of prompts for one optimizer step of the policy, at most those of the batch."""
        return min(self.algorithm.policy.minibatch or self.batch, self.batch)

    @property
    def lag(self) -> int:
        """Return how old the weights that generate responses may be, in updates."""
        return self.role("sampler").lag

    def model(self, part: Part) -> ExportModel | None:
        """Return the model of a part; None if the flow lacks the part. Raises PlanError for adapters without a rank."""
        return ExportModel.read(self.assumed.models[self.parts[part]]) if part in self.parts else None

    def role(self, name: RoleName) -> PlacedRole:
        """Return where and how the plan places a role, such as the policy's sampling.

        A role that is not placed has one device, pool "" and engine "".
        """
        part, use = ROLES[name]
        role = f"{self.parts.get(part, '')}.{use}"
        absent = PlacedRole(role=role, pool="", engine="")
        return next((placed for placed in self.plan.placed if placed.role == role), absent)

    def is_placed(self, name: RoleName) -> bool:
        """Return whether the plan places a role."""
        return self.role(name).pool != ""

    def devices(self, *pools: str) -> ExportDevices:
        """Return the devices of these pools, counted by machine; pools that the plan does not have count as empty."""
        machines = Counter(node for pool in self.plan.pools if pool.name in pools for node, _ in pool.devices)
        return ExportDevices(tuple(machines.values()), frozenset(machines))

    def row_tokens(self, name: RoleName) -> int:
        """Return the tokens of one micro-batch on all devices that split its rows, from the plan or else the flow.

        The tokens are at least those of the longest row, rounded up to a multiple of the sequence-parallel degree.
        """
        update = (self.algorithm.critic if name == "critic" else None) or self.algorithm.policy
        role = self.role(name)
        tokens = max(role.running.micro_batch_tokens or update.micro_batch_tokens, self.total_tokens)
        return -(-tokens // role.layout.sequence) * role.layout.sequence


def export_spec(
    plan: Plan,
    graph: Graph,
    system: System,
    version: str,
    longest: LongestLengths | None = None,
    notes: Sequence[str] = (),
) -> ExportSpec:
    """Return the data for the templates of a system's version: a plan, its algorithm and its models.

    `longest` replaces the lengths that the plan records, and the result's notes begin with `notes`. Raises PlanError
    for a plan that does not record its batch and each of its models, and UsageError for a flow that trains no policy on
    responses that it generates.
    """
    assumed = plan.assumed
    if assumed is None:
        hint = "make the plan with `flowgraph plan`, which writes models, batch and lengths into it"
        raise PlanError("the plan does not state its models and batch", where="assumed", hint=hint)
    algorithm = read_algorithm(graph)
    if algorithm is None:
        what = f"{graph.name} trains no policy on responses that it generates, which these systems do"
        losses = [node.name for node in graph.all_nodes if node.op.name == "cross_entropy"]
        hint = f"{losses[0]} learns given responses; these systems have policy losses only" if losses else ""
        raise UsageError(what, where=graph.name, hint=hint)
    parts: dict[Part, str] = {part: param for part, param in _parts(graph).items() if param not in assumed.without}
    if "reference" not in parts:  # a run that leaves out the KL has a weight of 0 in its flow
        algorithm = replace(algorithm, kl_loss=None, kl_reward=None)
    for param in parts.values():
        if param not in assumed.models:
            raise PlanError(f"no model is named for `{param}`", where="assumed.models")
    tokens = longest.response_tokens if longest is not None else max_tokens(assumed.response_tokens)
    return ExportSpec(
        system=system,
        version=version,
        plan=plan,
        assumed=assumed,
        algorithm=replace(algorithm, max_tokens=tokens or algorithm.max_tokens),
        parts=parts,
        extra_params=tuple(sorted({role.param for role in roles(graph)} - {*assumed.without, *parts.values()})),
        longest=longest,
        flow_max_tokens=algorithm.max_tokens,
        notes=list(notes),
    )


def _parts(graph: Graph) -> dict[Part, str]:
    kinds = {node.name: node.op.kind for node in graph.all_nodes}
    judged, of_tokens = (
        {node.name for node in graph.all_nodes if node.op.name == op} for op in ("judged", "process_rewards")
    )
    trained, sampled = ({role.param for role in roles(graph) if role.use == use} for use in ("train", "sample"))
    parts = dict[Part, str]()
    for role in roles(graph):
        part: Part = "reference"
        if role.param in trained:
            part = "policy" if role.param in sampled else "critic"
        elif any(name in of_tokens for name in role.nodes):
            part = "process"
        elif any(kinds[name] == "score" for name in role.nodes):
            part = "reward"
        elif any(name in judged for name in role.nodes):
            part = "judge"
        parts.setdefault(part, role.param)
    return parts


def max_tokens(text: str) -> int | None:
    """Return the largest number of tokens in a text such as `mean=2k,p99=16k`; None if it has none, as for a file.

    `k` means thousand and `m` million. A value of `sigma` does not count.

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
