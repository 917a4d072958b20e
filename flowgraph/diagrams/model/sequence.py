"""A sequence diagram as data: the messages of one step, in order. Labels are a user's text unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ActorKind = Literal["driver", "model"]
MessageStyle = Literal["call", "reply", "transfer", "sync"]


@dataclass(frozen=True)
class Actor:
    """The driver, or a copy of a model in its pool, by the lines of its label. Ids are generated."""

    id: str
    label: tuple[str, ...]
    kind: ActorKind = "model"
    pool: str = ""


@dataclass(frozen=True)
class Message:
    """A message from one actor to another, by their ids; to itself, what it does."""

    source: str
    target: str
    label: str
    style: MessageStyle = "call"


@dataclass(frozen=True)
class SequenceDiagram:
    """Actors from left to right, messages from top to bottom; `about` describes them in sentences."""

    title: str
    actors: tuple[Actor, ...]
    messages: tuple[Message, ...]
    about: str = ""
