"""What a notebook shows: text and a drawing, of broken flows the error, and of no name anything but its letters."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from examples.grpo import grpo
from flowgraph import Graph, flow
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool
from flowgraph.diagrams import notebook
from flowgraph.diagrams.build.flow_picture import flow_picture
from flowgraph.diagrams.notebook import ARROWS_MAX, CHARACTERS_MAX, MERMAID, SVG, TEXT, mimebundle
from flowgraph.diagrams.write.mermaid.flowchart import mermaid
from flowgraph.diagrams.write.svg.graph_svg import graph_svg
from flowgraph.passes import compile_graph
from flowgraph.serialize.graph_text import graph_text
from nodes import Policy, Prompts, Scores, generate, score
from tests.looped import looped

OnePlan = Callable[[Graph], Plan]

needs_graphviz = pytest.mark.skipif(importlib.util.find_spec("pygraphviz") is None, reason="Graphviz is not installed")


@flow
def broken(prompts: Prompts, policy: Policy) -> Policy:
    return generate(policy, prompts)  # type: ignore[return-value]


@flow
def raising(prompts: Prompts) -> Prompts:
    raise ZeroDivisionError("no such luck \x1b[31m")


@flow
def long(prompts: Prompts, policy: Policy) -> Scores:
    total = score(generate(policy, prompts))
    for _ in range(ARROWS_MAX):
        total = total + total
    return total


def plan_of(name: str) -> Plan:
    """Return a plan with this name wherever a file may have any."""
    machine = Machine(name=name, devices=(Device(kind="cpu", memory_bytes=2**30),), host_memory_bytes=2**30, cores=1)
    return Plan(
        flow=name,
        structure_hash="0" * 64,
        cluster=Cluster(nodes=(machine,)),
        pools=(Pool.model_construct(name=name, devices=((name, 0),)),),
        placed=(PlacedRole(role=name, pool=name, engine=name, layout=Layout(data=2)),),
    )


@pytest.fixture
def no_graphviz(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Graphviz not be installed."""
    monkeypatch.setattr(notebook, "find_spec", lambda name: None)


@needs_graphviz
def test_a_flow_shows_its_compiled_text_and_the_drawing_that_draw_writes() -> None:
    graph = compile_graph(grpo.graph())
    assert mimebundle(grpo) == {TEXT: graph_text(graph), SVG: graph_svg(flow_picture(graph))}


@pytest.mark.usefixtures("no_graphviz")
def test_without_graphviz_it_is_drawn_as_mermaid() -> None:
    graph = compile_graph(grpo.graph())
    assert mimebundle(grpo) == {TEXT: graph_text(graph), MERMAID: mermaid(flow_picture(graph))}


@pytest.mark.usefixtures("no_graphviz")
def test_a_graph_shows_itself_as_it_is_described() -> None:
    graph = grpo.graph()
    assert not any(node.name for node in graph.nodes)
    shown = mimebundle(graph)
    assert shown[TEXT].startswith("flow grpo(")
    assert "policy.generate = generate(" in shown[TEXT]
    assert shown[MERMAID].startswith("%%{init")


@pytest.mark.usefixtures("no_graphviz")
def test_a_plan_shows_its_pools_and_the_roles_on_them(one_device: OnePlan) -> None:
    shown = mimebundle(one_device(compile_graph(grpo.graph())))
    head, *lines = shown[TEXT].splitlines()
    assert re.fullmatch(r"plan of grpo, structure [0-9a-f]{12}", head)
    assert lines == [
        "  pool  all  laptop/0",
        "  role  policy.train   all  local  one device",
        "  role  policy.sample  all  local  one device",
        "  role  ref.infer      all  local  one device",
    ]
    assert re.search(r'subgraph f0\["all.*laptop', shown[MERMAID])
    assert all(f'"{role}<br/>' in shown[MERMAID] for role in ("policy.train", "policy.sample", "ref.infer"))


@pytest.mark.usefixtures("no_graphviz")
def test_a_role_on_a_pool_that_is_not_there_stands_in_the_text() -> None:
    plan = plan_of("all")
    lost = plan.model_copy(update={"placed": (PlacedRole(role="policy.train", pool="nowhere", engine="local"),)})
    assert "policy.train  nowhere" in mimebundle(lost)[TEXT]
    assert "policy" not in mimebundle(lost)[MERMAID]


def test_a_flow_that_cannot_be_described_shows_why_and_does_not_raise() -> None:
    assert set(mimebundle(broken)) == {TEXT}
    said = mimebundle(broken)[TEXT]
    assert re.fullmatch(r"test_notebook.py:\d+: @flow broken: should return Policy, but returned Rollout", said)
    assert mimebundle(raising)[TEXT].endswith("flow raising raised ZeroDivisionError: no such luck [31m")


@pytest.mark.usefixtures("no_graphviz")
def test_a_drawing_that_mermaid_would_refuse_is_left_out() -> None:
    shown = mimebundle(long)
    assert set(shown) == {TEXT}
    assert shown[TEXT].count("\n") > ARROWS_MAX
    assert len(mimebundle(grpo)[MERMAID]) < CHARACTERS_MAX / 5


NAMES = looped(
    "name",
    [
        "<script>alert(1)</script>",
        '"] --> n0["x',
        "\x1b[31mred\x1b[0m",
        "\x1b]8;;https://example.com\x07here\x1b]8;;\x07",
        "\u202egnp.exe",
        "half \ud83d pair",
        "<img src=x onerror=alert(1)>",
        "two\nlines",
    ],
)


@NAMES
@needs_graphviz
def test_a_hostile_name_is_inert_in_a_drawing(name: str) -> None:
    shapes = []
    for told in (name, "name"):
        drawn = ElementTree.fromstring(mimebundle(plan_of(told))[SVG])
        whole = [each for each in drawn.iter() if not each.tag.endswith("text")]  # a long name has more lines
        shapes.append([(each.tag, each.get("class"), each.get("data-id")) for each in whole])
    assert shapes[0] == shapes[1]


@NAMES
@pytest.mark.usefixtures("no_graphviz")
def test_a_hostile_name_is_inert(name: str) -> None:
    shown, plain = mimebundle(plan_of(name)), mimebundle(plan_of("name"))
    assert "text/html" not in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\ud800-\udfff]", "".join(shown.values()))
    labels = re.compile(r'accTitle: .*|"[^"\n]*"')
    assert labels.sub("", shown[MERMAID]) == labels.sub("", plain[MERMAID])


def test_a_notebook_asks_for_it_by_the_method_that_ipython_knows(one_device: OnePlan) -> None:
    graph = grpo.graph()
    for thing in (grpo, graph, one_device(compile_graph(graph))):
        shown: dict[str, str] = getattr(thing, "_repr_mimebundle_")(include=None, exclude=None)  # noqa: B009
        assert shown == mimebundle(thing)


@pytest.mark.skipif(importlib.util.find_spec("IPython") is None, reason="IPython is not installed")
def test_ipythons_formatter_gives_the_same() -> None:
    formatters: Any = importlib.import_module("IPython.core.formatters")
    shown, _ = formatters.DisplayFormatter().format(grpo)
    assert shown == mimebundle(grpo)
