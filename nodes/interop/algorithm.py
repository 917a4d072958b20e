"""What a graph says of its algorithm, by the ops that its nodes call: the record that exports are filled from.

Read from the loss backwards. What it does not understand it names (`unsaid`), so that an export can say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from flowgraph.language.graph import Edge, Graph, Node, carried_from

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
CHOICES = {"high_covariance", "top_covariance"}
_SUMS = "flowgraph.language.arithmetic"
REPORTS = frozenset({"mismatch", "evaluate", "evaluate_at_k", "accuracy", "pass_at_k"})  # what a run only reports
# What every system does without being told: passes of the models, bookkeeping, and reports.
PLUMBING = REPORTS | {"logprobs", "critic_values", "entropy", "squared_probs", "token_rewards", "add", "scale"}


@dataclass(frozen=True)
class Update:
    """How a model is trained: `minibatch` in prompts, 0 for the whole batch at once."""

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
    """A KL to a reference: its estimator (k1, k2, k3, abs), its weight, and the settings of what adapts the weight."""

    estimator: str
    weight: float
    straight_through: bool = False
    adaptive: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True)
class Surrogate:
    """The policy's loss: its op, its settings, and whose log-probs it clips around."""

    op: str
    settings: Mapping[str, Any] = field(hash=False)
    old: Literal["sampler", "trainer", "none"] = "none"

    @property
    def aggregation(self) -> str | float:
        """Give how its terms are put together: `token-mean`, or the constant length of `sequence-sum`."""
        return _aggregation(self.settings)


def _aggregation(settings: Mapping[str, Any]) -> str | float:
    told = settings.get("aggregation", "sequence-mean")
    return told if isinstance(told, float) else str(told)


@dataclass(frozen=True)
class ScoreTerm:
    """A score that the advantages are made of: its node, its rule, "" where a model gives it, and its weight."""

    node: str
    rule: str
    weight: float

    def __str__(self) -> str:
        by = f" by the rule `{self.rule}`" if self.rule else ""
        return f"{self.weight:g} × `{self.node}`{by}"


@dataclass(frozen=True)
class Algorithm:
    """What a flow computes, in the words of its nodes. `estimator` is the op of its advantages, "" where unknown.

    `scores` are all that its advantages are made of. `aggregations` says of each term of the policy's loss beside the
    surrogate how it is aggregated, by the name of its node; `choice` is how tokens are chosen by their covariance.
    """

    estimator: str
    surrogate: Surrogate
    advantages: Mapping[str, Any] = field(hash=False)  # the settings of the estimator
    whitened: bool
    n: int
    temperature: float
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
    at_most: int
    unsaid: tuple[str, ...]

    @property
    def rules(self) -> tuple[str, ...]:
        """Return the rules of the scores, each once; none where models give them all."""
        return tuple(dict.fromkeys(each.rule for each in self.scores if each.rule))

    @property
    def own_reward(self) -> bool:
        """Say whether a system needs a reward function of the user's: for several scores, or for a rule by its name."""
        return len(self.scores) > 1 or any(rule != "data" for rule in self.rules)

    @property
    def components(self) -> tuple[str, ...]:
        """Name each score as a reward of its own, by its rule: `exact_reward`.

        >>> from examples.gdpo import gdpo
        >>> from flowgraph.passes import named
        >>> read_algorithm(named(gdpo.graph())).components
        ('data_reward', 'partial_reward')
        """
        names = [f"{each.rule or each.node}_reward".replace("#", "_").replace(".", "_") for each in self.scores]
        return tuple(name if names.count(name) == 1 else f"{name}_{place}" for place, name in enumerate(names))


def aggregated(told: str | float) -> str:
    """Say how terms are aggregated.

    >>> aggregated("token-mean"), aggregated(16.0)
    ('token-mean', 'sequence-sum / 16')
    """
    return told if isinstance(told, str) else f"sequence-sum / {told:g}"


@dataclass
class _AlgorithmReader:
    """The nodes of a graph by op, and which of them were understood."""

    graph: Graph
    seen: set[Node] = field(default_factory=set[Node])

    def ours(self, node: Node) -> bool:
        return node.op.module.split(".")[0] in {"nodes", "flowgraph"}

    def all(self, *ops: str) -> list[Node]:
        found = [node for node in self.graph.all_nodes if node.op.name in ops and self.ours(node)]
        self.seen.update(found)
        return found

    def one(self, *ops: str) -> Mapping[str, Any] | None:
        found = self.all(*ops)
        self.seen.difference_update(found[1:])  # a second one is not said by what the first one says
        return settings_of(found[0]) if found else None

    def take(self, node: Node) -> Mapping[str, Any]:
        self.seen.add(node)
        return settings_of(node)

    def unsaid(self) -> tuple[str, ...]:
        left = (node for node in self.graph.all_nodes if node not in self.seen)
        named = (node.name for node in left if not (self.ours(node) and node.op.name in PLUMBING))
        return (*named, *(f"the schedule of {node.name}" for node in self.graph.all_nodes if _changes_rate(node)))


