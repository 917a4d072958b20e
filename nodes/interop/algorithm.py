"""The algorithm of a graph, by the ops of its nodes: the record that exports are filled from.

It is read from the loss backwards. Nodes that have no place in the record are named (`unsaid`), so that exports say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from flowgraph.language.graph import Graph, Node, carried_from
from nodes.scoring.remote import SERVED

SURROGATES = (
    *("clipped", "policy_gradient", "cispo_loss", "dppo_loss", "gspo_loss", "gmpo_loss", "sapo_loss"),
    *("clip_cov_loss", "kl_cov_loss"),
)
KL_LOSSES = {"kl_k1": "k1", "kl_k2": "k2", "kl_k3": "k3", "kl_abs": "abs"}
ADVANTAGES = (
    *("gae", "group_normalize", "gpg_advantages", "rloo_advantages", "opo_advantages", "pass_at_k_advantages"),
    *("greedy_baseline", "discounted_returns", "optimal_token_baseline"),
)
SCORES = ("score", "reward", "judged")
SCORERS: Mapping[str, str] = {
    "judged": "by a judge",
    **dict.fromkeys(SERVED, "by a server"),
    "process_rewards": "by a process reward model",
}
"""Ops that score neither by a rule nor by a reward model of responses, and how."""
CHOICES = ("high_covariance", "top_covariance")
_ARITHMETIC = "flowgraph.language.arithmetic"
REPORTS = frozenset({"mismatch", "evaluate", "evaluate_at_k", "accuracy", "pass_at_k"})  # change nothing that is learnt
# What every system does by itself: passes of the models, bookkeeping, and reports.
PLUMBING = REPORTS | {"logprobs", "critic_values", "entropy", "squared_probs", "token_rewards", "add", "scale"}


@dataclass(frozen=True)
class Update:
    """How a model is trained, as its `update` node says; `minibatch` is in prompts, 0 for the whole batch at once."""

    lr: float
    optimizer: str
    weight_decay: float
    max_grad_norm: float
    epochs: int
    minibatch: int
    micro_batch_tokens: int
    start_step: int


@dataclass(frozen=True)
class KL:
    """A KL to a reference: its estimator (k1, k2, k3, abs), its weight, and the settings that adapt the weight."""

    estimator: str
    weight: float
    straight_through: bool = False
    adaptive: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True)
class Surrogate:
    """The policy's loss: its op, its settings, and where the log-probs of its ratio come from (`old`)."""

    op: str
    settings: Mapping[str, Any] = field(hash=False)
    old: Literal["sampler", "trainer", "none"] = "none"

    @property
    def aggregation(self) -> str | float:
        """Return how the loss aggregates terms: a name such as `token-mean`, or the divisor of a `sequence-sum`."""
        return _aggregation(self.settings)


@dataclass(frozen=True)
class ScoreTerm:
    """A score from which the advantages are computed: its node, its rule, and its weight.

    The rule is "" for a reward model, and the op for one of `SCORERS`.
    """

    node: str
    rule: str
    weight: float

    def __str__(self) -> str:
        by = f" {SCORERS.get(self.rule, f'by the rule `{self.rule}`')}" if self.rule else ""
        return f"{self.weight:g} × `{self.node}`{by}"


