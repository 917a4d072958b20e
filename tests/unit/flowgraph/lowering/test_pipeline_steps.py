"""Steps that overlap, as programs: their iterations, and the laws that refuse every other order, before a run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest

from examples.decoupled_ppo import decoupled_ppo
from examples.gpg import gpg
from flowgraph import Flow, Graph, Loss, flow, stale
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import roles
from flowgraph.app.planning.overlap import with_overlap
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import PlacedRole, Plan, Pool, RoleSettings
from flowgraph.diagrams.build.sequence_picture import sequence_picture
from flowgraph.diagrams.write.terminal.any_picture import terminal
from flowgraph.errors import LawError, PlanError
from flowgraph.flows.flow_files import flows_in, shipped_files
from flowgraph.lowering import LOWERING
from flowgraph.lowering.check_program import check_program
from flowgraph.lowering.lower import lower
from flowgraph.lowering.pipeline_steps import iteration, pipeline_steps, unrolled
from flowgraph.lowering.program import CopySchedule, Iteration, Program, Run, Switch, Sync
from flowgraph.lowering.task_names import task_name
from flowgraph.lowering.waits import homes_of, waits_between, waits_for
from flowgraph.passes import compile_graph
from flowgraph.serialize.program import program_from_json, program_to_json
from flowgraph.serialize.program_text import program_text
from nodes import (
    Policy,
    Prompts,
    Reference,
    clipped,
    generate,
    group_normalize,
    kl_k3,
    logprobs,
    policy_gradient,
    score,
    update,
)
from tests.looped import looped

Golden = Callable[[str, str], None]
SHIPPED = {name: flow for path in shipped_files() for name, flow in flows_in(path).items()}
ENGINES_OF = {"policy.sample": "vllm", "policy.train": "local", "ref.infer": "local"}


@flow
def late(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Train on rows of weights up to eight updates old, with a reference."""
    rollout = generate(stale(policy, at_most=8), prompts, n=4)
    advantages = group_normalize(score(rollout), rollout.group)
    far = logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        return clipped(new, advantages, rollout.mask, old=rollout.logprobs, eps=0.2) + kl_k3(new, rollout.mask, ref=far)

    return update(policy, loss)


@flow
def twice(prompts: Prompts, policy: Policy) -> Policy:
    """Update twice a step."""
    rollout = generate(stale(policy, at_most=4, corrected=False), prompts, n=2)
    advantages = group_normalize(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(update(policy, loss), loss)


def plan_of(graph: Graph, depth: int = 0, every: int = 1, *, updates: int = 1, **ahead: int) -> Plan:
    """Place each use of a model in a pool of its own, with sampling `depth` steps ahead; `ahead` has other uses."""
    used = list(dict.fromkeys(role.use for role in roles(graph)))
    cpu = Device(kind="cpu", memory_bytes=2**30)
    laptop = Machine(name="laptop", devices=(cpu,) * len(used), host_memory_bytes=2**31, cores=2)
    steps = {"sample": depth} | ahead
    placed = [
        PlacedRole(
            role=role.name,
            pool=role.use,
            engine="local",
            lag=updates * (depth + every - 1) if role.use == "sample" else 0,
            ahead=steps.get(role.use, 0),
        )
        for role in roles(graph)
    ]
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(laptop,)),
        pools=tuple(Pool(name=use, devices=(("laptop", i),)) for i, use in enumerate(used)),
        placed=tuple(placed),
    )


def compiled(of: Flow[..., object]) -> Graph:
    return compile_graph(of.graph())


def overlapping(of: Flow[..., object], depth: int, every: int = 1, **options: int) -> Program:
    graph = compiled(of)
    return lower(graph, plan_of(graph, depth, every, **options))


def steps_of(tasks: Iteration) -> list[str]:
    return [f"{', '.join(each.task.nodes)} {each.ahead}" for each in tasks if isinstance(each.task, Run)]


# ------------------------------------------------------------------------------------------- what it makes


