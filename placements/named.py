"""The four placements that systems of the field are known by, as parts of roles that share a pool, for any flow.

Which devices and layouts a part gets is for the search to say. Roles are told apart by what the graph says of them:
trained (a policy), trained to tell another update something (a critic), or not: read for log-probs (a reference) or for
scores (a reward model, a judge).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flowgraph.analysis.roles import Role, models_read, roles
from flowgraph.errors import UnknownNameError
from flowgraph.language.graph import Graph, Node, carried_from, reachable
from flowgraph.language.values import Model
from flowgraph.lowering.program import read_by
from placements.problem import fused
from placements.work import passes_rows

Parts = tuple[tuple[str, ...], ...]
"""Roles by the pool that they share."""


@dataclass(frozen=True)
class Variant:
    """One published form of a named placement: the system, what it shares, and how roles part."""

    placement: str
    system: str
    about: str
    parts: Callable[[Sorted], Parts]

    @property
    def name(self) -> str:
        """Return its name: `split:openrlhf`."""
        return f"{self.placement}:{self.system}"

    def parts_of(self, graph: Graph) -> Parts:
        """Return the roles of a named graph by the pool that they share; those that one node reads share one."""
        return kept_together(graph, self.parts(sorted_roles(graph)))


@dataclass(frozen=True)
class Sorted:
    """The roles of a flow: of models that learn to respond, of critics, of references, and of what scores.

    A model that learns to respond may draw its responses, or learn from others'.
    """

    actor_train: tuple[str, ...]
    actor_sample: tuple[str, ...]
    critics: tuple[str, ...]
    references: tuple[str, ...]
    scorers: tuple[str, ...]

    @property
    def actor(self) -> tuple[str, ...]:
        """Return both roles of the models that learn to respond."""
        return self.actor_train + self.actor_sample


def sorted_roles(graph: Graph) -> Sorted:
    """Sort the roles of a named graph by what it says of them."""
    found, kinds = roles(graph), {node.name: node.op.kind for node in graph.all_nodes}
    trained = {role.param for role in found if role.use == "train"}
    drawn = {role.param for role in found if role.use == "sample"} & trained
    critics = {param for param in trained - drawn if _gives_numbers(graph, param) or _tells_others(graph, param)}
    actors = trained - critics

    def scores(role: Role) -> bool:
        return role.use == "sample" or any(kinds[name] == "score" for name in role.nodes)

    frozen = [role for role in found if role.param not in trained]
    return Sorted(
        actor_train=tuple(role.name for role in found if role.param in actors and role.use != "sample"),
        actor_sample=tuple(role.name for role in found if role.param in actors and role.use == "sample"),
        critics=tuple(role.name for role in found if role.param in critics),
        references=tuple(role.name for role in frozen if not scores(role)),
        scorers=tuple(role.name for role in frozen if scores(role)),
    )


def _gives_numbers(graph: Graph, param: str) -> bool:
    """Say whether a model's head gives numbers, from which nothing can be drawn."""
    found = graph.param(param)
    return found is not None and issubclass(found.type, Model) and found.type.head != "tokens"


def _tells_others(graph: Graph, param: str) -> bool:
    """Say whether another model is updated by what this one says of its rows."""
    return any(
        _root_of(source) == param and not source.regions and passes_rows(source)
        for node in graph.nodes
        if node.regions and _root_of(node) != param
        for source in reachable(node.edges())
        if isinstance(source, Node)
    )


def _root_of(node: Node) -> str:
    """Name the model that a node reads first; "" if it reads none."""
    edge = next(models_read(node), None)
    root = carried_from(edge) if edge is not None else None
    return root.name if root is not None else ""


def _colocated(at: Sorted) -> Parts:
    return _kept(at.actor + at.critics + at.references + at.scorers)


def _hybrid(at: Sorted) -> Parts:
    return _kept(at.actor + at.critics + at.references, at.scorers)


def _three_pools(at: Sorted) -> Parts:
    return _kept(at.actor_train + at.references, at.actor_sample, at.critics + at.scorers)


