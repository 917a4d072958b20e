"""Draw a program as a sequence diagram: the driver, each copy of a model, and their messages in one step."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from flowgraph.diagrams.model.picture import Actor, Message, SequenceDiagram
from flowgraph.diagrams.model.quantities import layout_text, many
from flowgraph.language.signature import type_name
from flowgraph.lowering.pipeline_steps import iteration
from flowgraph.lowering.program import (
    HOST,
    Home,
    Join,
    Program,
    Read,
    Run,
    Switch,
    Sync,
    Take,
    Transfer,
    results_given,
    task_reads,
    task_results,
)
from flowgraph.lowering.task_names import task_name

DRIVER = "a0"


def sequence_picture(program: Program) -> SequenceDiagram:
    """Return the sequence diagram of one step of a program, with messages in the program's order.

    The driver calls copies of models and gets references; values go directly from place to place. The driver also runs
    the nodes of the host. Consecutive transfers between the same two actors share a message. If steps overlap, the
    diagram shows one iteration, which ends step k; each call and sync has the number of its step.
    """
    order = {pool.name: place for place, pool in enumerate(program.plan.pools)}
    homes = dict.fromkeys([*program.homes, *(home for _, home in program.origins)])
    by_pool = sorted(homes, key=lambda home: order.get(home.pool, len(order)))
    ids = {home: f"a{place}" for place, home in enumerate(by_pool, 1)}
    actors = [Actor(DRIVER, ("driver",), "driver")]
    for home, name in ids.items():
        actors.append(Actor(name, (f"{home.param} · {home.engine}", layout_text(home.layout)), pool=home.pool))
    steps = _ProgramMessages(program, ids)
    messages = (*_joined(list(steps.messages())), *steps.carries())
    counts = Counter(message.style for message in messages if message.source != message.target)
    pools = many(len({home.pool for home in homes}), "pool")
    begins = f"step k, which begins step k+{program.pipeline.depth}," if program.pipeline is not None else "a step"
    calls = f"In {begins} the driver makes {many(counts['call'], 'call')} to {many(len(homes), 'copy', 'copies')}"
    moves = f"{many(counts['transfer'], 'transfer')} and {many(counts['sync'], 'sync')} of weights go between them"
    about = f"{calls} of models on {pools}; {moves} or the host."
    return SequenceDiagram(program.graph.name, tuple(actors), messages, about)


@dataclass
class _ProgramMessages:
    program: Program
    ids: dict[Home, str]
    holders: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])

    def messages(self) -> Iterator[Message]:
        for turn in iteration(self.program, 0, sys.maxsize):
            step = "" if self.program.pipeline is None else f"step {turn.step}: "
            match task := turn.task:
                case Read(value):
                    self.holders[value, HOST] = DRIVER
                    yield Message(DRIVER, DRIVER, f"{step}read {value}")
                case Run():
                    yield from self.run(task, step)
                case Transfer():
                    ((name, _),) = task_reads(task)
                    source = self.holders.get((name, task.source), DRIVER)
                    target = self.holders[name, task.target] = self.first_reader(task)
                    yield Message(source, target, name, "transfer")
                case Join(value, place):
                    self.holders[value, place] = DRIVER
                    yield Message(source=DRIVER, target=DRIVER, label=f"{step}join {value}")
                case Take(value, place, prompts):
                    self.holders |= {(value, place): DRIVER, (prompts, HOST): DRIVER}
                    yield Message(source=DRIVER, target=DRIVER, label=f"{step}take finished groups of {value}")
                case Sync(value, source_home, target_home, lag=lag):
                    label = f"{step}sync {value}{f', lag {lag}' if lag else ''}"
                    yield Message(self.ids[source_home], self.ids[target_home], label, "sync")
                case Switch(home, awake):
                    yield Message(self.ids[home], self.ids[home], "wake" if awake else "sleep")

    def run(self, task: Run, step: str) -> Iterator[Message]:
        """Yield the call of a run's nodes and, if a copy of a model runs them, a reply with the types of results."""
        actor = DRIVER if task.home is None else self.ids[task.home]
        results = list(results_given(task, self.program.nodes))
        self.holders |= {(name, task.place): actor for name, _ in task_results(task, self.program.nodes)}
        yield Message(DRIVER, actor, f"{step}{task_name(task)}({', '.join(map(task.stored, task.reads))})")
        if actor != DRIVER and results:
            types = dict.fromkeys(type_name(kind) for _, kind in results)
            yield Message(actor, DRIVER, ", ".join(types), "reply")

    def first_reader(self, task: Transfer) -> str:
        for run in self.program.tasks:
            if isinstance(run, Run) and run.place == task.target and task.value in run.reads:
                return DRIVER if run.home is None else self.ids[run.home]
        return DRIVER

    def carries(self) -> Iterator[Message]:
        """Yield a message of each actor to itself, with the state that the actor keeps for the next step."""
        origins, names = dict(self.program.origins), defaultdict[str, list[str]](list)
        for name in self.program.graph.carries():
            names[self.ids[origins[name]] if name in origins else DRIVER].append(name)
        for actor, carried in names.items():
            yield Message(actor, actor, f"next step: {', '.join(carried)}")


def _joined(messages: Sequence[Message]) -> Iterator[Message]:
    waiting = dict[tuple[str, str], Message]()
    for message in messages:
        if message.style == "transfer":
            ends = (message.source, message.target)
            label = f"{waiting[ends].label}, {message.label}" if ends in waiting else message.label
            waiting[ends] = replace(message, label=label)
        else:
            yield from waiting.values()
            waiting.clear()
            yield message
    yield from waiting.values()