def test_the_kernel_has_each_task_once_of_different_steps() -> None:
    program = overlapping(late, 1, infer=1)
    assert program.pipeline is not None
    tasks = [each.task for each in program.pipeline.kernel]
    assert sorted(map(str, tasks)) == sorted(map(str, program.tasks))
    assert steps_of(program.pipeline.kernel) == [
        "policy.update 0",
        "policy.generate 1",
        "score, group_normalize 1",
        "ref.logprobs 1",
    ]
    assert isinstance(tasks[0], Sync), "weights are copied before the update replaces them"


def test_first_the_pipeline_fills_and_at_the_end_it_drains() -> None:
    program = overlapping(late, 2, infer=1)
    assert program.pipeline is not None
    first, second = program.pipeline.prologue
    assert steps_of(first) == ["policy.generate 2", "score, group_normalize 2"]
    assert steps_of(second) == ["ref.logprobs 1", "policy.generate 2", "score, group_normalize 2"]
    last_but_one, last = program.pipeline.epilogue
    assert steps_of(last_but_one) == ["policy.update 0", "ref.logprobs 1"]
    assert steps_of(last) == ["policy.update 0"]


@looped("name", sorted(SHIPPED))
def test_without_depth_a_program_is_the_same_task_for_task(name: str) -> None:
    graph = compiled(SHIPPED[name])
    before = lower(graph, plan_of(graph), passes=[each for each in LOWERING if each is not pipeline_steps])
    after = lower(graph, plan_of(graph))
    assert after.tasks == before.tasks
    assert after.pipeline is None
    assert pipeline_steps(before, {"policy.sample": 0}) is before
    assert with_overlap(plan_of(graph), graph, 0, 1) == plan_of(graph)
    assert [each.task for each in iteration(after, 3, 9)] == [*before.tasks]
    assert all(each.ahead == 0 for each in iteration(after, 3, 9))
    assert '"ahead"' not in program_to_json(after)


def test_what_the_pass_makes_of_a_program(golden: Golden) -> None:
    graph = compiled(decoupled_ppo)
    plan = plan_of(graph, 1)
    before = lower(graph, plan.model_copy(update={"placed": tuple(map(together, plan.placed))}))
    after = pipeline_steps(before, {"policy.sample": 1})
    texts = [program_text(program).partition("\n")[2] for program in (before, after)]
    golden(f"before\n{texts[0]}\n\nafter\n{texts[1]}", "passes/lowering/pipeline_steps/decoupled_ppo.txt")


def together(placed: PlacedRole) -> PlacedRole:
    return placed.model_copy(update={"ahead": 0})


@pytest.mark.parametrize(("depth", "every"), [(1, 1), (2, 4)])
def test_programs_whose_steps_overlap(depth: int, every: int, golden: Golden) -> None:
    text = program_text(overlapping(late, depth, every, infer=min(depth, 1)))
    golden(text, f"programs/overlapping/depth_{depth}_every_{every}.txt")


def test_a_picture_of_calls_shows_one_iteration_with_the_step_of_each_call(golden: Golden) -> None:
    diagram = sequence_picture(overlapping(late, 1, infer=1))
    text = terminal(diagram, 160, colour=False)
    golden(text, "programs/overlapping/calls_of_depth_1.txt")


def test_a_program_with_overlap_survives_json() -> None:
    program = overlapping(decoupled_ppo, 2, 2)
    again = program_from_json(program_to_json(program))
    assert again.pipeline == program.pipeline


