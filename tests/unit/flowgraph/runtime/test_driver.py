"""The loop of a run: what is asked when, what is carried on, and where it stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from flowgraph import Loss, flow
from flowgraph.engines.local.model import LocalModel
from flowgraph.lowering.follow import plan_second_flow
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Program
from flowgraph.passes import compile_graph
from flowgraph.runtime.driver import HeldOutCheck, HeldOutResult, RunSpec, train
from flowgraph.runtime.interpreter import Executor, StepResult
from nodes import Policy, Prompts, evaluate, generate, group_normalize, logprobs, policy_gradient, score, update
from nodes.data.source import FixedPrompts, PromptSource

Tiny = Callable[..., LocalModel]


@flow
def short(prompts: Prompts, policy: Policy) -> Policy:
    """Take one small step."""
    rollout = generate(policy, prompts, n=2, max_tokens=2)
    advantages = group_normalize(score(rollout, by="partial"), rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss, lr=1e-3)


@dataclass
class Diary:
    """Write down what is told."""

    lines: list[str] = field(default_factory=list[str])
    ran: list[StepResult] = field(default_factory=list[StepResult])

    def stepped(self, step: int, ran: StepResult, seconds: float) -> None:
        assert seconds > 0
        self.lines.append(f"step {step}")
        self.ran.append(ran)

    def checked(self, step: int, result: HeldOutResult, seconds: float) -> None:
        assert seconds > 0
        assert 0 <= result.metrics["eval/accuracy"] <= 1
        self.lines.append(f"check before {step}")


@dataclass(frozen=True)
class Made:
    """A job, who executes it, and the policy's handle."""

    job: RunSpec
    executor: Executor
    handle: LocalModel


@pytest.fixture
def make(tiny: Tiny, digit_rows: object, alone: Callable[..., tuple[Program, Executor]]) -> Callable[..., Made]:
    """Return `make(steps, every)`."""

    def made(steps: int, every: int | None = None) -> Made:
        handle = tiny(trainable=True)
        program, executor = alone(compile_graph(short.graph()), {"policy": handle})
        graph = compile_graph(evaluate.graph({"max_tokens": 2}))
        own = lower(graph, plan_second_flow(program.plan, graph, {"policy": "policy"}), dict(program.origins))
        check = (
            HeldOutCheck(own, {"prompts": FixedPrompts(digit_rows, (0, 1))}, every, own) if every is not None else None
        )
        source = PromptSource(digit_rows, 2, seed=5)
        return Made(RunSpec(program, {"prompts": source}, 5, steps, check), executor, handle)

    return made


def test_a_check_comes_before_the_first_step_every_few_and_after_the_last(make: Callable[..., Made]) -> None:
    diary, made = Diary(), make(steps=4, every=2)
    train(made.job, made.executor, [diary])
    assert diary.lines == ["check before 0", "step 0", "step 1", "check before 2", "step 2", "step 3", "check before 4"]


def test_without_steps_there_is_one_check(make: Callable[..., Made]) -> None:
    diary, made = Diary(), make(steps=0, every=3)
    assert train(made.job, made.executor, [diary]) == 0
    assert diary.lines == ["check before 0"] and made.handle.version == 0


def test_checks_can_be_left_out(make: Callable[..., Made]) -> None:
    for every in (None, 0):
        diary, made = Diary(), make(steps=1, every=every)
        train(made.job, made.executor, [diary])
        assert diary.lines == ["step 0"]


def test_each_step_samples_with_the_weights_that_the_step_before_left(make: Callable[..., Made]) -> None:
    diary, made = Diary(), make(steps=3)
    done = train(made.job, made.executor, [diary])
    rollouts = [ran.items["policy.generate"].value for ran in diary.ran]
    versions = [set(each.versions.data.flatten().tolist()) - {0} for each in rollouts]
    assert versions == [set(), {1}, {2}] and done == 3
    assert made.handle.version == 3


def test_steps_read_the_rows_of_the_source_and_draw_with_a_key_of_their_own(make: Callable[..., Made]) -> None:
    diary, made = Diary(), make(steps=2)
    train(made.job, made.executor, [diary])
    for step, ran in enumerate(diary.ran):
        prompts = made.job.sources["prompts"].batch(step)
        assert isinstance(prompts, Prompts)
        groups = ran.items["policy.generate"].value.group.data
        assert groups.tolist() == prompts.group.data.repeat_interleave(2).tolist()


def test_a_stop_between_two_steps_leaves_what_is_done(make: Callable[..., Made]) -> None:
    diary, made = Diary(), make(steps=5, every=5)
    assert train(made.job, made.executor, [diary], stop=lambda: len(diary.ran) == 2) == 2
    assert diary.lines == ["check before 0", "step 0", "step 1"] and made.handle.version == 2