@dataclass(frozen=True)
class Algorithm:
    """The algorithm of a flow, in terms of its nodes. `estimator` is the op of the advantages, "" if unknown.

    `scores` are all scores from which the advantages are computed. `aggregations` has the aggregation of each other
    term of the policy's loss, by the name of its node; `choice` has the settings that choose tokens by their
    covariance.
    """

    estimator: str
    surrogate: Surrogate
    advantages: Mapping[str, Any] = field(hash=False)  # the settings of the estimator
    whitened: bool
    n: int
    temperature: float
    top_k: int
    top_p: float
    stop: tuple[str | int, ...]
    ignore_eos: bool
    max_tokens: int
    policy: Update
    critic: Update | None
    value_clip: float | None
    value_aggregation: str | float
    entropy_weight: float
    kl_loss: KL | None
    kl_reward: KL | None
    scores: tuple[ScoreTerm, ...]
    aggregations: Mapping[str, str | float] = field(hash=False)
    choice: Mapping[str, Any] | None = field(hash=False)
    refill: Mapping[str, Any] | None = field(hash=False)
    overlong: Mapping[str, Any] | None = field(hash=False)
    correction: Mapping[str, Any] | None = field(hash=False)
    rejection: Mapping[str, Any] | None = field(hash=False)
    unsaid: tuple[str, ...]

    @property
    def stop_texts(self) -> list[str]:
        """Return the texts that end a response."""
        return [stop for stop in self.stop if isinstance(stop, str)]

    @property
    def stop_ids(self) -> list[int]:
        """Return the token ids that end a response in addition to the model's end tokens."""
        return [stop for stop in self.stop if isinstance(stop, int)]

    @property
    def kl(self) -> KL | None:
        """Return the KL to a reference in the loss, or else the one in the reward; None without a KL."""
        return self.kl_loss or self.kl_reward

    @property
    def rules(self) -> tuple[str, ...]:
        """Return the distinct rules of the scores, in order; empty if only reward models score."""
        return tuple(dict.fromkeys(score.rule for score in self.scores if score.rule))

    @property
    def own_reward(self) -> bool:
        """Return whether the user must write a reward function: for several scores, or for a rule other than "data"."""
        return len(self.scores) > 1 or any(rule != "data" for rule in self.rules)

    @property
    def components(self) -> tuple[str, ...]:
        """Return a unique reward name for each score, made from its rule, or from its node if a model scores.

        >>> from examples.gdpo import gdpo
        >>> from flowgraph.passes import named
        >>> read_algorithm(named(gdpo.graph())).components
        ('data_reward', 'partial_reward')
        """
        names = [f"{score.rule or score.node}_reward".replace("#", "_").replace(".", "_") for score in self.scores]
        return tuple(name if names.count(name) == 1 else f"{name}_{index}" for index, name in enumerate(names))


def aggregation_text(aggregation: str | float) -> str:
    """Return an aggregation as text; a number is the length by which `sequence-sum` divides.

    >>> aggregation_text("token-mean"), aggregation_text(16.0)
    ('token-mean', 'sequence-sum / 16')
    """
    return aggregation if isinstance(aggregation, str) else f"sequence-sum / {aggregation:g}"


def settings_of(node: Node) -> Mapping[str, Any]:
    """Return the settings of a node, by name."""
    return {name: getattr(node.settings, name) for name in type(node.settings).model_fields}


def read_algorithm(graph: Graph) -> Algorithm | None:
    """Return the algorithm of a graph; None if the graph trains no policy on responses that it samples.

    The result is None too if the policy's loss is not one of `SURROGATES`. The graph's nodes must have names; those
    that have no field in an `Algorithm` are listed by name in its `unsaid`.
    """
    reader = _AlgorithmReader(graph)
    updates = {node: list(_loss_terms(node)) for node in reader.nodes("update")}
    losses = ((update, node) for update, terms in updates.items() for _, node in terms if node.op.name in SURROGATES)
    trained = next((pair for pair in losses if pair[1].op.module.startswith("nodes.")), None)
    sampler = reader.sampler(trained[0]) if trained is not None else None
    if trained is None or sampler is None:
        return None
    policy, loss = trained
    terms = updates[policy]
    estimator, advantages, whitened = reader.advantages(loss)
    critic = next((node for node in updates if node is not policy), None)
    reader.seen.difference_update(node for node in updates if node not in (policy, critic))
    sampling, value_loss = settings_of(sampler), reader.settings("value_loss") if critic is not None else None
    scores = tuple(reader.scores(loss))
    old = loss.input("old")
    sampled_old = old is not None and isinstance(old.source, Node) and old.source.op.kind == "generate"
    averaged = [node for _, node in terms if node.op.name in (*KL_LOSSES, "entropy_bonus") and _is_ours(node)]
    correction, normalized = reader.settings("importance_weights"), reader.settings("normalized_weights")
    return Algorithm(
        estimator=estimator,
        surrogate=Surrogate(
            loss.op.name, reader.take(loss), "none" if old is None else "sampler" if sampled_old else "trainer"
        ),
        advantages=advantages,
        whitened=whitened,
        **{name: sampling[name] for name in ("n", "temperature", "top_k", "top_p", "stop", "ignore_eos", "max_tokens")},
        policy=_update(policy),
        critic=_update(critic) if critic is not None else None,
        value_clip=value_loss["clip"] if value_loss is not None else None,
        value_aggregation=_aggregation(value_loss) if value_loss is not None else "token-mean",
        entropy_weight=sum(weight for weight, node in terms if node in reader.nodes("entropy_bonus")),
        kl_loss=reader.kl_in_loss(terms),
        kl_reward=reader.kl_in_reward(),
        scores=scores,
        aggregations={node.name: _aggregation(settings_of(node)) for node in averaged},
        choice=reader.settings(*CHOICES),
        refill=sampling if sampler.op.name == "refill" else None,
        overlong=reader.settings("overlong_penalty"),
        correction=correction if correction is None else {**correction, "normalized": normalized is not None},
        rejection=reader.settings("rejected"),
        unsaid=reader.unsaid(),
    )


