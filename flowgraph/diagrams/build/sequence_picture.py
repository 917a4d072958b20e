"""Draw a program as a sequence diagram: the driver, each copy of a model, and what they tell each other in one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from flowgraph.diagrams.model.layout_text import layout_text
from flowgraph.diagrams.model.quantities import many
from flowgraph.diagrams.model.sequence import Actor, Message, SequenceDiagram
from flowgraph.language.signature import type_name
from flowgraph.lowering.program import HOST, Home, Program, Read, Run, Switch, Sync, Transfer, results_given

DRIVER = "driver"


@dataclass
class _ProgramMessages:
    """A program on its way to messages: actors by home, and who holds each value at each place, `seen` so far."""

    program: Program
    ids: dict[Home, str]
    driver: str
    seen: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])


def sequence_picture(program: Program) -> SequenceDiagram:
    """Give the diagram of one step of a program, its messages in the program's order.

    The driver calls copies of models and gets references; values go from place to place themselves. What it has done on
    any machine is its own. Values that go the same way one after another go in one message.
    """
    homes = homes_in_order(program)
    told = _ProgramMessages(program, {home: f"a{place}" for place, home in enumerate(homes, 1)}, "a0")
    messages = (*_joined(list(_messages(told))), *_carries(told))
    actors = (Actor(told.driver, (DRIVER,), "driver"), *(_actor(told.ids[home], home) for home in homes))
    return SequenceDiagram(program.graph.name, actors, messages, _about(actors, messages))


def homes_in_order(program: Program) -> list[Home]:
    """Give the copies of models of a program, pool by pool."""
    homes = dict.fromkeys([*program.homes, *(home for _, home in program.origins)])
    order = {pool.name: place for place, pool in enumerate(program.plan.pools)}
    return sorted(homes, key=lambda home: order.get(home.pool, len(order)))


def _actor(name: str, home: Home) -> Actor:
    return Actor(name, (f"{home.param} · {home.engine}", layout_text(home.layout)), pool=home.pool)


def _messages(told: _ProgramMessages) -> Iterator[Message]:
    for task in told.program.tasks:
        match task:
            case Read(value):
                told.seen[value, HOST] = told.driver
                yield Message(told.driver, told.driver, f"read {value}")
            case Run():
                yield from _run(told, task)
            case Transfer():
                yield _transfer(told, task)
            case Sync(value, source, target, lag=lag):
                late = f", lag {lag}" if lag else ""
                yield Message(told.ids[source], told.ids[target], f"sync {value}{late}", "sync")
            case Switch(home, awake):
                yield Message(told.ids[home], told.ids[home], "wake" if awake else "sleep")


def _run(told: _ProgramMessages, task: Run) -> Iterator[Message]:
    """Give the call of a run, and what it answers if a copy of a model runs it."""
    actor = told.ids[task.home] if task.home is not None else told.driver
    given = list(results_given(task, told.program.nodes))
    told.seen |= {(name, task.place): actor for name, _ in given}
    yield Message(told.driver, actor, f"{', '.join(task.nodes)}({', '.join(task.reads)})")
    if actor != told.driver and given:
        yield Message(actor, told.driver, ", ".join(dict.fromkeys(type_name(kind) for _, kind in given)), "reply")


def _transfer(told: _ProgramMessages, task: Transfer) -> Message:
    """Give the way of a value from who has it at one place to who reads it first at the other."""
    source = told.seen.get((task.value, task.source), told.driver)
    target = told.seen[task.value, task.target] = _reader(told, task)
    return Message(source, target, task.value, "transfer")


def _reader(told: _ProgramMessages, task: Transfer) -> str:
    runs = (each for each in told.program.tasks if isinstance(each, Run))
    first = next((each for each in runs if each.place == task.target and task.value in each.reads), None)
    return told.driver if first is None or first.home is None else told.ids[first.home]


def _carries(told: _ProgramMessages) -> tuple[Message, ...]:
    """Give what each actor keeps for the next step."""
    origins, kept = dict(told.program.origins), dict[str, list[str]]()
    for name in told.program.graph.carries():
        kept.setdefault(told.ids[origins[name]] if name in origins else told.driver, []).append(name)
    return tuple(Message(actor, actor, f"next step: {', '.join(names)}") for actor, names in kept.items())


def _joined(messages: Sequence[Message]) -> Iterator[Message]:
    """Join transfers between the same two that have only other transfers between them."""
    waiting = dict[tuple[str, str], Message]()
    for each in messages:
        if each.style != "transfer":
            yield from waiting.values()
            waiting.clear()
            yield each
            continue
        first = waiting.get((each.source, each.target))
        label = each.label if first is None else f"{first.label}, {each.label}"
        waiting[each.source, each.target] = replace(each, label=label)
    yield from waiting.values()


def _about(actors: Sequence[Actor], messages: Sequence[Message]) -> str:
    """Say who takes part, and how much is called, moved and synced."""
    counts = Counter(message.style for message in messages if message.source != message.target)
    pools = many(len({actor.pool for actor in actors if actor.pool}), "pool")
    called = f"In a step the driver makes {many(counts['call'], 'call')} to {many(len(actors) - 1, 'copy', 'copies')}"
    moved = f"{many(counts['transfer'], 'transfer')} and {many(counts['sync'], 'sync')} of weights go between them"
    return f"{called} of models on {pools}; {moved} or the host."
