"""The passes of lowering: what each makes of a program, what it leaves alone, and that its work cannot be left out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any

import pytest

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Flow, Graph, flow, node, stale
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import Role, roles
from flowgraph.checks.lowered import check_update_order
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool, RoleSettings
from flowgraph.errors import LawError
from flowgraph.language import Parts
from flowgraph.language.laws import laws
from flowgraph.language.values import Group, Mask
from flowgraph.lowering import LOWERING, OPTIONAL, insert_switches, order_by_longest_path
from flowgraph.lowering.check_program import STAGES, check_after, check_program
from flowgraph.lowering.lower import lower
from flowgraph.lowering.place_nodes import place_nodes
from flowgraph.lowering.program import HOST, Home, Program, Run, Sync, Task, Transfer
from flowgraph.lowering.stream_groups import stream_groups
from flowgraph.lowering.take_groups import take_groups
from flowgraph.lowering.waits import waits_for, waves
from flowgraph.passes import compile_graph
from flowgraph.passes.verify import verified
from flowgraph.serialize.program import program_from_json, program_to_json
from flowgraph.serialize.program_text import program_text
from nodes import LogProbs, Policy, Prompts, Reference, Rollout, Scores, generate, logprobs, score
from tests.flows.ppo_shaped import ppo_shaped
from tests.looped import looped

Golden = Callable[[str, str], None]
CPU = Device(kind="cpu", memory_bytes=2**30)


def plan_of(graph: Graph, pool: Callable[[Role], str], lags: Mapping[str, int] | None = None) -> Plan:
    """Return each role the pool that `pool` names, each of one device."""
    names = list(dict.fromkeys(pool(role) for role in roles(graph)))
    laptop = Machine(name="laptop", devices=(CPU,) * len(names), host_memory_bytes=2**31, cores=2)
    placed = [
        PlacedRole(role=role.name, pool=pool(role), engine="local", lag=(lags or {}).get(role.name, 0))
        for role in roles(graph)
    ]
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(laptop,)),
        pools=tuple(Pool(name=name, devices=(("laptop", i),)) for i, name in enumerate(names)),
        placed=tuple(placed),
    )


def by_use(role: Role) -> str:
    return role.use


def by_model(role: Role) -> str:
    return role.param


def together(role: Role) -> str:
    return "all"


FLOWS: dict[str, Flow[..., Any]] = {"grpo": grpo, "gpg": gpg, "ppo_shaped": ppo_shaped}
GRAPHS = {name: compile_graph(each.graph()) for name, each in FLOWS.items()}


def lowered(of: Flow[..., Any], pool: Callable[[Role], str] = by_use, **lags: int) -> Program:
    graph = compile_graph(of.graph())
    return lower(graph, plan_of(graph, pool, {name.replace("_", "."): lag for name, lag in lags.items()}))


def asleep(plan: Plan) -> Plan:
    """Let each role leave its device while others work there; on a pool of its own a role has no reason to."""
    placed = tuple(each.model_copy(update={"running": RoleSettings(sleeps=True)}) for each in plan.placed)
    return plan.model_copy(update={"placed": placed})


def in_chunks(plan: Plan) -> Plan:
    """Let the policy hand out its groups in two chunks."""
    placed = [each.model_copy(update={"chunks": 2 if each.role == "policy.sample" else 1}) for each in plan.placed]
    return plan.model_copy(update={"placed": tuple(placed)})


def stages(graph: Graph, plan: Plan) -> list[tuple[str, Program]]:
    """Return the program after each pass, by the pass's name."""
    found = [("place_nodes", place_nodes(graph, plan, {}))]
    for each in LOWERING:
        found.append((each.__name__, each(found[-1][1])))
    return found


def body(program: Program) -> str:
    """Print a program without the line that names the structure."""
    return program_text(program).partition("\n")[2]


def runs(program: Program) -> list[tuple[str, ...]]:
    return [task.nodes for task in program.tasks if isinstance(task, Run)]


# ------------------------------------------------------------------------------------------- before and after


