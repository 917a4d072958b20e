"""The whole loop: the same job gives the same metrics, also cut in other ways; and flows of a user's own just run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest
import torch

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Graph, Loss, Mask, Metric, Value, flow, node
from flowgraph.engines.local.model import LocalModel
from flowgraph.flows.settings import resolve_settings
from flowgraph.language import Kind, Measure, Rows
from flowgraph.language.values import Model
from flowgraph.lowering.follow import plan_second_flow
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Program
from flowgraph.passes import compile_graph
from flowgraph.runtime.driver import HeldOutCheck, RunSpec, train
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.record.recorder import Recorder
from flowgraph.runtime.record.run_folder import RunFolder
from nodes import (
    Advantages,
    LogProbs,
    Policy,
    Prompts,
    Reference,
    Rollout,
    Scores,
    evaluate,
    generate,
    group_normalize,
    logprobs,
    policy_gradient,
    score,
    update,
)
from nodes.data.source import FixedPrompts, PromptSource

Tiny = Callable[..., LocalModel]
Alone = Callable[..., tuple[Program, Executor]]
Line = dict[str, Any]


def metrics(
    described: Any,
    alone: Alone,
    tiny: Tiny,
    rows: pa.Table,
    path: Path,
    settings: Mapping[str, object],
    *,
    steps: int = 5,
    batch: int = 6,
    seed: int = 0,
    sample_rows: int = 256,
) -> list[Line]:
    """Run a job with a check and give its metrics, times apart."""
    graph: Graph = resolve_settings(compile_graph(described.graph()), [], settings)[0]
    handles = {
        param.name: tiny(trainable=param.type is Policy, sample_rows=sample_rows)
        for param in graph.params
        if issubclass(param.type, Model)
    }
    program, executor = alone(graph, handles)
    checked = compile_graph(evaluate.graph({"max_tokens": 4}))
    own = lower(
        checked,
        plan_second_flow(program.plan, checked, {"policy": "policy"}),
        {"policy": dict(program.origins)["policy"]},
    )
    check = HeldOutCheck(own, {"prompts": FixedPrompts(rows, tuple(range(9)))}, 2, own)
    job = RunSpec(program, {"prompts": PromptSource(rows, batch, seed)}, seed, steps, check)
    folder = RunFolder.create(path)
    with Recorder(folder, graph, print) as recorder:
        train(job, executor, [recorder])
    return [{name: value for name, value in line.items() if name != "time"} for line in folder.metrics()]


SMALL = {"policy.generate.n": 4, "policy.generate.max_tokens": 4, "policy.update.lr": 1e-3}
MORE = {"policy.update.minibatch": 3, "policy.update.epochs": 2}


@pytest.mark.parametrize("described", [grpo, gpg], ids=["grpo", "gpg"])
def test_the_same_job_twice_gives_the_same_metrics(
    described: Any, alone: Alone, tiny: Tiny, digit_rows: pa.Table, tmp_path: Path
) -> None:
    one, two = (metrics(described, alone, tiny, digit_rows, tmp_path / name, SMALL | MORE) for name in ("one", "two"))
    assert one == two
    assert [line["step"] for line in one] == [0, 0, 1, 2, 2, 3, 4, 4, 5]
    assert one != metrics(described, alone, tiny, digit_rows, tmp_path / "three", SMALL | MORE, seed=1)


def assert_close(plain: list[Line], other: list[Line]) -> None:
    for one, two in zip(plain, other, strict=True):
        assert one.keys() == two.keys()
        for name in one:
            assert two[name] == pytest.approx(one[name], abs=1e-5, rel=1e-5), name


CUT = {"policy.update.micro_batch_tokens": 500}


@pytest.mark.parametrize("described", [grpo, gpg], ids=["grpo", "gpg"])
def test_another_micro_batch_and_another_sampling_batch_give_the_same_metrics_within_a_hundred_thousandth(
    described: Any, alone: Alone, tiny: Tiny, digit_rows: pa.Table, tmp_path: Path
) -> None:
    """As many prompts and samples as the demo has.

    With so few rows that no group of a minibatch has a signal the gradient is rounding, which AdamW makes as large as
    any other: no two ways of cutting agree then.
    """
    demo = SMALL | {"policy.generate.n": 16}
    plain = metrics(described, alone, tiny, digit_rows, tmp_path / "plain", demo, batch=32)
    cut = metrics(described, alone, tiny, digit_rows, tmp_path / "cut", demo | CUT, batch=32, sample_rows=100)
    assert_close(plain, cut)


def test_so_they_do_with_prompts_of_uneven_length_and_several_minibatches(
    alone: Alone, tiny: Tiny, uneven_rows: pa.Table, tmp_path: Path
) -> None:
    plain = metrics(gpg, alone, tiny, uneven_rows, tmp_path / "plain", SMALL | MORE)
    cut = SMALL | MORE | {"policy.update.micro_batch_tokens": 40}
    assert_close(plain, metrics(gpg, alone, tiny, uneven_rows, tmp_path / "cut", cut, sample_rows=5))


def test_every_step_learns_something_that_shows_in_the_next(
    alone: Alone, tiny: Tiny, digit_rows: pa.Table, tmp_path: Path
) -> None:
    lines = metrics(grpo, alone, tiny, digit_rows, tmp_path / "run", SMALL, steps=3)
    steps = [line for line in lines if "score.reward" in line]
    assert len({line["policy.generate.entropy"] for line in steps}) == 3
    assert steps[0]["policy.update.kl_k3.kl"] == pytest.approx(0, abs=1e-9)
    assert steps[2]["policy.update.kl_k3.kl"] > 0


# ------------------------------------------------------------------------------------------- a user's own file


class Baseline(Value):
    """The score of a greedy response to each row's prompt: [B]."""

    kind = Kind.ROW


