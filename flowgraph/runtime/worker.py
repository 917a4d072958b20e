"""The work of one device: it hosts copies of weights by home, and runs a program's nodes on the rows that it gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from flowgraph.errors import LawError
from flowgraph.language.graph import Graph, Node, Param
from flowgraph.language.hand_out import HandingOut, HandOut
from flowgraph.language.keys import Key
from flowgraph.language.region import Env, Observations, evaluate, measures_of
from flowgraph.language.values import Model, Record, Value, VersionRange
from flowgraph.lowering.program import Home, Run, results_given, results_of, values_read
from flowgraph.lowering.project_columns import value_types
from flowgraph.runtime.row_identity import StoredValue, align_rows
from flowgraph.runtime.token_versions import check_token_versions

if TYPE_CHECKING:
    from flowgraph.language.handle import Handle


@dataclass(frozen=True)
class NodeResults:
    """The results of some nodes, the observations, and for each result the aligned inputs of its node.

    Models are not included, and neither are results that stay inside the task.
    """

    values: Mapping[str, StoredValue]
    observed: Observations
    inputs: Mapping[str, Sequence[StoredValue]]


@dataclass(eq=False)
class DeviceWorker:
    """Runs nodes of one graph, in the process that hosts the models in `handles`."""

    graph: Graph
    handles: Mapping[Home, Handle]

    def run(
        self,
        task: Run,
        inputs: Mapping[str, StoredValue],
        versions: Mapping[str, int | VersionRange],
        key: Key,
        give: Callable[[int, NodeResults], None] | None = None,
    ) -> NodeResults:
        """Run the nodes of a task with the models of this process, and return their results and observations.

        `inputs` are values by name; `versions` are the versions of the models that the task reads, by name, each a
        range if newer weights may come while the task runs. Inputs of a node that contain the same rows are put in the
        same order first, and a record is reduced to the parts that the node declares. Raises LawError if a model has
        other weights than the version says, if a token was drawn by a version outside the range, if a node does not
        return the next version of the model that it updates, and if a node returns a reduced record; also any error of
        a node.

        If the task hands out chunks (passes groups on while others are still sampled), `give` is called with the index
        and the rows of each chunk when it has finished, but not for a chunk without groups. If the task is `by_group`,
        `give` is called with each group and its metrics instead, which the result's observations then lack. The result
        has all rows.
        """
        import torch

        models = dict[str, Value]()
        for name, home in task.homes:
            kind, version = self.types[name], versions[name]
            # `.handle` refuses a copy of another version.
            models[name] = kind(kind(self.handles[home], version).handle, version)
        flying = next((version for version in versions.values() if isinstance(version, VersionRange)), None)
        if give is not None:
            models |= self._handing_out(models, task, inputs, give, flying, key.step)
        observed = Observations(terms={} if task.streamed else None)
        store, read = dict(inputs), dict[str, Sequence[StoredValue]]()
        nodes = [self._nodes[name] for name in task.nodes]
        # Nodes on a model read one forward pass together. Host nodes may read each other's results, so they run alone.
        for together in [nodes] if task.homes else [[node] for node in nodes]:
            aligned = align_rows({name: store[name] for name in values_read(together[0])})
            env = _environment({name: stored.value for name, stored in aligned.items()} | models, together)
            with torch.no_grad():
                evaluate(together, env, key, observed)
            for node in together:
                for name, value in _checked_results(node, env[node], versions):
                    if flying is not None:
                        observed.add(node.name, check_token_versions(node.name, value, flying, key.step))
                    store[name] = StoredValue.of(value, list(aligned.values()))
                    read[name] = tuple(aligned.values())
        names = [name for name, _ in results_given(task, self._nodes) if name in read]
        if task.by_group:
            observed.sums.clear()  # each group has its own
        if observed.terms:  # they travel with the rows of one result
            store[names[0]] = replace(store[names[0]], terms=observed.terms)
            observed.terms = None
        return NodeResults({name: store[name] for name in names}, observed, read)

    def _handing_out(
        self,
        models: Mapping[str, Value],
        task: Run,
        inputs: Mapping[str, StoredValue],
        give: Callable[[int, NodeResults], None],
        allowed: VersionRange | None,
        step: int,
    ) -> dict[str, Value]:
        """Return the models of a task that samples, with handles that hand out chunks of its only node's rows."""
        (name,), read = task.nodes, tuple(align_rows(inputs).values())
        chunks = task.chunk.of if task.chunk is not None else None

        def rows(index: int, value: Value) -> None:
            stored, observed = StoredValue.of(value, read), Observations()
            if task.by_group and allowed is not None:
                observed.add(name, measures_of(self._nodes[name], value, {}))
                observed.add(name, check_token_versions(name, value, allowed, step))
            give(index, NodeResults({name: stored}, observed, {name: read}))

        def handing_out(model: Model) -> Model:
            handle = cast("Handle", HandingOut(model.handle, HandOut(chunks, rows)))
            return type(model)(handle, VersionRange(oldest=model.version, newest=model.newest))

        return {param: handing_out(model) for param, model in models.items() if isinstance(model, Model)}

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.graph.nodes}

    @cached_property
    def types(self) -> Mapping[str, Any]:
        """Return the type of each value of the graph by name: the parameters and the results of nodes."""
        return value_types(self.graph)

    def line_of(self, task: Run) -> str:
        """Return the file and line of the flow that called the first node of a task, as text such as `grpo.py:8`."""
        return str(self._nodes[task.nodes[0]].at)


def _environment(values: Mapping[str, Value], nodes: Sequence[Node]) -> Env:
    env: Env = {}
    for source in {edge.source: None for node in nodes for edge in node.edges()}:
        if isinstance(source, Node):
            results = tuple(values.get(name) for name in results_of(source))
            env[source] = results[0] if len(results) == 1 else results
        elif isinstance(source, Param):
            env[source] = values[source.name]
    return env


def _checked_results(node: Node, result: Any, versions: Mapping[str, int | VersionRange]) -> list[tuple[str, Value]]:
    values = dict[str, Value](zip(results_of(node), result if isinstance(result, tuple) else (result,), strict=True))
    for value in values.values():
        carried = next(iter(versions.values())) if isinstance(value, Model) else 0
        if isinstance(value, Model) and value.version != (carried + 1 if isinstance(carried, int) else None):
            what = f"{node.op.name} must return the next version of the model that it carries"
            raise LawError(what, where=str(node.at), hint="return model.advanced(), once")
        if isinstance(value, Record) and value.narrowed:
            what = f"{node.name} returns a {type(value).__name__} but declares only its parts {', '.join(value.parts)}"
            raise LawError(what, where=str(node.at), hint="declare the port without Parts(…), to get the whole record")
    return [(name, value) for name, value in values.items() if not isinstance(value, Model)]
