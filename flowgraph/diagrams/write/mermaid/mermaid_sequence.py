"""Write a sequence diagram as Mermaid's text. Checked against mermaid 11 and 12."""

from __future__ import annotations

from collections.abc import Mapping

from flowgraph.diagrams.model.picture import MessageStyle, SequenceDiagram
from flowgraph.diagrams.write.mermaid.flowchart import escaped

# A transfer has an open head; a sync of weights is dashed too, for Mermaid has no bold line here.
_ARROWS: Mapping[MessageStyle, str] = {"call": "->>", "reply": "-->>", "transfer": "-)", "sync": "--)"}
_SETTINGS = '%%{init: {"look": "classic", "sequence": {"mirrorActors": false, "showSequenceNumbers": true}}}%%'


def mermaid_sequence(diagram: SequenceDiagram) -> str:
    """Return a sequence diagram as Mermaid's, its messages numbered."""
    lines = [_SETTINGS, "sequenceDiagram", f"    accTitle: {escaped(diagram.title)}"]
    for actor in diagram.actors:
        label = "<br/>".join(map(escaped, [*actor.label, *([actor.pool] if actor.pool else [])]))
        lines.append(f"    participant {actor.id} as {label}")
    lines += [
        f"    {message.source}{_ARROWS[message.style]}{message.target}: {escaped(message.label)}"
        for message in diagram.messages
    ]
    return "\n".join(lines) + "\n"
