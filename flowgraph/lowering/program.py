"""A program as data: the tasks of one step in order. Each task is immutable and printed as one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from flowgraph.cluster.plan import Layout, Plan, RoleSettings
from flowgraph.engines.table import is_server, ranks_of
from flowgraph.language.graph import Edge, Graph, Node, NodeKind
from flowgraph.language.values import Model, Value, VersionRange
from flowgraph.lowering.chunk import Chunk

AS_USUAL = RoleSettings()
HOST = "host"
"""The place of nodes that read no model: any machine can run them."""


@dataclass(frozen=True)
class Home:
    """The place of one copy of a model's weights: roles with equal pool, engine, layout and settings share it.

    `param` is the parameter's name in the flow that trains the model; another flow that reads it may use another name.
    """

    param: str
    pool: str
    engine: str
    layout: Layout
    running: RoleSettings = AS_USUAL

    @property
    def ranks(self) -> int:
        """Return the number of data ranks over which rows are split; 1 for an inference server."""
        return ranks_of(self.engine, self.layout.data)

    @property
    def members(self) -> range:
        """Return the indices, in the pool, of the devices on which this home's nodes run.

        These are all the devices of its layout, or only the first if its engine is an inference server.
        """
        return range(1 if is_server(self.engine) else self.layout.devices)

    @property
    def in_flight(self) -> bool:
        """Return whether a sync to this copy does not wait for the responses that it is drawing."""
        return self.running.in_flight

    def rank_of(self, place: int) -> int:
        """Return the data rank, from 0, of the member with index `place`; members of one rank are adjacent.

        All members of a data rank get the same rows.
        """
        return place // (len(self.members) // self.ranks)

    def __str__(self) -> str:
        return f"{self.pool}/{self.engine}"


EARLY: frozenset[NodeKind] = frozenset({"score", "logprob", "generate"})
"""The kinds of nodes that read finished groups: rules, reward models, log-probs and judges, which take long. Others are
arithmetic on the batch, which is not worth a task for each chunk."""

Parts = tuple[str, ...]
"""Parts of a record as dotted paths; none: the whole value."""


IDS_ONLY: Parts = ("#",)
"""The parts of a record that consist of the ids of its rows alone, which say in which order the batch has them."""


class _Printed:
    def __str__(self) -> str:
        verb, what, where, _ = task_cells(cast("Task", self))
        return f"{verb:<10}{what}  {where}"


@dataclass(frozen=True)
class Read(_Printed):
    """Read this step's rows of a data parameter, on the host."""

    value: str


@dataclass(frozen=True)
class Run(_Printed):
    """Run nodes at one place; nodes that share a forward pass are in one run.

    `reads` are values in the place's store. `homes` pairs each model value that is read with a home; rows are split
    over the ranks of the first. `parts` limits records to the parts that are read. Results in `inner` stay inside the
    run; results in `sends` are also sent to other places, as these parts. If the groups of a step are handed out in
    chunks, there is a run for each `chunk`: it reads that chunk of the values in `streamed`, and makes one of its
    results. A run with a chunk and without streamed values samples: it hands out the chunk, and the last also all rows.
    A run `by_group` samples, too: each group goes to whichever step a `Take` chooses for it when it has finished.
    """

    nodes: tuple[str, ...]
    place: str
    reads: tuple[str, ...]
    homes: tuple[tuple[str, Home], ...] = ()
    role: str = ""
    inner: tuple[str, ...] = ()
    parts: tuple[tuple[str, Parts], ...] = ()
    sends: tuple[tuple[str, Parts], ...] = ()
    chunk: Chunk | None = None
    streamed: tuple[str, ...] = ()
    by_group: bool = False

    @property
    def hands_out(self) -> bool:
        """Return whether this run samples a chunk of rows, which other runs may read before the rest are sampled."""
        return self.chunk is not None and not self.streamed

    def stored(self, name: str) -> str:
        """Return the name, in the place's store, of a value that the run reads: that of its chunk, if it reads one."""
        return _chunked(name, self.chunk if name in self.streamed else None)

    @property
    def home(self) -> Home | None:
        """Return the first home, whose ranks run the nodes; None if the run reads no model."""
        return self.homes[0][1] if self.homes else None

    def without(self, recorded: Mapping[str, object], nodes: Mapping[str, Node]) -> Run:
        """Return the run without the nodes that are keys of `recorded`; their results become inputs of the other nodes.

        `nodes` are the nodes of the graph by name. Returns the run itself if no node is removed.
        """
        rest = tuple(node for node in self.nodes if node not in recorded)
        if len(rest) == len(self.nodes):
            return self
        read = {value for node in rest for value in values_read(nodes[node])}
        reads = tuple(value for value in (*self.reads, *recorded) if value in read)
        parts = tuple((value, names) for value, names in self.parts if value in read)
        sends = tuple((value, names) for value, names in self.sends if value not in recorded)
        return replace(self, nodes=rest, reads=reads, parts=parts, sends=sends)