def _changes_rate(node: Node) -> bool:
    """Say whether a node's learning rate changes from step to step: exports write one that does not."""
    told = settings_of(node)
    return told.get("schedule", "constant") != "constant" or bool(told.get("warmup_steps"))


def settings_of(node: Node) -> Mapping[str, Any]:
    """Give a node's settings by name."""
    return {name: getattr(node.settings, name) for name in type(node.settings).model_fields}


def read_algorithm(graph: Graph) -> Algorithm | None:
    """Read what a named graph says of its algorithm; None where no policy is trained on responses that it draws."""
    reader = _AlgorithmReader(graph)
    updates = {node: list(_terms(node)) for node in reader.all("update")}
    policy = next((node for node, terms in updates.items() if _surrogate(terms) is not None), None)
    sampler = _sampler(reader, policy)
    if policy is None or sampler is None:
        return None
    terms = updates[policy]
    loss = _surrogate(terms)
    assert loss is not None, "the policy was chosen by its surrogate"
    estimator, advantages, whitened = _advantages(reader, loss)
    critic = next((node for node in updates if node is not policy), None)
    reader.seen.difference_update(node for node in updates if node not in (policy, critic))
    drawn, value = settings_of(sampler), reader.one("value_loss") if critic is not None else None
    scores = tuple(_scores(reader, loss))
    others = [node for _, node in terms if node.op.name in (*KL_LOSSES, "entropy_bonus") and reader.ours(node)]
    return Algorithm(
        estimator=estimator,
        surrogate=_loss(reader, loss),
        advantages=advantages,
        whitened=whitened,
        n=drawn["n"],
        temperature=drawn["temperature"],
        max_tokens=drawn["max_tokens"],
        policy=_update(policy),
        critic=_update(critic) if critic is not None else None,
        value_clip=value["clip"] if value is not None else None,
        value_aggregation=_aggregation(value) if value is not None else "token-mean",
        entropy_weight=sum(weight for weight, node in terms if node in reader.all("entropy_bonus")),
        kl_loss=_kl_loss(reader, terms),
        kl_reward=_kl_reward(reader),
        scores=scores,
        aggregations={node.name: _aggregation(settings_of(node)) for node in others},
        choice=reader.one(*CHOICES),
        refill=drawn if sampler.op.name == "refill" else None,
        overlong=reader.one("overlong_penalty"),
        correction=_correction(reader),
        rejection=reader.one("rejected"),
        at_most=max((edge.at_most for _, edge in sampler.inputs), default=0),
        unsaid=reader.unsaid(),
    )


def _terms(update: Node) -> Iterator[tuple[float, Node]]:
    """Give what a loss adds up, each with its weight; a loop, since sums may be long."""
    todo = [(1.0, region.output) for _, region in update.regions]
    while todo:
        weight, edge = todo.pop(0)
        node = edge.source
        if not isinstance(node, Node):
            continue
        inner = dict(node.inputs)
        if node.op.name == "add" and node.op.module == _SUMS:
            todo += [(weight, inner["a"]), (weight, inner["to"])]
        elif node.op.name == "scale" and node.op.module == _SUMS:
            todo.append((weight * settings_of(node)["factor"], inner["a"]))
        elif node.op.name == "weighted" and "loss" in inner:
            todo.append((weight, inner["loss"]))
        else:
            yield weight, node


def _surrogate(terms: list[tuple[float, Node]]) -> Node | None:
    named = (node for _, node in terms if node.op.name in SURROGATES and node.op.module.startswith("nodes."))
    return next(named, None)


def _sampler(reader: _AlgorithmReader, policy: Node | None) -> Node | None:
    """Give the node that draws the responses that are trained on: of several, the first that is not greedy."""
    drawn = [node for node in reader.all("generate", "refill") if policy is not None and _model(node) is policy.root]
    return next((node for node in drawn if settings_of(node)["temperature"] > 0), drawn[0] if drawn else None)


def _model(node: Node) -> object:
    edge = node.model()
    return carried_from(edge) if edge is not None else None


