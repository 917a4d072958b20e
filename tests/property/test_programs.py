"""Random plans: whatever is placed where, the program brings each value where it is read, and nothing twice."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Graph, Kind, Loss, Mask, Trainable, Value, flow, node
from flowgraph.check_plan import VERBS
from flowgraph.cluster import Cluster, Device, Node
from flowgraph.diagrams.mermaid import mermaid
from flowgraph.diagrams.plan_picture import plan_picture
from flowgraph.errors import LawError, PlanError
from flowgraph.executors.layouts import LAYOUTS
from flowgraph.lowering.check_program import check_program
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Program, Run, Sync, Transfer, program_text
from flowgraph.passes import compile_graph
from flowgraph.placed_text import placed_text
from flowgraph.plan import Layout, Placed, Plan, Pool
from flowgraph.roles import Role, roles
from flowgraph.store import structure_hash
from nodes import (
    LanguageModel,
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    Scores,
    TokenAdvantages,
    clipped,
    generate,
    group_normalize,
    logprobs,
    score,
    update,
)


class Critic(LanguageModel, Trainable):
    """A second model that is trained."""


class Worths(Value):
    """What a critic says of each token."""

    kind = Kind.TOKEN


class Targets(Value):
    """What it should have said."""

    kind = Kind.TOKEN


@node(kind="logprob")
def worths(model: Critic, rollout: Rollout) -> Worths:
    """Judge each token."""
    raise NotImplementedError


@node(kind="score", separable=False)
def ranked(model: Reference, rollout: Rollout) -> Scores:
    """Score responses by their rank in the batch."""
    raise NotImplementedError


@node(kind="advantage")
def compared(scores: Scores, *, worths: Worths, mask: Mask) -> tuple[TokenAdvantages, Targets]:
    """Give two results, each read by an update."""
    raise NotImplementedError


@node
def gained(new: LogProbs, advantages: TokenAdvantages, mask: Mask) -> Loss:
    """Give the policy's loss."""
    raise NotImplementedError


@node
def squared(new: Worths, targets: Targets, mask: Mask) -> Loss:
    """Give the critic's loss."""
    raise NotImplementedError


@flow
def with_critic(
    prompts: Prompts, policy: Policy, critic: Critic, judge: Reference
) -> tuple[Critic, Policy, Scores, TokenAdvantages]:
    """prompts → generate → ranked, worths → two results → an update of each model → generate again."""
    rollout = generate(policy, prompts, n=2)
    advantages, targets = compared(ranked(judge, rollout), worths=worths(critic, rollout), mask=rollout.mask)

    def policy_loss(pi: Policy) -> Loss:
        return gained(logprobs(pi, rollout), advantages, rollout.mask)

    def critic_loss(c: Critic) -> Loss:
        return squared(worths(c, rollout), targets, rollout.mask)

    trained = update(policy, policy_loss)
    return update(critic, critic_loss), trained, score(generate(trained, prompts)), advantages


@flow
def two_policies(prompts: Prompts, one: Policy, two: Policy, ref: Reference) -> tuple[Policy, Policy]:
    """Each of two policies samples, and learns from what the other did; one is updated twice."""
    left, right = generate(one, prompts), generate(two, prompts)
    old = logprobs(ref, left)

    def learn(policy: Policy, rollout: Rollout, old: LogProbs) -> Policy:
        advantages = group_normalize(score(rollout), rollout.group)

        def loss(pi: Policy) -> Loss:
            return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=old)

        return update(policy, loss)

    return learn(learn(one, right, right.logprobs), left, left.logprobs), learn(two, left, old)


GRAPHS = {each.name: compile_graph(each.graph()) for each in (grpo, gpg, with_critic, two_policies)}
WHOLE_BATCH = "judge.infer"  # the role of the only node that its rows cannot be split for


@st.composite
def plans(draw: st.DrawFn, graph: Graph) -> Plan:
    """Give a plan of one to three pools of one to four CPU devices, each role on one that can run it."""
    count = draw(st.integers(1, 4))
    owners = [*range(draw(st.integers(1, min(3, count))))]
    owners += draw(st.lists(st.sampled_from(owners), min_size=count - len(owners), max_size=count - len(owners)))
    pools = tuple(
        Pool(name=f"pool{owner}", devices=tuple(("laptop", i) for i, each in enumerate(owners) if each == owner))
        for owner in dict.fromkeys(draw(st.permutations(owners)))
    )
    device = Device(kind="cpu", memory_bytes=2**30)
    laptop = Node(name="laptop", devices=(device,) * count, host_memory_bytes=2**30, cores=2)
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(laptop,)),
        pools=pools,
        placed=tuple(draw(st.permutations([draw(places(role, pools)) for role in roles(graph)]))),
    )


