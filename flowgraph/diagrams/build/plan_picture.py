"""Draw a program: pools as frames, in them each copy of weights with what runs on it, and what goes between places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count

from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import PlacedRole, Pool
from flowgraph.diagrams.build.device_boxes import device_boxes
from flowgraph.diagrams.build.flow_picture import CARRY_LABEL, edge_arrow, merged
from flowgraph.diagrams.build.node_about import node_about, param_about, result_about
from flowgraph.diagrams.model.arrow_sizes import RETURN, ArrowSizes
from flowgraph.diagrams.model.layout_text import layout_text
from flowgraph.diagrams.model.picture import Arrow, ArrowStyle, Box, Frame, Picture
from flowgraph.diagrams.model.quantities import listed, many
from flowgraph.language.graph import Edge, Node
from flowgraph.language.signature import type_name
from flowgraph.language.values import Model
from flowgraph.lowering.program import HOST, Home, Program, Run, Sync, Transfer, results_of, typed_results, value_name

DEVICES_IN_FULL = 4  # a pool of more says how many it has of each node
NODES_IN_FULL = 3  # and a pool on more nodes than these says on how many

Weights = tuple[str, Home]  # a version of a model, by the name of its value, and a home that has it
Brought = tuple[str, str]  # a value, by its name, and a place that it is transferred to


@dataclass(frozen=True)
class _ProgramPicture:
    """A program with what is drawn of it: weights, values in other places, nodes with their run, results, and ids."""

    program: Program
    sizes: ArrowSizes
    homes: tuple[Home, ...]
    weights: tuple[Weights, ...]
    brought: Mapping[Brought, Transfer]
    nodes: tuple[tuple[Node, Run], ...]
    results: tuple[Edge, ...]
    ids: dict[object, str]
    frames: dict[object, str]

    @cached_property
    def makers(self) -> Mapping[str, str]:
        """Give the id of the node that makes each value, by the value's name."""
        return {result: self.ids[node] for node, _ in self.nodes for result in results_of(node)}

    @cached_property
    def types(self) -> Mapping[str, str]:
        """Name the type of each value, by its name."""
        told = {param.name: type_name(param.type) for param in self.program.graph.params}
        return told | {name: type_name(kind) for node, _ in self.nodes for name, kind in typed_results(node)}


def plan_picture(program: Program, sizes: ArrowSizes | None = None, *, unfold: bool = False) -> Picture:
    """Give the picture of a program, in its order.

    A version of weights is a box in each home that has it. A loss is drawn as a line of the node that has it, for it
    runs there; what it reads goes to that node. A value that is transferred is a box in each place that it goes to, for
    it goes there once, however many read it; `sizes` says how many bytes that is. A pool on many machines has one box
    for those that are alike, unless they are to be unfolded.
    """
    drawn = _drawn(program, sizes or ArrowSizes())
    arrows = merged([*_syncs(drawn), *_transfers(drawn), *_reads(drawn), *_results(drawn), *_carries(drawn)])
    boxes = (*_boxes(drawn), *_devices(drawn, unfold))
    return Picture(program.graph.name, boxes, tuple(_frames(drawn)), arrows, " ".join(_about(drawn)))


def _drawn(program: Program, sizes: ArrowSizes) -> _ProgramPicture:
    graph = program.graph
    homes = tuple(dict.fromkeys([*program.homes, *(home for _, home in program.origins)]))
    synced = [(task.value, task.target) for task in program.tasks if isinstance(task, Sync)]
    loaded = [(home.param, home) for home in homes if home.param in program.frozen]
    weights = tuple(dict.fromkeys([*program.origins, *loaded, *synced]))
    named = {node.name: node for node in graph.nodes}
    nodes = tuple((named[name], run) for run in program.tasks if isinstance(run, Run) for name in run.nodes)
    carried = graph.carries().values()
    results = tuple(
        edge for i, edge in enumerate(graph.outputs) if i not in carried and not issubclass(edge.type, Model)
    )
    data = [param.name for param in graph.params if not issubclass(param.type, Model)]
    brought = {(task.value, task.target): task for task in program.tasks if isinstance(task, Transfer)}
    boxes: list[object] = [*weights, *data, *(node for node, _ in nodes), *(("result", edge) for edge in results)]
    boxes += brought
    frames: list[object] = [HOST, *program.plan.pools, *homes]
    return _ProgramPicture(
        program,
        sizes,
        homes,
        weights,
        brought,
        nodes,
        tuple(dict.fromkeys(results)),
        {each: f"n{i}" for i, each in enumerate(dict.fromkeys(boxes))},
        {each: f"f{i}" for i, each in enumerate(frames)},
    )


