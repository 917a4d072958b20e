"""The check of held-out data during a run: its rows, its sampling, and the metric that decides the best weights."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flowgraph.app.planning.checking import refuse_long_rows
from flowgraph.app.planning.flow_inputs import FlowInputs, model_params
from flowgraph.app.request import Request, Training
from flowgraph.app.running.check_metrics import held_out_metrics, metric_names, source_names
from flowgraph.cluster.plan import Plan
from flowgraph.errors import DataError, UsageError, nearest
from flowgraph.language.graph import Graph, Node, rewrite
from flowgraph.lowering.follow import plan_second_flow
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Program, Sync
from flowgraph.passes import compile_graph
from flowgraph.runtime.driver import HeldOutCheck
from nodes.data.source import FixedPrompts
from nodes.data.suggestions import suggested
from nodes.evaluation import evaluate, evaluate_episodes
from nodes.scoring.remote import SERVED
from nodes.scoring.rules import refuse_unknown_sources, refuse_unscorable
from nodes.values import Policy

if TYPE_CHECKING:
    import pyarrow as pa


FOR_MODELS = "--eval-every 0, or score with remote_reward or remote_judge, which a check can use too"


def held_out_check(inputs: FlowInputs, request: Request, program: Program) -> HeldOutCheck | None:
    """Return the check of held-out prompts: responses of the first trained policy, scored by the flow's rule.

    If a server scores the responses of the flow instead of a rule, the server scores the check too. Returns None
    without held-out prompts, if `eval_every` is 0, or if no policy is trained. Raises UsageError if `keep_best` names a
    metric that the check does not have, or is set without checks or checkpoints; DataError for a held-out file without
    rows, for a prompt that leaves no room for the longest response, and if two metrics would have one name; RuleError
    for held-out rows that cannot be scored.
    """
    flow, held_out, training = inputs.graph, inputs.data.held_out, request.training
    trained = {node.root for node in flow.nodes}
    policy = next((p.name for p in model_params(flow) if issubclass(p.type, Policy) and p in trained), None)
    if held_out is None or training.eval_every == 0 or policy is None:
        if training.keep_best is not None:
            why = "no policy is trained" if policy is None else "the data has no held-out prompts"
            _refuse_best(training.keep_best, "--eval-every is 0" if training.eval_every == 0 else why)
        return None
    if not held_out.num_rows:
        raise DataError.unusable(inputs.data.name, "has no held-out rows", hint="--eval-every 0, or --held-out FILE")
    nodes = {node.op.name: node for node in reversed(flow.nodes)}
    player = nodes.get("interact") if "score" not in nodes else None  # its environment scores the check too
    sampler, scorer = (getattr(nodes.get(op, nodes.get("refill")), "settings", None) for op in ("generate", "score"))
    sampler = player.settings if player is not None else sampler
    rule, longest = getattr(scorer, "by", "data"), suggested(inputs.data.data_source).get("generate.max_tokens", 256)
    rows = check_rows(held_out, training.eval_rows)
    settings = _check_settings(training, rule, getattr(sampler, "max_tokens", longest))

    # An error names the line of the flow where the op stands: what the check's node reads is set there.
    def at_the_flows_line(node: Node) -> Node:
        return replace(node, at=nodes[node.op.name].at if node.op.name in nodes else flow.at)

    refuse_long_rows(inputs, [(f"checked rows of {inputs.data.name}", held_out.take([*rows]))], settings["max_tokens"])
    served = next((nodes[name] for name in SERVED if name in nodes), None) if scorer is None else None
    if player is None and served is None and isinstance(rule, str):
        name = f"the held-out rows of {inputs.data.name}"
        refuse_unscorable(rule, held_out, name, FOR_MODELS)
        refuse_unknown_sources(rule, held_out, name)

    def as_in_the_flow(node: Node) -> Node:
        if player is not None and node.op.name == player.op.name:
            sampling = {name: settings[name] for name in ("n", "temperature")}
            return replace(node, settings=player.settings.model_copy(update=sampling))
        return replace(node, op=served.op, settings=served.settings) if served and node.op.name == "score" else node

    graph = evaluate.graph(settings)
    if player is not None:
        graph = evaluate_episodes.graph({"env": getattr(player.settings, "env", "")})
    graph = rewrite(compile_graph(rewrite(graph, as_in_the_flow)), at_the_flows_line)
    graph = replace(graph, at=flow.at)
    _refuse_metrics(graph, held_out.take([*rows]), inputs.data.name, request)
    plan = plan_second_flow(program.plan, graph, {"policy": policy})
    check = lower(graph, plan, {"policy": dict(program.origins)[policy]})
    graded = tuple(node.name for kind in ("generate", "score") for node in graph.nodes if node.op.kind == kind)
    return HeldOutCheck(
        program=check,
        sources={"prompts": FixedPrompts(held_out, rows)},
        every=training.eval_every,
        during=_during_a_run(check, program.plan, policy),
        graded=graded,
        grade=held_out_metrics,
    )


def _during_a_run(check: Program, plan: Plan, policy: str) -> Program:
    """Return the program of a check between steps of a plan: its copy of the policy stays as old as a step leaves it.

    Otherwise how often a run is checked would change what it trains on.
    """
    lag = next((placed.lag for placed in plan.placed if placed.role == f"{policy}.sample"), 0)
    return replace(check, tasks=tuple(replace(t, lag=lag) if isinstance(t, Sync) else t for t in check.tasks))


def _check_settings(training: Training, rule: object, max_tokens: object) -> dict[str, Any]:
    """Return the settings of a check's graph: greedy responses, unless there are several or the request says else."""
    greedy = float(training.eval_n > 1)
    temperature = greedy if training.eval_temperature is None else training.eval_temperature
    return {"n": training.eval_n, "temperature": temperature, "by": rule, "max_tokens": max_tokens}


def check_rows(table: pa.Table, limit: int) -> tuple[int, ...]:
    """Return the ascending indices of up to `limit` rows to check: the first rows of each `data_source`, equally many.

    If a source has too few rows, the other sources get more. Without the column `data_source`, the result has the first
    rows of the table.

    >>> import pyarrow as pa
    >>> check_rows(pa.table({"data_source": ["a", "a", "a", "b"]}), 3)
    (0, 1, 3)
    """
    names = source_names(table) or [None] * table.num_rows
    seen = defaultdict[str | None, int](int)
    ranks = list[tuple[int, int]]()
    for row, name in enumerate(names):
        ranks.append((seen[name], row))
        seen[name] += 1
    return tuple(sorted(row for _, row in sorted(ranks)[:limit]))


def _refuse_metrics(graph: Graph, rows: pa.Table, data: str, request: Request) -> None:
    training, overall = request.training, metric_names((), request.training.eval_n)
    sources = {name for name in source_names(rows) if name is not None}
    names = metric_names(sources, training.eval_n)
    counts = Counter(
        [*names, *{f"eval/{metric.name}" for node in graph.nodes for metric in node.op.metrics} - {*overall}]
    )
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        what = f"two metrics of its held-out rows would be called `{twice}`"
        raise DataError.unusable(data, what, hint="rename a `data_source`")
    if (metric := training.keep_best) is None:
        return
    if metric not in names:
        what = f"the check of held-out data has no metric `{metric}`"
        raise UsageError(what, where="--keep-best", hint=nearest(metric, names))
    if training.checkpoint_every == 0:
        _refuse_best(metric, "--checkpoint-every is 0")


def _refuse_best(metric: str, why: str) -> None:
    raise UsageError(f"no checkpoint can be the best: {why}", where=f"--keep-best {metric}")
