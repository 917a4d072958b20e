"""Measures of how far two engines are apart, and the graphs and runs that are watched for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
import torch

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Flow, Graph, Loss, Mask, flow, node, stale
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device
from flowgraph.cluster.cluster import Machine as Machine
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError, PlanError
from flowgraph.flows.settings import resolve_settings
from flowgraph.language import Key
from flowgraph.language.graph import Node
from flowgraph.language.laws import check
from flowgraph.lowering.check_program import check_program
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Home, Program, Run
from flowgraph.passes import compile_graph
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.local import InProcess
from flowgraph.runtime.places import RowSource
from flowgraph.runtime.record.run_folder import declared_metrics
from flowgraph.serialize.program import program_from_json, program_to_json
from nodes.data.source import PromptSource
from nodes.likelihood import entropy, logprobs
from nodes.mismatch import METRICS, Mismatch, mismatch, watch_engines
from nodes.refill import refill
from nodes.sampling import generate
from nodes.training import update
from nodes.values import Entropy, LogProbs, Policy, Prompts, Reference, Rollout, Scores
from tests.looped import looped

NAN = float("nan")
SETTINGS: Mapping[str, object] = {"n": 4, "max_tokens": 3}


def means(found: Mismatch) -> dict[str, float]:
    return {each.name: each.total / each.count for each in found.measures if each.count}


# ------------------------------------------------------------------------------------------- the measures


def test_two_engines_that_agree_are_not_apart() -> None:
    told = LogProbs(torch.tensor([[-1.0, -2.0, NAN], [-0.5, NAN, NAN]]))
    mask = Mask(torch.tensor([[1.0, 1, 0], [1, 0, 0]]))
    found = mismatch(told, mask, behaviour=told)
    ppl = (math.exp(1.5) + math.exp(0.5)) / 2
    agree = dict.fromkeys((each.name for each in METRICS), 0.0)
    agree |= {"training_ppl": ppl, "rollout_ppl": ppl, "ppl_ratio": 1.0, "ess": 1.0}
    assert means(found) == pytest.approx(agree) and found.data == 0.0


def test_a_trainer_that_finds_tokens_less_likely_has_the_larger_perplexity() -> None:
    mask = Mask(torch.ones(1, 2))
    found = means(mismatch(LogProbs(torch.full((1, 2), -2.0)), mask, behaviour=LogProbs(torch.full((1, 2), -1.0))))
    assert found["kl"] == pytest.approx(1.0) == found["log_ppl_diff"] == found["log_ppl_diff_max"]
    assert found["ppl_ratio"] == pytest.approx(math.e) == found["training_ppl"] / found["rollout_ppl"]
    assert found["chi2_token"] == pytest.approx(math.exp(-2) - 1)
    assert found["chi2_seq"] == pytest.approx(math.exp(-4) - 1)
    assert (found["weight_high"], found["weight_low"]) == (0.0, 1.0)


def test_ratios_and_their_products_are_held_where_they_would_overflow() -> None:
    far, mask = torch.tensor([[0.0, 0.0], [-300.0, -300.0]]), Mask(torch.ones(2, 2))
    for old, drawn in ((far, far - 15), (far, far.flip(0))):
        found = means(mismatch(LogProbs(old), mask, behaviour=LogProbs(drawn)))
        assert found["chi2_seq"] == pytest.approx(math.exp(40) * (1 if drawn[0, 0] == -15 else 0.5), rel=1e-6)
        assert all(math.isfinite(found[name]) for name in ("chi2_token", "k3_kl", "ess", "kl"))


@pytest.mark.parametrize("told", [torch.tensor([[-1.0, NAN]]), torch.zeros(1, 0), None], ids=["one", "none", "no data"])
def test_tokens_that_an_engine_tells_nothing_of_are_left_out_and_counted(told: torch.Tensor | None) -> None:
    found = mismatch(LogProbs(torch.tensor([[-1.0, -5.0]])), Mask(torch.ones(1, 2)), behaviour=LogProbs(told))
    some = told is not None and told.shape == (1, 2)
    assert means(found)["untold"] == (0.5 if some else 1.0)
    assert found.data == 0.0 if some else math.isnan(found.data)
    assert len(means(found)) == (len(METRICS) if some else 1)


@pytest.mark.parametrize(("rows", "tokens"), [(0, 0), (0, 3), (2, 0), (2, 3)])
def test_a_batch_in_which_nothing_counts_measures_nothing(rows: int, tokens: int) -> None:
    none = LogProbs(torch.full((rows, tokens), NAN))
    found = mismatch(none, Mask(torch.zeros(rows, tokens)), behaviour=none)
    assert means(found) == {} and math.isnan(found.data)


# ------------------------------------------------------------------------------------------- watched graphs


@flow
def twice(prompts: Prompts, policy: Policy) -> tuple[Policy, Rollout]:
    rollout = generate(stale(policy, at_most=2, corrected=False), prompts)

    def loss(pi: Policy) -> Loss:
        return plain(logprobs(pi, rollout), rollout.mask)

    trained = update(policy, loss)
    return trained, generate(trained, prompts)


@node
def plain(new: LogProbs, mask: Mask) -> Loss:
    """Return a term."""
    return Loss.of(-new.data, mask)


@node
def ratio_to(new: LogProbs, mask: Mask, *, old: LogProbs, entropies: Entropy) -> Loss:
    """Return a term that reads what was computed before."""
    return Loss.of(-(new.data - old.data).exp() * entropies.data.exp(), mask)


@flow
def told_before(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    rollout = generate(policy, prompts)
    old, ours, theirs = logprobs(policy, rollout), entropy(policy, rollout), logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        term = ratio_to(new, rollout.mask, old=old, entropies=ours)
        return term + ratio_to(new, rollout.mask, old=theirs, entropies=ours)

    return update(policy, loss)


@flow
def measured(prompts: Prompts, policy: Policy) -> tuple[Policy, Mismatch]:
    rollout = generate(policy, prompts)

    def loss(pi: Policy) -> Loss:
        return plain(logprobs(pi, rollout), rollout.mask)

    found = mismatch(logprobs(policy, rollout), rollout.mask, behaviour=rollout.logprobs, threshold=5.0)
    return update(policy, loss), found


@flow
def with_a_greedy_one(prompts: Prompts, policy: Policy) -> tuple[Policy, Rollout]:
    rollout, greedy = generate(policy, prompts), generate(policy, prompts, temperature=0.0)

    def loss(pi: Policy) -> Loss:
        return plain(logprobs(pi, rollout), rollout.mask)

    return update(policy, loss), greedy


@flow
def refilled(prompts: Prompts, policy: Policy) -> tuple[Policy, Scores]:
    rollout = refill(policy, prompts, groups=2)

    def loss(pi: Policy) -> Loss:
        return plain(logprobs(pi, rollout), rollout.mask)

    return update(policy, loss), rollout.scores


def compiled(of: Flow[..., Any]) -> Graph:
    graph = compile_graph(of.graph())
    drawers = [each.name for each in graph.nodes if each.op.name == "generate"]
    known = {f"{name}.{setting}": value for name in drawers for setting, value in SETTINGS.items()}
    return resolve_settings(graph, [], known)[0]


def added(of: Flow[..., Any], *params: str) -> list[Node]:
    graph = compiled(of)
    watched = watch_engines(graph, params or ("policy",))
    check("described", watched)
    check("named", watched)
    assert watched.outputs[: len(graph.outputs)] == graph.outputs
    assert {edge.type for edge in watched.outputs[len(graph.outputs) :]} <= {Mismatch}
    assert set(graph.nodes) <= set(watched.nodes)
    return [each for each in watched.nodes if each not in graph.nodes]


def test_what_is_drawn_is_read_again_by_the_version_that_drew_it() -> None:
    graph = compiled(grpo)
    by_name = {each.name: each for each in added(grpo)}
    assert list(by_name) == ["policy.logprobs", "policy.mismatch"]
    drawn = next(each for each in graph.nodes if each.name == "policy.generate")
    told, found = by_name["policy.logprobs"], by_name["policy.mismatch"]
    assert str(told.input("model")) == "policy" and str(told.input("rollout")) == drawn.name
    inputs = {port: str(edge) for port, edge in found.inputs}
    assert inputs == {
        "old": "policy.logprobs",
        "mask": "policy.generate.mask",
        "behaviour": "policy.generate.logprobs",
    }
    assert told.at == found.at and str(told.at) == str(drawn.at), "an error names the line that draws"


def test_each_version_that_draws_is_measured_by_names_of_its_own() -> None:
    found = added(twice)
    assert [each.name for each in found] == [
        "policy.logprobs",
        "policy.mismatch",
        "policy.logprobs#2",
        "policy.mismatch#2",
    ]
    models = [each.input("model") for each in found if each.op.name == "logprobs"]
    assert [str(each) for each in models] == ["policy", "policy.update"]
    assert {each.at_most for each in models if each is not None} == {0}, "log-probs are never read late"


def test_log_probs_that_the_flow_has_are_read_and_a_measurement_that_it_has_is_enough() -> None:
    (only,) = added(told_before)
    assert (only.name, str(only.input("old"))) == ("policy.mismatch", "policy.logprobs")
    assert added(measured) == []


def test_only_what_the_models_draw_and_do_not_take_greedily_is_watched() -> None:
    assert added(grpo, "ref") == []
    assert [each.name for each in added(with_a_greedy_one)] == ["policy.logprobs", "policy.mismatch"]
    assert [each.name for each in added(refilled)] == ["policy.logprobs", "policy.mismatch"]


# ------------------------------------------------------------------------------------------- watched programs


def plan_of(graph: Graph, engine: str, *, apart: bool = False) -> Plan:
    """Sample on the engine local, and train on another or the same, beside it or in a pool of its own."""
    cpu = Device(kind="cpu", memory_bytes=2**30)
    laptop = Machine(name="laptop", devices=(cpu, cpu), host_memory_bytes=2**31, cores=2)
    pools = (Pool(name="all", devices=(("laptop", 0),)), Pool(name="apart", devices=(("laptop", 1),)))

    def placed(role: str, use: str) -> PlacedRole:
        trains = use == "train"
        layout = Layout(sharding="full" if trains and engine == "fsdp" else "none")
        pool = "apart" if apart and use == "sample" else "all"
        return PlacedRole(role=role, pool=pool, engine=engine if trains else "local", layout=layout)

    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(laptop,)),
        pools=pools if apart else pools[:1],
        placed=tuple(placed(role.name, role.use) for role in roles(graph)),
    )


def lowered(of: Flow[..., Any], engine: str = "fsdp", *, apart: bool = False) -> Program:
    graph = compiled(of)
    return lower(graph, plan_of(graph, engine, apart=apart), watch=watch_engines)


@pytest.fixture
def handles(tiny: Callable[..., LocalModel]) -> Callable[[Program], dict[Home, LocalModel]]:
    return lambda program: {home: tiny(trainable=home in program.trained) for home in program.homes}


@pytest.fixture
def prompts(digit_rows: pa.Table) -> dict[str, RowSource]:
    return {"prompts": PromptSource(digit_rows, 3)}


def test_a_program_is_watched_where_another_engine_trains_and_nowhere_else() -> None:
    for one_engine in (lowered(grpo, "local"), lowered(grpo, "local", apart=True)):
        assert "policy.mismatch" not in one_engine.nodes
    assert "policy.mismatch" in lowered(grpo, "fsdp").nodes
    graph = compiled(grpo)
    assert "policy.mismatch" not in lower(graph, plan_of(graph, "fsdp")).nodes, "unless it is asked for"


@looped("apart", [False, True])
@looped("of", [grpo, gpg, twice, told_before, with_a_greedy_one, refilled])
def test_log_probs_run_where_training_does_before_the_update_and_the_measure_on_the_host(
    of: Flow[..., Any], apart: bool
) -> None:
    program = lowered(of, apart=apart)
    runs = {name: task for task in program.tasks if isinstance(task, Run) for name in task.nodes}
    order = [name for task in program.tasks if isinstance(task, Run) for name in task.nodes]
    assert str(runs["policy.logprobs"].home) == "all/fsdp"
    assert runs["policy.mismatch"].place == "host"
    assert order.index("policy.logprobs") < order.index("policy.update")


def test_a_plan_is_for_the_flow_as_it_is_written() -> None:
    graph = compiled(grpo)
    watched = watch_engines(graph, ["policy"])
    with pytest.raises(PlanError, match="this plan is for another structure"):
        lower(graph, plan_of(watched, "fsdp"), watch=watch_engines)


def test_a_watched_program_is_read_back_from_its_file() -> None:
    program = lowered(twice, apart=True)
    back = program_from_json(program_to_json(program))
    assert program_to_json(back) == program_to_json(program)
    assert "policy.mismatch#2" in back.nodes


def test_no_task_of_a_watched_program_can_be_left_out() -> None:
    program = lowered(grpo, apart=True)
    for place in range(len(program.tasks)):
        with pytest.raises(LawError):
            check_program(program.without(place))


@pytest.mark.parametrize("apart", [False, True])
def test_a_run_tells_how_far_its_engines_are_apart(handles: Any, prompts: dict[str, RowSource], apart: bool) -> None:
    program = lowered(grpo, apart=apart)
    executor = Executor(InProcess(handles(program)))
    for step in range(2):
        ran = executor.run(program, prompts, Key(0, step))
        found = {k.rpartition(".")[2]: v for k, v in ran.observed.means().items() if k.startswith("policy.mismatch.")}
        assert set(found) == {each.name for each in METRICS} and found["untold"] == 0.0
        assert found["k3_kl"] == pytest.approx(0.0, abs=1e-6), "in process every engine is the same one"
        assert found["ess"] == pytest.approx(1.0, abs=1e-4)
        assert ran.items["policy.mismatch"].value.data == pytest.approx(found["k3_kl"])
    assert {f"policy.mismatch.{each.name}" for each in METRICS} <= set(declared_metrics(program.graph))


def test_watching_changes_nothing_of_what_is_trained(handles: Any, prompts: dict[str, RowSource]) -> None:
    graph, told = compiled(grpo), list[dict[str, float]]()
    for watch in (None, watch_engines):
        program = lower(graph, plan_of(graph, "fsdp"), watch=watch)
        executor = Executor(InProcess(handles(program)))
        told.append([executor.run(program, prompts, Key(0, step)) for step in range(2)][-1].observed.means())
    without, watched = told
    assert {name: watched[name] for name in without} == without


def test_weights_that_differ_in_two_engines_are_told(handles: Any, prompts: dict[str, RowSource]) -> None:
    program = lowered(grpo, apart=True)
    models = handles(program)
    trained = next(home for home in program.homes if home in program.trained)
    with torch.no_grad():
        models[trained].model.lm_head.weight.mul_(1.5)
    found = Executor(InProcess(models)).run(program, prompts, Key(0, 0)).observed.means()
    assert found["policy.mismatch.k3_kl"] > 1e-3 and found["policy.mismatch.ess"] < 0.999
