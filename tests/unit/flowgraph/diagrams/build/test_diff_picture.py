"""Two pictures as one: what came, what went, what changed; the same whichever comes first."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from examples.dr_grpo import dr_grpo
from examples.gpg import gpg
from examples.grpo import grpo
from examples.ppo import ppo
from flowgraph.diagrams.build.diff_picture import diff_picture
from flowgraph.diagrams.build.flow_picture import flow_picture
from flowgraph.diagrams.build.plan_picture import plan_picture
from flowgraph.diagrams.model.picture import Arrow, Box, Frame, Picture
from flowgraph.diagrams.write.formats import text_in
from flowgraph.diagrams.write.tables import picture_table
from flowgraph.flows.settings import align_shown_settings
from flowgraph.lowering.lower import lower
from flowgraph.passes import compile_graph
from flowgraph.serialize.graph_text import graph_text
from tests.looped import looped
from tests.unit.flowgraph.diagrams.build.test_plan_picture import PROGRAMS
from tests.unit.placements.small_problems import found_of

FOUND = found_of("ppo", "2x8xh100")
PICTURES = {
    **{flow.name: flow_picture(compile_graph(flow.graph())) for flow in (grpo, gpg, ppo)},
    **{name: plan_picture(program) for name, program in PROGRAMS.items()},
    **{f"plan {i}": plan_picture(lower(FOUND.problem.graph, FOUND.ranked[i].plan())) for i in range(3)},
}


def statuses(picture: Picture) -> list[Counter[str]]:
    return [Counter(each.status for each in things) for things in (picture.boxes, picture.frames, picture.arrows)]


@looped("name", PICTURES)
def test_a_picture_beside_itself_is_the_same(name: str) -> None:
    picture = PICTURES[name]
    both = diff_picture(picture, picture)
    assert all(set(counts) <= {"same"} for counts in statuses(both))
    assert [box.label for box in both.boxes] == [box.label for box in picture.boxes]
    assert sorted(frame.label for frame in both.frames) == sorted(frame.label for frame in picture.frames)
    assert [(arrow.label, arrow.style) for arrow in both.arrows] == [
        (arrow.label, arrow.style) for arrow in picture.arrows
    ]
    assert both.about == "The pictures are equal."


@looped("one, other", [each for each in product(PICTURES, PICTURES) if each[0] < each[1]])
def test_the_other_way_round_what_came_is_gone(one: str, other: str) -> None:
    there, back = diff_picture(PICTURES[one], PICTURES[other]), diff_picture(PICTURES[other], PICTURES[one])
    for counts, turned in zip(statuses(there), statuses(back), strict=True):
        assert (counts["added"], counts["removed"]) == (turned["removed"], turned["added"])
        assert (counts["same"], counts["changed"]) == (turned["same"], turned["changed"])
    is_whole(there)
    new = [each for each in there.boxes if each.status != "removed"]
    assert len(new) == len(PICTURES[other].boxes)


def is_whole(picture: Picture) -> None:
    """Check that ids are its own, and that all that is named is there."""
    boxes, frames = [box.id for box in picture.boxes], [frame.id for frame in picture.frames]
    assert boxes == [f"n{i}" for i in range(len(boxes))] and len(set(frames)) == len(frames)
    assert {arrow.source for arrow in picture.arrows} | {arrow.target for arrow in picture.arrows} <= set(boxes)
    assert {box.inside for box in picture.boxes} | {frame.parent for frame in picture.frames} <= {None, *frames}


def test_what_changed_says_what_it_was() -> None:
    old = Picture(
        "old",
        (Box("x", ("policy", "policy.train 2 GiB"), "model", "g"), Box("y", ("score",), "score")),
        (Frame("f", "pool0: 8 of a", kind="pool", pool="pool0"), Frame("g", "policy · fsdp · data=8", "f", "home")),
        (Arrow("x", "y", "Policy"),),
    )
    new = Picture(
        "new",
        (Box("a", ("policy", "policy.train 1 GiB"), "model", "b"), Box("n", ("score",), "host")),
        (Frame("c", "pool0: 4 of a", kind="pool", pool="pool0"), Frame("b", "policy · fsdp · data=4", "c", "home")),
        (Arrow("a", "n", "Policy 3 B"), Arrow("n", "a", "next step")),
    )
    both = diff_picture(old, new)
    assert [box.label for box in both.boxes] == [
        ("policy", "policy.train 1 GiB", "was policy.train 2 GiB"),
        ("score", "was score"),
    ]
    assert [frame.label for frame in both.frames] == [
        "pool0: 4 of a, was 8 of a",
        "policy · fsdp · data=4, was data=8",
    ]
    assert [(arrow.label, arrow.status) for arrow in both.arrows] == [
        ("Policy 3 B, was Policy", "changed"),
        ("next step", "added"),
    ]
    assert both.title == "from old to new"
    assert both.about == "1 arrow added, 2 boxes changed, 2 frames changed and 1 arrow changed."


def test_settings_that_are_new_are_said_to_be_so() -> None:
    one, other = (Picture("p", (Box("x", label, "update"),), (), ()) for label in (("m",), ("m", "minibatch=8")))
    assert diff_picture(one, other).boxes[0].label == ("m", "minibatch=8", "was without minibatch")


def test_settings_are_compared_by_name_and_a_default_that_one_wrote_down_is_no_change() -> None:
    before, after = align_shown_settings(*(compile_graph(each.graph()) for each in (grpo, dr_grpo)))
    boxes = {box.label[0]: box.label[1:] for box in diff_picture(flow_picture(before), flow_picture(after)).boxes}
    assert boxes["clipped"] == ("aggregation=16.0", "was aggregation='token-mean'")
    assert boxes["policy.generate"] == ("n=16, max_tokens=16", "was max_tokens=256")
    assert "eps" not in f"{graph_text(before)}{graph_text(after)}"


@looped("name", ["svg", "mmd", "dot", "text"])
def test_no_status_is_told_by_colour_alone(name: str) -> None:
    one, other = (
        Picture("p", (Box("x", ("gone",), "host"),), (), ()),
        Picture("p", (Box("x", ("new",), "host"),), (), ()),
    )
    text = text_in(diff_picture(one, other), name).replace("#43;", "+").replace("#45;", "-")
    assert "+ new" in text and "- gone" in text
    assert name != "svg" or ("+ added" in text and "- removed" in text and "~ changed" not in text)


def test_a_table_says_which_arrows_are_gone() -> None:
    ends = Box("x", ("a",), "host"), Box("y", ("b",), "host")
    one, other = Picture("p", ends, (), (Arrow("x", "y", "Mask"),)), Picture("p", ends, (), ())
    assert picture_table(diff_picture(one, other)).rows[1][3].text == "- Mask from a"


def test_a_box_in_another_frame_is_another_box() -> None:
    frames = Frame("f", "left"), Frame("g", "right")
    one = Picture("p", (Box("x", ("a",), "host", "f"),), frames, ())
    both = diff_picture(one, replace(one, boxes=(Box("x", ("a",), "host", "g"),)))
    assert [(box.status, box.inside) for box in both.boxes] == [("added", "f1"), ("removed", "f0")]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy")), max_size=4),
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy")), max_size=4),
)
def test_things_that_say_the_same_are_matched_in_their_order(
    old: list[tuple[str, str]], new: list[tuple[str, str]]
) -> None:
    first, second = (
        Picture("p", tuple(Box(f"i{i}", each, "host") for i, each in enumerate(labels)), (), ())
        for labels in (old, new)
    )
    both = diff_picture(first, second)
    is_whole(both)
    counts = statuses(both)[0]
    assert counts["same"] + counts["changed"] + counts["added"] == len(new)
    assert counts["same"] + counts["changed"] + counts["removed"] == len(old)
