"""The HTML page of a flow, a plan or a run: each picture that can be drawn is a section."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from flowgraph.app.drawing.draw_target import DrawTarget
from flowgraph.app.drawing.pictures import PICTURES, PictureDetail, picture_named
from flowgraph.cluster.cluster import show_bytes
from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.model.charts import Drawing
from flowgraph.diagrams.model.quantities import many, show_s
from flowgraph.diagrams.write.formats import svg
from flowgraph.diagrams.write.page import Page, PageTable, Section, TableCell, page_html
from flowgraph.diagrams.write.svg.svg_frame import Look
from flowgraph.diagrams.write.tables import picture_table
from flowgraph.errors import UsageError
from placements import report

TITLES: Mapping[str, str] = {
    "run": "The run",
    "plan": "The plan",
    "timeline": "A step in time",
    "memory": "A step in memory",
    "placements": "The named placements",
    "search": "The search",
    "sequence": "A step, call by call",
    "flow": "The flow",
}


def target_page(target: DrawTarget, detail: PictureDetail, only: str = "") -> str:
    """Return the HTML page of a flow, a plan or a run, with every picture that can be drawn of it.

    If `only` names a picture, or if the target is a file that holds one, the page has just that picture. Otherwise the
    last section lists the pictures that cannot be drawn, with the reason for each. Raises UsageError if `only` is
    unknown or cannot be drawn, and the errors of planning if a flow must be planned first.
    """
    if only or target.drawing is not None:
        has_pools = only not in ("", "flow", "run")
        pools = tuple(pool.name for pool in target.placement.plan.pools) if has_pools else ()
        return single_page(target.name, picture_named(only, target, detail), pools)
    plan = target.placement.plan
    pools = tuple(pool.name for pool in plan.pools)
    sections, lacking = list[Section](), list[str]()
    for name, title in TITLES.items():
        if name == "run" and target.run is None:
            continue
        try:
            sections.append(_section(title, PICTURES[name](target, detail), pools))
        except UsageError as error:
            lacking.append(f"{title}: {error.what.rpartition(': ')[2]}")
            continue
        if name == "plan":
            sections.append(Section("Which model is on which device", table=_devices(plan)))
    if lacking:
        sections.append(Section("What is not drawn", notes=tuple(lacking)))
    title = plan.flow if target.name == plan.flow else f"{plan.flow} · {target.name}"
    devices = [device for node in plan.cluster.nodes for device in node.devices]
    kinds = Counter(f"{device.model or device.kind} of {show_bytes(device.memory_bytes)}" for device in devices)
    cluster = " and ".join(f"{count:,} × {name}" for name, count in kinds.items())
    machines = many(len(plan.cluster.nodes), "machine")
    about = f"Where each model of {plan.flow} lives on {cluster} on {machines}, and what a step takes."
    if target.run is not None:
        facts = target.run.facts()
        steps = f"{facts['steps_done']} of {facts['steps']} steps, {facts['status']}"
        about = f"{steps}; began {facts.get('started', '')}."
    return page_html(Page(title=title, about=about, facts=tuple(_facts(target)), sections=tuple(sections), pools=pools))


def single_page(title: str, drawing: Drawing, pools: tuple[str, ...] = ()) -> str:
    """Return an HTML page with one picture and the table of its numbers.

    `title` is the title of the page. `pools` are the names of the plan's pools, by which a reader can filter the page.
    """
    return page_html(Page(title, sections=(_section(drawing.title, drawing, pools),), pools=pools))


def _section(title: str, drawing: Drawing, pools: tuple[str, ...]) -> Section:
    picture = svg(drawing, Look(embedded=True, pools=pools))
    return Section(title=title, about=drawing.about, svg=picture, table=picture_table(drawing))


def _devices(plan: Plan) -> PageTable:
    rows = list[tuple[TableCell, ...]]()
    for placed in plan.placed:
        pool, memory_bytes = plan.pool(placed.pool), sum(placed.memory.values())
        devices = () if pool is None else pool.devices
        cells = (
            TableCell(placed.role),
            TableCell(placed.pool),
            TableCell(report.show_devices(devices)),
            TableCell(str(len(devices)), len(devices)),
            TableCell(placed.engine),
            TableCell(f"{placed.layout} {placed.running} {placed.late}".strip()),
            TableCell(show_bytes(memory_bytes), memory_bytes),
        )
        rows.append(cells)
    heads = ("role", "pool", "devices", "count", "engine", "layout and running", "holds on each")
    return PageTable(heads, tuple(rows), numeric=(3, 6), pools=tuple(placed.pool for placed in plan.placed))


def _facts(target: DrawTarget) -> Iterator[tuple[str, str]]:
    plan = target.placement.plan
    if target.run is not None:
        facts = target.run.facts()
        yield "steps", f"{facts['steps_done']} of {facts['steps']}"
        yield "status", str(facts["status"])
    if plan.step is not None and plan.step.period_s is not None:
        error = report.step_error(plan)
        yield "a step takes", show_s(plan.step.period_s) + (f" ({error})" if error else "")
    used = len({place for pool in plan.pools for place in pool.devices})
    yield "devices", f"{used:,} of {sum(len(node.devices) for node in plan.cluster.nodes):,}"
    yield "pools", str(len(plan.pools))
    peaks = [peak.memory_bytes for pool in plan.forecast for peak in pool.peaks]
    if peaks:
        yield "fullest device", show_bytes(max(peaks))
    if plan.assumed is not None:
        yield "models", ", ".join(f"{name} {model}" for name, model in plan.assumed.models.items())
        yield "a step reads", f"{many(plan.assumed.batch, 'prompt')} of {plan.assumed.prompt_tokens} tokens"
        if plan.assumed.response_tokens:
            yield "responses", f"{plan.assumed.response_tokens} tokens"
    yield "structure", plan.structure_hash[:12]