@pytest.mark.parametrize("name", FLOWS)
def test_what_each_pass_makes_of_a_program(name: str, golden: Golden) -> None:
    found = [*pairwise(stages(GRAPHS[name], plan_of(GRAPHS[name], by_use)))]
    assert found[-1][0][1] is found[-1][1][1], "no steps overlap: test_pipeline_steps has programs whose steps do"
    found[-2:] = [*pairwise(stages(GRAPHS[name], asleep(plan_of(GRAPHS[name], together))))][-2:-1]
    ready = [done for _, (done, _) in found].index("take_groups")
    assert found[ready][0][1] is found[ready][1][1], "no role may be late: test_ready has programs whose groups are"
    del found[ready]
    place = [done for _, (done, _) in found].index("stream_groups")
    assert found[place][0][1] is found[place][1][1], "no role hands out chunks"
    found[place] = [*pairwise(stages(GRAPHS[name], in_chunks(plan_of(GRAPHS[name], by_use))))][place]
    for (_, before), (done, after) in found:
        golden(f"before\n{body(before)}\n\nafter\n{body(after)}", f"passes/lowering/{done}/{name}.txt")


@looped("pool", [by_use, by_model, together])
@looped("name", FLOWS)
def test_what_holds_after_a_pass_holds_after_those_that_follow(name: str, pool: Callable[[Role], str]) -> None:
    for done, program in stages(GRAPHS[name], plan_of(GRAPHS[name], pool)):
        check_after(done, program)
    with verified():
        assert lower(GRAPHS[name], plan_of(GRAPHS[name], pool)).tasks == program.tasks


def test_the_stages_are_the_passes_in_their_order() -> None:
    assert [each.__name__ for each in (place_nodes, *LOWERING)] == list(STAGES)
    assert {law.since for law in laws()["lowered"]} <= set(STAGES)


@pytest.mark.parametrize(
    "without",
    [each for each in LOWERING[:-1] if each not in (*OPTIONAL, take_groups)],  # whose plans work ahead: test_ready
    ids=lambda each: each.__name__,
)
def test_a_pass_that_inserts_something_cannot_be_left_out(without: Any, golden: Golden) -> None:
    graph = GRAPHS["grpo"]
    plan = asleep(plan_of(graph, together)) if without is insert_switches else plan_of(graph, by_use)
    plan = in_chunks(plan) if without is stream_groups else plan
    with pytest.raises(LawError) as caught:
        lower(graph, plan, passes=[each for each in LOWERING if each is not without])
    golden(str(caught.value), f"passes/lowering/{without.__name__}/left_out.txt")


@pytest.mark.parametrize(("on", "seen"), [(True, []), (False, ["next"])])
def test_a_fault_of_a_pass_is_found_right_after_it_if_that_is_asked_for(on: bool, seen: list[str]) -> None:
    graph, reached = GRAPHS["grpo"], list[str]()

    def forgetful(program: Program) -> Program:
        return replace(program, tasks=program.tasks[:-1])

    def following(program: Program) -> Program:
        reached.append("next")
        return program

    with verified(on), pytest.raises(LawError, match=r"the program runs policy\.update 0 times, not once"):
        lower(graph, plan_of(graph, by_use), passes=[forgetful, following, *LOWERING])
    assert reached == seen


# ------------------------------------------------------------------------------------------- laws


def broken(program: Program, change: Callable[[Task], Task]) -> str:
    with pytest.raises(LawError) as caught:
        check_program(replace(program, tasks=tuple(change(task) for task in program.tasks)))
    return str(caught.value)


def test_a_reader_of_weights_that_runs_after_the_update_is_refused() -> None:
    program = lowered(ppo_shaped, together)
    update = next(i for i, task in enumerate(program.tasks) if isinstance(task, Run) and "critic.update" in task.nodes)
    reader = next(i for i, task in enumerate(program.tasks) if isinstance(task, Run) and "critic.worths" in task.nodes)
    late = replace(program.tasks[reader], nodes=("policy.generate",), reads=("prompts",))  # type: ignore[call-arg]
    tasks = (*program.tasks[: update + 1], late, *program.tasks[update + 1 :])
    assert [str(error) for error in check_update_order(replace(program, tasks=tasks))] == [
        (
            "`run policy.generate on all/local, role critic.train` reads `critic` on all/local, where "
            "`run critic.update on all/local, role critic.train` replaced it before\n"
            "  hint: readers of a version run before the update that consumes it"
        )
    ]


