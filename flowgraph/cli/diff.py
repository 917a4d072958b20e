"""`diff`: two flows or two plans, as a unified diff of their texts or drawn as one picture."""

from __future__ import annotations

import difflib
import sys
from dataclasses import replace

from flowgraph.cli import pictures
from flowgraph.cli.draw import DrawOutput, deliver
from flowgraph.cli.draw_target import DrawTarget
from flowgraph.cli.page import single_page
from flowgraph.diagrams.build.diff_picture import diff_picture
from flowgraph.diagrams.model.labels import seen
from flowgraph.diagrams.model.picture import Picture
from flowgraph.errors import UsageError
from flowgraph.flows.settings import settings_compared
from flowgraph.serialize.graph_text import graph_text


def diff_subjects(old: DrawTarget, new: DrawTarget, wanted: DrawOutput) -> None:
    """Print what differs, or draw it where a file, a format or a viewer is named; UsageError for a flow and a plan."""
    if (old.kind == "flow") != (new.kind == "flow"):
        what = f"is a {new.kind}, and {old.name} a {old.kind}: nothing to compare"
        raise UsageError(what, where=new.name, hint="two flows, or two plans: `flowgraph plan FLOW -o plan.json`")
    old, new = _settings_compared(old, new)
    if wanted.out is None and not wanted.to and not wanted.show:
        _print_diff(old, new)
        return
    both = [picture_of(each, wanted) for each in (old, new)]

    def one() -> Picture:

        return diff_picture(both[0], both[1])

    def page() -> str:

        return single_page(f"{old.name} and {new.name}", one())

    deliver(one, page, wanted)


def _settings_compared(old: DrawTarget, new: DrawTarget) -> tuple[DrawTarget, DrawTarget]:
    """Return two flows that tell the settings whose values differ, whoever wrote a default down; plans as they are."""
    if old.kind != "flow" or old.graph is None or new.graph is None:
        return old, new
    one, other = settings_compared(old.graph, new.graph)
    return replace(old, flow=lambda: one), replace(new, flow=lambda: other)


def picture_of(subject: DrawTarget, wanted: DrawOutput) -> Picture:
    """Give the picture that is compared: a flow's own, else the plan's."""
    return pictures.flow(subject) if subject.kind == "flow" else pictures.plan(subject, wanted.shown)


def _print_diff(old: DrawTarget, new: DrawTarget) -> None:
    """Print a unified diff of two texts, whole; nothing when they are the same."""
    texts = [f"{seen(_text(each))}\n".splitlines(keepends=True) for each in (old, new)]
    if texts[0] == texts[1]:
        print("no difference", file=sys.stderr)
    whole = max(map(len, texts))
    sys.stdout.writelines(difflib.unified_diff(texts[0], texts[1], old.name, new.name, n=whole))


def _text(subject: DrawTarget) -> str:
    """Give what is compared as text, without lines of files."""
    if subject.kind == "flow" and subject.graph is not None:
        return graph_text(subject.graph, sites=False)
    from placements.found_text import plan_lines

    return "\n".join(plan_lines(subject.placement.plan))
