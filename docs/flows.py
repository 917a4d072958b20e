"""What the page of each shipped flow says: its text, diagram, formulas, settings, degenerate cases, checks, curves.

All of it is read from the flow's file and graph, from `templates/algorithms.toml`, from the tests, and from the curves
that `benchmarks/learning.py` keeps. How it is laid out is in `templates/`; who writes it is `generate.py`.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.curves import EVERY, HELD_OUT, SETTINGS, Curve, kept, middle, steps_to
from flowgraph import Flow, Loss
from flowgraph.diagrams.build.flow_picture import flow_picture
from flowgraph.diagrams.model.charts import Curves
from flowgraph.diagrams.model.series import Series
from flowgraph.diagrams.write.mermaid.flowchart import mermaid
from flowgraph.diagrams.write.svg.curves import curves_svg
from flowgraph.language.graph import Edge, Graph, Node
from flowgraph.language.loss import Aggregation
from flowgraph.language.signature import type_name
from flowgraph.language.values import Model
from flowgraph.passes import compile_graph
from flowgraph.serialize.graph_text import shown_settings

ROOT = Path(__file__).resolve().parents[1]
WORDS = ROOT / "docs" / "templates" / "algorithms.toml"
FORMULAS = ROOT / "tests" / "parity" / "formulas"
LEARNING = ROOT / "tests" / "examples" / "test_learning.py"
VERL, VERL_PAGE = ROOT / "benchmarks", ROOT / "docs" / "verl.md"
SUMMED = ("add", "scale")  # what `+` and a factor are in a graph
SEEDS = ("0", "1", "2")
DEGENERATE = {"one": "a group of one", "flat": "a group without signal", "masked": "a row whose mask keeps nothing"}

# How a term of a loss, [B, T], becomes a number: the formula around it, and in words.
AGGREGATED = {
    Aggregation.TOKEN_MEAN: (r"\frac{1}{N} \sum_{i,t} m_{i,t} \left[ TERM \right]", "mean over tokens"),
    Aggregation.SEQUENCE_MEAN: (
        r"\frac{1}{n} \sum_{i} \frac{1}{L_i} \sum_{t} m_{i,t} \left[ TERM \right]",
        "mean over responses of their token means",
    ),
    Aggregation.SEQUENCE_SUM: (
        r"\frac{1}{n} \sum_{i,t} m_{i,t} \left[ TERM \right]",
        "mean over responses of their token sums",
    ),
}
BY_ROWS = (r"\frac{1}{n} \sum_{i} \left[ TERM \right]", "mean over responses")
BY_CONSTANT = (r"\frac{1}{n c} \sum_{i,t} m_{i,t} \left[ TERM \right]", "mean over responses of their token sums / c")


@dataclass(frozen=True)
class Shown:
    """One shipped flow: its name, its file's text, its graph."""

    name: str
    text: str
    graph: Graph

    @property
    def nodes(self) -> list[Node]:
        """Return the nodes that are ops of a vocabulary, `+` and factors left out."""
        return [node for node in self.graph.all_nodes if node.op.name not in SUMMED]

    def calls(self) -> dict[str, Node]:
        """Return the first call of each op, by the op's name, in the flow's order."""
        first = dict[str, Node]()
        for node in self.nodes:
            first.setdefault(node.op.name, node)
        return first


def shipped() -> list[Shown]:
    """Read every shipped flow, by name."""
    names = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__")
    return [read(name) for name in names]


def read(name: str) -> Shown:
    """Read one shipped flow."""
    flow: Flow[..., Any] = getattr(importlib.import_module(f"examples.{name}"), name)
    text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    return Shown(name, text, compile_graph(flow.graph()))


@cache
def words() -> Mapping[str, Any]:
    """Read what the pages say beside the sources."""
    found: Mapping[str, Any] = tomllib.loads(WORDS.read_text(encoding="utf-8"))
    return found


def pages_told() -> list[dict[str, Any]]:
    """Return what each page says, by the names that its template has."""
    curves = kept()
    return [page_told(shown, curves.get(shown.name, {})) for shown in shipped()]


