"""What a flow and its inputs must be for a run to train something: refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from flowgraph.analysis.facts import readers_of_others
from flowgraph.app.flow_inputs import FlowInputs, cache_folder, model_params
from flowgraph.app.problem import PreparedProblem
from flowgraph.app.request import Say
from flowgraph.errors import FlowTypeError
from flowgraph.language.graph import Graph, Param
from flowgraph.language.values import Model, State, Trainable
from flowgraph.models.vocabulary import refuse_other_tokens
from nodes.scoring.rules import reference_of, refuse_missing, refuse_missing_truths, resolve
from nodes.values import Prompts

RULED = ("score", "refill")  # nodes that score by a rule


def refuse_what_cannot_run(prepared: PreparedProblem) -> None:
    """Refuse a flow that returns no model or takes what a data set cannot give, and rows that it cannot score."""
    inputs = prepared.inputs
    if inputs is None:
        _refuse_untrainable(prepared.setting.graph)
        return
    prepared.setting.batch_sizes(**inputs.row_origins())
    _refuse_untrainable(inputs.graph)
    for node in inputs.graph.nodes:
        by = getattr(node.settings, "by", "data") if node.op.name in RULED else None
        if isinstance(by, str):
            refuse_missing_truths(by, inputs.data.train, inputs.data.name)


def _refuse_untrainable(graph: Graph) -> None:
    """Refuse a flow that returns no model or takes what a data set cannot give, whatever it runs on."""
    where = str(graph.at)
    for node in graph.nodes:
        by = getattr(node.settings, "by", "data") if node.op.name in RULED else "data"
        if by != "data":
            refuse_missing(resolve(by if isinstance(by, str) else reference_of(by)))
    if not graph.carries():
        raise FlowTypeError.bad_flow(
            where, graph.name, "returns no model, so a run would train nothing", "return update(…)"
        )
    if not any(node.root is not None for node in graph.nodes):
        why = "updates no model, so a run would train nothing"
        raise FlowTypeError.bad_flow(where, graph.name, why, "return update(…)")
    for param in graph.params:
        _refuse_param(graph, param, where)


def _refuse_param(graph: Graph, param: Param, where: str) -> None:
    """Refuse a parameter that nothing reads or updates, whose next version is lost, or that a run cannot give."""
    read = {edge.source for node in graph.nodes for edge in node.edges()}
    kind = param.type.__name__
    if param.name in graph.carries() and issubclass(param.type, Model) and param not in read:
        why = f"`{param.name}` is returned, but nothing reads it"
        raise FlowTypeError.bad_flow(where, graph.name, why, "leave it out")
    if issubclass(param.type, Trainable) and param in {edge.source for edge in graph.outputs}:
        why = f"`{param.name}` is trainable, but is returned without an update"
        raise FlowTypeError.bad_flow(where, graph.name, why, f"return update({param.name}, …), or take a Reference")
    if issubclass(param.type, Trainable) and param.name not in graph.carries():
        why = f"`{param.name}` can be trained, but its next version is not returned: its update would be lost"
        raise FlowTypeError.bad_flow(where, graph.name, why, "return it too, or take a Reference if it is frozen")
    if param in model_params(graph) or param.type is Prompts:
        return
    if not issubclass(param.type, State):
        why = f"`{param.name}` takes {kind}; a run gives prompts, models and state"
        raise FlowTypeError.bad_flow(where, graph.name, why)
    if param.initial is None:
        hint = f"say what it starts from, as its default: `{param.name}: {kind} = {kind}(…)`"
        raise FlowTypeError.bad_flow(where, graph.name, f"`{param.name}` starts from nothing", hint)
    if param.name not in graph.carries():
        hint = "return what a node that carries it gives"
        raise FlowTypeError.bad_flow(where, graph.name, f"`{param.name}` is state, but is not returned", hint)


def refuse_other_tokenizers(inputs: FlowInputs, cache: Path | None, say: Say) -> None:
    """Refuse a model, such as a teacher, that reads the tokens of another but has other ids for them."""
    for reader, writer in sorted(readers_of_others(inputs.graph)):
        refuse_other_tokens(reader, writer, inputs.sources, cache_folder(cache), say)