def _frames(drawn: _ProgramPicture) -> Iterator[Frame]:
    """Give each pool that is used with the homes on it, and the host."""
    for pool in drawn.program.plan.pools:
        here = [home for home in drawn.homes if home.pool == pool.name]
        if here:
            yield Frame(drawn.frames[pool], f"{pool.name}: {devices_text(pool)}", kind="pool", pool=pool.name)
        for home in here:
            yield Frame(drawn.frames[home], _home_label(home), drawn.frames[pool], "home", pool.name)
    yield Frame(drawn.frames[HOST], HOST, kind="anywhere")


def _home_label(home: Home) -> str:
    return f"{home.param} · {home.engine} · {layout_text(home.layout)}"


def devices_text(pool: Pool) -> str:
    """List a pool's devices; of many, how many it has of each node.

    >>> devices_text(Pool(name="all", devices=(("laptop", 0), ("laptop", 1))))
    'laptop/0, laptop/1'
    >>> devices_text(Pool(name="all", devices=tuple((f"node-{i // 8}", i % 8) for i in range(16))))
    '8 of node-0, 8 of node-1'
    """
    if len(pool.devices) <= DEVICES_IN_FULL:
        return ", ".join(f"{node}/{index}" for node, index in pool.devices)
    counts = Counter(node for node, _ in pool.devices)
    if len(counts) <= NODES_IN_FULL:
        return ", ".join(f"{own} of {node}" for node, own in counts.items())
    return f"{len(pool.devices)} on {len(counts)} nodes"


def _boxes(drawn: _ProgramPicture) -> Iterator[Box]:
    ids, frames, first = drawn.ids, drawn.frames, set[Home]()
    for name, home in drawn.weights:
        roles = [] if home in first else [*_roles(drawn, home), *filter(None, [str(home.running)])]
        first.add(home)
        yield Box(ids[name, home], (name, *roles), "model", frames[home], " ".join(_weights_about(drawn, name, home)))
    for param in drawn.program.graph.params:
        if not issubclass(param.type, Model):
            yield Box(ids[param.name], (param.name,), "data", frames[HOST], param_about(param))
    for node, run in drawn.nodes:
        yield Box(ids[node], tuple(_node_label(node)), node.op.kind, frames[run.home or HOST], node_about(node))
    for edge in drawn.results:
        yield Box(ids["result", edge], (type_name(edge.type), "result"), "result", frames[HOST], result_about(edge))
    for (value, place), task in drawn.brought.items():
        parts = f": {', '.join(task.parts)}" if task.parts else ""
        about = f"{value}, transferred from {task.source} to {place}{parts}."
        label = dict.fromkeys((drawn.types[value], value))
        yield Box(ids[value, place], tuple(label), "data", _frame_of(drawn, place), about)


def _frame_of(drawn: _ProgramPicture, place: str) -> str:
    """Give the frame of a place: a pool's, or the host's."""
    pool = drawn.program.plan.pool(place)
    return drawn.frames[HOST if pool is None else pool]


def _devices(drawn: _ProgramPicture, unfold: bool) -> Iterator[Box]:
    used, ids = {home.pool for home in drawn.homes}, (f"n{place}" for place in count(len(drawn.ids)))
    for pool in drawn.program.plan.pools:
        if pool.name in used:
            yield from device_boxes(pool, drawn.program.plan.cluster, drawn.frames[pool], ids, unfold=unfold)


def _weights_about(drawn: _ProgramPicture, name: str, home: Home) -> Iterator[str]:
    """Say where a version of weights is, how it came there, which roles read it, and what they hold."""
    yield f"Weights {name} on {home.pool}, engine {home.engine}, {layout_text(home.layout)}."
    if str(home.running):
        yield f"Running: {home.running}."
    synced = any(isinstance(task, Sync) and (task.value, task.target) == (name, home) for task in drawn.program.tasks)
    yield "A copy, by sync." if synced else "Loaded, never changed." if name in drawn.program.frozen else "The newest."
    for placed in _served(drawn, home):
        parts = ", ".join(f"{part} {show_bytes(size)}" for part, size in placed.memory.items())
        yield f"{placed.role} holds {parts}." if parts else f"{placed.role} reads it."


def _roles(drawn: _ProgramPicture, home: Home) -> list[str]:
    """Say which roles a home serves, with what each holds on a device if the plan has it."""
    held = [(placed.role, sum(placed.memory.values())) for placed in _served(drawn, home)]
    return [f"{role} {show_bytes(size)}" if size else role for role, size in held]