@looped("depth, every", [(0, 1), (0, 3), (1, 1), (1, 2), (2, 1), (2, 2), (3, 5)])
def test_the_version_of_each_step_is_the_formula(depth: int, every: int) -> None:
    home = overlapping(late, 1).homes[0]
    copy = CopySchedule(home=home, ahead=depth, sync_every=every)
    versions = [copy.version(step) for step in range(30)]
    assert versions == [every * (max(0, step - depth) // every) for step in range(30)]
    assert max(step - version for step, version in enumerate(versions)) == copy.bound == depth + every - 1


def test_versions_count_updates_where_a_step_makes_several() -> None:
    program = overlapping(twice, 1, updates=2)
    assert program.pipeline is not None
    (copy,) = program.pipeline.copies
    assert (copy.updates, copy.sync_every, copy.bound) == (2, 1, 2)
    assert [copy.version(step) for step in range(4)] == [0, 0, 2, 4]


@looped("steps", [1, 2, 3, 5])
@looped("depth", [1, 2, 3])
def test_each_task_runs_once_a_step_however_short_a_run_is(depth: int, steps: int) -> None:
    program = overlapping(late, depth)
    ran = [(step, str(task)) for step, task in unrolled(program, steps)]
    assert sorted(ran) == sorted((step, str(task)) for step in range(steps) for task in program.tasks)


def test_homes_that_sleep_are_switched_in_each_iteration_for_its_own_tasks() -> None:
    graph = compiled(late)
    plan = plan_of(graph, 1)
    pool = plan.pools[0].name
    asleep = {"running": RoleSettings(sleeps=True), "pool": pool}
    placed = tuple(each.model_copy(update=asleep | {"engine": ENGINES_OF[each.role]}) for each in plan.placed)
    program = lower(graph, plan.model_copy(update={"placed": placed, "pools": plan.pools[:1]}))
    assert program.pipeline is not None
    for tasks in (*program.pipeline.prologue, program.pipeline.kernel, *program.pipeline.epilogue):
        awake = set[object]()
        for each in tasks:
            if isinstance(each.task, Switch):
                awake = awake | {each.task.home} if each.task.awake else awake - {each.task.home}
            for home in homes_of(each.task):
                assert home in awake


# ------------------------------------------------------------------------------------------- waits


@looped("name", sorted(SHIPPED))
def test_the_waits_of_one_step_are_those_of_its_program(name: str) -> None:
    graph = compiled(SHIPPED[name])
    program = lower(graph, plan_of(graph))
    assert waits_between(program, [*unrolled(program, 1)]) == waits_for(program)


def test_a_sync_waits_for_who_samples_and_an_update_for_the_sync() -> None:
    tasks = [*unrolled(program := overlapping(late, 1), 4)]
    waits = waits_between(program, tasks)
    place = {(step, task_name(task)): i for i, (step, task) in enumerate(tasks)}
    sync = place[3, "sync policy to sample/local"]
    assert place[2, "policy.generate"] in waits[sync], "the engine drains"
    assert place[1, "policy.update"] in waits[sync], "it copies what that update made"
    assert sync in waits[place[2, "policy.update"]], "which replaces what the sync reads"
    assert place[3, "policy.generate"] not in waits[place[2, "policy.update"]], "they run side by side"
    assert sync in waits[place[3, "policy.generate"]]


def test_a_sync_that_copies_nothing_does_not_wait_for_who_samples() -> None:
    tasks = [*unrolled(program := overlapping(late, 1, 2), 4)]
    waits = waits_between(program, tasks)
    place = {(step, task_name(task)): i for i, (step, task) in enumerate(tasks)}
    assert place[1, "policy.generate"] not in waits[place[2, "sync policy to sample/local"]]
    assert place[2, "policy.generate"] in waits[place[3, "sync policy to sample/local"]]


# ------------------------------------------------------------------------------------------- laws


@looped("every", [1, 2, 4])
@looped("depth", [1, 2])
def test_without_any_task_of_an_iteration_a_program_is_refused(depth: int, every: int) -> None:
    program = overlapping(late, depth, every)
    pipeline = program.pipeline
    assert pipeline is not None
    for i in range(len(pipeline.kernel)):
        lacking = replace(pipeline, kernel=pipeline.kernel[:i] + pipeline.kernel[i + 1 :])
        with pytest.raises(LawError):
            check_program(replace(program, pipeline=lacking))
    for where in ("prologue", "epilogue"):
        phases = getattr(pipeline, where)
        for i, tasks in enumerate(phases):
            for j, each in enumerate(tasks):
                if isinstance(each.task, Sync) and where == "prologue":
                    continue  # the copies were loaded with the first version
                fewer = (*phases[:i], tasks[:j] + tasks[j + 1 :], *phases[i + 1 :])
                with pytest.raises(LawError):
                    check_program(replace(program, pipeline=replace(pipeline, **{where: fewer})))


def test_an_update_before_the_sync_of_what_it_replaces_is_refused(golden: Golden) -> None:
    program = overlapping(late, 1)
    pipeline = program.pipeline
    assert pipeline is not None
    sync, *others = pipeline.kernel
    with pytest.raises(LawError) as caught:
        check_program(replace(program, pipeline=replace(pipeline, kernel=(*others, sync))))
    golden(str(caught.value), "programs/overlapping/refused_order.txt")


def test_of_all_orders_of_an_iteration_only_those_that_keep_the_waits_pass() -> None:
    """The laws accept one order of sync, update and sampling: rows of the next step are read after the update."""
    program = overlapping(late, 1)
    pipeline = program.pipeline
    assert pipeline is not None
    places = {task_name(each.task): i for i, each in enumerate(pipeline.kernel)}
    moved = [places[name] for name in ("sync policy to sample/local", "policy.update", "policy.generate")]
    accepted = set[tuple[str, ...]]()
    for order in permutations(moved):
        kernel = list(pipeline.kernel)
        for place, source in zip(moved, order, strict=True):
            kernel[place] = pipeline.kernel[source]
        try:
            check_program(replace(program, pipeline=replace(pipeline, kernel=tuple(kernel))))
        except LawError:
            continue
        accepted.add(tuple(task_name(pipeline.kernel[i].task) for i in order))
    assert accepted == {("sync policy to sample/local", "policy.update", "policy.generate")}


def refused(plan: Plan, graph: Graph) -> str:
    with pytest.raises((LawError, PlanError)) as caught:
        lower(graph, plan)
    return str(caught.value)


def test_a_plan_that_breaks_the_bound_is_refused_with_the_smallest_changes(golden: Golden) -> None:
    graph = compiled(decoupled_ppo)
    cases = {
        "depth 3, every 3": plan_of(graph, 3, 3),
        "depth 5": plan_of(graph, 5),
        "depth 1, every 5": plan_of(graph, 1, 5),
    }
    fresh = compiled(gpg)
    texts = [f"{name}\n{refused(plan, graph)}" for name, plan in cases.items()]
    texts.append(f"a flow that reads the newest weights\n{refused(plan_of(fresh, 1), fresh)}")
    golden("\n\n".join(texts), "programs/overlapping/refused_bounds.txt")


def test_the_smallest_changes_that_an_error_names_are_allowed_and_one_more_is_not() -> None:
    graph = compiled(decoupled_ppo)
    for depth, every in ((1, 5), (2, 4), (3, 3), (4, 2), (5, 1)):
        said = refused(plan_of(graph, depth, every), graph)
        pairs = re.findall(r"--depth (\d+) --sync-every (\d+)", said)
        assert pairs
        for allowed in pairs:
            fewer, rarer = map(int, allowed)
            assert lower(graph, plan_of(graph, fewer, rarer)).pipeline is not None
            assert (fewer, rarer) in ((depth, 5 - depth), (5 - every, every))


def test_the_law_holds_without_the_plan() -> None:
    program = overlapping(decoupled_ppo, 2)
    pipeline = program.pipeline
    assert pipeline is not None
    (copy,) = pipeline.copies
    older = replace(pipeline, copies=(replace(copy, sync_every=4),))
    with pytest.raises(LawError, match="could be 5 updates old"):
        check_program(replace(program, pipeline=older))


def test_a_role_is_not_further_ahead_than_its_weights_may_lag() -> None:
    graph = compiled(decoupled_ppo)
    plan = plan_of(graph, 2)
    rows = tuple(each.model_copy(update={"lag": 1} if each.lag else {}) for each in plan.placed)
    assert "ahead=2 makes its weights at least 2 updates old, but lag=1" in refused(
        plan.model_copy(update={"placed": rows}), graph
    )


def test_training_is_not_ahead_of_itself() -> None:
    graph = compiled(late)
    assert "ahead=1 makes its weights at least 1 update old, but lag=0" in refused(plan_of(graph, 1, train=1), graph)


def test_nothing_reads_rows_before_they_are_drawn() -> None:
    graph = compiled(late)
    assert "which is not in the store" in refused(plan_of(graph, 1, infer=2), graph)


def test_a_plan_whose_overlap_was_not_lowered_is_refused() -> None:
    graph = compiled(late)
    with pytest.raises(LawError, match=r"the plan lets policy\.sample work 1 steps ahead, the program 0"):
        lower(graph, plan_of(graph, 1), passes=[each for each in LOWERING if each is not pipeline_steps])