def _two_pools(at: Sorted) -> Parts:
    return _kept(at.actor + at.references, at.critics + at.scorers)


def _alone(at: Sorted) -> Parts:
    return _kept(*((role,) for role in at.actor + at.critics + at.references + at.scorers))


def _models_alone(at: Sorted) -> Parts:
    return _kept(at.actor, *((role,) for role in at.critics + at.references + at.scorers))


def _kept(*parts: Sequence[str]) -> Parts:
    return tuple(tuple(part) for part in parts if part)


# Source: Yao et al. 2023 (DeepSpeed-Chat), arXiv 2308.01320; verl's trainer (`reward_model.enable_resource_pool`);
# Hu et al. 2024 (OpenRLHF), arXiv 2405.11143, figure 2; Shen et al. 2024 (NeMo-Aligner), arXiv 2405.01481; Sheng et al.
# 2024 (HybridFlow), arXiv 2409.19256, section 8: its `split` is NeMo-Aligner's, its `standalone` keeps the actor whole.
VARIANTS: tuple[Variant, ...] = (
    Variant("colocated", "deepspeed-chat", "all roles take turns on one pool", _colocated),
    Variant("hybrid", "verl", "policy, critic and reference take turns on one pool; what scores has its own", _hybrid),
    Variant(
        "split", "openrlhf", "three pools: policy and reference | generation | critic and reward model", _three_pools
    ),
    Variant(
        "split", "nemo-aligner", "two pools: policy, generation and reference | critic and reward model", _two_pools
    ),
    Variant("standalone", "each-role", "each role on a pool of its own", _alone),
    Variant(
        "standalone", "hybridflow", "each model on a pool of its own, the policy with its generation", _models_alone
    ),
)

NAMES: tuple[str, ...] = tuple(dict.fromkeys(each.placement for each in VARIANTS))


def variant(name: str) -> Variant:
    """Find a named placement, its first variant unless one is named: `split` or `split:nemo-aligner`.

    Raises UnknownNameError for a name that none has.
    """
    known: Mapping[str, Variant] = {
        **{each.placement: each for each in reversed(VARIANTS)},
        **{each.name: each for each in VARIANTS},
    }
    if name not in known:
        raise UnknownNameError.of("placement", name, known)
    return known[name]


def parts(graph: Graph, name: str) -> Parts:
    """Return the roles of a named graph by the pool that they share under a named placement."""
    return variant(name).parts_of(graph)


def read_together(graph: Graph) -> Iterator[frozenset[str]]:
    """Return the roles of each node of a named graph that reads models in several roles: they must share a pool."""
    role_of = {(role.param, name): role.name for role in roles(graph) for name in role.nodes}
    for node in graph.nodes:
        models = ((edge, reader) for edge, reader in read_by(node) if issubclass(edge.type, Model))
        read = {role_of[root.name, reader] for edge, reader in models if (root := carried_from(edge)) is not None}
        if len(read) > 1:
            yield frozenset(read)


def kept_together(graph: Graph, parts: Parts) -> Parts:
    """Return the parts with roles that one node reads moved to the pool of the first of them, in the flow's order."""
    names = [role.name for role in roles(graph)]
    at = {name: place for place, part in enumerate(parts) for name in part}
    read = [frozenset(map(names.index, together)) for together in read_together(graph)]
    moved = {
        names[role]: at[names[min(block)]] for block in fused(read, len(names)) for role in block
    }  # to the pool of the first of them
    if moved == at:
        return parts
    at = moved
    shared = ([name for name in names if at[name] == place] for place in range(len(parts)))
    return tuple(tuple(part) for part in shared if part)


def name_of(graph: Graph, found: Sequence[Sequence[str]]) -> str:
    """Return the first named placement that has these parts; "" if none has.

    Two variants of one flow may have the same parts: a flow without a critic or a reward model has fewer forms.
    """
    wanted = {frozenset(part) for part in found}
    fitting = (each.name for each in VARIANTS if {frozenset(part) for part in each.parts_of(graph)} == wanted)
    return next(fitting, "")
