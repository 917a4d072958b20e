"""Every shipped flow, and the plans of two of them on four clusters: whole, in each format of text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from flowgraph.cli.draw_target import DrawTarget, subject_of
from flowgraph.cli.flow_request import FlowRequest
from flowgraph.cli.pictures import PictureDetail, picture_named
from flowgraph.cli.plan_result import PlanTarget
from flowgraph.cli.planning_request import PlanRequest
from flowgraph.diagrams.model.drawing import Drawing
from flowgraph.diagrams.model.picture import Picture
from flowgraph.diagrams.write.as_data import as_json, from_json
from flowgraph.diagrams.write.formats import text_in
from flowgraph.diagrams.write.svg.any_picture import svg
from flowgraph.flows.flow_files import known_flows

Golden = Callable[[str, str], None]

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "drawn"
FLOWS = tuple(known_flows())
MODEL = "Qwen/Qwen2.5-7B"
PLANNED = ("grpo", "ppo")
CLUSTERS = ("1x8xh100", "2x8xh100", "4x8xh100", "16x8xh200")

ENDINGS = {"mmd": "mmd", "dot": "dot", "json": "json", "text": "txt"}
BOXES = tuple(ENDINGS)
FORMATS = {  # in which formats of text a picture of a plan can be drawn
    "plan": BOXES,
    "sequence": ("mmd", "json", "text"),
    "timeline": ("mmd", "json", "text"),
    "memory": ("mmd", "json", "text"),
    "placements": ("json", "text"),
    "search": ("json", "text"),
}
PLANS = [(flow, cluster, picture) for flow in PLANNED for cluster in CLUSTERS for picture in FORMATS]
BUDGET_BYTES = 1_500_000  # of all these files: a review reads them


@cache
def flow_of(name: str) -> Picture:
    drawn = picture_named("flow", subject_of(PlanRequest(FlowRequest(name), ""), PlanTarget()), PictureDetail())
    assert isinstance(drawn, Picture)
    return drawn


@cache
def planned(flow: str, cluster: str) -> DrawTarget:
    """Search a plan as `flowgraph draw FLOW --cluster …` does."""
    question = PlanRequest(FlowRequest(flow, models=(f"policy={MODEL}",)), cluster, "512", "mean=1k,max=4k")
    return subject_of(question, PlanTarget(cluster))


def drawn_plan(flow: str, cluster: str, picture: str) -> Drawing:
    return picture_named(picture, planned(flow, cluster), PictureDetail())


def rounded(text: str) -> str:
    """Write numbers of JSON to six digits: the last ones are a processor's."""
    return re.sub(r"-?\d+\.\d{6,}(e-?\d+)?", lambda found: f"{float(found[0]):.6g}", text)


@pytest.mark.parametrize("format_", BOXES)
@pytest.mark.parametrize("name", FLOWS)
def test_a_shipped_flow_is_drawn_as_its_golden(name: str, format_: str, golden: Golden) -> None:
    golden(text_in(flow_of(name), format_), f"drawn/{name}.{ENDINGS[format_]}")


@pytest.mark.parametrize(("flow", "cluster", "picture"), PLANS)
def test_a_plan_is_drawn_as_its_goldens(flow: str, cluster: str, picture: str, golden: Golden) -> None:
    drawing = drawn_plan(flow, cluster, picture)
    for format_ in FORMATS[picture]:
        golden(rounded(text_in(drawing, format_)), f"drawn/{flow}_{cluster}/{picture}.{ENDINGS[format_]}")


def pinned() -> bool:
    """Say whether Graphviz is the one that this checkout is developed with: another lays out otherwise."""
    try:
        return f"pygraphviz=={version('pygraphviz')}" in (ROOT / "constraints.txt").read_text("utf-8").split()
    except PackageNotFoundError:
        return False


@pytest.mark.skipif(not pinned(), reason="Graphviz is another than the one in constraints.txt")
@pytest.mark.parametrize("name", PLANNED)
def test_a_shipped_flow_is_drawn_as_its_golden_svg(name: str, golden: Golden) -> None:
    golden(svg(flow_of(name)), f"drawn/{name}.svg")


@pytest.mark.parametrize("name", FLOWS)
def test_the_json_of_a_drawn_flow_is_read_back_and_drawn_the_same(name: str) -> None:
    read = from_json(as_json(flow_of(name)))
    assert read == flow_of(name)
    assert svg(read) == svg(flow_of(name))


@pytest.mark.parametrize(("flow", "cluster", "picture"), PLANS)
def test_the_json_of_a_drawn_plan_is_read_back_and_drawn_the_same(flow: str, cluster: str, picture: str) -> None:
    drawing = drawn_plan(flow, cluster, picture)
    read = from_json(as_json(drawing))
    assert read == drawing
    assert svg(read) == svg(drawing)


def wanted() -> Iterator[str]:
    """Name every golden file of this module."""
    for name in FLOWS:
        yield from (f"{name}.{ending}" for ending in ENDINGS.values())
    yield from (f"{name}.svg" for name in PLANNED)
    for flow, cluster, picture in PLANS:
        yield from (f"{flow}_{cluster}/{picture}.{ENDINGS[format_]}" for format_ in FORMATS[picture])


def test_no_golden_is_left_over_and_all_are_few_enough_to_be_read() -> None:
    there = {path.relative_to(GOLDEN).as_posix(): path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()}
    assert sorted(there) == sorted(wanted())
    assert sum(there.values()) < BUDGET_BYTES
