"""Every shipped flow, and plans of two on a small and a large cluster: whole as JSON, one in each format."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from flowgraph.app import DrawTarget, find_target, make_request
from flowgraph.app.drawing.pictures import PictureDetail, picture_named
from flowgraph.diagrams.model.charts import Drawing
from flowgraph.diagrams.model.picture import Picture
from flowgraph.diagrams.write.as_data import as_json, from_json
from flowgraph.diagrams.write.formats import svg, text_in
from flowgraph.flows.flow_files import known_flows
from tests.compact_json import compact_json
from tests.looped import looped

Golden = Callable[[str, str], None]

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "drawn"
FLOWS = tuple(known_flows())
MODEL = "Qwen/Qwen2.5-7B"
PLANNED = ("grpo", "ppo")
CLUSTERS = ("1x8xh100", "16x8xh200")

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
WRITTEN = "grpo"  # in each format: of the others JSON says all that is drawn
PLANS = [(flow, cluster, picture) for flow in PLANNED for cluster in CLUSTERS for picture in FORMATS]
BUDGET_BYTES = 400_000  # of all these files: a review reads them


@cache
def flow_of(name: str) -> Picture:
    drawn = picture_named("flow", find_target(make_request(flow=name), print), PictureDetail())
    assert isinstance(drawn, Picture)
    return drawn


@cache
def planned(flow: str, cluster: str) -> DrawTarget:
    """Search a plan as `flowgraph draw FLOW --cluster …` does."""
    lengths = {"prompt_tokens": 512, "response_tokens": "mean=1k,max=4k"}
    return find_target(make_request(flow=flow, model=f"policy={MODEL}", cluster=cluster, **lengths), print)


def drawn_plan(flow: str, cluster: str, picture: str) -> Drawing:
    return picture_named(picture, planned(flow, cluster), PictureDetail())


def rounded(text: str) -> str:
    """Write numbers of JSON to six digits: the last ones are a processor's."""
    return re.sub(r"-?\d+\.\d{6,}(e-?\d+)?", lambda found: f"{float(found[0]):.6g}", text)


def formats_of(flow: str, formats: Sequence[str], cluster: str = CLUSTERS[0]) -> list[str]:
    """Return the formats in which a picture of a flow or of its plan has a golden file."""
    return [each for each in formats if each == "json" or (flow, cluster) == (WRITTEN, CLUSTERS[0])]


def written(drawing: Drawing, format_: str) -> str:
    text = text_in(drawing, format_)
    return compact_json(rounded(text)) if format_ == "json" else rounded(text)


@looped("name", FLOWS)
def test_a_shipped_flow_is_drawn_as_its_goldens(name: str, golden: Golden) -> None:
    for format_ in formats_of(name, BOXES):
        golden(written(flow_of(name), format_), f"drawn/{name}.{ENDINGS[format_]}")


@looped("flow, cluster, picture", PLANS)
def test_a_plan_is_drawn_as_its_goldens(flow: str, cluster: str, picture: str, golden: Golden) -> None:
    drawing = drawn_plan(flow, cluster, picture)
    for format_ in formats_of(flow, FORMATS[picture], cluster):
        golden(written(drawing, format_), f"drawn/{flow}_{cluster}/{picture}.{ENDINGS[format_]}")


def pinned() -> bool:
    """Return whether Graphviz is the one that this checkout is developed with: another lays out otherwise."""
    try:
        return f"pygraphviz=={version('pygraphviz')}" in (ROOT / "constraints.txt").read_text("utf-8").split()
    except PackageNotFoundError:
        return False


@pytest.mark.skipif(not pinned(), reason="Graphviz is another than the one in constraints.txt")
def test_a_shipped_flow_is_drawn_as_its_golden_svg(golden: Golden) -> None:
    golden(svg(flow_of(WRITTEN)), f"drawn/{WRITTEN}.svg")


@looped("name", FLOWS)
def test_the_json_of_a_drawn_flow_is_read_back_the_same(name: str) -> None:
    read = from_json(as_json(flow_of(name)))
    assert (read, as_json(read)) == (flow_of(name), as_json(flow_of(name)))


@pytest.mark.slow(group="commands")
@looped("flow, cluster, picture", PLANS)
def test_the_json_of_a_drawn_plan_is_read_back_the_same(flow: str, cluster: str, picture: str) -> None:
    drawing = drawn_plan(flow, cluster, picture)
    read = from_json(as_json(drawing))
    assert (read, as_json(read)) == (drawing, as_json(drawing))


def wanted() -> Iterator[str]:
    """Name every golden file of this module."""
    for name in FLOWS:
        yield from (f"{name}.{ENDINGS[format_]}" for format_ in formats_of(name, BOXES))
    yield f"{WRITTEN}.svg"
    for flow, cluster, picture in PLANS:
        yield from (
            f"{flow}_{cluster}/{picture}.{ENDINGS[format_]}" for format_ in formats_of(flow, FORMATS[picture], cluster)
        )


def test_no_golden_is_left_over_and_all_are_few_enough_to_be_read() -> None:
    there = {path.relative_to(GOLDEN).as_posix(): path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()}
    assert sorted(there) == sorted(wanted())
    assert sum(there.values()) < BUDGET_BYTES