@dataclass
class _AlgorithmReader:
    """The nodes of a graph by op, and which of them have a place in the record."""

    graph: Graph
    seen: set[Node] = field(default_factory=set[Node])

    def nodes(self, *ops: str) -> list[Node]:
        nodes = [node for node in self.graph.all_nodes if node.op.name in ops and _is_ours(node)]
        self.seen.update(nodes)
        return nodes

    def settings(self, *ops: str) -> Mapping[str, Any] | None:
        nodes = self.nodes(*ops)
        self.seen.difference_update(nodes[1:])  # the record has a place for one
        return settings_of(nodes[0]) if nodes else None

    def take(self, node: Node) -> Mapping[str, Any]:
        self.seen.add(node)
        return settings_of(node)

    def unsaid(self) -> tuple[str, ...]:
        nodes = (node for node in self.graph.all_nodes if node not in self.seen)
        names = (node.name for node in nodes if not (_is_ours(node) and node.op.name in PLUMBING))
        settings = {node.name: settings_of(node) for node in self.graph.all_nodes}  # exports write a constant rate
        changing = {name for name, values in settings.items() if values.get("schedule", "constant") != "constant"}
        changing |= {name for name, values in settings.items() if values.get("warmup_steps")}
        return (*names, *(f"the schedule of {name}" for name in settings if name in changing))

    def sampler(self, policy: Node) -> Node | None:
        samplers = list[Node]()
        for node in self.nodes("generate", "refill"):
            model = node.model()
            if (carried_from(model) if model is not None else None) is policy.root:
                samplers.append(node)
        return next((node for node in samplers if settings_of(node)["temperature"] > 0), next(iter(samplers), None))

    def advantages(self, loss: Node) -> tuple[str, Mapping[str, Any], bool]:
        """Return the op that estimates the advantages of a loss, its settings, and whether they are then whitened."""
        whitened, edge = False, loss.input("advantages")
        while edge is not None and isinstance(node := edge.source, Node) and _is_ours(node):
            if node.op.name == "whiten":
                self.seen.add(node)
                whitened, edge = True, node.input("advantages")
            elif node.op.name in ADVANTAGES:
                settings = self.take(node)
                centred = node.op.name == "group_normalize" and not settings["deviation"] and whitened
                return "centred_whitened" if centred else node.op.name, settings, whitened
            elif node.op.name == "add" and (groups := _normalized_groups(node)):
                if any(settings_of(group) != settings_of(groups[0]) for group in groups):
                    break  # a system normalises all of them in one way
                self.seen.update(groups)
                return "gdpo", settings_of(groups[0]), whitened
            else:
                edge = node.input("advantages")  # `unsaid` names what shapes them
        return "", {}, whitened

    def kl_in_loss(self, terms: Sequence[tuple[float, Node]]) -> KL | None:
        adaptive = self.settings("adaptive_kl") if self.nodes("weighted") else None
        for weight, node in terms:
            if node.op.name in KL_LOSSES and _is_ours(node):
                straight_through = bool(self.take(node).get("straight_through", False))
                return KL(KL_LOSSES[node.op.name], weight, straight_through, adaptive)
        return None

    def kl_in_reward(self) -> KL | None:
        penalty, estimate = self.settings("kl_penalized"), self.settings("kl_estimate")
        if penalty is None or estimate is None:
            return None
        adapts = any(node.input("beta") is not None for node in self.nodes("kl_penalized"))
        return KL(estimate["estimator"], penalty["weight"], False, self.settings("adaptive_kl") if adapts else None)

    def scores(self, loss: Node) -> Iterator[ScoreTerm]:
        """Yield the scores that a loss's advantages are computed from, in order, with their weights in the sum."""
        edge, visited = loss.input("advantages"), set[Node]()
        queue = [(1.0, edge)] if edge is not None else []
        for weight, edge in queue:
            node = edge.source
            if not isinstance(node, Node) or node in visited:
                continue
            visited.add(node)
            if node.op.kind == "score" or node.op.name in (*SCORES, "refill"):
                self.seen.update([node] if _is_ours(node) else [])
                # Systems score rows that are not trained on, as of a baseline, by the same rule.
                reads = (
                    (reader.op.port(port), edge.source)
                    for reader in self.graph.all_nodes
                    for port, edge in reader.inputs
                )
                baselines = (source for port, source in reads if port.other_rows and isinstance(source, Node))
                scores = (source for source in baselines if source.op.kind == "score")
                self.seen.update(score for score in scores if settings_of(score) == settings_of(node))
                by = settings_of(node).get("by", "" if node.op.name == "reward" else node.op.name)
                rule = by if isinstance(by, str) else str(getattr(by, "__name__", "data"))
                yield ScoreTerm(node.name, rule, weight)
            elif node.op.kind != "generate":
                is_scale = node.op.module == _ARITHMETIC and node.op.name == "scale"
                factor = settings_of(node)["factor"] if is_scale else 1.0
                queue += [(weight * factor, read) for port, read in node.inputs if not node.op.port(port).other_rows]


