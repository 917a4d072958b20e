"""What one device does: it hosts copies of weights by home and runs a program's nodes on the rows that it is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flowgraph.errors import LawError
from flowgraph.evaluate import Env, Observed, evaluate
from flowgraph.graph import Graph, Node
from flowgraph.keys import Key
from flowgraph.lowering.program import Home, Run, results_of, typed_results
from flowgraph.runtime.identity import Held, lined_up
from flowgraph.values import Model, Value

if TYPE_CHECKING:
    from flowgraph.executors.base import Handle


@dataclass(frozen=True)
class Done:
    """What a run of nodes gives: values, what was observed, and its inputs as they were lined up; models stay."""

    values: Mapping[str, Held]
    observed: Observed
    inputs: Mapping[str, Held]


@dataclass(eq=False)
class Worker:
    """Runs nodes of one graph beside the models that it hosts."""

    graph: Graph
    handles: Mapping[Home, Handle]

    def run(self, task: Run, inputs: Mapping[str, Held], versions: Mapping[str, int], key: Key) -> Done:
        """Run a task's nodes on `inputs`, by name, and on models at the versions that the program says.

        Inputs of the same rows are lined up first. Raises LawError when a model's home holds another version, and when
        a node that carries a model does not give its next version.
        """
        import torch

        held, observed = lined_up(inputs), Observed()
        given: dict[str, Value] = {name: each.value for name, each in held.items()}
        for name, home in task.homes:
            given[name] = self._model(name, home, versions[name])
        env = self._env(given)
        nodes = [self._nodes[name] for name in task.nodes]
        with torch.no_grad():
            evaluate(nodes, env, key, observed)
        return Done(dict(self._results(nodes, env, list(held.values()), versions)), observed, held)

    def _model(self, name: str, home: Home, version: int) -> Value:
        kind = self._types[name]
        model: Value = kind(kind(self.handles[home], version).handle, version)  # reading a handle checks its version
        return model

    def _env(self, given: Mapping[str, Value]) -> Env:
        """Lay values out as nodes read them: by source, several results of a node as a tuple."""
        env: Env = {}
        for param in self.graph.params:
            if param.name in given:
                env[param] = given[param.name]
        for node in self.graph.nodes:
            names = results_of(node)
            if any(name in given for name in names):
                results = tuple(given.get(name) for name in names)
                env[node] = results[0] if len(results) == 1 else results
        return env

    def _results(
        self, nodes: Sequence[Node], env: Env, inputs: Sequence[Held], versions: Mapping[str, int]
    ) -> Iterator[tuple[str, Held]]:
        for node in nodes:
            result: Any = env[node]
            for name, value in zip(results_of(node), result if isinstance(result, tuple) else (result,), strict=True):
                if isinstance(value, Model):
                    _check_version(node, value, versions)
                else:
                    yield name, Held.of(value, inputs)

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.graph.nodes}

    @cached_property
    def _types(self) -> dict[str, Any]:
        """Give the type of each value by its name."""
        params: dict[str, Any] = {param.name: param.type for param in self.graph.params}
        nodes = (typed_results(node) for node in self.graph.nodes)
        return params | {name: kind for each in nodes for name, kind in each}

    def type_of(self, name: str) -> type[Value]:
        """Give the type of the value of this name."""
        kind: type[Value] = self._types[name]
        return kind


def _check_version(node: Node, value: Model, versions: Mapping[str, int]) -> None:
    """Refuse weights that a node moved on by none or by several versions: other tasks were told of one.

    The first of `versions` is that of the model which it carries.
    """
    if value.version != next(iter(versions.values())) + 1:
        what = f"{node.op.name} must give the next version of the model that it carries"
        raise LawError(what, where=str(node.at), hint="return model.advanced(), once")
