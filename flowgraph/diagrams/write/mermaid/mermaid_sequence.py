"""Write a sequence diagram as Mermaid's text. Checked against mermaid 11 and 12."""

from __future__ import annotations

from collections.abc import Mapping

from flowgraph.diagrams.model.sequence import Actor, Message, MessageStyle, SequenceDiagram
from flowgraph.diagrams.write.mermaid.flowchart import escaped

# Data that moves has an open head; a sync of weights is dashed beside it, for Mermaid has no bold line here.
_ARROWS: Mapping[MessageStyle, str] = {"call": "->>", "reply": "-->>", "transfer": "-)", "sync": "--)"}
_SETTINGS = '%%{init: {"look": "classic", "sequence": {"mirrorActors": false, "showSequenceNumbers": true}}}%%'


def mermaid_sequence(diagram: SequenceDiagram) -> str:
    """Give a sequence diagram as Mermaid's, its messages numbered."""
    lines = [
        _SETTINGS,
        "sequenceDiagram",
        f"    accTitle: {escaped(diagram.title)}",
        *(f"    {_actor(actor)}" for actor in diagram.actors),
        *(f"    {_message(message)}" for message in diagram.messages),
    ]
    return "\n".join(lines) + "\n"


def _actor(actor: Actor) -> str:
    lines = [*actor.label, *([actor.pool] if actor.pool else [])]
    return f"participant {actor.id} as {'<br/>'.join(map(escaped, lines))}"


def _message(message: Message) -> str:
    return f"{message.source}{_ARROWS[message.style]}{message.target}: {escaped(message.label)}"