def _is_ours(node: Node) -> bool:
    return node.op.module.split(".")[0] in {"nodes", "flowgraph"}


def _aggregation(settings: Mapping[str, Any]) -> str | float:
    aggregation = settings.get("aggregation", "sequence-mean")
    return aggregation if isinstance(aggregation, float) else str(aggregation)


def _update(node: Node) -> Update:
    settings = settings_of(node)
    return Update(**{setting.name: settings[setting.name] for setting in fields(Update)})


def _loss_terms(update: Node) -> Iterator[tuple[float, Node]]:
    queue = [(1.0, region.output) for _, region in update.regions]
    for weight, edge in queue:
        node = edge.source
        if not isinstance(node, Node):
            continue
        inputs = dict(node.inputs)
        if node.op.name == "add" and node.op.module == _ARITHMETIC:
            queue += [(weight, inputs["a"]), (weight, inputs["to"])]
        elif node.op.name == "scale" and node.op.module == _ARITHMETIC:
            queue.append((weight * settings_of(node)["factor"], inputs["a"]))
        elif node.op.name == "weighted" and "loss" in inputs:
            queue.append((weight, inputs["loss"]))
        else:
            yield weight, node


def _normalized_groups(node: Node) -> list[Node]:
    """Return the nodes that a sum of advantages adds up if there are several and each normalises a score, else none."""
    queue, groups = [edge for _, edge in node.inputs], list[Node]()
    for edge in queue:
        source = edge.source
        if not isinstance(source, Node) or source.op.name not in {"add", "scale", "group_normalize"}:
            return []
        if source.op.name == "group_normalize":
            scores = source.input("scores")
            if scores is None or not isinstance(scores.source, Node) or scores.source.op.kind != "score":
                return []
            groups.append(source)
        else:
            queue += [edge for _, edge in source.inputs]
    return groups if len(groups) > 1 else []