def page_told(shown: Shown, curves: Mapping[str, Curve]) -> dict[str, Any]:
    """Return what the page of one flow says."""
    said, body = words()["flow"][shown.name], shown.text[shown.text.index("@flow") :]
    return {
        "name": shown.name,
        **docstring(ast.get_docstring(ast.parse(shown.text)) or ""),
        "title": said["title"],
        "says": said.get("says", ""),
        "body": body,
        "lines": length(body),
        "needs": list(needs(shown)),
        "diagram": mermaid(flow_picture(shown.graph)),
        "formulas": list(formulas(shown)),
        "symbols": {name for name in ("A_", "r_{i,t}") for each in formulas(shown) if name in "".join(each["lines"])},
        "objectives": list(objectives(shown.graph)),
        "nodes": [node_row(node) for node in shown.nodes],
        "advantage": " → ".join(dict.fromkeys(each.op.name for each in shown.nodes if each.op.kind == "advantage")),
        "loss": " + ".join(dict.fromkeys(node.op.name for node in shown.nodes if issubclass(node.returns[0], Loss))),
        "settings": settings(shown),
        "command": command(shown),
        "degenerate": degenerate(shown.calls()),
        "checks": list(checks(shown)),
        "curve": [(seed, steps_to(curves[seed]["accuracy"]), last(curves[seed])) for seed in SEEDS if seed in curves],
        "middle": middle([steps_to(curves[seed]["accuracy"]) for seed in SEEDS if seed in curves]),
        "every": EVERY,
        "held_out": HELD_OUT,
        "learnt_with": SETTINGS.get(shown.name, ()),
    }


def docstring(text: str) -> dict[str, str]:
    r"""Take a flow's module docstring apart.

    >>> docstring("A: what it is.\n\nSource: Someone 2025. It says more. Deviation: ours\nis short.")
    {'summary': 'A: what it is.', 'more': '', 'source': 'Someone 2025. It says more.', 'deviation': 'ours is short.'}
    """
    summary, _, rest = text.partition("\n\n")
    more, *parts = re.split(r"\b(Source|Deviation): ", " ".join(rest.split()))
    told = {name.lower(): said.strip() for name, said in zip(parts[::2], parts[1::2], strict=True)}
    return {"summary": " ".join(summary.split()), "more": more.strip(), "source": "", "deviation": ""} | told


def length(body: str) -> int:
    r"""Count a flow's lines of code, its docstring and empty lines left out.

    >>> length("@flow\ndef f():\n\n    return 1\n")
    3
    """
    return sum(bool(line.strip()) and '"""' not in line for line in body.splitlines())


def needs(shown: Shown) -> Iterator[str]:
    """Yield what a flow needs beyond a policy that samples responses once per step."""
    models = [param for param in shown.graph.params if issubclass(param.type, Model)]
    yield from (f"a {type_name(each.type).lower()}" for each in models if each.name != "policy")
    if sum(node.op.kind == "generate" for node in shown.nodes) > 1:
        yield "a second sample per step"


# ----------------------------------------------------------------------------------------------------------- formulas


def formulas(shown: Shown) -> Iterator[dict[str, Any]]:
    """Yield the formula of each op that has one, in the order of the flow."""
    for name, node in shown.calls().items():
        said = words()["node"].get(name, {})
        found = next((each for each in said.get("formula", ()) if fits(each, node)), None)
        if found is not None:
            around, how = aggregated(node, found) if "term" in found else ("", "")
            term = f"{said['symbol']} = {around.replace('TERM', found['term'])}" if around else ""
            lines = [*found.get("latex", ()), *([term] if term else [])]
            yield {"name": name, "says": found["says"], "lines": lines, "how": how, "here": given(node)}


def fits(formula: Mapping[str, Any], node: Node) -> bool:
    """Return whether a formula is that of a call: by its settings, and by the ports that are given."""
    settings = all(getattr(node.settings, name) == value for name, value in formula.get("when", {}).items())
    return settings and all(node.input(port) is not None for port in formula.get("needs", ()))


def aggregated(node: Node, formula: Mapping[str, Any]) -> tuple[str, str]:
    """Return the formula around a loss's term, and how it is aggregated in words."""
    if formula.get("rows"):
        return BY_ROWS
    how = getattr(node.settings, "aggregation", Aggregation.SEQUENCE_MEAN)
    return AGGREGATED[how] if isinstance(how, Aggregation) else BY_CONSTANT


def given(node: Node) -> str:
    """Return the settings of a call that the flow's text writes."""
    return ", ".join(f"`{name}={value}`" for name, value in shown_settings(node.settings))


