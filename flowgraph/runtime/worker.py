"""What one device does: it hosts copies of weights by home and runs a program's nodes on the rows that it is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flowgraph.errors import LawError
from flowgraph.language.graph import Graph, Node, Param
from flowgraph.language.keys import Key
from flowgraph.language.region import Env, Observations, evaluate
from flowgraph.language.values import Model, Record, Value
from flowgraph.lowering.program import Home, Run, results_given, results_of, values_read
from flowgraph.lowering.project_columns import value_types
from flowgraph.runtime.row_identity import StoredValue, lined_up

if TYPE_CHECKING:
    from flowgraph.language.handle import Handle


@dataclass(frozen=True)
class NodeResults:
    """What a run of nodes gives: values, what was observed, and for each value what its node read, as it was lined up.

    Models stay, and results that do not leave the task.
    """

    values: Mapping[str, StoredValue]
    observed: Observations
    inputs: Mapping[str, Sequence[StoredValue]]


@dataclass(eq=False)
class DeviceWorker:
    """Runs nodes of one graph beside the models that it hosts."""

    graph: Graph
    handles: Mapping[Home, Handle]

    def run(self, task: Run, inputs: Mapping[str, StoredValue], versions: Mapping[str, int], key: Key) -> NodeResults:
        """Run a task's nodes on `inputs`, by name, and on models at the versions that the program says.

        A node's inputs of the same rows are lined up first, and of a record it gets the parts that it declares. Raises
        LawError when a model's home holds another version, when a node that carries a model does not give its next
        version, and when it gives a record of which it has only parts.
        """
        import torch

        models = {name: self._model(name, home, versions[name]) for name, home in task.homes}
        store, observed, by = dict(inputs), Observations(), dict[str, Sequence[StoredValue]]()
        for nodes in self._rounds(task):
            held = lined_up({name: store[name] for name in values_read(nodes[0])})
            env = self._env({name: each.value for name, each in held.items()} | models, nodes)
            with torch.no_grad():
                evaluate(nodes, env, key, observed)
            made = dict(self._results(nodes, env, list(held.values()), versions))
            store |= made
            by |= dict.fromkeys(made, tuple(held.values()))
        names = [name for name, _ in results_given(task, self._nodes) if name in by]
        return NodeResults({name: store[name] for name in names}, observed, by)

    def _rounds(self, task: Run) -> list[list[Node]]:
        """Give nodes that read one forward pass together; host nodes, which may read each other's results, alone."""
        nodes = [self._nodes[name] for name in task.nodes]
        return [nodes] if task.homes else [[node] for node in nodes]

    def _model(self, name: str, home: Home, version: int) -> Value:
        kind = self.types[name]
        model: Value = kind(kind(self.handles[home], version).handle, version)  # reading a handle checks its version
        return model

    def _env(self, given: Mapping[str, Value], nodes: Sequence[Node]) -> Env:
        """Lay values out as nodes read them: by source, several results as a tuple."""
        env: Env = {}
        for source in {edge.source: None for node in nodes for edge in node.edges()}:
            if isinstance(source, Node):
                results = tuple(given.get(name) for name in results_of(source))
                env[source] = results[0] if len(results) == 1 else results
            elif isinstance(source, Param):
                env[source] = given[source.name]
        return env

    def _results(
        self, nodes: Sequence[Node], env: Env, inputs: Sequence[StoredValue], versions: Mapping[str, int]
    ) -> Iterator[tuple[str, StoredValue]]:
        for node in nodes:
            result: Any = env[node]
            for name, value in zip(results_of(node), result if isinstance(result, tuple) else (result,), strict=True):
                if isinstance(value, Model):
                    _check_version(node, value, versions)
                elif isinstance(value, Record) and value.narrowed:
                    what = f"{node.name} gives a {type(value).__name__} of which it declares {', '.join(value.parts)}"
                    raise LawError(what, where=str(node.at), hint="leave out the Parts(…) of its port: it needs all")
                else:
                    yield name, StoredValue.of(value, inputs)

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.graph.nodes}

    @cached_property
    def types(self) -> Mapping[str, Any]:
        """Give the type of each value by its name."""
        return value_types(self.graph)

    def line_of(self, task: Run) -> str:
        """Give the line of the flow that a task begins with."""
        return str(self._nodes[task.nodes[0]].at)

    def type_of(self, name: str) -> type[Value]:
        """Give the type of the value of this name."""
        kind: type[Value] = self.types[name]
        return kind


def _check_version(node: Node, value: Model, versions: Mapping[str, int]) -> None:
    """Refuse weights that a node moved on by none or by several versions: other tasks were told of one.

    The first of `versions` is that of the model which it carries.
    """
    if value.version != next(iter(versions.values())) + 1:
        what = f"{node.op.name} must give the next version of the model that it carries"
        raise LawError(what, where=str(node.at), hint="return model.advanced(), once")
