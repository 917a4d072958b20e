"""A page as a plan has it, its pictures written by hand with the hooks that the page's script goes by."""

from __future__ import annotations

from html import escape

from flowgraph.diagrams.write.page import Page, PageTable, Section, TableCell
from flowgraph.diagrams.write.svg.text_lines import cut_to_width

POOLS = ("train", "generate")
KINDS = {"prompts": "data", "generate": "generate", "score": "score", "logprobs": "logprob", "update": "update"}
END_S = 58.3
LEFT, RIGHT = 120, 940

BARS = (  # lane, kind, start, end, label
    (0, "idle", 0.0, 31.2, "idle"),
    (0, "logprob", 31.2, 36.4, "logprobs"),
    (0, "update", 36.4, 56.9, "update"),
    (0, "sync", 56.9, 58.3, "sync policy.sample"),
    (1, "generate", 0.0, 31.0, "generate"),
    (1, "transfer", 31.0, 31.2, "transfer rollout"),
    (1, "idle", 31.2, 56.9, "idle"),
    (1, "sync", 56.9, 58.3, "sync policy.sample"),
)

CANDIDATES = (  # name, seconds, GiB, pool
    ("split 4 + 4", 58.3, 61.2, "train"),
    ("split 6 + 2", 71.9, 44.0, "train"),
    ("hybrid 8", 64.0, 74.8, "generate"),
    ("standalone 2 + 6", None, 92.1, "generate"),
)


def svg(kind: str, width: int, height: int, title: str, content: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fg {kind}" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">\n<title>{escape(title)}</title>\n<desc>{escape(title)}</desc>\n'
        f'<rect class="page" width="{width}" height="{height}"/>\n{content}\n</svg>'
    )


def box(place: int, name: str, kind: str, x: int, y: int, pool: str) -> str:
    return (
        f'<g class="box kind-{kind} {pool}" data-id="n{place}" tabindex="0"><title>{name}</title>'
        f'<rect class="shape" x="{x}" y="{y}" width="120" height="40" rx="4"/>'
        f'<text class="on" x="{x + 60}" y="{y + 24}" text-anchor="middle">{name}</text></g>'
    )


def arrow(source: int, target: int, style: str, line: str, label: str, x: int, y: int) -> str:
    ends = f'data-from="n{source}" data-to="n{target}"'
    told = f'<text class="small muted halo" x="{x}" y="{y}" text-anchor="middle">{label}</text>'
    return (
        f'<g class="arrow style-{style}" {ends} tabindex="0"><title>{label}</title><path class="line" d="{line}"/></g>'
        f'<g class="label" {ends}>{told}</g>'
    )


def graph() -> str:
    names = list(KINDS.items())
    boxes = [
        box(0, *names[0], 20, 80, ""),
        box(1, *names[1], 220, 80, "p1"),
        box(2, *names[2], 420, 40, ""),
        box(3, *names[3], 420, 130, "p0"),
        box(4, *names[4], 640, 80, "p0"),
    ]
    arrows = [
        arrow(0, 1, "data", "M140 100H220", "Prompts", 180, 94),
        arrow(1, 2, "data", "M340 90L420 60", "Rollout", 380, 68),
        arrow(1, 3, "transfer", "M340 110L420 150", "Rollout", 376, 146),
        arrow(2, 4, "data", "M540 60L640 90", "Rewards", 590, 66),
        arrow(3, 4, "data", "M540 150L640 110", "LogProbs", 590, 146),
    ]
    frame = (
        '<g class="frame frame-pool p0" data-id="f0"><rect class="border" x="400" y="16" width="380" height="176"/>'
        '<text class="small strong" x="410" y="32">train · 4 devices</text></g>'
    )
    return svg("graph", 800, 210, "The flow, and which pool runs each node", "\n".join([frame, *arrows, *boxes]))


def across(second: float) -> float:
    return LEFT + second / END_S * (RIGHT - LEFT)


def bar(lane: int, kind: str, start: float, end: float, label: str) -> str:
    x, width, y = across(start), across(end) - across(start), 40 + 48 * lane
    shown = cut_to_width(label, width - 8, "small")
    text = f'<text class="on small" x="{x + width / 2:.2f}" y="{y + 20}" text-anchor="middle">{shown}</text>'
    return (
        f'<g class="bar bar-{kind} p{lane}" data-start="{start}" data-end="{end}" data-label="{label}" tabindex="0">'
        f"<title>{label}: {start:.1f} to {end:.1f} s</title>"
        f'<rect class="shape" x="{x:.2f}" y="{y}" width="{width:.2f}" height="32" rx="2"/>{text if shown else ""}</g>'
    )


