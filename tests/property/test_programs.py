"""Random plans: whatever is placed where, the program brings each value where it is read, and nothing twice.

And random flows, executed: what a program gives does not depend on the passes that it can do without.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Graph, Key, Kind, Loss, Mask, Parts, Trainable, Value, flow, node, stale
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import Role, roles
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool
from flowgraph.diagrams.build.plan_picture import plan_picture
from flowgraph.diagrams.build.sequence_picture import sequence_picture
from flowgraph.diagrams.write.mermaid.flowchart import mermaid
from flowgraph.engines.local.model import LocalModel
from flowgraph.engines.table import ENGINES, VERBS
from flowgraph.errors import LawError, PlanError
from flowgraph.language.rows import take
from flowgraph.language.values import Group, Lengths
from flowgraph.lowering import LOWERING, OPTIONAL
from flowgraph.lowering.check_program import check_program
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Program, Run, Sync, Transfer
from flowgraph.passes import compile_graph
from flowgraph.passes.verify import verified
from flowgraph.runtime.batch import to_table
from flowgraph.runtime.interpreter import Executor, StepResult
from flowgraph.runtime.local import InProcess
from flowgraph.serialize.placed_text import placed_text
from flowgraph.serialize.program import program_from_json, program_to_json
from flowgraph.serialize.program_text import program_text
from nodes import (
    Advantages,
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
    kl_k3,
    logprobs,
    score,
    update,
)
from nodes.data.source import PromptSource


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
    far = logprobs(ref, left)

    def learn(policy: Policy, rollout: Rollout) -> Policy:
        advantages = group_normalize(score(rollout), rollout.group)

        def loss(pi: Policy) -> Loss:
            new = logprobs(pi, rollout)
            surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
            return surrogate + kl_k3(new, rollout.mask, ref=far) if rollout is left else surrogate

        return update(policy, loss)

    return learn(learn(one, right), left), learn(two, left)


@node(rows="reordered")
def shuffled(rollout: Rollout, *, key: Key = Key()) -> Rollout:
    """Give the rows in another order."""
    return take(rollout, torch.from_numpy(key.generator().permutation(len(rollout.lengths.data))))


@node(kind="score", pure=False)
def counted(rollout: Annotated[Rollout, Parts("tokens", "sample")]) -> Scores:
    """Score a response by its tokens and its number."""
    return Scores(rollout.tokens.data.sum(dim=1).float() + rollout.sample.data)


@node
def centred(scores: Scores, group: Group) -> Scores:
    """Take off what a prompt's responses score on average."""
    same = (group.data[:, None] == group.data[None]).float()
    return Scores(scores.data - same @ scores.data / same.sum(dim=1))


@node
def weighed(tokens: LogProbs, scores: Scores, mask: Mask) -> LogProbs:
    """Weigh tokens by what their response scores."""
    return LogProbs(tokens.data * scores.data[:, None] * mask.data)


@node
def meant(tokens: LogProbs, lengths: Lengths) -> Scores:
    """Score a response by the mean of its tokens."""
    return Scores(tokens.data.sum(dim=1) / lengths.data.clamp(min=1))


@node(kind="advantage")
def as_advantages(scores: Scores) -> Advantages:
    """Take scores for advantages."""
    return Advantages(torch.tanh(scores.data / 100))


Step = tuple[str, int, int]
STEPS = ("shuffle", "count", "centre", "add", "read", "weigh", "mean")


def written(steps: Sequence[Step]) -> Graph:
    """Give the graph of a flow in which each step reads what was made before it."""

    @flow
    def written_by_chance(
        prompts: Prompts, policy: Policy, ref: Reference
    ) -> tuple[Policy, Scores, LogProbs, Advantages, Scores]:
        first = generate(stale(policy, at_most=2), prompts, n=2, max_tokens=2)
        rollouts, scores, tokens = [first], [score(first, by="partial")], [logprobs(ref, first)]
        for what, i, j in steps:
            rollout, own, read = (made[-1 - i % len(made)] for made in (rollouts, scores, tokens))
            other = rollouts[j % len(rollouts)]
            if what == "shuffle":
                rollouts.append(shuffled(rollout))
            elif what == "count":
                scores.append(counted(rollout))
            elif what == "centre":
                scores.append(centred(own, other.group))
            elif what == "add":
                scores.append(own + scores[j % len(scores)])
            elif what == "read":
                tokens.append(logprobs(policy if j % 2 else ref, rollout))
            elif what == "weigh":
                tokens.append(weighed(read, scores[j % len(scores)], rollout.mask))
            else:
                scores.append(meant(read, other.lengths))
        advantages = as_advantages(scores[-1])

        def loss(pi: Policy) -> Loss:
            return clipped(logprobs(pi, first), advantages, first.mask, old=first.logprobs)

        trained = update(policy, loss, lr=1e-1, optimizer="sgd", minibatch=2)
        return trained, scores[-1], tokens[-1], advantages, counted(generate(trained, prompts, max_tokens=2))

    return compile_graph(written_by_chance.graph())