@node(metrics=(Metric("baseline"),))
def greedy_baseline(
    rollout: Rollout, *, greedy: Annotated[Rollout, Rows.OTHER], scores: Annotated[Scores, Rows.OTHER]
) -> Baseline:
    """Return each row the score of the greedy response to its prompt."""
    by_prompt = dict(zip(greedy.group.data.tolist(), scores.data.tolist(), strict=True))
    values = torch.tensor([by_prompt[group] for group in rollout.group.data.tolist()])
    return Baseline(values, [Measure("baseline", float(values.sum()), len(values))])


@node(kind="advantage")
def above(scores: Scores, baseline: Baseline) -> Advantages:
    """Subtract the baseline."""
    return Advantages(scores.data - baseline.data)


@flow
def remax(prompts: Prompts, policy: Policy) -> Policy:
    """Subtract the score of a greedy response. Source: Li et al. 2023 (ReMax), arXiv 2310.10505."""
    rollout = generate(policy, prompts, n=4, max_tokens=4)
    greedy = generate(policy, prompts, temperature=0.0, max_tokens=4)
    baseline = greedy_baseline(rollout, greedy=greedy, scores=score(greedy))
    advantages = above(score(rollout), baseline)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss, lr=1e-3, minibatch=4)


@node(kind="score", metrics=(Metric("shortness"),))
def shortness(rollout: Rollout, *, limit: int = 4) -> Scores:
    """Score short responses higher."""
    values = 1 - rollout.lengths.data / limit
    return Scores(values, [Measure("shortness", float(values.sum()), len(values))])


@node(metrics=(Metric("drift", "nats"),))
def drift(new: LogProbs, mask: Mask, *, ref: LogProbs) -> Loss:
    """Pull towards the reference: half the square of the log-ratio."""
    values = 0.5 * (new.data - ref.data) ** 2
    measure = Measure("drift", float((values.detach() * mask.data).sum()), float(mask.data.sum()))
    return 0.1 * Loss.of(values, mask, measures=[measure])


@flow
def two_rewards(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    """Train on a weighted sum of two scores."""
    rollout = generate(policy, prompts, n=4, max_tokens=4)
    scores = score(rollout) + 0.5 * shortness(rollout, limit=4)
    advantages = group_normalize(scores, rollout.group)
    old = logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        return policy_gradient(new, advantages, rollout.mask) + drift(new, rollout.mask, ref=old)

    return update(policy, loss, lr=1e-3)


def test_a_flow_of_remaxs_shape_runs(alone: Alone, tiny: Tiny, digit_rows: pa.Table, tmp_path: Path) -> None:
    lines = metrics(remax, alone, tiny, digit_rows, tmp_path / "run", {}, steps=3)
    last = [line for line in lines if "greedy_baseline.baseline" in line][-1]
    assert last["policy.generate.response_length"] <= 4 and "policy.generate#2.response_length" in last
    assert "policy.generate#2.entropy" not in last and last["policy.update.optimizer_steps"] == 2
    folders = sorted(path.name for path in (tmp_path / "run" / "rollouts").iterdir())
    assert folders == ["SHA256SUMS", "policy.generate", "policy.generate#2"]


def test_two_rewards_with_nodes_of_ones_own_run(alone: Alone, tiny: Tiny, digit_rows: pa.Table, tmp_path: Path) -> None:
    lines = metrics(two_rewards, alone, tiny, digit_rows, tmp_path / "run", {}, steps=2)
    last = [line for line in lines if "shortness.shortness" in line][-1]
    assert {"score.reward", "policy.update.drift.drift", "policy.update.loss"} <= last.keys()
    assert all(math.isfinite(value) for value in last.values())