def _served(drawn: _ProgramPicture, home: Home) -> Iterator[PlacedRole]:
    """Give the roles that a home serves, as they are placed."""
    origins = dict(drawn.program.origins)
    for placed in drawn.program.plan.placed:
        param = origins[placed.role.rpartition(".")[0]].param
        if Home(param, placed.pool, placed.engine, placed.layout, placed.running) == home:
            yield placed


def _node_label(node: Node) -> Iterator[str]:
    yield node.name
    if node.op.kind != "host" and node.op.kind not in node.name:
        yield node.op.kind
    for _, region in node.regions:
        yield f"{region.name}({', '.join(param.name for param in region.params)})"


def _syncs(drawn: _ProgramPicture) -> Iterator[Arrow]:
    for task in drawn.program.tasks:
        if isinstance(task, Sync):
            source, target = _held(drawn, task.value, task.source), drawn.ids[task.value, task.target]
            held = drawn.sizes.weights.get(task.target.param)
            size = "" if held is None else f" {show_bytes(held)}"
            late = f", lag {task.lag}" if task.lag else ""
            yield Arrow(source, target, f"sync {task.value}{size}{late}", ArrowStyle.SYNC)


def _transfers(drawn: _ProgramPicture) -> Iterator[Arrow]:
    """Draw each value on its way to a place, with the bytes of all that is read of it there."""
    readers = _readers(drawn)
    for (value, place), task in drawn.brought.items():
        size = drawn.sizes.brought(value, readers.get((value, place), ()))
        yield Arrow(
            _there(drawn, value, task.source),
            drawn.ids[value, place],
            f"{drawn.types[value]}{size}",
            ArrowStyle.TRANSFER,
        )


def _readers(drawn: _ProgramPicture) -> dict[Brought, list[str]]:
    """Name the nodes that read a value in a place."""
    found = dict[Brought, list[str]]()
    for node, run in drawn.nodes:
        for edge in node.edges():
            if not issubclass(edge.type, Model):
                found.setdefault((value_name(edge), run.place), []).append(node.name)
    for edge in drawn.results:
        found.setdefault((value_name(edge), HOST), []).append(RETURN)
    return found


def _reads(drawn: _ProgramPicture) -> Iterator[Arrow]:
    for node, run in drawn.nodes:
        homes = dict(run.homes)
        for edge in node.edges():
            name = value_name(edge)
            weights = issubclass(edge.type, Model)
            source = _held(drawn, name, homes[name]) if weights else _there(drawn, name, run.place)
            yield edge_arrow(source, drawn.ids[node], edge)


def _there(drawn: _ProgramPicture, value: str, place: str) -> str:
    """Give the id of what has a value in a place: its box if it was transferred, or the node that made it."""
    return drawn.ids[value, place] if (value, place) in drawn.brought else _maker(drawn, value)


def _held(drawn: _ProgramPicture, name: str, home: Home) -> str:
    """Give the id of what holds a version of weights in a home: its own box, or the node that made it there."""
    return drawn.ids[name, home] if (name, home) in drawn.ids else _maker(drawn, name)


def _maker(drawn: _ProgramPicture, name: str) -> str:
    """Give the id of the node that makes a value, or of the parameter that it is."""
    return drawn.makers.get(name) or drawn.ids[name]


def _results(drawn: _ProgramPicture) -> Iterator[Arrow]:
    for edge in drawn.results:
        yield edge_arrow(_there(drawn, value_name(edge), HOST), drawn.ids["result", edge], edge)


def _carries(drawn: _ProgramPicture) -> Iterator[Arrow]:
    graph, origins = drawn.program.graph, dict(drawn.program.origins)
    for name, place in graph.carries().items():
        edge = graph.outputs[place]
        if isinstance(edge.source, Node):
            target = drawn.ids[name, origins[name]] if name in origins else drawn.ids[name]
            yield Arrow(drawn.ids[edge.source], target, CARRY_LABEL, ArrowStyle.CARRY)


def _about(drawn: _ProgramPicture) -> Iterator[str]:
    """Say what lives on each pool, and how much goes from place to place."""
    plan, tasks = drawn.program.plan, drawn.program.tasks
    for pool in plan.pools:
        roles = [placed.role for placed in plan.placed if placed.pool == pool.name]
        if roles:
            yield f"{pool.name} has {many(len(pool.devices), 'device')} for {listed(roles)}."
    hosted = [node.name for node, run in drawn.nodes if run.home is None]
    if hosted:
        yield f"The host runs {listed(hosted)}."
    moved, synced = (sum(isinstance(task, kind) for task in tasks) for kind in (Transfer, Sync))
    yield f"In a step {many(moved, 'value is', 'values are')} transferred and weights synced {many(synced, 'time')}."