def objectives(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield what each update descends: whose it is, and the sum of its losses as a formula."""
    for node in graph.nodes:
        model = node.model()
        for _, region in node.regions:
            yield str(model), rf"\mathcal{{L}} = {summed(region.output)}"


def summed(edge: Edge) -> str:
    """Write a sum of losses as a formula."""
    node = edge.source
    assert isinstance(node, Node), "a loss is made by a node"
    parts = dict(node.inputs)
    if node.op.name == "add":
        return f"{summed(parts['a'])} + {summed(parts['to'])}"
    if node.op.name == "scale":
        return f"{getattr(node.settings, 'factor')} {summed(parts['a'])}"  # noqa: B009 - a model of pydantic, by name
    symbol: str = words()["node"][node.op.name]["symbol"]
    return symbol


# -------------------------------------------------------------------------------------------------- nodes and settings


def node_row(node: Node) -> dict[str, str]:
    """Return a line of the table of nodes."""
    return {"name": node.name, "op": node.op.name, "kind": node.op.kind, "here": given(node)}


def settings(shown: Shown) -> list[Mapping[str, str]]:
    """Return the settings for a real model, each with its reason: those of all flows, and the flow's own."""
    own = words()["flow"][shown.name]["settings"]
    taken = {each["set"].partition("=")[0] for each in own}
    nodes = {node.name: node for node in shown.graph.all_nodes}
    common = [each for each in words()["settings"] if each["needs"] in nodes]
    common = [each for each in common if not (each["open"] and _written(each["set"], nodes[each["needs"]]))]
    return [*own, *(each for each in common if each["set"].partition("=")[0] not in taken)]


def _written(assignment: str, node: Node) -> bool:
    return assignment.partition("=")[0].rpartition(".")[2] in node.settings.model_fields_set


def command(shown: Shown) -> str:
    """Write the command that runs a flow on a real model, a setting a line."""
    said = words()["flow"][shown.name]
    model, data = said.get("model", "MODEL"), said.get("data", "gsm8k")
    first = f"flowgraph run {shown.name} --model {model} --data {data} --batch {said['batch']}"
    return " \\\n    ".join([first, *(f"--set {shlex.quote(each['set'])}" for each in settings(shown))])


def degenerate(names: Iterable[str]) -> list[tuple[str, dict[str, str]]]:
    """Return what each of these nodes does in degenerate cases, of those of which it is said."""
    told = [(name, words()["node"].get(name, {})) for name in names]
    cases = [(name, {case: said.get(case, "") for case in DEGENERATE}) for name, said in told]
    return [(name, case) for name, case in cases if any(case.values())]


# -------------------------------------------------------------------------------------------------- checks and curves


def checks(shown: Shown) -> Iterator[str]:
    """Yield what was checked, from the tests themselves."""
    names = [name for name in shown.calls() if words()["node"].get(name, {}).get("formula")]
    written = {path: used(path) for path in sorted(FORMULAS.glob("test_*.py"))}
    for path, there in written.items():
        if found := [name for name in names if name in there]:
            yield f"`{path.relative_to(ROOT)}` implements {listed(found)} a second time, with loops, and compares."
    if found := [name for name in names if not any(name in there for there in written.values())]:
        yield f"Not implemented a second time: {listed(found)}."
    beside = frozenset[str]().union(*(used(path) for path in VERL.glob("verl_*.py")))
    if VERL_PAGE.is_file() and (found := [name for name in names if name in beside]):
        yield f"[Compared with verl](../verl.md): {listed(found)}, on the same batches as verl's own functions."
    if shown.name in strings(LEARNING):
        yield f"`{LEARNING.relative_to(ROOT)}` trains it, and requires 0.9 of the held-out prompts at the end."
    yield f"`flowgraph check {shown.name}` finds no fault: all laws hold."


def listed(names: Sequence[str]) -> str:
    """Write names as a list in words.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('`a`', '`a`, `b` and `c`')
    """
    *most, last = (f"`{name}`" for name in names)
    return f"{', '.join(most)} and {last}" if most else last


@cache
def used(path: Path) -> frozenset[str]:
    """Return the names that a script imports from our nodes, and reads of their modules."""
    tree = list(ast.walk(_parsed(path)))
    imports = [node for node in tree if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nodes")]
    names = {name.asname or name.name for each in imports for name in each.names}
    parts = [node for node in tree if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    return frozenset(names | {node.attr for node in parts if node.value.id in names})  # type: ignore[attr-defined]


@cache
def strings(path: Path) -> frozenset[str]:
    """Return the strings that a test writes."""
    found = (node.value for node in ast.walk(_parsed(path)) if isinstance(node, ast.Constant))
    return frozenset(each for each in found if isinstance(each, str))


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def last(curve: Curve) -> float:
    """Return the accuracy at the end of a curve."""
    return curve["accuracy"][-1][1]


def curve_pictures() -> dict[str, str]:
    """Return the SVG of each flow that was measured, by its file's name: accuracy, and below it the reward."""
    flows = [each.name for each in shipped()]
    return {f"{name}.svg": picture(name, curves) for name, curves in kept().items() if name in flows}


def picture(name: str, curves: Mapping[str, Curve]) -> str:
    """Draw a flow's curves, a column a seed."""
    seeds = sorted(curves)
    rewards = {seed: tuple(enumerate(curves[seed]["reward"], 1)) for seed in seeds}
    accuracy = [Series(f"accuracy, seed {seed}", "of 1", _points(curves[seed]["accuracy"])) for seed in seeds]
    reward = [Series(f"reward, seed {seed}", "", _points(rewards[seed])) for seed in seeds if rewards[seed]]
    title = f"{name}: held-out accuracy, and mean reward of a step"
    return curves_svg(Curves(title, (*accuracy, *reward)))


def _points(curve: Sequence[Sequence[float]]) -> tuple[tuple[float, float | None], ...]:
    return tuple((step, value) for step, value in curve)