@dataclass(frozen=True)
class Transfer(_Printed):
    """Copy a value, or only `parts` of a record, or only a `chunk`, from the store of one place to that of another."""

    value: str
    source: str
    target: str
    parts: Parts = ()
    chunk: Chunk | None = None


@dataclass(frozen=True)
class Join(_Printed):
    """Put the rows of all `chunks` of a value at a place together, in the order of the rows of the value `like`."""

    value: str
    place: str
    chunks: int
    like: str

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of the chunks in the store, in the order in which they are handed out."""
        return tuple(Chunk(index=index, of=self.chunks).named(self.value) for index in range(self.chunks))


@dataclass(frozen=True)
class Take(_Printed):
    """Replace a step's rows at a place by those of as many finished groups, the ones that started first.

    `value` is what a run `by_group` samples, from rows of the data parameter `prompts`, whose rows on the host are
    replaced by the prompts of the taken groups. A group is taken at most `behind` steps after its own.
    """

    value: str
    place: str
    prompts: str
    behind: int


@dataclass(frozen=True)
class Sync(_Printed):
    """Copy a version of a model's weights from one home to another, unless the copy there is recent enough.

    A copy is recent enough if it lags by at most `lag` updates. The plan chose `lag`; readers allow up to `at_most`.
    """

    value: str
    source: Home
    target: Home
    at_most: int = 0
    lag: int = 0


@dataclass(frozen=True)
class Switch(_Printed):
    """Free the device memory of a home, or restore its weights there (`awake`)."""

    home: Home
    awake: bool


Task = Read | Run | Transfer | Join | Take | Sync | Switch


def task_cells(task: Task) -> tuple[str, str, str, str]:
    """Return a task as four cells of text: verb, subject, place or route, and parts or lag ("" if it has neither)."""
    match task:
        case Read(value):
            return "read", value, f"on {HOST}", ""
        case Run(nodes):
            where = f"{task.home}, role {task.role}" if task.home is not None else task.place
            parts = (f"of {value}: {', '.join(names)}" for value, names in task.parts)
            return "run", _chunked(", ".join(nodes), task.chunk), f"on {where}", "; ".join(parts)
        case Transfer(value, source, target, names):
            ids = "ids of rows" if names == IDS_ONLY else ", ".join(names)
            return "transfer", _chunked(value, task.chunk), f"{source} -> {target}", ids
        case Join(value, place, chunks, like):
            return "join", value, f"on {place}", f"{chunks} chunks, in the order of {like}"
        case Take(value, place, _, behind):
            steps = f"{behind} step{'' if behind == 1 else 's'} late"
            return "take", value, f"on {place}", f"finished groups, the oldest first, at most {steps}"
        case Sync(value, old, new, at_most, lag):
            return "sync", value, f"{old} -> {new}", f"lag {lag} of at most {at_most}" if at_most else ""
        case Switch(home, awake):
            return "wake" if awake else "sleep", home.param, f"on {home}", ""


def _chunked(name: str, chunk: Chunk | None) -> str:
    return name if chunk is None else chunk.named(name)


@dataclass(frozen=True)
class StepTask:
    """A task in an iteration, which belongs to the step that is `ahead` steps after the iteration's update."""

    task: Task
    ahead: int = 0

    @property
    def step(self) -> str:
        """Return the step of the task as text, such as `k+1`; `k` is the step of the iteration's update."""
        return f"k+{self.ahead}" if self.ahead else "k"


