"""Two pictures of boxes and arrows as one: what is in both, what came, what went, and what says something else now.

Things are matched by what they say, never by their ids: a box by its first line and the frame it is in, an arrow by its
ends and style. Things that say the same are matched in their order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from flowgraph.diagrams.model.picture import Arrow, Box, Frame, Picture, Status
from flowgraph.diagrams.model.quantities import listed, many

Key = tuple[object, ...]
"""What a thing says, and how many before it say the same."""

T = TypeVar("T")

_NEXT_SETTING = re.compile(r", (?=\w+=)")


@dataclass(frozen=True)
class _Keyed:
    """A picture's things by what they say, and what each id says."""

    frames: Mapping[Key, Frame]
    boxes: Mapping[Key, Box]
    arrows: Mapping[Key, Arrow]
    key_of: Mapping[str | None, Key] = field(default_factory=dict[str | None, Key])


def diff_picture(old: Picture, new: Picture) -> Picture:
    """Draw two pictures as one, in the order of the new one, what is gone last.

    Each thing has its status. A box that changed has what it was as its last line; so has a frame's or arrow's label.

    >>> box, more = Box("a", ("draw", "n=8"), "generate"), Box("b", ("learn",), "update")
    >>> fewer = replace(box, label=("draw", "n=4"))
    >>> there = diff_picture(Picture("f", (box,), (), ()), Picture("f", (fewer, more), (), ()))
    >>> [(each.label, each.status) for each in there.boxes], there.about
    ([(('draw', 'n=4', 'was n=8'), 'changed'), (('learn',), 'added')], '1 box added and 1 box changed.')
    """
    before, after = _keyed(old), _keyed(new)
    frames = {key: f"f{place}" for place, key in enumerate({**after.frames, **before.frames})}
    boxes = {key: f"n{place}" for place, key in enumerate({**after.boxes, **before.boxes})}
    drawn = Picture(
        new.title if old.title == new.title else f"from {old.title} to {new.title}",
        tuple(_boxes(before, after, frames, boxes)),
        tuple(_frames(before, after, frames)),
        tuple(_arrows(before, after, boxes)),
    )
    return replace(drawn, about=_about(drawn))


# ------------------------------------------------------------------------------------------- what things say


def _keyed(picture: Picture) -> _Keyed:
    key_of: dict[str | None, Key] = {None: ()}
    frames = _numbered(_outer_first(picture.frames), lambda each: (key_of[each.parent], each.kind, said(each)), key_of)
    boxes = _numbered(picture.boxes, lambda each: (key_of[each.inside], each.label[0]), key_of)
    arrows = _numbered(picture.arrows, lambda each: (key_of[each.source], key_of[each.target], each.style))
    return _Keyed(frames, boxes, arrows, key_of)


def _outer_first(frames: Sequence[Frame]) -> Iterator[Frame]:
    """Give each frame after the one that it is in."""
    given: set[str | None] = {None}
    left = list(frames)
    while left:
        ready = [each for each in left if each.parent in given]
        assert ready, "frames are in frames of the picture, none in itself"
        yield from ready
        given |= {each.id for each in ready}
        left = [each for each in left if each.id not in given]


def _numbered(
    things: Iterator[T] | Sequence[T], says: Callable[[T], Key], key_of: dict[str | None, Key] | None = None
) -> dict[Key, T]:
    """Give things by what they say, with a key of its own each time that it is said; note the keys of their ids."""
    found, counts = dict[Key, T](), Counter[Key]()
    for each in things:
        what = says(each)
        key = (*what, counts[what])
        counts[what] += 1
        found[key] = each
        if key_of is not None and isinstance(each, Box | Frame):
            key_of[each.id] = key
    return found


def said(frame: Frame) -> str:
    """Give what a frame is known by: a pool without its devices, a copy of weights without its layout.

    >>> said(Frame("f0", "pool0: 8 of node-1", kind="pool")), said(Frame("f1", "policy · fsdp · data=8", kind="home"))
    ('pool0', 'policy · fsdp')
    """
    if frame.kind == "pool":
        return frame.pool or frame.label.partition(":")[0]
    return frame.label.rpartition(" · ")[0] or frame.label if frame.kind == "home" else frame.label