def test_a_sync_that_comes_before_a_reader_of_what_it_replaces_is_refused() -> None:
    program = lowered(trained_and_sampled)
    last = next(i for i, task in enumerate(program.tasks) if isinstance(task, Sync) and task.value == "policy.updated")
    first = next(task for task in program.tasks if isinstance(task, Run) and task.nodes == ("policy.generate",))
    tasks = [task for task in program.tasks if task is not first]
    tasks.insert(last, first)
    found = [str(error).splitlines()[0] for error in check_update_order(replace(program, tasks=tuple(tasks)))]
    assert found == [
        (
            "`run policy.generate on sample/local, role policy.sample` reads `policy` on sample/local, where "
            "`sync policy.updated train/local -> sample/local` replaced it before"
        )
    ]


def test_a_run_that_is_not_given_what_its_node_reads_is_refused() -> None:
    def change(task: Task) -> Task:
        return replace(task, reads=()) if isinstance(task, Run) and "ref.logprobs" in task.nodes else task

    at = next(each.at for each in GRAPHS["grpo"].nodes if each.name == "ref.logprobs")
    assert broken(lowered(grpo), change) == (
        f"{at}: `run ref.logprobs on infer/local, role ref.infer` does not read `policy.generate`, "
        "which ref.logprobs does"
    )


def test_parts_that_do_not_cover_what_is_read_are_refused() -> None:
    program = lowered(grpo)

    def narrower(task: Task) -> Task:
        return replace(task, parts=task.parts[1:]) if isinstance(task, Transfer) and task.target == "infer" else task

    def narrow(task: Task) -> Task:
        if isinstance(task, Run) and "ref.logprobs" in task.nodes:
            return replace(task, parts=((task.parts[0][0], task.parts[0][1][1:]),))
        return task

    assert broken(program, narrower) == (
        "`transfer policy.generate sample -> infer` leaves out parts of `policy.generate` that are read: context"
    )
    assert broken(program, narrow) == (
        "`run ref.logprobs on infer/local, role ref.infer` leaves out parts of `policy.generate` that are read: context"
    )


def test_a_sync_that_lags_further_than_its_readers_allow_is_refused() -> None:
    program = lowered(lagging, policy_sample=1)

    def lazy(task: Task) -> Task:
        return replace(task, lag=3) if isinstance(task, Sync) else task

    assert broken(program, lazy) == (
        "`sync policy train/local -> sample/local` lets the copy be 3 updates old, of at most 2\n"
        "    its readers allow 2, the plan sets 1"
    )


# ------------------------------------------------------------------------------------------- fused


@node
def halved(scores: Scores) -> Scores:
    """Take half."""
    return scores * 0.5


@node
def against(scores: Scores, *, ref: LogProbs) -> Scores:
    """Read log-probs too."""
    raise NotImplementedError


@node(pure=False)
def noted(scores: Scores) -> Scores:
    """Have an effect."""
    raise NotImplementedError


@node
def masked(rollout: Rollout) -> Mask:
    """Return a column of tokens."""
    raise NotImplementedError


@node
def counted(mask: Mask) -> Scores:
    """Read it."""
    raise NotImplementedError


@node
def several(scores: Scores) -> tuple[Scores, Mask]:
    """Return two results."""
    raise NotImplementedError


@flow
def waiting(prompts: Prompts, policy: Policy, ref: Reference) -> Scores:
    rollout = generate(policy, prompts)
    return against(score(rollout), ref=logprobs(ref, rollout))


@flow
def shared(prompts: Prompts, policy: Policy) -> tuple[Scores, Scores]:
    scores = score(generate(policy, prompts))
    return halved(scores), noted(scores)


@flow
def between(prompts: Prompts, policy: Policy) -> tuple[Scores, Scores]:
    rollout = generate(policy, prompts)
    first = score(rollout)
    return noted(halved(score(rollout))), noted(first)


@flow
def inside(prompts: Prompts, policy: Policy) -> Scores:
    return counted(masked(generate(policy, prompts)))


@flow
def returned(prompts: Prompts, policy: Policy) -> tuple[Mask, Scores]:
    mask = masked(generate(policy, prompts))
    return mask, counted(mask)


@flow
def older(prompts: Prompts, policy: Policy) -> Scores:
    rollout = generate(policy, prompts)
    scores = halved(score(rollout))
    return against(scores, ref=rollout.logprobs)