GRAPHS = {each.name: compile_graph(each.graph()) for each in (grpo, gpg, with_critic, two_policies)}
WHOLE_BATCH = "judge.infer"  # the role of the only node that its rows cannot be split for


@st.composite
def plans(draw: st.DrawFn, graph: Graph) -> Plan:
    """Give a plan of one to three pools of one to four CPU devices, each role on one that can run it.

    A role that may lag does so as far as it may, or less.
    """
    count = draw(st.integers(1, 4))
    owners = [*range(draw(st.integers(1, min(3, count))))]
    owners += draw(st.lists(st.sampled_from(owners), min_size=count - len(owners), max_size=count - len(owners)))
    pools = tuple(
        Pool(name=f"pool{owner}", devices=tuple(("laptop", i) for i, each in enumerate(owners) if each == owner))
        for owner in dict.fromkeys(draw(st.permutations(owners)))
    )
    device = Device(kind="cpu", memory_bytes=2**30)
    laptop = Machine(name="laptop", devices=(device,) * count, host_memory_bytes=2**30, cores=2)
    placed = tuple(draw(st.permutations([draw(places(role, pools)) for role in roles(graph)])))
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(laptop,)),
        pools=pools,
        placed=tuple(each.model_copy(update={"lag": draw(lags(graph, each, placed))}) for each in placed),
    )


def lags(graph: Graph, placed: PlacedRole, others: Sequence[PlacedRole]) -> st.SearchStrategy[int]:
    """Draw how far a role lags, within what all of its nodes allow; 0 where it reads what is trained in place."""
    names = next(role.nodes for role in roles(graph) if role.name == placed.role)
    param, _, use = placed.role.rpartition(".")
    trained = next((each for each in others if each.role == f"{param}.train"), placed)
    apart = (trained.pool, trained.engine, trained.layout) != (placed.pool, placed.engine, placed.layout)
    models = [edge.at_most for each in graph.nodes if each.name in names and (edge := each.model()) is not None]
    return st.integers(0, min(models)) if use == "sample" and apart else st.just(0)


@st.composite
def places(draw: st.DrawFn, role: Role, pools: tuple[Pool, ...]) -> PlacedRole:
    """Put a role on a pool, in a layout that its engine supports."""
    pool, verbs = draw(st.sampled_from(pools)), {*VERBS[role.use]}
    supports = {
        name: each.supported
        for name, each in ENGINES.items()
        if each.supported is not None and verbs <= each.verbs and "cpu" in each.supported.devices
    }
    engine = draw(st.sampled_from(sorted(supports)))
    support = supports[engine]
    most = 1 if verbs & support.single_device else min(support.data, len(pool.devices))
    layout = {"data": draw(st.integers(1, most)), "sharding": draw(st.sampled_from(sorted(support.sharding)))}
    return PlacedRole(role=role.name, pool=pool.name, engine=engine, layout=Layout.model_validate(layout))


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
    drawn = Counter(box.label[0] for box in picture.boxes if box.kind not in ("data", "model", "result", "device"))
    assert drawn == Counter(node.name for node in program.graph.nodes)
    styles = Counter(arrow.style.value for arrow in picture.arrows)
    assert styles["sync"] == sum(isinstance(task, Sync) for task in program.tasks)
    assert styles["transfer"] == sum(isinstance(task, Transfer) for task in program.tasks)
    inside = {box.id: box.inside for box in picture.boxes}
    assert {end for arrow in picture.arrows for end in (arrow.source, arrow.target)} <= inside.keys()
    pool = {frame.id: frame.parent or frame.id for frame in picture.frames}
    for arrow in picture.arrows:
        crosses = pool[inside[arrow.source] or ""] != pool[inside[arrow.target] or ""]
        assert crosses or arrow.style.value != "transfer"
        assert not crosses or arrow.style.value in ("transfer", "sync")


