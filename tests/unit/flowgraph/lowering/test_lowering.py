"""Programs: what lowering makes of a graph under a plan, and that nothing in it can be left out."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Flow, Graph, Loss, Model, Trainable, flow, node, stale
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool
from flowgraph.errors import LawError, PlanError
from flowgraph.lowering.check_program import check_program
from flowgraph.lowering.follow import plan_second_flow
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import HOST, Home, Program, Read, Run, Sync, Task, Transfer
from flowgraph.passes import compile_graph
from flowgraph.serialize.program_text import program_text
from nodes import (
    Entropy,
    LanguageModel,
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    Scores,
    entropy,
    evaluate,
    generate,
    gpg_advantages,
    kl_k3,
    logprobs,
    policy_gradient,
    score,
    update,
)
from tests.looped import looped

Golden = Callable[[str, str], None]


@dataclass(frozen=True)
class Place:
    """Where a role goes: a pool, an engine, and on how many devices."""

    pool: str = "all"
    engine: str = "local"
    data: int = 1

    def placed(self, role: str) -> PlacedRole:
        layout = Layout(data=self.data, sharding="full" if self.engine == "fsdp" else "none")
        return PlacedRole(role=role, pool=self.pool, engine=self.engine, layout=layout)


SHARDED, COPIED, APART = Place(engine="fsdp", data=2), Place(data=2), Place("apart")


def compiled(of: Flow[..., object]) -> Graph:
    return compile_graph(of.graph())


def plan_of(graph: Graph, places: Mapping[str, Place] | None = None, devices: int = 2) -> Plan:
    """Put roles where `places` says, by the role's name or its use, and the others on every device of pool `all`.

    Pool `all` has the first devices of a laptop, and pool `apart` two more.
    """
    defaults = {"train": Place(engine="fsdp", data=devices) if devices > 1 else Place(), "": Place(data=devices)}
    told = defaults | dict(places or {})
    found = [told.get(role.name, told.get(role.use, told[""])).placed(role.name) for role in roles(graph)]
    cpu = Device(kind="cpu", memory_bytes=2**30)
    laptop = Machine(name="laptop", devices=(cpu,) * (devices + 2), host_memory_bytes=2**31, cores=2)
    pools = {"all": range(devices), "apart": range(devices, devices + 2)}
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(laptop,)),
        pools=tuple(Pool(name=name, devices=tuple(("laptop", i) for i in there)) for name, there in pools.items()),
        placed=tuple(found),
    )


def lowered(of: Flow[..., object], places: Mapping[str, Place] | None = None, devices: int = 2) -> Program:
    graph = compiled(of)
    return lower(graph, plan_of(graph, places, devices))


class Judge(LanguageModel):
    """A model that scores."""


class Average(Trainable):
    """A slow copy of a model."""


@node(kind="score", separable=False)
def ranked(judge: Judge, rollout: Rollout) -> Scores:
    """Score responses by their rank in the batch."""
    raise NotImplementedError


@node(kind="score")
def judged(judge: Judge, rollout: Rollout) -> Scores:
    """Score each response."""
    raise NotImplementedError


@node(kind="logprob")
def blended(model: Policy, rollout: Rollout, *, other: LanguageModel) -> LogProbs:
    """Return log-probs from two models."""
    raise NotImplementedError


@node(carries="slow", pure=False)
def blend_into(fast: Model, *, slow: Average) -> Average:
    """Move a slow copy towards a model."""
    raise NotImplementedError


@node
def halves(rollout: Rollout) -> tuple[Scores, Rollout]:
    """Return two results."""
    raise NotImplementedError


@node(kind="logprob")
def of_half(model: Policy, half: Rollout, *, scores: Scores) -> LogProbs:
    """Read both."""
    raise NotImplementedError


def loss_of(rollout: Rollout) -> Callable[[Policy], Loss]:
    advantages = gpg_advantages(score(rollout), rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return loss


@flow
def sampled_again(prompts: Prompts, policy: Policy) -> tuple[Policy, Scores]:
    trained = update(policy, loss_of(generate(stale(policy, at_most=2, corrected=False), prompts)))
    return trained, score(generate(trained, prompts))


@flow
def one_pass(prompts: Prompts, policy: Policy, ref: Reference) -> tuple[LogProbs, Entropy]:
    rollout = generate(policy, prompts)
    return logprobs(ref, rollout), entropy(ref, rollout)


@flow
def several(prompts: Prompts, policy: Policy) -> LogProbs:
    scores, half = halves(generate(policy, prompts))
    return of_half(policy, half, scores=scores)


@flow
def two_uses(prompts: Prompts, policy: Policy) -> LogProbs:
    return logprobs(policy, generate(policy, prompts))


@flow
def two_trained(prompts: Prompts, policy: Policy, pupil: Policy) -> tuple[Policy, Policy]:
    rollout = generate(policy, prompts)
    old = logprobs(pupil, rollout)

    def loss(pi: Policy) -> Loss:
        return kl_k3(logprobs(pi, rollout), rollout.mask, ref=old)

    return update(policy, loss_of(rollout)), update(pupil, loss)


@flow
def ranking(prompts: Prompts, policy: Policy, judge: Judge) -> Scores:
    return ranked(judge, generate(policy, prompts))


@flow
def blending(prompts: Prompts, policy: Policy, ref: Reference) -> LogProbs:
    return blended(policy, generate(policy, prompts), other=ref)


@flow
def averaging(slow: Average, fast: Reference) -> Average:
    return blend_into(fast, slow=slow)


@node(kind="generate")
def sampled(model: Model, prompts: Prompts) -> Rollout:
    """Draw from any model."""
    raise NotImplementedError


@flow
def drawn_average(prompts: Prompts, slow: Average, fast: Reference) -> tuple[Rollout, Average]:
    return sampled(slow, prompts), blend_into(fast, slow=slow)


@flow
def judged_check(prompts: Prompts, model: Policy, judge: Judge) -> Scores:
    return judged(judge, generate(model, prompts))


@flow
def unread(prompts: Prompts, other: Scores, policy: Policy) -> Rollout:
    return generate(policy, prompts)


SHIPPED = {
    "grpo_one_device": lowered(grpo, devices=1),
    "grpo_two_devices": lowered(grpo),
    "grpo_reference_apart": lowered(grpo, {"ref.infer": APART}),
    "grpo_sampling_apart": lowered(grpo, {"policy.sample": Place("apart", data=2)}),
    "gpg_one_device": lowered(gpg, devices=1),
    "gpg_two_devices": lowered(gpg),
    "gpg_sampling_apart": lowered(gpg, {"policy.sample": APART}),
}
PROGRAMS = SHIPPED | {
    "sampled_again": lowered(sampled_again),
    "one_pass": lowered(one_pass, {"ref.infer": APART}),
    "several": lowered(several, {"policy.sample": APART}),
    "two_uses": lowered(two_uses, {"policy.infer": APART}),
    "two_trained": lowered(two_trained, {"pupil.train": Place("apart", "fsdp", 2)}),
    "blending": lowered(blending),
}


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Program:
    return PROGRAMS[request.param]


def tasks(program: Program, kind: type[Task]) -> list[str]:
    """Print the tasks of one kind, with one space between words."""
    return [" ".join(str(task).split()) for task in program.tasks if isinstance(task, kind)]


@looped("name", SHIPPED)
def test_a_shipped_flow_lowers_to_its_golden(name: str, golden: Golden) -> None:
    golden(program_text(SHIPPED[name]), f"programs/{name}.txt")


def test_each_node_runs_once(program: Program) -> None:
    runs = Counter(name for task in program.tasks if isinstance(task, Run) for name in task.nodes)
    assert runs == Counter(node.name for node in program.graph.nodes)


def test_a_value_is_brought_to_a_place_once_and_never_to_where_it_was(program: Program) -> None:
    brought = [task for task in program.tasks if isinstance(task, Transfer | Sync)]
    assert len({(task.value, task.target) for task in brought}) == len(brought)
    assert [task for task in brought if task.source == task.target] == []


def test_a_sync_is_between_two_homes_of_one_model(program: Program) -> None:
    for task in program.tasks:
        if isinstance(task, Sync):
            assert task.source.param == task.target.param
            assert {task.source, task.target} <= {*program.homes}


def test_what_is_frozen_is_never_synced(program: Program) -> None:
    assert [task for task in program.tasks if isinstance(task, Sync) and task.source.param in program.frozen] == []
    assert "ref" in PROGRAMS["grpo_reference_apart"].frozen


def test_a_frozen_model_in_two_homes_is_loaded_by_both() -> None:
    found = PROGRAMS["two_uses"]
    assert [str(home) for home in found.homes] == ["all/local", "apart/local"]
    assert (found.frozen, tasks(found, Sync)) == (("policy",), [])


def test_training_and_sampling_in_one_home_need_no_sync() -> None:
    for name in ("grpo_one_device", "gpg_one_device"):
        assert tasks(SHIPPED[name], Sync) == []
        assert [home.param for home in SHIPPED[name].homes].count("policy") == 1


def test_homes_differ_by_their_layout_alone() -> None:
    found = lowered(gpg, {"policy.train": Place(), "policy.sample": COPIED})
    assert tasks(found, Sync) == ["sync policy all/local -> all/local"]
    assert [home.layout.data for home in found.homes] == [1, 2]


def test_nodes_that_read_one_forward_pass_run_together() -> None:
    runs = [task.nodes for task in PROGRAMS["one_pass"].tasks if isinstance(task, Run)]
    assert runs == [("policy.generate",), ("ref.logprobs", "ref.entropy")]


def test_sampling_after_an_update_gets_a_sync_of_what_it_made() -> None:
    assert [" ".join(str(task).split()) for task in PROGRAMS["sampled_again"].tasks] == [
        "sync policy all/fsdp -> all/local",
        "read prompts on host",
        "transfer prompts host -> all",
        "run policy.generate on all/local, role policy.sample",
        "transfer policy.generate all -> host",
        "run score, gpg_advantages on host",
        "transfer gpg_advantages host -> all",
        "run policy.update on all/fsdp, role policy.train",
        "sync policy.update all/fsdp -> all/local",
        "run policy.generate#2 on all/local, role policy.sample",
        "transfer policy.generate#2 all -> host",
        "run score#2 on host",
    ]


def test_several_results_of_a_node_have_names_of_their_own() -> None:
    found = PROGRAMS["several"]
    assert tasks(found, Transfer) == [
        "transfer prompts host -> apart",
        "transfer policy.generate apart -> host",
        "transfer halves.1 host -> all",
        "transfer halves.0 host -> all",
        "transfer policy.of_half all -> host",
    ]
    reader = next(task for task in found.tasks if isinstance(task, Run) and task.nodes == ("policy.of_half",))
    assert sorted(reader.reads) == ["halves.0", "halves.1"]


def test_parts_of_a_record_travel_with_it_once() -> None:
    assert [line for line in tasks(SHIPPED["grpo_sampling_apart"], Transfer) if "generate" in line] == [
        "transfer policy.generate apart -> host",
        "transfer policy.generate apart -> all",
    ]


def test_a_node_runs_where_the_state_is_that_it_carries() -> None:
    found = lowered(averaging, {"slow.infer": Place(engine="fsdp"), "fast.infer": Place()})
    run = next(task for task in found.tasks if isinstance(task, Run))
    assert (str(run.home), run.role, [name for name, _ in run.homes]) == ("all/fsdp", "slow.infer", ["slow", "fast"])


def test_a_model_that_moves_is_synced_from_where_it_is_moved_to_where_it_draws() -> None:
    """slow → sampled apart; slow, fast → blend_into → slow: the newest weights are not where they draw."""
    found = lowered(drawn_average, {"slow.infer": Place(), "fast.infer": Place(), "slow.sample": Place("apart")})
    assert tasks(found, Sync) == ["sync slow all/local -> apart/local"]
    assert dict(found.origins)["slow"].pool == "all"


def test_data_that_nothing_reads_is_not_read() -> None:
    assert tasks(lowered(unread), Read) == ["read prompts on host"]


def refusal(of: Flow[..., object], places: Mapping[str, Place]) -> str:
    graph = compiled(of)
    with pytest.raises(PlanError) as caught:
        lower(graph, plan_of(graph, places), where="plan.json")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


def line_of(of: Flow[..., object], name: str) -> str:
    return str(next(each.at for each in compiled(of).all_nodes if each.name == name))


def test_a_node_that_needs_the_whole_batch_is_not_split() -> None:
    assert refusal(ranking, {}) == (
        "plan.json: judge.ranked reads all rows together, so it cannot be split over data=2\n"
        f"    in the flow at {line_of(ranking, 'judge.ranked')}\n"
        "  hint: place its role with data=1"
    )
    assert tasks(lowered(ranking, {"judge.infer": Place()}), Run)[-1] == (
        "run judge.ranked on all/local, role judge.infer"
    )


@pytest.mark.parametrize(("there", "said"), [(APART, "apart/local"), (Place(), "all/local")])
def test_models_that_one_node_reads_are_not_kept_apart(there: Place, said: str) -> None:
    assert refusal(blending, {"ref.infer": there}) == (
        f"plan.json: policy.blended reads models on all/local and on {said}\n"
        f"    in the flow at {line_of(blending, 'policy.blended')}\n"
        "  hint: place both on one pool, with the same data="
    )


def test_a_plan_of_another_graph_is_not_lowered() -> None:
    graph, other = compiled(grpo), compiled(gpg)
    with pytest.raises(PlanError) as caught:
        lower(graph, plan_of(other), where="plan.json")
    assert str(caught.value) == (
        "plan.json: a plan of gpg, not of grpo\n"
        f"    plan: gpg {structure_hash(other)[:16]}\n"
        f"    flow: grpo {structure_hash(graph)[:16]}\n"
        "  hint: flowgraph plan grpo, or run without a flow"
    )


CHECK = compiled(evaluate)


def test_a_check_samples_where_the_flow_does_and_is_synced_from_where_it_is_trained() -> None:
    trained = SHIPPED["grpo_sampling_apart"]
    plan = plan_second_flow(trained.plan, CHECK, {"policy": "policy"})
    assert [(each.role, each.pool, each.layout.data) for each in plan.placed] == [("policy.sample", "apart", 2)]
    assert (plan.flow, plan.structure_hash) == ("evaluate", structure_hash(CHECK))
    found = lower(CHECK, plan, dict(trained.origins))
    assert tasks(found, Sync) == ["sync policy all/fsdp -> apart/local"]
    assert {name for name, _ in found.origins} == {"policy"}


def test_a_check_in_the_home_of_training_needs_no_sync() -> None:
    trained = SHIPPED["grpo_one_device"]
    found = lower(CHECK, plan_second_flow(trained.plan, CHECK, {"policy": "policy"}), dict(trained.origins))
    assert tasks(found, Sync) == []
    assert found.homes == tuple(home for home in trained.homes if home.param == "policy")


def test_a_use_that_the_flow_has_not_follows_the_model_to_its_first_place() -> None:
    trained = lowered(gpg, {"policy.train": Place(), "policy.sample": APART})
    check = compiled(reading)
    weighed = [each.model_copy(update={"memory": {"weights": 2**20}}) for each in trained.plan.placed]
    plan = plan_second_flow(trained.plan.model_copy(update={"placed": tuple(weighed)}), check, {"model": "policy"})
    assert [(each.role, each.pool) for each in plan.placed] == [("model.sample", "apart"), ("model.infer", "all")]
    assert [each.memory for each in plan.placed] == [{}, {}], "a forecast of the planned flow is none of the check"


@flow
def reading(prompts: Prompts, model: Policy) -> LogProbs:
    return logprobs(model, generate(model, prompts))


def test_a_model_of_another_name_is_the_same_model_in_the_same_home() -> None:
    trained = lowered(gpg)
    check = compiled(reading)
    found = lower(
        check, plan_second_flow(trained.plan, check, {"model": "policy"}), {"model": dict(trained.origins)["policy"]}
    )
    assert {home.param for home in found.homes} == {"policy"}
    assert tasks(found, Sync) == ["sync model all/fsdp -> all/local"]
    assert set(found.homes) <= set(trained.homes)


def test_a_check_may_read_a_model_that_the_flow_has_not() -> None:
    check, origin = compiled(judged_check), dict(SHIPPED["gpg_two_devices"].origins)["policy"]
    found = lower(check, plan_of(check), {"model": origin, "unknown": origin})
    assert (found.frozen, tasks(found, Sync)) == (("judge",), ["sync model all/fsdp -> all/local"])
    assert [name for name, _ in found.origins] == ["model", "judge"]


def refusals(program: Program) -> dict[str, str]:
    """Say for each task what is refused of the program without it."""
    found = dict[str, str]()
    for i, task in enumerate(program.tasks):
        try:
            check_program(program.without(i))
        except LawError as error:
            found[" ".join(str(task).split())] = str(error)
    return found


def missing(task: Task) -> tuple[str, ...]:
    """Return of what a program without this task must be told that it lacks one."""
    if isinstance(task, Run):
        return task.nodes
    place = task.target if isinstance(task, Transfer | Sync) else HOST
    return (f"reads `{task.value}`, which is not in the store of {place}\n",)


def test_a_program_without_any_one_task_is_refused(program: Program) -> None:
    said = refusals(program)
    for task in program.tasks:
        name = " ".join(str(task).split())
        assert name in said, f"the program without `{name}` passes"
        assert any(each in said[name] for each in missing(task))


@pytest.mark.parametrize("name", ["grpo_reference_apart", "gpg_sampling_apart"])
def test_what_is_said_of_a_program_without_a_task(name: str, golden: Golden) -> None:
    said = refusals(PROGRAMS[name])
    golden("\n\n".join(f"without: {task}\n{error}" for task, error in said.items()), f"programs/{name}_refusals.txt")


def test_a_program_that_runs_a_node_twice_is_refused() -> None:
    found = SHIPPED["gpg_two_devices"]
    graph = found.graph
    again = Program(graph, found.plan, found.homes, found.origins, found.frozen, (*found.tasks, found.tasks[-1]))
    with pytest.raises(LawError) as caught:
        check_program(again)
    at = next(each.at for each in graph.nodes if each.name == "policy.update")
    assert str(caught.value) == f"{at}: the program runs policy.update 2 times, not once"


def test_tasks_in_another_order_are_refused() -> None:
    found = SHIPPED["gpg_two_devices"]
    turned = Program(found.graph, found.plan, found.homes, found.origins, found.frozen, found.tasks[::-1])
    with pytest.raises(LawError, match=r"run policy\.update on all/fsdp, role policy\.train"):
        check_program(turned)


def test_homes_and_tasks_travel_as_they_are() -> None:
    for each in PROGRAMS.values():
        assert pickle.loads(pickle.dumps(each.tasks)) == each.tasks
    assert str(Home("policy", "all", "fsdp", Layout())) == "all/fsdp"