def test_a_chain_of_host_nodes_is_one_task() -> None:
    assert runs(lowered(older)) == [("policy.generate",), ("score", "halved", "against")]


def test_a_node_that_waits_for_something_else_is_not_fused() -> None:
    assert ("score",) in runs(lowered(waiting)) and ("against",) in runs(lowered(waiting))


def test_a_result_that_two_tasks_wait_for_leaves_its_task_at_once() -> None:
    assert runs(lowered(shared)) == [("policy.generate",), ("score",), ("halved",), ("noted",)]


def test_nodes_with_effects_keep_the_order_of_the_flow() -> None:
    """The second `noted` may not go up to the first `score`, past the other nodes with effects."""
    order = [name for names in runs(lowered(between)) for name in names]
    effects = [name for name in order if not name.startswith(("halved", "policy"))]
    graph = compile_graph(between.graph())
    assert effects == [each.name for each in graph.nodes if each.name in effects]


def test_a_result_that_fused_nodes_alone_read_stays_inside() -> None:
    (chain,) = (task for task in lowered(inside).tasks if isinstance(task, Run) and task.place == HOST)
    assert (chain.nodes, chain.inner) == (("masked", "counted"), ("masked",))


def test_a_result_that_the_flow_returns_leaves_the_task() -> None:
    (chain,) = (task for task in lowered(returned).tasks if isinstance(task, Run) and task.place == HOST)
    assert (chain.nodes, chain.inner) == (("masked", "counted"), ())


def test_what_a_run_records_of_each_row_leaves_the_task() -> None:
    (chain,) = (task for task in lowered(grpo).tasks if isinstance(task, Run) and task.place == HOST)
    assert (chain.nodes, chain.inner) == (("score", "group_normalize"), ())
    (chain,) = (task for task in lowered(ppo_shaped).tasks if isinstance(task, Run) and "spread" in task.nodes)
    assert (chain.nodes, chain.inner) == (("spread", "bounded"), ("spread",))


# ------------------------------------------------------------------------------------------- columns


@node
def first_tokens(rollout: Annotated[Rollout, Parts("tokens")], group: Group) -> Scores:
    """Read a part that is declared, and one by its edge."""
    raise NotImplementedError


@flow
def partly(prompts: Prompts, policy: Policy) -> Scores:
    rollout = generate(policy, prompts)
    return first_tokens(rollout, rollout.group)


@flow
def wholly(prompts: Prompts, policy: Policy) -> tuple[Scores, Mask]:
    rollout = generate(policy, prompts)
    return first_tokens(rollout, rollout.group), masked(rollout)


def brought(program: Program, target: str) -> tuple[str, ...]:
    return next(t.parts for t in program.tasks if isinstance(t, Transfer) and (t.target, t.value) == (target, SAMPLED))


SAMPLED = "policy.generate"


def test_a_transfer_brings_the_parts_that_edges_and_ports_name_and_lengths() -> None:
    assert brought(lowered(partly), HOST) == ("group", "tokens", "lengths")


def test_a_place_where_one_node_reads_the_whole_gets_the_whole() -> None:
    program = lowered(wholly)
    assert brought(program, HOST) == ()
    (run,) = (task for task in program.tasks if isinstance(task, Run) and "first_tokens" in task.nodes)
    assert run.parts == ((SAMPLED, ("group", "tokens", "lengths")),)


def test_a_run_sends_its_record_in_the_parts_that_other_places_need() -> None:
    program = lowered(grpo)
    (run,) = (task for task in program.tasks if isinstance(task, Run) and SAMPLED in task.nodes)
    sent = {task.parts for task in program.tasks if isinstance(task, Transfer) and task.value == SAMPLED}
    assert len(sent) == 3 and {parts for _, parts in run.sends} == sent


# ------------------------------------------------------------------------------------------- order


def test_the_longest_chain_goes_first_and_its_work_can_be_said() -> None:
    graph = GRAPHS["ppo_shaped"]
    program = lower(graph, plan_of(graph, by_use), passes=LOWERING[:-3])

    def long_reference(program: Program, task: Task) -> float:
        return 9.0 if isinstance(task, Run) and "ref.logprobs" in task.nodes else 1.0

    def passes(of: Program) -> list[str]:
        return [name for names in runs(of) for name in names if name in ("ref.logprobs", "judge.judged")]

    assert passes(order_by_longest_path(program)) == ["judge.judged", "ref.logprobs"], "equal: as it was written"
    assert passes(order_by_longest_path(program, long_reference)) == ["ref.logprobs", "judge.judged"]