@given(cases())
def test_a_sequence_has_a_call_for_each_run_and_a_message_for_each_sync(case: tuple[Graph, Plan]) -> None:
    program = lowered(case)
    if program is None:
        return
    diagram = sequence_picture(program)
    told = Counter(each.style for each in diagram.messages if each.source != each.target)
    assert told["call"] == sum(isinstance(task, Run) and task.home is not None for task in program.tasks)
    assert told["sync"] == sum(isinstance(task, Sync) for task in program.tasks)
    assert {end for each in diagram.messages for end in (each.source, each.target)} <= {a.id for a in diagram.actors}
    assert all(each.source != each.target for each in diagram.messages if each.style == "transfer")


@given(cases())
def test_a_program_of_any_plan_holds_the_law_after_each_pass_and_is_stored(case: tuple[Graph, Plan]) -> None:
    with verified():
        program = lowered(case)
    if program is not None:
        text = program_to_json(program)
        again = program_from_json(text)
        assert program_to_json(again) == text
        assert (again.tasks, again.homes, again.origins, again.frozen) == (
            program.tasks,
            program.homes,
            program.origins,
            program.frozen,
        )
        assert program_text(again) == program_text(program)


# ------------------------------------------------------------------------------------------- executed


@st.composite
def runs(draw: st.DrawFn) -> tuple[Graph, Plan, list[Any]]:
    """Give a flow, a plan for it, and the passes that lower it: those that it needs, and some of the others."""
    back, other = st.sampled_from((0, 0, 0, 1, 2)), st.integers(0, 7)  # what was made last is read most
    graph = written(draw(st.lists(st.tuples(st.sampled_from(STEPS), back, other), min_size=2, max_size=8)))
    left_out = draw(st.sets(st.sampled_from(OPTIONAL), max_size=2))
    return graph, draw(plans(graph)), [each for each in LOWERING if each not in left_out]


@settings(max_examples=12)
@given(case=runs())
def test_a_program_gives_the_same_with_any_of_the_optional_passes_left_out(
    case: tuple[Graph, Plan, list[Any]], tiny_parts: tuple[Any, Any], digit_rows: Any
) -> None:
    graph, plan, passes = case
    program = lower(graph, plan, passes=passes)
    fused = [task.nodes for task in program.tasks if isinstance(task, Run) and len(task.nodes) > 1 and not task.homes]
    event(f"{len(fused)} fused")
    assert_the_same(graph, plan, program, tiny_parts, digit_rows)


def test_rows_that_a_fused_node_reorders_are_lined_up_for_the_next(
    tiny_parts: tuple[Any, Any], digit_rows: Any, one_device: Any
) -> None:
    graph = written([("shuffle", 0, 0), ("count", 0, 0), ("centre", 0, 0)])
    program = lower(graph, one_device(graph))
    (chain,) = (task for task in program.tasks if isinstance(task, Run) and "shuffled" in task.nodes)
    assert chain.nodes == ("shuffled", "counted", "centred", "as_advantages")
    assert chain.inner == ("shuffled",), "what is said of each row is recorded, and a reordered rollout is not"
    assert_the_same(graph, program.plan, program, tiny_parts, digit_rows)


def assert_the_same(graph: Graph, plan: Plan, program: Program, parts: tuple[Any, Any], rows: Any) -> None:
    """Hold that a program gives what one gives that only the passes lowered which it needs."""
    plain = lower(graph, plan, passes=[each for each in LOWERING if each not in OPTIONAL])
    one, two = (executed(each, parts, rows) for each in (plain, program))
    inner = {name for task in program.tasks if isinstance(task, Run) for name in task.inner}
    for (ran, held), (wanted, there) in zip(two, one, strict=True):
        assert ran.observed.sums == wanted.observed.sums
        assert ran.items.keys() | inner == wanted.items.keys()
        for name in ran.items:
            assert to_table(ran.items[name].value).equals(to_table(wanted.items[name].value)), name
        for home, weights in held.items():
            assert all(torch.equal(tensor, there[home][name]) for name, tensor in weights.items())


def executed(program: Program, parts: tuple[Any, Any], rows: Any) -> list[tuple[StepResult, dict[Any, Any]]]:
    """Run three steps on the tiny model; give what each gave, and the weights of every home after it."""
    model, tokenizer = parts
    handles = {
        home: LocalModel(copy.deepcopy(model), tokenizer, trainable=home in program.trained) for home in program.homes
    }
    executor, found = Executor(InProcess(handles)), list[tuple[StepResult, dict[Any, Any]]]()
    for step in range(3):
        ran = executor.run(program, {"prompts": PromptSource(rows, 2)}, Key(5, step))
        found.append((ran, {home: handle.weights() for home, handle in handles.items()}))
    return found
