"""A program as a sequence diagram: who calls whom, what goes from place to place, and in which order."""

from __future__ import annotations

from dataclasses import replace
from itertools import starmap

from examples.grpo import grpo
from flowgraph.diagrams.build.sequence_picture import sequence_picture
from flowgraph.diagrams.model.picture import SequenceDiagram
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import HOST, Program, Run, Sync, Transfer
from tests.looped import looped
from tests.unit.flowgraph.diagrams.build.test_plan_picture import APART, PROGRAMS, TWO, program_of
from tests.unit.placements.small_problems import found_of


def lines(diagram: SequenceDiagram) -> list[str]:
    names = {actor.id: actor.label[0] + (f" on {actor.pool}" if actor.pool else "") for actor in diagram.actors}
    return [f"{names[each.source]} → {names[each.target]}: {each.label} ({each.style})" for each in diagram.messages]


def found(flow: str, cluster: str) -> Program:
    best = found_of(flow, cluster).best
    return lower(best.problem.graph, best.plan())


def test_a_step_of_a_reference_apart_is_told_in_its_order() -> None:
    diagram = sequence_picture(program_of(grpo, TWO | {"ref.infer": APART}))
    assert [actor.label for actor in diagram.actors] == [
        ("driver",),
        ("policy · fsdp", "data=2 sharding=full"),
        ("policy · local", "data=2"),
        ("ref · local", "one device"),
    ]
    driver, trained, drawn, ref = "driver", "policy · fsdp on all", "policy · local on all", "ref · local on apart"
    assert lines(diagram) == [
        f"{trained} → {drawn}: sync policy (sync)",
        f"{driver} → {driver}: read prompts (call)",
        f"{driver} → {drawn}: prompts (transfer)",
        f"{driver} → {drawn}: policy.generate(prompts) (call)",
        f"{drawn} → {driver}: Rollout (reply)",
        f"{drawn} → {driver}: policy.generate (transfer)",
        f"{drawn} → {ref}: policy.generate (transfer)",
        f"{driver} → {driver}: score, group_normalize(policy.generate) (call)",
        f"{driver} → {ref}: ref.logprobs(policy.generate) (call)",
        f"{ref} → {driver}: LogProbs (reply)",
        f"{ref} → {trained}: ref.logprobs (transfer)",
        f"{driver} → {trained}: group_normalize (transfer)",
        f"{driver} → {trained}: policy.update(policy.generate, group_normalize, ref.logprobs) (call)",
        f"{trained} → {driver}: Policy (reply)",
        f"{trained} → {trained}: next step: policy (call)",
    ]


def test_what_sleeps_is_woken_and_put_to_sleep() -> None:
    diagram = sequence_picture(found("grpo", "1x8xh100"))
    drawn = "policy · sglang on all"
    assert lines(diagram)[0] == f"{drawn} → {drawn}: wake (call)"
    assert f"{drawn} → {drawn}: sleep (call)" in lines(diagram)


@looped("program", [*PROGRAMS.values(), found("ppo", "2x8xh100")])
def test_each_run_is_a_call_each_sync_a_message_and_ids_are_those_of_actors(program: Program) -> None:
    diagram = sequence_picture(program)
    ids = [actor.id for actor in diagram.actors]
    assert len(set(ids)) == len(ids)
    assert {end for each in diagram.messages for end in (each.source, each.target)} <= set(ids)
    calls = [each for each in diagram.messages if each.style == "call" and each.source != each.target]
    assert len(calls) == sum(isinstance(task, Run) and task.home is not None for task in program.tasks)
    synced = [each for each in diagram.messages if each.style == "sync"]
    assert len(synced) == sum(isinstance(task, Sync) for task in program.tasks)
    assert all(each.source != each.target for each in diagram.messages if each.style in ("transfer", "sync", "reply"))


def test_values_that_go_the_same_way_one_after_another_are_one_message() -> None:
    ways = [("a", HOST, "all"), ("c", HOST, "all"), ("policy.generate", HOST, "all")]
    program = replace(PROGRAMS["grpo_two_devices"], tasks=tuple(starmap(Transfer, ways)))
    diagram = sequence_picture(program)
    assert [each.label for each in diagram.messages] == ["a, c, policy.generate", "next step: policy"]


def test_the_picture_says_in_a_sentence_what_is_to_be_seen() -> None:
    assert sequence_picture(found("ppo", "2x8xh100")).about == (
        "In a step the driver makes 5 calls to 4 copies of models on 2 pools; "
        "7 transfers and 1 sync of weights go between them or the host."
    )
