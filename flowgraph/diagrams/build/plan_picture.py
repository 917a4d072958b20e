"""Draw a program: pools as frames, in them each copy of weights with its nodes, and transfers and syncs as arrows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count

from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import PlacedRole
from flowgraph.diagrams.build.flow_picture import (
    CARRY_LABEL,
    edge_arrow,
    loss_text,
    merge_arrows,
    node_about,
    param_about,
    result_about,
)
from flowgraph.diagrams.build.roles_picture import device_boxes, devices_text
from flowgraph.diagrams.model.arrow_sizes import RETURN, ArrowSizes
from flowgraph.diagrams.model.picture import Arrow, ArrowStyle, Box, Frame, Picture
from flowgraph.diagrams.model.quantities import layout_text, listed, many
from flowgraph.language.graph import Node
from flowgraph.language.signature import type_name
from flowgraph.language.values import Model
from flowgraph.lowering.program import HOST, Home, Program, Run, Sync, Transfer, results_of, typed_results, value_name
from flowgraph.lowering.stream_groups import in_one_batch

Weights = tuple[str, Home]  # a version of a model, by the name of its value, and its home
Moved = tuple[str, str]  # a value, by its name, and the place that it is transferred to


def plan_picture(program: Program, sizes: ArrowSizes | None = None, *, unfold: bool = False) -> Picture:
    """Return the picture of a program: pools, the copies of weights in them, their nodes, transfers and weight syncs.

    A version of weights is a box in each copy of the model (a frame in a pool) that has it. A loss is a line in the box
    of the node that runs it, and arrows of the loss's inputs end at that box. A transferred value is one box in each
    place that it goes to, however many nodes read it there. `sizes` has the bytes of transfers and syncs; without it
    they are not shown. In a pool on more than 4 machines, machines with equal devices share a box, unless `unfold` is
    set.
    """
    drawing = _PlanDrawing(in_one_batch(program), sizes or ArrowSizes())
    arrows = merge_arrows([*drawing.syncs(), *drawing.transfers(), *drawing.reads(), *drawing.carries()])
    boxes = (*drawing.boxes(), *drawing.devices(unfold))
    return Picture(program.graph.name, boxes, tuple(drawing.frames()), arrows, " ".join(drawing.about()))


class _PlanDrawing:
    def __init__(self, program: Program, sizes: ArrowSizes) -> None:
        graph, tasks = program.graph, program.tasks
        self.program, self.sizes, self.origins = program, sizes, dict(program.origins)
        self.homes = list(dict.fromkeys([*program.homes, *self.origins.values()]))
        loaded = [(home.param, home) for home in self.homes if home.param in program.frozen]
        synced = [(task.value, task.target) for task in tasks if isinstance(task, Sync)]
        self.weights: list[Weights] = list(dict.fromkeys([*program.origins, *loaded, *synced]))
        self.moved: dict[Moved, Transfer] = {
            (task.value, task.target): task for task in tasks if isinstance(task, Transfer)
        }
        named = {node.name: node for node in graph.nodes}
        self.nodes = [(named[name], run) for run in tasks if isinstance(run, Run) for name in run.nodes]
        carried = graph.carries().values()
        results = (edge for place, edge in enumerate(graph.outputs) if place not in carried)
        self.results = list(dict.fromkeys(edge for edge in results if not issubclass(edge.type, Model)))
        self.data = [param for param in graph.params if not issubclass(param.type, Model)]
        things: list[object] = [*self.weights, *(param.name for param in self.data), *(node for node, _ in self.nodes)]
        things += [*(("result", edge) for edge in self.results), *self.moved]
        self.ids = {thing: f"n{place}" for place, thing in enumerate(dict.fromkeys(things))}
        framed: list[object] = [HOST, *program.plan.pools, *self.homes]
        self.frame_ids = {thing: f"f{place}" for place, thing in enumerate(framed)}
        # The id of the parameter that each value is, or of the node that makes it; and the name of the value's type.
        self.makers = {param.name: self.ids[param.name] for param in self.data}
        self.types = {param.name: type_name(param.type) for param in graph.params}
        for node, _ in self.nodes:
            self.makers |= dict.fromkeys(results_of(node), self.ids[node])
            self.types |= {name: type_name(kind) for name, kind in typed_results(node)}

    def frames(self) -> Iterator[Frame]:
        """Yield the frame of each pool that has homes, followed by those of the homes; the host's frame is last."""
        for pool in self.program.plan.pools:
            homes = [home for home in self.homes if home.pool == pool.name]
            if homes:
                yield Frame(self.frame_ids[pool], f"{pool.name}: {devices_text(pool)}", kind="pool", pool=pool.name)
            for home in homes:
                label = f"{home.param} · {home.engine} · {layout_text(home.layout)}"
                yield Frame(self.frame_ids[home], label, self.frame_ids[pool], "home", pool.name)
        yield Frame(self.frame_ids[HOST], HOST, kind="anywhere")

    def boxes(self) -> Iterator[Box]:
        ids, frames, first = self.ids, self.frame_ids, {home: name for name, home in reversed(self.weights)}
        for name, home in self.weights:
            sizes = [(placed.role, sum(placed.memory.values())) for placed in self.placed_roles(home)]
            roles = [f"{role} {show_bytes(size_bytes)}" if size_bytes else role for role, size_bytes in sizes]
            details = [*roles, *filter(None, [str(home.running)])] if first[home] == name else []
            about = " ".join(self.weights_about(name, home))
            yield Box(ids[name, home], (name, *details), "model", frames[home], about)
        for param in self.data:
            yield Box(ids[param.name], (param.name,), "data", frames[HOST], param_about(param))
        for node, run in self.nodes:
            kind = [] if node.op.kind == "host" or node.op.kind in node.name else [node.op.kind]
            losses = (loss_text(region) for _, region in node.regions)
            frame = frames[run.home or HOST]
            yield Box(ids[node], (node.name, *kind, *losses), node.op.kind, frame, node_about(node))
        for edge in self.results:
            label = (type_name(edge.type), "result")
            yield Box(ids["result", edge], label, "result", frames[HOST], result_about(edge))
        for (value, place), task in self.moved.items():
            parts = f": {', '.join(task.parts)}" if task.parts else ""
            about = f"{value}, transferred from {task.source} to {place}{parts}."
            names = dict.fromkeys((self.types[value], value))
            pool = self.program.plan.pool(place)
            yield Box(ids[value, place], tuple(names), "data", frames[HOST if pool is None else pool], about)

    def devices(self, unfold: bool) -> Iterator[Box]:
        pools, ids = {home.pool for home in self.homes}, (f"n{place}" for place in count(len(self.ids)))
        for pool in self.program.plan.pools:
            if pool.name in pools:
                yield from device_boxes(pool, self.program.plan.cluster, self.frame_ids[pool], ids, unfold=unfold)

    def placed_roles(self, home: Home) -> list[PlacedRole]:
        return [
            placed
            for placed in self.program.plan.placed
            if (placed.pool, placed.engine, placed.layout, placed.running)
            == (home.pool, home.engine, home.layout, home.running)
            and self.origins[placed.role.rpartition(".")[0]].param == home.param
        ]

    def weights_about(self, name: str, home: Home) -> Iterator[str]:
        """Yield sentences on a version of weights: its home, how it got there, the roles that read it, their memory."""
        yield f"Weights {name} on {home.pool}, engine {home.engine}, {layout_text(home.layout)}."
        if str(home.running):
            yield f"Running: {home.running}."
        tasks = self.program.tasks
        synced = any(isinstance(task, Sync) and (task.value, task.target) == (name, home) for task in tasks)
        frozen = name in self.program.frozen
        yield "A copy, by sync." if synced else "Loaded, never changed." if frozen else "The newest."
        for placed in self.placed_roles(home):
            parts = ", ".join(f"{part} {show_bytes(size)}" for part, size in placed.memory.items())
            yield f"{placed.role} holds {parts}." if parts else f"{placed.role} reads it."

    def syncs(self) -> Iterator[Arrow]:
        for task in self.program.tasks:
            if isinstance(task, Sync):
                weights_bytes = self.sizes.weights.get(task.target.param)
                size = "" if weights_bytes is None else f" {show_bytes(weights_bytes)}"
                lag = f", lag {task.lag}" if task.lag else ""
                source, target = self.source_id(task.value, task.source), self.ids[task.value, task.target]
                yield Arrow(source, target, f"sync {task.value}{size}{lag}", ArrowStyle.SYNC)

    def transfers(self) -> Iterator[Arrow]:
        """Yield an arrow for each transferred value, labelled with its type and the bytes that are sent."""
        readers = defaultdict[Moved, list[str]](list)
        for node, run in self.nodes:
            for edge in node.edges():
                readers[value_name(edge), run.place].append(node.name)
        for edge in self.results:
            readers[value_name(edge), HOST].append(RETURN)
        for (value, place), task in self.moved.items():
            label = f"{self.types[value]}{self.sizes.brought(value, readers[value, place])}"
            yield Arrow(self.source_id(value, task.source), self.ids[value, place], label, ArrowStyle.TRANSFER)

    def reads(self) -> Iterator[Arrow]:
        for node, run in self.nodes:
            homes = dict(run.homes)
            for edge in node.edges():
                name = value_name(edge)
                place = homes[name] if issubclass(edge.type, Model) else run.place
                yield edge_arrow(self.source_id(name, place), self.ids[node], edge)
        for edge in self.results:
            yield edge_arrow(self.source_id(value_name(edge), HOST), self.ids["result", edge], edge)

    def carries(self) -> Iterator[Arrow]:
        for name, place in self.program.graph.carries().items():
            source = self.program.graph.outputs[place].source
            if isinstance(source, Node):
                target = self.ids[name, self.origins[name]] if name in self.origins else self.ids[name]
                yield Arrow(self.ids[source], target, CARRY_LABEL, ArrowStyle.CARRY)

    def source_id(self, value: str, place: str | Home) -> str:
        """Return the id of a value's box at a place: its copy there, or else the node or parameter that makes it."""
        return self.ids.get((value, place)) or self.makers[value]

    def about(self) -> Iterator[str]:
        """Yield sentences: the roles of each pool, the host's nodes, and the numbers of transfers and syncs."""
        plan, tasks = self.program.plan, self.program.tasks
        for pool in plan.pools:
            roles = [placed.role for placed in plan.placed if placed.pool == pool.name]
            if roles:
                yield f"{pool.name} has {many(len(pool.devices), 'device')} for {listed(roles)}."
        hosted = [node.name for node, run in self.nodes if run.home is None]
        if hosted:
            yield f"The host runs {listed(hosted)}."
        moves, syncs = (sum(isinstance(task, kind) for task in tasks) for kind in (Transfer, Sync))
        yield f"In a step {many(moves, 'value is', 'values are')} transferred and weights synced {many(syncs, 'time')}."
