"""A sequence diagram as data: who tells whom what in one step, in order. Labels are a user's text as it came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ActorKind = Literal["driver", "model"]
MessageStyle = Literal["call", "reply", "transfer", "sync"]


@dataclass(frozen=True)
class Actor:
    """Who takes part, a line of label each: the driver, or a copy of a model in its pool. Ids are made here."""

    id: str
    label: tuple[str, ...]
    kind: ActorKind = "model"
    pool: str = ""


@dataclass(frozen=True)
class Message:
    """What one actor tells another, by their ids; to itself, what it does."""

    source: str
    target: str
    label: str
    style: MessageStyle = "call"


@dataclass(frozen=True)
class SequenceDiagram:
    """Actors from left to right, messages from top to bottom; `about` says in sentences what is to be seen."""

    title: str
    actors: tuple[Actor, ...]
    messages: tuple[Message, ...]
    about: str = ""
