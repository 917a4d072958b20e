"""Two pictures of boxes and arrows as one: what is in both, and what was added, removed or changed.

Things are matched by what they say, never by their ids: a box by its first line and the frame it is in, an arrow by its
ends and style. Things that say the same are matched in their order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from flowgraph.diagrams.model.picture import Arrow, Box, Frame, Picture, Status
from flowgraph.diagrams.model.quantities import listed, many

Key = tuple[object, ...]
"""What a thing says, and how many before it say the same."""

Thing = TypeVar("Thing", Box, Frame, Arrow)

_NEXT_SETTING = re.compile(r", (?=\w+=)")


class _Keyed:
    def __init__(self, picture: Picture) -> None:
        self.frames, self.boxes, self.arrows = dict[Key, Frame](), dict[Key, Box](), dict[Key, Arrow]()
        self.key_of: dict[str | None, Key] = {None: ()}
        counts = Counter[Key]()

        def key(*words: object) -> Key:
            counts[words] += 1
            return *words, counts[words]

        for frame in sorted(picture.frames, key=lambda frame: len(picture.frames_around(frame.parent))):
            self.key_of[frame.id] = key(self.key_of[frame.parent], frame.kind, frame_name(frame))
            self.frames[self.key_of[frame.id]] = frame
        for box in picture.boxes:
            self.key_of[box.id] = key(self.key_of[box.inside], box.label[0])
            self.boxes[self.key_of[box.id]] = box
        for arrow in picture.arrows:
            self.arrows[key(self.key_of[arrow.source], self.key_of[arrow.target], arrow.style)] = arrow


def diff_picture(old: Picture, new: Picture) -> Picture:
    """Return one picture of the boxes, frames and arrows of two, each with a status: same, added, removed or changed.

    Boxes are matched by name and frame, frames by `frame_name`, kind and outer frame, and arrows by ends and style.
    They are in the order of the new picture, with removed ones last. A changed box says in its last line what it had
    before; the label of a changed frame or arrow ends with the old one. `about` counts the differences.

    >>> eight, update = Box("a", ("draw", "n=8"), "generate"), Box("b", ("learn",), "update")
    >>> four = replace(eight, label=("draw", "n=4"))
    >>> diff = diff_picture(Picture("f", (eight,), (), ()), Picture("f", (four, update), (), ()))
    >>> [(box.label, box.status) for box in diff.boxes], diff.about
    ([(('draw', 'n=4', 'was n=8'), 'changed'), (('learn',), 'added')], '1 box added and 1 box changed.')
    """
    before, after = _Keyed(old), _Keyed(new)
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
    counts = list[str]()
    for status in ("added", "removed", "changed"):
        for things, noun, nouns in ((boxes, "box", "boxes"), (frames, "frame", ""), (arrows, "arrow", "")):
            if count := sum(thing.status == status for thing in things):
                counts.append(f"{many(count, noun, nouns)} {status}")
    about = f"{listed(counts)}." if counts else "The pictures are equal."
    return Picture(title, tuple(boxes), tuple(frames), tuple(arrows), about)


def frame_name(frame: Frame) -> str:
    """Return the part of a frame's label by which `diff_picture` recognizes the frame in another picture.

    A pool's devices and the layout of a copy of weights are left out, because they may change.

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
    """Return what a box no longer says, and the settings (by name) that it did not have; if neither, its old kind.

    >>> _was(Box("a", ("loss", "eps=0.2"), "host"), Box("b", ("loss", "eps=0.3, dual=3"), "host"))
    'eps=0.2, without dual'
    """
    before, after = ([part for line in box.label[1:] for part in _NEXT_SETTING.split(line)] for box in (old, new))
    names = {part.partition("=")[0] for part in before}
    texts = [part for part in before if part not in after]
    added = [part.partition("=")[0] for part in after if "=" in part]
    texts += [f"without {name}" for name in added if name not in names]
    return ", ".join(texts) or ("without" if old.kind == new.kind else old.kind)
