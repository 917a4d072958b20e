"""The four placements that published systems are known by, as groups of roles that share a pool, for any flow.

The search chooses the devices and layouts of each group. Roles are classified by the graph: trained (a policy), trained
so that another update can read its outputs (a critic), or frozen: read for log-probs (a reference) or for scores (a
reward model, a judge).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flowgraph.analysis.roles import Role, models_read, roles
from flowgraph.errors import UnknownNameError
from flowgraph.language.graph import Graph, Node, carried_from, reachable
from flowgraph.language.values import Model
from placements.solver.problem import fused
from placements.workload.graph_workload import passes_rows, read_together

Parts = tuple[tuple[str, ...], ...]
"""Roles by the pool that they share."""


@dataclass(frozen=True)
class PlacementVariant:
    """One published form of a named placement: the system, a description, and the roles of each pool."""

    placement: str
    system: str
    about: str
    parts: Callable[[SortedRoles], Sequence[Sequence[str]]]

    @property
    def name(self) -> str:
        """Return the full name of the placement, with the system that published it, such as `split:openrlhf`."""
        return f"{self.placement}:{self.system}"

    def parts_of(self, graph: Graph) -> Parts:
        """Return the names of the roles on each pool when the flow of `graph` has this placement.

        Pools without roles are left out. Roles of models that one node reads together move to one pool: that of the
        first of these roles in the flow's order.
        """
        parts = tuple(tuple(part) for part in self.parts(sorted_roles(graph)) if part)
        names = [role.name for role in roles(graph)]
        pools = {name: pool for pool, part in enumerate(parts) for name in part}
        read = [frozenset(map(names.index, together)) for together in read_together(graph)]
        moved = {names[role]: pools[names[min(block)]] for block in fused(read, len(names)) for role in block}
        if moved == pools:
            return parts
        shared = (tuple(name for name in names if moved[name] == pool) for pool in range(len(parts)))
        return tuple(part for part in shared if part)


@dataclass(frozen=True)
class SortedRoles:
    """The roles of a flow by function: policies (training and sampling), critics, references and scorers.

    A policy may generate its responses, or learn from the responses of others.
    """

    actor_train: tuple[str, ...]
    actor_sample: tuple[str, ...]
    critics: tuple[str, ...]
    references: tuple[str, ...]
    scorers: tuple[str, ...]

    @property
    def actor(self) -> tuple[str, ...]:
        """Return the names of the roles that train policies, then of those that sample from them."""
        return self.actor_train + self.actor_sample


def sorted_roles(graph: Graph) -> SortedRoles:
    """Return the names of a flow's roles, grouped by function: policies, critics, references and scorers.

    A role is one use of a model (sample, infer or train); names in a group are in the flow's order. A trained model is
    a critic if no role samples from it, and if its head predicts something other than tokens or it computes outputs on
    which the update of another model depends. All other trained models are policies. Models that are not trained are
    frozen, and each of their roles is judged by itself: it is a scorer if it samples or if one of its nodes scores,
    else a reference.
    """
    every, kinds = roles(graph), {node.name: node.op.kind for node in graph.all_nodes}
    trained = {role.param for role in every if role.use == "train"}
    sampled = {role.param for role in every if role.use == "sample"} & trained

    def is_critic(param: str) -> bool:
        model = graph.param(param)
        if model is not None and issubclass(model.type, Model) and model.type.head != "tokens":
            return True
        return any(
            _model_read_first(source) == param and not source.regions and passes_rows(source)
            for node in graph.nodes
            if node.regions and _model_read_first(node) != param
            for source in reachable(node.edges())
            if isinstance(source, Node)
        )

    def scores(role: Role) -> bool:
        return role.use == "sample" or any(kinds[name] == "score" for name in role.nodes)

    critics = set(filter(is_critic, trained - sampled))
    actors = trained - critics

    frozen = [role for role in every if role.param not in trained]
    return SortedRoles(
        actor_train=tuple(role.name for role in every if role.param in actors and role.use != "sample"),
        actor_sample=tuple(role.name for role in every if role.param in actors and role.use == "sample"),
        critics=tuple(role.name for role in every if role.param in critics),
        references=tuple(role.name for role in frozen if not scores(role)),
        scorers=tuple(role.name for role in frozen if scores(role)),
    )


def _model_read_first(node: Node) -> str:
    edge = next(models_read(node), None)
    root = carried_from(edge) if edge is not None else None
    return root.name if root is not None else ""


# Source: Yao et al. 2023 (DeepSpeed-Chat), arXiv 2308.01320; verl's trainer (`reward_model.enable_resource_pool`);
# Hu et al. 2024 (OpenRLHF), arXiv 2405.11143, figure 2; Shen et al. 2024 (NeMo-Aligner), arXiv 2405.01481; Sheng et al.
# 2024 (HybridFlow), arXiv 2409.19256, section 8: its `split` is NeMo-Aligner's, its `standalone` keeps the actor whole.
VARIANTS: tuple[PlacementVariant, ...] = (
    PlacementVariant(
        "colocated",
        "deepspeed-chat",
        "all roles take turns on one pool",
        lambda by: [by.actor + by.critics + by.references + by.scorers],
    ),
    PlacementVariant(
        "hybrid",
        "verl",
        "policy, critic and reference take turns on one pool; reward models have their own",
        lambda by: [by.actor + by.critics + by.references, by.scorers],
    ),
    PlacementVariant(
        "split",
        "openrlhf",
        "three pools: policy and reference | generation | critic and reward model",
        lambda by: [by.actor_train + by.references, by.actor_sample, by.critics + by.scorers],
    ),
    PlacementVariant(
        "split",
        "nemo-aligner",
        "two pools: policy, generation and reference | critic and reward model",
        lambda by: [by.actor + by.references, by.critics + by.scorers],
    ),
    PlacementVariant(
        "standalone",
        "each-role",
        "each role on a pool of its own",
        lambda by: [(role,) for role in by.actor + by.critics + by.references + by.scorers],
    ),
    PlacementVariant(
        "standalone",
        "hybridflow",
        "each model on a pool of its own, the policy with its generation",
        lambda by: [by.actor, *((role,) for role in by.critics + by.references + by.scorers)],
    ),
)

NAMES: tuple[str, ...] = tuple(dict.fromkeys(form.placement for form in VARIANTS))


def variant(name: str) -> PlacementVariant:
    """Return the named placement with this name, such as `split:nemo-aligner`.

    A name without a system, such as `split`, selects the first placement of that name. Raises UnknownNameError for an
    unknown name.
    """
    variants = {form.placement: form for form in reversed(VARIANTS)} | {form.name: form for form in VARIANTS}
    if name not in variants:
        raise UnknownNameError.of("placement", name, variants)
    return variants[name]


def name_of(graph: Graph, roles_by_pool: Sequence[Sequence[str]]) -> str:
    """Return the full name of the first placement that has exactly these groups of roles on its pools; "" if none does.

    Pools and their roles may be in any order. In flows without a critic or a reward model, for example, several
    placements have the same pools.
    """
    pools = {frozenset(part) for part in roles_by_pool}
    forms = (form for form in VARIANTS if {frozenset(part) for part in form.parts_of(graph)} == pools)
    return next((form.name for form in forms), "")