@node(kind="logprob")
def weighed(model: Reference, scores: Scores, rollout: Rollout) -> LogProbs:
    """Read scores too."""
    raise NotImplementedError


@flow
def held_up(prompts: Prompts, policy: Policy, ref: Reference) -> tuple[LogProbs, LogProbs]:
    rollout = generate(policy, prompts)
    return weighed(ref, score(rollout), rollout), logprobs(ref, rollout)


def test_a_short_run_that_can_begin_is_not_held_up_by_a_long_one_that_cannot() -> None:
    graph = compile_graph(held_up.graph())
    program = lower(graph, plan_of(graph, together), passes=LOWERING[:-3])

    def long(program: Program, task: Task) -> float:
        return 99.0 if isinstance(task, Run) and "ref.weighed" in task.nodes else 1.0

    assert runs(program)[1:] == [("score",), ("ref.weighed",), ("ref.logprobs",)]
    assert runs(order_by_longest_path(program, long))[1:] == [("ref.logprobs",), ("score",), ("ref.weighed",)]


@looped("pool", [by_use, by_model, together])
@looped("name", FLOWS)
def test_the_order_keeps_what_tasks_wait_for_and_is_the_same_again(name: str, pool: Callable[[Role], str]) -> None:
    graph = GRAPHS[name]
    before = lower(graph, plan_of(graph, pool), passes=LOWERING[:-3])
    after = order_by_longest_path(before)
    assert sorted(map(repr, after.tasks)) == sorted(map(repr, before.tasks))
    place = {task: i for i, task in enumerate(after.tasks)}
    for i, needs in enumerate(waits_for(before)):
        assert all(place[before.tasks[need]] < place[before.tasks[i]] for need in needs)
    assert order_by_longest_path(after).tasks == after.tasks


def beside(program: Program) -> list[set[str]]:
    found = ((program.tasks[i] for i in each) for each in waves(program))
    return [{name for task in each if isinstance(task, Run) for name in task.nodes} for each in found]


def test_passes_of_models_in_pools_of_their_own_run_side_by_side() -> None:
    assert beside(lowered(ppo_shaped, by_model)) == [
        {"policy.generate"},
        {"critic.worths", "judge.judged", "ref.logprobs"},
        {"spread", "bounded"},
        {"estimated"},
        {"policy.update", "critic.update"},
    ]


def test_runs_of_one_pool_are_one_after_another() -> None:
    found = beside(lowered(ppo_shaped, together))
    assert all(len([name for name in each if "." in name]) <= 1 for each in found)
    assert {"critic.worths", "spread", "bounded"} in found, "the host works beside the pool"


# ------------------------------------------------------------------------------------------- syncs


@flow
def lagging(prompts: Prompts, policy: Policy) -> tuple[Policy, Scores]:
    rollout = generate(stale(policy, at_most=2), prompts)
    return updated(policy, rollout), score(rollout)


@node(carries="policy", kind="update")
def updated(policy: Policy, rollout: Rollout) -> Policy:
    """Return the next version."""
    return policy.advanced()


@flow
def trained_and_sampled(prompts: Prompts, policy: Policy) -> tuple[Policy, Scores]:
    trained = updated(policy, generate(policy, prompts))
    return trained, score(generate(trained, prompts))


def syncs(program: Program) -> list[tuple[str, int, int]]:
    return [(task.value, task.lag, task.at_most) for task in program.tasks if isinstance(task, Sync)]


def test_a_sync_has_the_lag_of_the_plan_and_the_bound_of_the_flow() -> None:
    assert syncs(lowered(lagging)) == [("policy", 0, 2)]
    assert syncs(lowered(lagging, policy_sample=2)) == [("policy", 2, 2)]
    assert "lag 2 of at most 2" in program_text(lowered(lagging, policy_sample=2))


@flow
def two_bounds(prompts: Prompts, policy: Policy) -> tuple[Policy, Scores, Scores]:
    far, near = generate(stale(policy, at_most=3), prompts), generate(stale(policy, at_most=1), prompts)
    return updated(policy, near), score(far), score(near)