@st.composite
def places(draw: st.DrawFn, role: Role, pools: tuple[Pool, ...]) -> Placed:
    """Put a role on a pool, in a layout that its engine offers."""
    pool, verbs = draw(st.sampled_from(pools)), {*VERBS[role.use]}
    offers = {name: each for name, each in LAYOUTS.items() if verbs <= each.verbs and "cpu" in each.devices}
    engine = draw(st.sampled_from(sorted(offers)))
    offer = offers[engine]
    most = 1 if verbs & offer.alone else min(offer.data, len(pool.devices))
    layout = {"data": draw(st.integers(1, most)), "sharding": draw(st.sampled_from(sorted(offer.sharding)))}
    return Placed(role=role.name, pool=pool.name, engine=engine, layout=Layout.model_validate(layout))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Graph, Plan]:
    graph = GRAPHS[draw(st.sampled_from(sorted(GRAPHS)))]
    return graph, draw(plans(graph))


def lowered(case: tuple[Graph, Plan]) -> Program | None:
    """Give the program of a plan, or None for one that splits what must be whole; no other is refused."""
    graph, plan = case
    if any(each.role == WHOLE_BATCH and each.layout.data > 1 for each in plan.placed):
        with pytest.raises(PlanError, match=r"judge\.ranked reads all rows together"):
            lower(graph, plan)
        return None
    program = lower(graph, plan)
    event(f"{len(program.homes)} homes")
    return program


@given(cases())
def test_a_valid_plan_lowers_to_a_program_that_holds_its_law(case: tuple[Graph, Plan]) -> None:
    program = lowered(case)
    if program is None:
        return
    check_program(program)
    runs = Counter(name for task in program.tasks if isinstance(task, Run) for name in task.nodes)
    assert runs == Counter(node.name for node in program.graph.nodes)
    brought = [task for task in program.tasks if isinstance(task, Transfer | Sync)]
    assert len({(task.value, task.target) for task in brought}) == len(brought)
    assert [task for task in brought if task.source == task.target] == []
    assert not {task.source.param for task in brought if isinstance(task, Sync)} & {*program.frozen}


@given(cases())
def test_a_program_without_any_one_task_is_refused(case: tuple[Graph, Plan]) -> None:
    program = lowered(case)
    for i, task in enumerate(program.tasks if program is not None else ()):
        assert program is not None
        try:
            check_program(program.without(i))
        except LawError:
            continue
        raise AssertionError(f"the program without `{task}` passes:\n{program_text(program)}")


@given(cases())
def test_the_same_plan_gives_the_same_program_and_the_same_text(case: tuple[Graph, Plan]) -> None:
    program = lowered(case)
    if program is None:
        return
    graph, plan = case
    again = lower(graph, Plan.from_json(plan.to_json()))
    assert (again.tasks, again.homes, again.origins, again.frozen) == (
        program.tasks,
        program.homes,
        program.origins,
        program.frozen,
    )
    assert program_text(again) == program_text(program)
    assert placed_text(graph, again.plan) == placed_text(graph, plan)
    assert mermaid(plan_picture(again)) == mermaid(plan_picture(program))


@given(cases())
def test_the_order_in_which_a_plan_names_its_roles_is_no_matter(case: tuple[Graph, Plan]) -> None:
    graph, plan = case
    program = lowered(case)
    if program is not None:
        turned = plan.model_copy(update={"placed": plan.placed[::-1]})
        assert program_text(lower(graph, turned)) == program_text(program)


@given(cases())
def test_a_picture_has_every_node_once_and_an_arrow_for_each_task_between_places(case: tuple[Graph, Plan]) -> None:
    program = lowered(case)
    if program is None:
        return
    picture = plan_picture(program)
    drawn = Counter(box.label[0] for box in picture.boxes if box.kind not in ("data", "model", "result"))
    assert drawn == Counter(node.name for node in program.graph.nodes)
    styles = Counter(arrow.style.value for arrow in picture.arrows)
    assert styles["sync"] == sum(isinstance(task, Sync) for task in program.tasks)
    assert (styles["transfer"] > 0) == any(isinstance(task, Transfer) for task in program.tasks)
    inside = {box.id: box.inside for box in picture.boxes}
    assert {end for arrow in picture.arrows for end in (arrow.source, arrow.target)} <= inside.keys()
    pool = {frame.id: frame.parent or frame.id for frame in picture.frames}
    for arrow in picture.arrows:
        crosses = pool[inside[arrow.source] or ""] != pool[inside[arrow.target] or ""]
        assert crosses or arrow.style.value != "transfer"
        assert not crosses or arrow.style.value in ("transfer", "sync")
