"""Two pictures of boxes and arrows as one: what is in both, and what was added, removed or changed.

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

Thing = TypeVar("Thing", Box, Frame, Arrow)

_NEXT_SETTING = re.compile(r", (?=\w+=)")


@dataclass(frozen=True)
class _Keyed:
    """A picture's things by their keys, and the key of each id."""

    frames: Mapping[Key, Frame]
    boxes: Mapping[Key, Box]
    arrows: Mapping[Key, Arrow]
    key_of: Mapping[str | None, Key] = field(default_factory=dict[str | None, Key])


def diff_picture(old: Picture, new: Picture) -> Picture:
    """Draw two pictures as one, in the order of the new one, with removed things last.

    Each thing has its status. A changed box has its old text as its last line; a changed frame or arrow, in its label.

    >>> box, more = Box("a", ("draw", "n=8"), "generate"), Box("b", ("learn",), "update")
    >>> fewer = replace(box, label=("draw", "n=4"))
    >>> diff = diff_picture(Picture("f", (box,), (), ()), Picture("f", (fewer, more), (), ()))
    >>> [(each.label, each.status) for each in diff.boxes], diff.about
    ([(('draw', 'n=4', 'was n=8'), 'changed'), (('learn',), 'added')], '1 box added and 1 box changed.')
    """
    before, after = _keyed(old), _keyed(new)
    frame_ids = {key: f"f{place}" for place, key in enumerate({**after.frames, **before.frames})}
    box_ids = {key: f"n{place}" for place, key in enumerate({**after.boxes, **before.boxes})}
    boxes, frames, arrows = list[Box](), list[Frame](), list[Arrow]()
    for key, box, old_box, status in _matched(before.boxes, after.boxes):
        label = box.label if old_box is None else (*box.label, f"was {_was(old_box, box)}")
        inside = frame_ids.get((before if status == "removed" else after).key_of[box.inside])
        boxes.append(replace(box, id=box_ids[key], label=label, inside=inside, status=status))
    for key, frame, old_frame, status in _matched(before.frames, after.frames):
        text = frame.label
        if old_frame is not None:  # the label without what the frame is known by
            text += f", was {old_frame.label.removeprefix(frame_name(frame)).lstrip(' ·:') or old_frame.label}"
        parent = frame_ids.get((before if status == "removed" else after).key_of[frame.parent])
        frames.append(replace(frame, id=frame_ids[key], label=text, parent=parent, status=status))
    for _, arrow, old_arrow, status in _matched(before.arrows, after.arrows):
        text = arrow.label if old_arrow is None else f"{arrow.label}, was {old_arrow.label}"
        keys = (before if status == "removed" else after).key_of
        source, target = box_ids[keys[arrow.source]], box_ids[keys[arrow.target]]
        arrows.append(replace(arrow, source=source, target=target, label=text, status=status))
    title = new.title if old.title == new.title else f"from {old.title} to {new.title}"
    diff = Picture(title, tuple(boxes), tuple(frames), tuple(arrows))
    return replace(diff, about=_about(diff))


def _keyed(picture: Picture) -> _Keyed:
    key_of: dict[str | None, Key] = {None: ()}
    frames = _numbered(
        _outer_first(picture.frames), lambda frame: (key_of[frame.parent], frame.kind, frame_name(frame)), key_of
    )
    boxes = _numbered(picture.boxes, lambda box: (key_of[box.inside], box.label[0]), key_of)
    arrows = _numbered(picture.arrows, lambda arrow: (key_of[arrow.source], key_of[arrow.target], arrow.style))
    return _Keyed(frames, boxes, arrows, key_of)


def _outer_first(frames: Sequence[Frame]) -> Iterator[Frame]:
    """Yield each frame after the one that it is in."""
    parents: set[str | None] = {None}
    remaining = list(frames)
    while remaining:
        ready = [frame for frame in remaining if frame.parent in parents]
        assert ready, "a frame lies in a frame of the picture, and none in itself"
        yield from ready
        parents |= {frame.id for frame in ready}
        remaining = [frame for frame in remaining if frame.id not in parents]


def _numbered(
    things: Iterator[Thing] | Sequence[Thing],
    text: Callable[[Thing], Key],
    key_of: dict[str | None, Key] | None = None,
) -> dict[Key, Thing]:
    """Return things by their keys, numbered where several say the same; note the keys of their ids in `key_of`."""
    keyed, counts = dict[Key, Thing](), Counter[Key]()
    for thing in things:
        words: Key = text(thing)
        key = (*words, counts[words])
        counts[words] += 1
        keyed[key] = thing
        if key_of is not None and isinstance(thing, Box | Frame):
            key_of[thing.id] = key
    return keyed


def frame_name(frame: Frame) -> str:
    """Return what a frame is known by: a pool without its devices, a copy of weights without its layout.

    >>> frame_name(Frame("f0", "pool0: 8 of node-1", kind="pool"))
    'pool0'
    >>> frame_name(Frame("f1", "policy · fsdp · data=8", kind="home"))
    'policy · fsdp'
    """
    if frame.kind == "pool":
        return frame.pool or frame.label.partition(":")[0]
    return frame.label.rpartition(" · ")[0] or frame.label if frame.kind == "home" else frame.label


def _matched(
    before: Mapping[Key, Thing], after: Mapping[Key, Thing]
) -> Iterator[tuple[Key, Thing, Thing | None, Status]]:
    """Yield each thing with its status, and with its old form if it changed."""
    for key, new in after.items():
        old = before.get(key)
        if old is None:
            yield key, new, None, "added"
        elif old.label == new.label and getattr(old, "kind", "") == getattr(new, "kind", ""):
            yield key, new, None, "same"
        else:
            yield key, new, old, "changed"
    for key, old in before.items():
        if key not in after:
            yield key, old, None, "removed"


def _was(old: Box, new: Box) -> str:
    """Return what a box no longer says and the settings that it did not have; else its old kind.

    Settings are compared by their names.

    >>> _was(Box("a", ("loss", "eps=0.2"), "host"), Box("b", ("loss", "eps=0.3, dual=3"), "host"))
    'eps=0.2, without dual'
    """
    before, after = ([part for line in box.label[1:] for part in _NEXT_SETTING.split(line)] for box in (old, new))
    names = {part.partition("=")[0] for part in before}
    texts = [part for part in before if part not in after]
    added = [part.partition("=")[0] for part in after if "=" in part]
    texts += [f"without {name}" for name in added if name not in names]
    return ", ".join(texts) or ("without" if old.kind == new.kind else old.kind)


def _about(picture: Picture) -> str:
    """Count what was added, removed and changed."""
    kinds = (picture.boxes, "box", "boxes"), (picture.frames, "frame", "frames"), (picture.arrows, "arrow", "arrows")
    counts = list[str]()
    for status in ("added", "removed", "changed"):
        for things, singular, plural in kinds:
            if count := sum(thing.status == status for thing in things):
                counts.append(f"{many(count, singular, plural)} {status}")
    return f"{listed(counts)}." if counts else "Nothing that is drawn differs."
