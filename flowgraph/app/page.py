"""All that can be drawn of a flow, a plan or a run, put together as the sections of one page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowgraph.app.draw_target import DrawTarget
from flowgraph.app.pictures import PICTURES, PictureDetail, picture_named
from flowgraph.cluster.cluster import Cluster, show_bytes
from flowgraph.cluster.plan import Plan
from flowgraph.diagrams.model.charts import Drawing
from flowgraph.diagrams.model.quantities import many, show_s
from flowgraph.diagrams.write.formats import svg
from flowgraph.diagrams.write.page import Page, PageTable, Section, TableCell, page_html
from flowgraph.diagrams.write.svg.svg_frame import Look
from flowgraph.diagrams.write.tables import table_of
from flowgraph.errors import UsageError

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


def page_of(subject: DrawTarget, shown: PictureDetail, only: str = "") -> str:
    """Return the page of a subject: every picture that it has, or `only` one of them."""
    if only or subject.drawing is not None:
        return single_page(subject.name, picture_named(only, subject, shown), _pools(subject, only))
    drawn, lacking = _drawn(subject, shown)
    plan = subject.placement.plan
    pools = tuple(pool.name for pool in plan.pools)
    sections = [_section(TITLES[name], drawing, pools) for name, drawing in drawn.items()]
    if "plan" in drawn:
        sections.insert(list(drawn).index("plan") + 1, Section("Which model is on which device", table=_devices(plan)))
    if lacking:
        sections.append(Section("What is not drawn", notes=tuple(lacking)))
    title = plan.flow if subject.name == plan.flow else f"{plan.flow} · {subject.name}"
    page = Page(title=title, about=_about(subject), facts=tuple(_facts(subject)), sections=tuple(sections), pools=pools)
    return page_html(page)


def single_page(title: str, drawing: Drawing, pools: tuple[str, ...] = ()) -> str:
    """Return a page of one picture and its table."""
    return page_html(Page(title, sections=(_section(drawing.title, drawing, pools),), pools=pools))


def _pools(subject: DrawTarget, only: str) -> tuple[str, ...]:
    return () if only in ("", "flow", "run") else tuple(pool.name for pool in subject.placement.plan.pools)


def _drawn(subject: DrawTarget, shown: PictureDetail) -> tuple[dict[str, Drawing], list[str]]:
    """Make each picture that the subject has, in the order of a page, and say why others are not there."""
    drawn, lacking = dict[str, Drawing](), list[str]()
    for name in TITLES:
        if name == "run" and subject.run is None:
            continue
        try:
            drawn[name] = PICTURES[name](subject, shown)
        except UsageError as error:
            lacking.append(f"{TITLES[name]}: {error.what.rpartition(': ')[2]}")
    return drawn, lacking


def _section(title: str, drawing: Drawing, pools: tuple[str, ...]) -> Section:
    return Section(
        title=title, about=drawing.about, svg=svg(drawing, Look(embedded=True, pools=pools)), table=table_of(drawing)
    )


def _devices(plan: Plan) -> PageTable:
    """Return of each role on which devices it is, in which layout, and what it holds on each."""
    from placements import report

    rows, pools = list[tuple[TableCell, ...]](), list[str]()
    for placed in plan.placed:
        pool = plan.pool(placed.pool)
        held = sum(placed.memory.values())
        devices = () if pool is None else pool.devices
        told = TableCell(report.show_devices(devices)), TableCell(str(len(devices)), len(devices))
        how = TableCell(placed.engine), TableCell(f"{placed.layout} {placed.running} {placed.late}".strip())
        rows.append((TableCell(placed.role), TableCell(placed.pool), *told, *how, TableCell(show_bytes(held), held)))
        pools.append(placed.pool)
    heads = ("role", "pool", "devices", "count", "engine", "layout and running", "holds on each")
    return PageTable(heads, tuple(rows), numeric=(3, 6), pools=tuple(pools))


def _about(subject: DrawTarget) -> str:
    if subject.run is not None:
        facts = subject.run.facts()
        return f"{facts['steps_done']} of {facts['steps']} steps, {facts['status']}; began {facts.get('started', '')}."
    plan = subject.placement.plan
    return f"Where each model of {plan.flow} lives on {cluster_text(plan.cluster)}, and what a step takes."


def cluster_text(cluster: Cluster) -> str:
    """Return in a few words what a cluster is."""
    kinds = dict[str, int]()
    for node in cluster.nodes:
        for device in node.devices:
            name = f"{device.model or device.kind} of {show_bytes(device.memory_bytes)}"
            kinds[name] = kinds.get(name, 0) + 1
    devices = " and ".join(f"{count:,} × {name}" for name, count in kinds.items())
    return f"{devices} on {many(len(cluster.nodes), 'machine')}"


def _facts(subject: DrawTarget) -> Iterator[tuple[str, str]]:
    """Yield what one wants to know first."""
    from placements import report

    plan = subject.placement.plan
    if subject.run is not None:
        facts = subject.run.facts()
        yield "steps", f"{facts['steps_done']} of {facts['steps']}"
        yield "status", str(facts["status"])
    if plan.step is not None and plan.step.period_s is not None:
        error = report.step_error(plan)
        yield "a step takes", show_s(plan.step.period_s) + (f" ({error})" if error else "")
    used = len({place for pool in plan.pools for place in pool.devices})
    yield "devices", f"{used:,} of {sum(len(node.devices) for node in plan.cluster.nodes):,}"
    yield "pools", str(len(plan.pools))
    peak = max((peak.memory_bytes for each in plan.forecast for peak in each.peaks), default=None)
    if peak is not None:
        yield "fullest device", show_bytes(peak)
    if plan.assumed is not None:
        yield "models", ", ".join(f"{name} {model}" for name, model in plan.assumed.models.items())
        yield "a step reads", f"{many(plan.assumed.batch, 'prompt')} of {plan.assumed.prompt_tokens} tokens"
        if plan.assumed.response_tokens:
            yield "responses", f"{plan.assumed.response_tokens} tokens"
    yield "structure", plan.structure_hash[:12]
