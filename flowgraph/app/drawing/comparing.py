"""`diff`: two flows or two plans, as a unified diff of their texts or drawn as one picture."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flowgraph.app.drawing import pictures
from flowgraph.app.drawing.draw_target import DrawTarget
from flowgraph.app.drawing.make_drawing import DrawResult
from flowgraph.app.drawing.page import single_page
from flowgraph.app.drawing.pictures import PictureDetail
from flowgraph.app.drawing.stages import unified_diff
from flowgraph.diagrams.build.diff_picture import diff_picture
from flowgraph.diagrams.model.labels import seen
from flowgraph.diagrams.model.picture import Picture
from flowgraph.errors import UsageError
from flowgraph.flows.settings import settings_compared
from flowgraph.serialize.graph_text import graph_text
from placements import report


@dataclass(frozen=True, kw_only=True)
class ComparedTargets:
    """Two flows with the settings whose values differ, or two plans."""

    old: DrawTarget
    new: DrawTarget

    def text(self) -> str:
        """Return a unified diff with all lines; "" when they are the same."""
        return unified_diff(seen(_text(self.old)), seen(_text(self.new)), self.old.name, self.new.name)

    def drawn(self, detail: PictureDetail) -> DrawResult:
        """Return both as one picture: their flows, else their plans."""

        def picture() -> Picture:
            draw = pictures.flow if self.old.kind == "flow" else pictures.plan
            return diff_picture(draw(self.old, detail), draw(self.new, detail))

        name = f"{self.old.name} and {self.new.name}"
        return DrawResult(name=name, make=picture, make_page=lambda: single_page(name, picture()))


def compare_targets(old: DrawTarget, new: DrawTarget) -> ComparedTargets:
    """Return two flows or two plans to be compared; raises UsageError for a flow and a plan."""
    if (old.kind == "flow") != (new.kind == "flow"):
        what = f"is a {new.kind}, and {old.name} a {old.kind}: nothing to compare"
        raise UsageError(what, where=new.name, hint="two flows, or two plans: `flowgraph plan FLOW -o plan.json`")
    if old.kind == "flow" and old.graph is not None and new.graph is not None:
        graphs = settings_compared(old.graph, new.graph)  # whoever wrote a default down
        old, new = replace(old, flow=lambda: graphs[0]), replace(new, flow=lambda: graphs[1])
    return ComparedTargets(old=old, new=new)


def _text(target: DrawTarget) -> str:
    """Return what is compared as text, without lines of files."""
    if target.kind == "flow" and target.graph is not None:
        return graph_text(target.graph, sites=False)
    return "\n".join(report.plan_lines(target.placement.plan))