Iteration = tuple[StepTask, ...]
"""What runs between two updates: tasks of several steps, in the order in which each place runs them."""


@dataclass(frozen=True)
class CopySchedule:
    """When a copy of weights gets a new version: every `sync_every` steps, for readers `ahead` steps before the update.

    `updates` is the number of updates of the model in a step. A group may be trained on `behind` steps after its own.
    """

    home: Home
    ahead: int = 0
    sync_every: int = 1
    updates: int = 1
    behind: int = 0

    def versions(self, step: int) -> VersionRange:
        """Return the versions of weights that may sample the rows of step `step`.

        This is `version(step)`; for a copy in flight, also all later ones, up to the version with which the last step
        begins that may train on these rows.
        """
        oldest = self.version(step)
        newest = self.updates * (step + self.behind) if self.home.in_flight else oldest
        return VersionRange(oldest=oldest, newest=newest)

    @property
    def bound(self) -> int:
        """Return the most updates by which weights that sample rows may be older than those trained on these rows."""
        return self.updates * (self.ahead + self.sync_every - 1 + self.behind)

    def version(self, step: int) -> int:
        """Return the version that the tasks of step `step` (from 0) read, in updates since the start.

        >>> [CopySchedule(Home("policy", "a", "local", Layout()), ahead=1).version(step) for step in range(4)]
        [0, 0, 1, 2]
        """
        return self.updates * self.sync_every * (max(0, step - self.ahead) // self.sync_every)


@dataclass(frozen=True)
class Pipeline:
    """Steps that overlap: the iterations before the first update, those that repeat, and the last ones.

    `ahead` has, for each task of the program, how many steps ahead of its own update it runs; `copies` has the schedule
    of each copy of trained weights. `prologue` and `epilogue` have one iteration for each step of the depth.
    """

    ahead: tuple[int, ...]
    copies: tuple[CopySchedule, ...]
    prologue: tuple[Iteration, ...]
    kernel: Iteration
    epilogue: tuple[Iteration, ...]

    @property
    def depth(self) -> int:
        """Return the largest number of steps by which a task is ahead of its step's update; 0 without tasks."""
        return max(self.ahead, default=0)

    def schedule(self, home: Home) -> CopySchedule | None:
        """Return the schedule of the weights' copy at `home`; None if `home` has no copy with a schedule."""
        return next((copy for copy in self.copies if copy.home == home), None)


@dataclass(frozen=True, eq=False)
class Program:
    """One step of a flow under a plan.

    `origins` pairs each model parameter with the home of its newest version. Parameters in `frozen` have only one
    version, which every home loads at the start. `pipeline` is None if each step ends before the next begins.
    """

    graph: Graph
    plan: Plan
    homes: tuple[Home, ...]
    origins: tuple[tuple[str, Home], ...]
    frozen: tuple[str, ...]
    tasks: tuple[Task, ...]
    pipeline: Pipeline | None = None

    @property
    def trained(self) -> tuple[Home, ...]:
        """Return the home of the newest weights of each model parameter that is not frozen, in order of `origins`."""
        return tuple(home for name, home in self.origins if name not in self.frozen)

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        """Return the nodes of the graph by name; nodes inside losses are left out."""
        return {node.name: node for node in self.graph.nodes}

    def without(self, place: int) -> Program:
        """Return the program without the task at index `place` and without its pipeline; the result may be invalid."""
        return replace(self, tasks=self.tasks[:place] + self.tasks[place + 1 :], pipeline=None)


def value_name(edge: Edge) -> str:
    """Return the name of the value on an edge: a parameter, a node, or `NODE.INDEX` for one of several results.

    The name of a part of a record is that of the whole record, since its parts travel as one value.
    """
    source = edge.source
    if isinstance(source, Node):
        return f"{source.name}.{edge.port.partition('.')[0]}" if len(source.returns) > 1 else source.name
    assert not hasattr(source, "value"), "a graph with real data in it has no program"
    return str(getattr(source, "name", ""))


def results_of(node: Node) -> tuple[str, ...]:
    """Return the names of a node's results: the node's own name, or `NODE.INDEX` for each of several results."""
    return tuple(name for name, _ in typed_results(node))


def typed_results(node: Node) -> tuple[tuple[str, type[Value]], ...]:
    """Return (name, type) of each result of a node; `results_of` returns the same names."""
    if len(node.returns) == 1:
        return ((node.name, node.returns[0]),)
    return tuple((f"{node.name}.{i}", kind) for i, kind in enumerate(node.returns))


def path_in_value(edge: Edge) -> str:
    """Return the dotted path of the part that an edge reads within its value; "" for the whole value."""
    several = isinstance(edge.source, Node) and len(edge.source.returns) > 1
    return edge.port.partition(".")[2] if several else edge.port


def edges_read(node: Node) -> Iterator[tuple[Edge, str]]:
    """Yield (edge, name of its reader) for each edge that a node or a node inside its loss reads.

    The state that the node updates comes first, because the node runs where that state is.
    """
    for _, edge in sorted(node.inputs, key=lambda read: read[0] != node.op.carries):
        yield edge, node.name
    for _, region in node.regions:
        for edge in region.captures:
            readers = (inner.name for inner in region.inner for _, read in inner.inputs if read == edge)
            yield edge, next(readers, node.name)


def values_read(node: Node) -> tuple[str, ...]:
    """Return the names of the values that a node reads, each once, without models."""
    return tuple(dict.fromkeys(value_name(edge) for edge, _ in edges_read(node) if not issubclass(edge.type, Model)))


def results_given(task: Run, nodes: Mapping[str, Node]) -> Iterator[tuple[str, type[Value]]]:
    """Yield (name, type) of each result that a run makes available to other tasks; those in `task.inner` are left out.

    `nodes` are the nodes of the graph by name.
    """
    for node in task.nodes:
        yield from ((name, kind) for name, kind in typed_results(nodes[node]) if name not in task.inner)


def task_reads(task: Task) -> Iterator[tuple[str, str | Home]]:
    """Yield (name, place) for each value and each version of weights that a task reads.

    The place of a value is a pool or "host", the place of weights a `Home`. A `Read` or a `Switch` yields nothing. A
    run that hands out a chunk also reads the chunk before it.
    """
    if isinstance(task, Transfer):
        yield _chunked(task.value, task.chunk), task.source
    elif isinstance(task, Sync):
        yield task.value, task.source
    elif isinstance(task, Join):
        yield from ((name, task.place) for name in (*task.parts, task.like))
    elif isinstance(task, Take):
        yield from ((task.value, task.place), (task.prompts, HOST))
    elif isinstance(task, Run):
        yield from ((task.stored(name), task.place) for name in task.reads)
        if task.chunk is not None and task.hands_out and task.chunk.index:
            before = replace(task.chunk, index=task.chunk.index - 1)
            yield from ((before.named(name), task.place) for name in task.nodes)
        yield from task.homes


def task_results(task: Task, nodes: Mapping[str, Node]) -> Iterator[tuple[str, str | Home]]:
    """Yield (name, place) for each value and each version of weights that a task produces.

    The place of a value is a pool or "host", the place of weights a `Home`. `nodes` are the nodes of the graph by name.
    Results that stay inside a run are left out, and a `Switch` yields nothing. A run of a chunk produces that chunk of
    its results; the last one that samples also produces all rows.
    """
    if isinstance(task, Run):
        for name, kind in results_given(task, nodes):
            yield (
                _chunked(name, task.chunk),
                task.home if task.home is not None and issubclass(kind, Model) else task.place,
            )
            if task.chunk is not None and task.hands_out and task.chunk.is_last:
                yield name, task.place
    elif isinstance(task, Read):
        yield task.value, HOST
    elif isinstance(task, Transfer):
        yield _chunked(task.value, task.chunk), task.target
    elif isinstance(task, Sync):
        yield task.value, task.target
    elif isinstance(task, Join):
        yield task.value, task.place
    elif isinstance(task, Take):
        yield from ((task.value, task.place), (task.prompts, HOST))