def tick(at: int) -> str:
    x = f"{across(at):.2f}"
    line = f'<line class="grid" x1="{x}" x2="{x}" y1="32" y2="136"/>'
    text = f'<text class="small muted" x="{x}" y="152" text-anchor="middle">{at} s</text>'
    return f'<g class="tick" data-at="{at}">{line}{text}</g>'


def lanes() -> str:
    names = [f'<text class="strong" x="16" y="{60 + 48 * place}">{name}</text>' for place, name in enumerate(POOLS)]
    inside = "\n".join([*map(tick, range(0, 60, 10)), *(bar(*each) for each in BARS)])
    zoomed = f'<g class="zoomed" data-left="{LEFT}" data-right="{RIGHT}" data-end="{END_S}">{inside}</g>'
    return svg("lanes", 960, 168, "One step of 58.3 s", "\n".join([*names, zoomed]))


def scatter() -> str:
    def dot(place: int, name: str, seconds: float, size: float) -> str:
        at = f'cx="{60 + (seconds - 50) * 28:.1f}" cy="{220 - size * 2:.1f}"'
        mark = "generate" if place else "update"
        return (
            f'<g class="dot kind-{mark}" data-row="{place}" tabindex="0"><title>{name}</title>'
            f'<circle class="shape" {at} r="6"/></g>'
        )

    dots = [dot(place, name, each, size) for place, (name, each, size, _) in enumerate(CANDIDATES) if each]
    axis = '<path class="axis" d="M50 20V226H760"/><text class="small muted" x="760" y="244" text-anchor="end">s</text>'
    return svg("scatter", 800, 260, "Candidates by seconds and memory", axis + "\n".join(dots))


def flow_table() -> PageTable:
    rows = tuple((TableCell(name), TableCell(kind)) for name, kind in KINDS.items())
    return PageTable(("node", "kind"), rows, pools=("", "generate", "", "train", "train"))


def lanes_table() -> PageTable:
    rows = tuple(
        (
            TableCell(POOLS[lane]),
            TableCell(label),
            TableCell(f"{start:.1f}", start),
            TableCell(f"{end - start:.1f}", end - start),
        )
        for lane, _, start, end, label in BARS
    )
    heads = ("pool", "what", "start, s", "length, s")
    return PageTable(heads, rows, numeric=(2, 3), pools=tuple(POOLS[lane] for lane, *_ in BARS))


def candidates_table() -> PageTable:
    rows = tuple(
        (
            TableCell(name),
            TableCell(f"{s:.1f}" if s else "does not fit", s),
            TableCell(f"{size:.1f}", size),
            TableCell("by memory"),
        )
        for name, s, size, _ in CANDIDATES
    )
    heads = ("placement", "seconds a step", "GiB on the fullest device", "what limits it")
    pools = tuple(pool for *_, pool in CANDIDATES)
    return PageTable(heads, rows, "Best first, as the search ranks them.", numeric=(1, 2), pools=pools, shown=True)


def sample_page() -> Page:
    notes = ("Seconds are forecast: no device of this kind was measured here.", "Memory is of the fullest device.")
    return Page(
        title="Plan of a flow on two nodes",
        about="Split placement: the policy trains on 4 devices and generates on 4 others.",
        facts=(
            ("seconds a step", "58.3"),
            ("devices", "8 × H100 80 GB"),
            ("model", "a model of 7.6 billion parameters"),
            ("tokens a second", "41,200"),
            ("fullest device", "61.2 of 80.0 GiB"),
            ("idle", "48%"),
        ),
        sections=(
            Section("The flow", "Nodes by kind, and the pool that runs each.", graph(), flow_table()),
            Section("One step", "What each pool does over one step, as it is forecast.", lanes(), lanes_table(), notes),
            Section("Candidates", "Every placement that was costed.", scatter(), candidates_table()),
            Section(
                "Roles",
                "",
                "",
                PageTable(("role", "pool"), ((TableCell("policy.train"), TableCell("train")),), pools=("train",)),
            ),
        ),
        pools=POOLS,
    )
