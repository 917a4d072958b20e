"""What a flow and its inputs must be for a run to train something: refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from flowgraph.analysis.facts import readers_of_others
from flowgraph.app.planning.flow_inputs import FlowInputs, cache_folder, model_params
from flowgraph.app.planning.problem import PreparedProblem
from flowgraph.app.request import Say
from flowgraph.errors import FlowTypeError
from flowgraph.language.graph import Graph, Param
from flowgraph.language.values import Model, State, Trainable
from flowgraph.models.vocabulary import refuse_other_tokens
from nodes.scoring.rules import reference_of, refuse_missing, resolve
from nodes.scoring.truths import refuse_missing_truths
from nodes.values import Prompts

SCORING = ("score", "refill")  # nodes that score by a rule


def refuse_what_cannot_run(prepared: PreparedProblem) -> None:
    """Refuse a flow that returns no model or takes what a data set cannot give, and rows that it cannot score."""
    inputs = prepared.inputs
    if inputs is not None:
        prepared.setting.batch_sizes(**inputs.row_origins())
    graph = prepared.setting.graph if inputs is None else inputs.graph
    rules = [getattr(node.settings, "by", "data") for node in graph.nodes if node.op.name in SCORING]
    for rule in rules:
        if rule != "data":
            refuse_missing(resolve(rule if isinstance(rule, str) else reference_of(rule)))
    why = ""
    if not graph.carries():
        why = "returns no model, so a run would train nothing"
    elif not any(node.root is not None for node in graph.nodes):
        why = "updates no model, so a run would train nothing"
    if why:
        raise FlowTypeError.bad_flow(str(graph.at), graph.name, why, "return update(…)")
    for param in graph.params:
        _refuse_param(graph, param)
    for rule in rules if inputs is not None else ():
        if isinstance(rule, str):
            refuse_missing_truths(rule, inputs.data.train, inputs.data.name)


def _refuse_param(graph: Graph, param: Param) -> None:
    """Refuse a parameter that nothing reads or updates, whose next version is lost, or that a run cannot give."""
    name, kind, carried = param.name, param.type.__name__, param.name in graph.carries()
    trainable = issubclass(param.type, Trainable)
    read = {edge.source for node in graph.nodes for edge in node.edges()}
    why, hint = "", ""
    if carried and issubclass(param.type, Model) and param not in read:
        why, hint = f"`{name}` is returned, but nothing reads it", "leave it out"
    elif trainable and param in {edge.source for edge in graph.outputs}:
        why = f"`{name}` is trainable, but is returned without an update"
        hint = f"return update({name}, …), or take a Reference"
    elif trainable and not carried:
        why = f"`{name}` can be trained, but its next version is not returned: its update would be lost"
        hint = "return it too, or take a Reference if it is frozen"
    elif param in model_params(graph) or param.type is Prompts:
        return
    elif not issubclass(param.type, State):
        why = f"`{name}` takes {kind}; a run gives prompts, models and state"
    elif param.initial is None:
        why = f"`{name}` starts from nothing"
        hint = f"say what it starts from, as its default: `{name}: {kind} = {kind}(…)`"
    elif not carried:
        why, hint = f"`{name}` is state, but is not returned", "return what a node that carries it gives"
    if why:
        raise FlowTypeError.bad_flow(str(graph.at), graph.name, why, hint)


def refuse_other_tokenizers(inputs: FlowInputs, cache: Path | None, say: Say) -> None:
    """Refuse a model, such as a teacher, that reads the tokens of another but has other ids for them."""
    for reader, writer in sorted(readers_of_others(inputs.graph)):
        refuse_other_tokens(reader, writer, inputs.sources, cache_folder(cache), say)