# ------------------------------------------------------------------------------------------- what became of them


def _matched(before: Mapping[Key, T], after: Mapping[Key, T]) -> Iterator[tuple[Key, T | None, T | None]]:
    for key in {**after, **before}:
        yield key, before.get(key), after.get(key)


def _status(old: object | None, new: object | None, *, same: bool) -> Status:
    if old is None:
        return "added"
    return "removed" if new is None else "same" if same else "changed"


def _frames(before: _Keyed, after: _Keyed, ids: Mapping[Key, str]) -> Iterator[Frame]:
    for key, old, new in _matched(before.frames, after.frames):
        shown, keyed = (new, after) if new is not None else (old, before)
        assert shown is not None, "a key is that of one or both"
        status = _status(old, new, same=old is not None and new is not None and old.label == new.label)
        label = shown.label if status != "changed" or old is None else f"{shown.label}, was {_rest(shown, old)}"
        parent = ids.get(keyed.key_of[shown.parent])
        yield replace(shown, id=ids[key], label=label, parent=parent, status=status)


def _rest(new: Frame, old: Frame) -> str:
    """Give what a frame's label was, without what it is known by."""
    return old.label.removeprefix(said(new)).lstrip(" ·:") or old.label


def _boxes(before: _Keyed, after: _Keyed, frames: Mapping[Key, str], ids: Mapping[Key, str]) -> Iterator[Box]:
    for key, old, new in _matched(before.boxes, after.boxes):
        shown, keyed = (new, after) if new is not None else (old, before)
        assert shown is not None, "a key is that of one or both"
        same = old is not None and new is not None and (old.label, old.kind) == (new.label, new.kind)
        status = _status(old, new, same=same)
        label = shown.label if status != "changed" or old is None else (*shown.label, f"was {_was(old, shown)}")
        inside = frames.get(keyed.key_of[shown.inside])
        yield replace(shown, id=ids[key], label=label, inside=inside, status=status)


def _was(old: Box, new: Box) -> str:
    """Say what a box was: what it says no more, and which settings it did not have; else its kind if that is another.

    Settings are compared by their names.

    >>> _was(Box("a", ("loss", "eps=0.2"), "host"), Box("b", ("loss", "eps=0.3, dual=3"), "host"))
    'eps=0.2, without dual'
    """
    before, after = _parts(old), _parts(new)
    names = {part.partition("=")[0] for part in before}
    gone = [part for part in before if part not in after]
    came = [name for part in after if "=" in part and (name := part.partition("=")[0]) not in names]
    told = [*gone, *(f"without {name}" for name in came)]
    return ", ".join(told) or ("without" if old.kind == new.kind else old.kind)


def _parts(box: Box) -> list[str]:
    """Return what a box says below its name: its lines, a line of settings one by one."""
    return [part for line in box.label[1:] for part in _NEXT_SETTING.split(line)]


def _arrows(before: _Keyed, after: _Keyed, ids: Mapping[Key, str]) -> Iterator[Arrow]:
    for _, old, new in _matched(before.arrows, after.arrows):
        shown, keyed = (new, after) if new is not None else (old, before)
        assert shown is not None, "a key is that of one or both"
        status = _status(old, new, same=old is not None and new is not None and old.label == new.label)
        label = shown.label if status != "changed" or old is None else f"{shown.label}, was {old.label}"
        source, target = (ids[keyed.key_of[end]] for end in (shown.source, shown.target))
        yield replace(shown, source=source, target=target, label=label, status=status)


def _about(picture: Picture) -> str:
    """Count what came, went and changed."""
    told = list[str]()
    for status in ("added", "removed", "changed"):
        counts = [(sum(each.status == status for each in things), one, more) for things, one, more in _kinds(picture)]
        told += [f"{many(count, one, more)} {status}" for count, one, more in counts if count]
    return f"{listed(told)}." if told else "Nothing that is drawn differs."


def _kinds(picture: Picture) -> tuple[tuple[Sequence[Box | Frame | Arrow], str, str], ...]:
    return (picture.boxes, "box", "boxes"), (picture.frames, "frame", "frames"), (picture.arrows, "arrow", "arrows")