def test_a_copy_lags_no_further_than_the_strictest_of_its_readers() -> None:
    assert syncs(lowered(two_bounds, policy_sample=1)) == [("policy", 1, 1)]


def test_a_sync_waits_for_whoever_reads_the_version_that_it_replaces() -> None:
    program = lowered(trained_and_sampled)
    tasks = [str(task) for task in program.tasks]
    reads = next(i for i, text in enumerate(tasks) if text.startswith("run") and "policy.generate " in text)
    replaces = max(i for i, task in enumerate(program.tasks) if isinstance(task, Sync))
    assert reads < replaces and reads in waits_for(program)[replaces]


# ------------------------------------------------------------------------------------------- stored


def stored(change: Callable[[dict[str, Any]], object] = lambda data: None) -> str:
    data = json.loads(program_to_json(lowered(grpo)))
    change(data)
    return json.dumps(data)


def refusal(text: str) -> str:
    with pytest.raises(LawError) as caught:
        program_from_json(text)
    return str(caught.value)


def test_homes_that_a_program_does_not_list_are_refused() -> None:
    def other_engine(data: dict[str, Any]) -> None:
        sync = next(each for each in data["tasks"] if each["do"] == "sync")
        sync["target"]["layout"]["data"] = 7

    def other_pool(data: dict[str, Any]) -> None:
        data["homes"][0]["pool"] = "elsewhere"

    assert re.search(r"tasks\.\d+: .* is not one of its homes", refusal(stored(other_engine)))
    assert "is on a pool that its plan does not have" in refusal(stored(other_pool))


@pytest.mark.parametrize("name", FLOWS)
def test_a_program_is_read_back_as_it_was_written(name: str) -> None:
    program = lowered(FLOWS[name])
    text = program_to_json(program)
    again = program_from_json(text)
    assert (again.tasks, again.homes, again.origins, again.plan) == (
        program.tasks,
        program.homes,
        program.origins,
        program.plan,
    )
    assert program_to_json(again) == text
    assert json.loads(text)["schema"] == 1


def test_text_that_is_no_program_is_refused() -> None:
    def bad_task(data: dict[str, Any]) -> None:
        data["tasks"][0] = {"do": "wait"}

    def bad_field(data: dict[str, Any]) -> None:
        data["tasks"][0]["speed"] = 3

    def bad_type(data: dict[str, Any]) -> None:
        data["tasks"][0]["lag"] = "long"

    def bad_plan(data: dict[str, Any]) -> None:
        data["plan"]["pool"] = []

    def shorter(data: dict[str, Any]) -> None:
        del data["tasks"][1]

    said = "this is not a stored program: "
    assert (
        refusal("{")
        == f"{said}JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    )
    assert refusal("[]") == f"{said}TypeError: list indices must be integers or slices, not str"
    assert refusal(stored(lambda data: data.update(schema=2))) == "this program has schema 2, not 1"
    assert refusal(stored(bad_task)) == f"{said}tasks.0: no task is called `wait`"
    assert refusal(stored(bad_field)) == f"{said}tasks.0: a sync has no `speed`"
    assert refusal(stored(bad_type)) == f"{said}tasks.0.lag: Input should be a valid integer"
    assert refusal(stored(bad_plan)).startswith(f"the program's plan: {said}pool: a plan has no `pool` here")
    assert refusal(stored(shorter)).startswith("`transfer prompts host -> sample` reads `prompts`, which is not")


# ------------------------------------------------------------------------------------------- homes


MEMBERS = {
    "one server over four devices": ("sglang", Layout(tensor=4), [0]),
    "two servers over two each": ("sglang", Layout(data=2, tensor=2), [0]),
    "two ranks": ("fsdp", Layout(data=2, sharding="full"), [0, 1]),
    "two that share their rows": ("fsdp", Layout(sequence=2, sharding="full"), [0, 0]),
}


@pytest.mark.parametrize("of", MEMBERS)
def test_the_first_device_speaks_for_servers_and_each_device_for_itself(of: str) -> None:
    engine, layout, ranks = MEMBERS[of]
    home = Home("policy", "all", engine, layout)
    assert [home.rank_of(place) for place in home.members] == ranks