def _advantages(reader: _AlgorithmReader, loss: Node) -> tuple[str, Mapping[str, Any], bool]:
    """Give the op that estimates the advantages of a loss, its settings, and whether they are whitened after."""
    whitened, edge = False, loss.input("advantages")
    while edge is not None and isinstance(node := edge.source, Node) and reader.ours(node):
        if node.op.name == "whiten":
            reader.seen.add(node)
            whitened, edge = True, node.input("advantages")
        elif node.op.name in ADVANTAGES:
            return _named(node, reader.take(node), whitened)
        elif node.op.name == "add" and (groups := _groups(node)):
            told = [settings_of(each) for each in groups]
            if any(each != told[0] for each in told):
                break  # a system has one way to normalise all of them
            reader.seen.update(groups)
            return "gdpo", told[0], whitened
        else:
            edge = node.input("advantages")  # what shapes them is named by `unsaid`
    return "", {}, whitened


def _named(node: Node, settings: Mapping[str, Any], whitened: bool) -> tuple[str, Mapping[str, Any], bool]:
    centred = node.op.name == "group_normalize" and not settings["deviation"] and whitened
    return "centred_whitened" if centred else node.op.name, settings, whitened


def _groups(node: Node) -> list[Node]:
    """Give the nodes that a sum of advantages adds up, each normalised in its groups, of its own score; else none."""
    todo, found = [edge for _, edge in node.inputs], list[Node]()
    while todo:
        source = todo.pop(0).source
        if not isinstance(source, Node) or source.op.name not in {"add", "scale", "group_normalize"}:
            return []
        if source.op.name == "group_normalize":
            scored = source.input("scores")
            if scored is None or not isinstance(scored.source, Node) or scored.source.op.kind != "score":
                return []
            found.append(source)
        else:
            todo += [edge for _, edge in source.inputs]
    return found if len(found) > 1 else []


def _loss(reader: _AlgorithmReader, node: Node) -> Surrogate:
    old = node.input("old")
    return Surrogate(node.op.name, reader.take(node), "none" if old is None else _whose(old))


def _whose(edge: Edge) -> Literal["sampler", "trainer"]:
    drawn = isinstance(edge.source, Node) and edge.source.op.kind == "generate"
    return "sampler" if drawn else "trainer"


def _update(node: Node) -> Update:
    settings = settings_of(node)
    return Update(**{name: settings[name] for name in Update.__dataclass_fields__})


def _kl_loss(reader: _AlgorithmReader, terms: list[tuple[float, Node]]) -> KL | None:
    adaptive = reader.one("adaptive_kl") if reader.all("weighted") else None
    for weight, node in terms:
        if node.op.name in KL_LOSSES and reader.ours(node):
            straight = bool(reader.take(node).get("straight_through", False))
            return KL(KL_LOSSES[node.op.name], weight, straight, adaptive)
    return None


def _kl_reward(reader: _AlgorithmReader) -> KL | None:
    penalty, estimate = reader.one("kl_penalized"), reader.one("kl_estimate")
    if penalty is None or estimate is None:
        return None
    carried = any(node.input("beta") is not None for node in reader.all("kl_penalized"))
    return KL(estimate["estimator"], penalty["weight"], False, reader.one("adaptive_kl") if carried else None)


def _correction(reader: _AlgorithmReader) -> Mapping[str, Any] | None:
    weights = reader.one("importance_weights")
    normalized = reader.one("normalized_weights")
    return weights if weights is None else {**weights, "normalized": normalized is not None}


def _scores(reader: _AlgorithmReader, loss: Node) -> Iterator[ScoreTerm]:
    """Give the scores that a loss's advantages are made of, in their order, each with its weight in their sum."""
    edge, done = loss.input("advantages"), set[Node]()
    todo = [(1.0, edge)] if edge is not None else []
    while todo:
        weight, edge = todo.pop(0)
        node = edge.source
        if not isinstance(node, Node) or node in done:
            continue
        done.add(node)
        if node.op.kind == "score" or node.op.name in (*SCORES, "refill"):
            reader.seen.update([node] if reader.ours(node) else [])
            reader.seen.update(each for each in _of_other_rows(reader) if settings_of(each) == settings_of(node))
            yield ScoreTerm(node.name, _rule(node), weight)
        elif node.op.kind != "generate":
            factor = settings_of(node)["factor"] if node.op.module == _SUMS and node.op.name == "scale" else 1.0
            todo += [(weight * factor, read) for port, read in node.inputs if not node.op.port(port).other_rows]


def _of_other_rows(reader: _AlgorithmReader) -> Iterator[Node]:
    """Give the scores of other rows than are trained on, as of a baseline's: systems score them by the same rule."""
    for node in reader.graph.all_nodes:
        for port, edge in node.inputs:
            if node.op.port(port).other_rows and isinstance(edge.source, Node) and edge.source.op.kind == "score":
                yield edge.source


def _rule(node: Node) -> str:
    """Name the rule that a node scores by, "" for one that scores by a model."""
    by = settings_of(node).get("by", "" if node.op.name in ("reward", "judged") else node.op.name)
    return by if isinstance(by, str) else str(getattr(by, "__name__", "data"))
