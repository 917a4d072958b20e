"""A plan that is exported and read back has the same models, batch, devices, placement, tensor degrees and offload."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flowgraph.cluster.plan import PlacedRole, Plan
from flowgraph.flows.settings import resolve_settings
from nodes.interop import export, exported_versions, read_command
from nodes.interop.shipped_flows import FLOWS, MAX_STALENESS, PLACEMENTS
from placements.search.named_placements import VARIANTS, variant
from tests.looped import looped

ROUND = [(system, version) for system in ("verl", "openrlhf") for version in exported_versions(system)]  # type: ignore[arg-type]
ALL = ("parameters", "gradients", "optimizer")
# What lies in host memory and comes as it is used, and whether all leaves the device between uses.
KEPT: dict[str, tuple[tuple[tuple[str, ...], bool], ...]] = {
    "verl": (((), False), (("parameters",), False), (("optimizer",), False), (ALL, False), ((), True)),
    "openrlhf": (((), False), (("optimizer",), False)),
}


def groups(plan: Plan) -> set[frozenset[str]]:
    """Return the roles of each pool."""
    return {frozenset(each.role for each in plan.placed if each.pool == pool.name) for pool in plan.pools}


def keeps_weights(role: str) -> bool:
    """Return whether a role is trained or read, and so is told how it keeps its weights."""
    return not role.endswith(".sample")


def moved(notes: tuple[str, ...]) -> bool:
    """Return whether an export says that pools are other than the plan's."""
    return any("they share" in note or "share them" in note or "asynchronous mode" in note for note in notes)


@given(
    st.sampled_from(["ppo", "grpo", "gpg", "gpg_qwen2_7b"]),
    st.sampled_from([variant.name for variant in VARIANTS]),
    st.sampled_from(ROUND),
    st.data(),
)
def test_a_plan_comes_back_or_the_export_says_what_moved(
    flow: str, placement: str, target: tuple[str, str], data: st.DataObject
) -> None:
    from tests.unit.nodes.interop.conftest import MODEL, graph_of, plan_of

    system, version = target
    tensor, devices = data.draw(st.sampled_from([(1, 8), (2, 8), (4, 8), (2, 4), (8, 8)]))
    trained = data.draw(st.sampled_from(KEPT[system]))
    frozen = data.draw(st.sampled_from([(), ("parameters",)]))
    batch = data.draw(st.sampled_from([64, 256, 1024]))

    def change(placed: PlacedRole) -> PlacedRole:
        if placed.role.endswith(".sample"):
            return placed
        offload, sleeps = trained if placed.role.endswith(".train") else (frozen, False)
        told = placed.running.model_copy(update={"offload": offload, "sleeps": sleeps})
        return placed.model_copy(update={"running": told})

    graph = graph_of(flow, {"policy.update.minibatch": 32})
    plan = plan_of(graph, placement, devices=devices, tensor=tensor, batch=batch, change=change)
    exported = export(plan, system, version, graph=graph)
    found = read_command(exported.files["run.sh"])
    assert not [key for key, why in found.ignored if "no such key" in why]
    assert found.models == dict.fromkeys(found.models, MODEL)
    assert set(found.models) == {each.role.partition(".")[0] for each in plan.placed}
    assert (found.batch, found.prompt_tokens) == (batch, 1024)
    assert found.devices == devices * len(plan.pools)
    assert {role: layout.tensor for role, layout in found.layouts.items()} == {
        each.role: each.layout.tensor for each in plan.placed
    }
    assert {
        role: (running.offload, running.sleeps) for role, running in found.running.items() if keeps_weights(role)
    } == {each.role: (each.running.offload, each.running.sleeps) for each in plan.placed if keeps_weights(each.role)}
    if not moved(exported.notes):
        assert {frozenset(part.roles) for part in found.parts} == groups(plan)
        assert set(map(frozenset, variant(found.placement).parts_of(graph))) == groups(plan)


@looped("lag", [1, 3])
@looped("target", ROUND)
def test_a_lag_comes_back(lag: int, target: tuple[str, str], graph: Any, plan: Any) -> None:
    described = graph("decoupled_ppo")
    exported = export(plan(described, "split:openrlhf", lag=lag), *target, graph=described)
    assert read_command(exported.files["run.sh"]).lag == lag


@looped("flow", sorted(FLOWS))
def test_the_table_of_flows_is_true_of_them(flow: str, graph: Any) -> None:
    from flowgraph.analysis.roles import roles

    described, row = graph(flow), FLOWS[flow]
    assert {role.name for role in roles(described)} == set(row.roles)
    names = {node.name: node.op.name for node in described.all_nodes}
    assert names[row.loss] == row.surrogate
    assert names[row.sampler] == row.sampler.rpartition(".")[2]
    if flow == "decoupled_ppo":
        assert max(edge.at_most for node in described.nodes for _, edge in node.inputs) == MAX_STALENESS


@looped("flow", sorted(FLOWS))
@looped("target", ROUND)
def test_every_setting_that_is_read_is_one_of_the_flow(
    flow: str, target: tuple[str, str], graph: Any, plan: Any
) -> None:
    from flowgraph.flows.settings import parse_assignment

    described = graph(flow)
    lag = 2 if flow == "decoupled_ppo" else 0
    made = plan(described, "split:openrlhf" if lag else "hybrid", lag=lag)
    found = read_command(export(made, *target, graph=described).files["run.sh"])
    chosen = dict(parse_assignment(text) for text in found.settings)
    resolved, _ = resolve_settings(graph(found.flow), (), chosen)
    assert resolved.name == found.flow


def test_what_verl_is_told_of_a_flow_is_what_is_read_of_it(graph: Any, plan: Any) -> None:
    from flowgraph.flows.settings import parse_assignment
    from nodes.interop.algorithm import read_algorithm

    for flow in ("ppo", "grpo", "gpg", "rloo", "remax", "opo", "reinforce_pp", "reinforce_pp_baseline", "cispo"):
        described = graph(flow)
        found = read_command(export(plan(described, "hybrid"), "verl", graph=described).files["run.sh"])
        assert found.flow == flow
        chosen = dict(parse_assignment(text) for text in found.settings)
        again, _ = resolve_settings(graph(flow), (), chosen)
        assert read_algorithm(again) == read_algorithm(described)


@looped("name", sorted(PLACEMENTS))
def test_a_named_placement_has_the_parts_that_the_placements_have(name: str, graph: Any) -> None:
    for flow, row in FLOWS.items():
        ours = {frozenset(role for role in part if role in row.roles) for part in PLACEMENTS[name]} - {frozenset()}
        assert ours == set(map(frozenset, variant(name).parts_of(graph(flow))))
