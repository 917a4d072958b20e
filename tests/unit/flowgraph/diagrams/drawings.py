"""One small picture of every kind; with a name given, all its labels are that name."""

from __future__ import annotations

from collections.abc import Callable

from flowgraph.diagrams.model.charts import (
    Bar,
    Comparison,
    Curves,
    Dot,
    Drawing,
    Lane,
    Lanes,
    MemoryChart,
    MemoryColumn,
    Phase,
    PoolShare,
    Scatter,
    Strip,
)
from flowgraph.diagrams.model.picture import Actor, Arrow, ArrowStyle, Box, Frame, Message, Picture, SequenceDiagram
from flowgraph.diagrams.model.series import Series

GIB = 2**30


def boxes(name: str | None = None) -> Picture:
    """Draw two pictures as one: each status, each kind of frame, each style of arrow."""
    t = _label(name)
    return Picture(
        t("two flows"),
        (
            Box("n0", (t("prompts"),), "data"),
            Box("n1", (t("policy"), t("other settings")), "model", "f0", status="changed"),
            Box("n2", (t("score"), t("by=rule")), "score", status="removed"),
            Box("n3", (t("judge"),), "score", "f1", status="added"),
            Box("n4", (t("node/0"),), "device", "f1"),
            Box("n5", (t("+"),), "arithmetic"),
            Box("n6", (t("Accuracy"),), "result"),
        ),
        (
            Frame("f0", t("train"), kind="pool", pool=t("train")),
            Frame("f1", t("apart"), None, "home", status="added"),
            Frame("f2", t("gone"), "f0", "frame", status="removed"),
        ),
        (
            Arrow("n0", "n1", t("Prompts")),
            Arrow("n1", "n2", t("Rollout"), status="removed"),
            Arrow("n1", "n3", t("Rollout"), ArrowStyle.TRANSFER, status="added"),
            Arrow("n3", "n6", t("Scores")),
            Arrow("n3", "n1", t("next step"), ArrowStyle.CARRY, status="changed"),
            Arrow("n1", "n4", t("sync policy"), ArrowStyle.SYNC),
            Arrow("n1", "n5", t("Policy ≤ 1 update late"), ArrowStyle.STALE),
        ),
        t("One box was added, and one removed."),
    )


def flow(name: str | None = None) -> Picture:
    """Draw a flow with a loss in a loss, and a carry."""
    t = _label(name)
    return Picture(
        t("flow"),
        (
            Box("n0", (t("prompts"),), "data"),
            Box("n1", (t("policy"),), "model"),
            Box("n2", (t("policy.generate"), t("n=8")), "generate"),
            Box("n3", (t("logprobs"),), "logprob", "f1"),
            Box("n4", (t("policy.update"),), "update"),
        ),
        (Frame("f0", t("loss(pi)")), Frame("f1", t("inner(pi)"), "f0")),
        (
            Arrow("n0", "n2", t("Prompts")),
            Arrow("n1", "n2", t("Policy"), ArrowStyle.WEIGHTS),
            Arrow("n1", "n3", t("Policy"), ArrowStyle.WEIGHTS),
            Arrow("n2", "n3", t("Rollout")),
            Arrow("n3", "n4", t("Loss")),
            Arrow("n4", "n1", t("next step"), ArrowStyle.CARRY),
        ),
    )


def sequence(name: str | None = None) -> SequenceDiagram:
    """Draw one step's messages, one of each style."""
    t = _label(name)
    return SequenceDiagram(
        t("one step"),
        (
            Actor("a0", (t("driver"),), "driver"),
            Actor("a1", (t("policy"), t("train · fsdp")), pool=t("train")),
            Actor("a2", (t("policy"), t("sample")), pool=t("sample")),
        ),
        (
            Message("a1", "a2", t("sync policy"), "sync"),
            Message("a0", "a2", t("generate")),
            Message("a2", "a2", t("1,024 samples")),
            Message("a2", "a0", t("Rollout"), "reply"),
            Message("a2", "a1", t("Rollout 5.2 MiB"), "transfer"),
        ),
        t("Weights go first."),
    )


