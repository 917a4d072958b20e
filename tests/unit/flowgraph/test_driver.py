"""The loop of a run: what is asked when, what is carried on, and where it stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flowgraph import Loss, flow
from flowgraph.evaluate import Observed, Ran
from flowgraph.executors.local import LocalExecutor, LocalModel
from flowgraph.passes import compile_graph
from flowgraph.runtime.driver import Check, Job, train
from flowgraph.values import Value
from nodes import Policy, Prompts, evaluate, generate, group_normalize, logprobs, policy_gradient, score, update
from nodes.data.source import PromptSource, prompts_at

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
    ran: list[Ran] = field(default_factory=list[Ran])

    def stepped(self, step: int, ran: Ran, seconds: float) -> None:
        assert seconds > 0
        self.lines.append(f"step {step}")
        self.ran.append(ran)

    def checked(self, step: int, observed: Observed, seconds: float) -> None:
        assert seconds > 0
        assert 0 <= observed.means()["accuracy.accuracy"] <= 1
        self.lines.append(f"check before {step}")


def job_of(handle: LocalModel, rows: object, steps: int, every: int | None = None) -> Job:
    held_out = {"prompts": prompts_at(rows, [0, 1])}
    graph = compile_graph(evaluate.graph({"max_tokens": 2}))
    check = Check(graph, {"policy": "policy"}, held_out, every) if every is not None else None
    source = PromptSource(rows, 2, seed=5)
    return Job(compile_graph(short.graph()), {"policy": Policy(handle)}, {"prompts": source}, 5, steps, check)


def test_a_check_comes_before_the_first_step_every_few_and_after_the_last(tiny: Tiny, digit_rows: object) -> None:
    diary = Diary()
    train(job_of(tiny(trainable=True), digit_rows, steps=4, every=2), LocalExecutor(), [diary])
    assert diary.lines == ["check before 0", "step 0", "step 1", "check before 2", "step 2", "step 3", "check before 4"]


def test_without_steps_there_is_one_check(tiny: Tiny, digit_rows: object) -> None:
    diary = Diary()
    models, done = train(job_of(tiny(trainable=True), digit_rows, steps=0, every=3), LocalExecutor(), [diary])
    assert diary.lines == ["check before 0"] and done == 0
    assert isinstance(models["policy"], Policy)


def test_checks_can_be_left_out(tiny: Tiny, digit_rows: object) -> None:
    for every in (None, 0):
        diary = Diary()
        train(job_of(tiny(trainable=True), digit_rows, steps=1, every=every), LocalExecutor(), [diary])
        assert diary.lines == ["step 0"]


def test_each_step_samples_with_the_weights_that_the_step_before_left(tiny: Tiny, digit_rows: object) -> None:
    diary = Diary()
    job = job_of(tiny(trainable=True), digit_rows, steps=3)
    models, done = train(job, LocalExecutor(), [diary])
    sampler = job.graph.nodes[0]
    versions = [set(ran.values[sampler].versions.data.flatten().tolist()) - {0} for ran in diary.ran]
    assert versions == [set(), {1}, {2}] and done == 3
    policy = models["policy"]
    assert isinstance(policy, Policy) and policy.version == policy.handle.version == 3


def test_steps_read_the_rows_of_the_source_and_draw_with_a_key_of_their_own(tiny: Tiny, digit_rows: object) -> None:
    diary = Diary()
    job = job_of(tiny(trainable=True), digit_rows, steps=2)
    train(job, LocalExecutor(), [diary])
    for step, ran in enumerate(diary.ran):
        prompts = job.sources["prompts"].batch(step)
        assert isinstance(prompts, Prompts)
        groups = ran.values[job.graph.nodes[0]].group.data
        assert groups.tolist() == prompts.group.data.repeat_interleave(2).tolist()


def test_a_stop_between_two_steps_gives_what_is_done_and_the_models_as_they_stand(
    tiny: Tiny, digit_rows: object
) -> None:
    diary = Diary()
    job = job_of(tiny(trainable=True), digit_rows, steps=5, every=5)
    models, done = train(job, LocalExecutor(), [diary], stop=lambda: len(diary.ran) == 2)
    assert done == 2 and diary.lines == ["check before 0", "step 0", "step 1"]
    policy: Value = models["policy"]
    assert isinstance(policy, Policy) and policy.version == 2