def lanes(name: str | None = None) -> Lanes:
    """Draw a step of two pools, one of them measured, with a bar shorter than a millisecond."""
    t = _label(name)
    train = (
        Bar(0, 2.5, t("idle"), "idle", t("waits for samples")),
        Bar(2.5, 4.0, t("policy.logprobs"), "logprob"),
        Bar(4.0, 9.3, t("policy.update"), "update"),
        Bar(9.3, 9.6, t("sync policy"), "sync"),
    )
    sample = (
        Bar(0, 2.2, t("policy.generate"), "generate"),
        Bar(2.2, 2.2004, t("Rollout"), "transfer"),
        Bar(2.2004, 9.6, t("idle"), "idle"),
    )
    both = (Lane(t("train"), t("train"), train), Lane(t("sample"), t("sample"), sample, measured=True))
    return Lanes(t("one step"), both, 9.6, t("Half of the step is idle."))


def memory(name: str | None = None) -> MemoryChart:
    """Draw a pool that overflows, one with more than its room, and a way between phases."""
    t = _label(name)
    optimizer = (t("policy.train"), 20 * GIB), (t("optimizer"), 62 * GIB)
    train = (
        Phase(t("generate"), ((t("policy.train"), 20 * GIB),)),
        Phase(t("wake"), ((t("policy.train"), 20 * GIB), (t("optimizer"), 40 * GIB)), transition=True),
        Phase(t("update"), optimizer, measured_bytes=70 * GIB),
    )
    sample = (Phase(t("generate"), ((t("weights"), 15 * GIB), (t("cache"), 60 * GIB))),)
    stores = tuple(
        MemoryColumn(t(pool), t(pool), phases, 80 * GIB, 72 * GIB)
        for pool, phases in (("train", train), ("sample", sample))
    )
    return MemoryChart(t("memory"), stores, t("The update does not fit."))


def comparison(name: str | None = None) -> Comparison:
    """Draw three placements, one of which does not fit."""
    t = _label(name)
    return Comparison(
        t("placements"),
        (
            Strip(
                t("together"), 9.6, (PoolShare(t("all"), 8, (t("policy.train"), t("policy.sample"))),), t("best"), True
            ),
            Strip(
                t("apart"),
                14.25,
                (PoolShare(t("a"), 4, (t("policy.train"),)), PoolShare(t("b"), 4, (t("policy.sample"),))),
            ),
            Strip(t("small"), None, (PoolShare(t("a"), 1, (t("policy.train"),)),), t("does not fit")),
        ),
        8,
    )


def scatter(name: str | None = None) -> Scatter:
    """Draw three candidates, one with each mark."""
    t = _label(name)
    best = Dot(9.6, 70 * GIB, t("together"), "best", t("fsdp"))
    return Scatter(t("search"), (best, Dot(11.0, 40 * GIB, t("apart"), "front"), Dot(12.5, 60 * GIB, t("other"))))


def curves(name: str | None = None) -> Curves:
    """Draw a metric, the headline, with a missing value, and one without any."""
    t = _label(name)
    headline = Series(t("accuracy"), t("%"), ((0, 0.1), (1, None), (2, float("inf")), (3, 0.9)), headline=True)
    return Curves(t("run"), (Series(t("nothing"), "", ()), headline))


EVERY: dict[str, Callable[[str | None], Drawing]] = {
    "boxes": boxes,
    "flow": flow,
    "sequence": sequence,
    "lanes": lanes,
    "memory": memory,
    "comparison": comparison,
    "scatter": scatter,
    "curves": curves,
}


def _label(name: str | None) -> Callable[[str], str]:
    return lambda text: text if name is None else name
