"""Where things stand on the shipped flows: nothing covers anything else, nothing leaves the page or its box."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowgraph.diagrams.build.flow_picture import flow_picture
from flowgraph.diagrams.model.picture import Arrow, ArrowStyle, Box, Frame, Picture
from flowgraph.diagrams.write.svg.geometry import Rect
from flowgraph.diagrams.write.svg.label_places import Label, crowded, is_near, label_places
from flowgraph.diagrams.write.svg.layout import LaidPicture, box_size_px, lay_out
from flowgraph.diagrams.write.svg.text_lines import width_of
from flowgraph.flows.flow_files import known_flows
from flowgraph.passes import compile_graph
from tests.looped import looped

pytest.importorskip("pygraphviz")

FLOWS = looped("name", sorted(known_flows()))
SCREEN_PX = 1280


def laid_flow(name: str) -> LaidPicture:
    return lay_out(flow_picture(compile_graph(known_flows()[name].flow.graph())))


def labels(laid: LaidPicture) -> Iterator[tuple[Rect, Label]]:
    """Yield where each label stands, with the curves of its arrow."""
    for arrow in laid.arrows:
        if arrow.label_at is not None:
            width = max(width_of(line, "small") for line in arrow.lines)
            height = 15.0 * len(arrow.lines)
            x, y = arrow.label_at
            at = Rect(x - width / 2, y - height / 2, width, height)
            yield at, Label(width, height, arrow.points, arrow.label_at)


@FLOWS
def test_no_label_covers_another_or_a_box_and_each_stands_beside_its_arrow(name: str) -> None:
    laid = laid_flow(name)
    there = list(labels(laid))
    for place, (at, label) in enumerate(there):
        assert not any(at.meets(other) for other, _ in there[place + 1 :])
        assert not any(at.meets(box.area) for box in laid.boxes)
        assert is_near(at, label.points)


@FLOWS
def test_boxes_stand_apart_within_their_frames_and_all_of_it_on_the_page(name: str) -> None:
    laid = laid_flow(name)
    page = Rect(0.0, 0.0, laid.width, laid.height)
    frames = {each.frame.id: each.area for each in laid.frames}
    for place, box in enumerate(laid.boxes):
        assert not any(box.area.meets(other.area) for other in laid.boxes[place + 1 :])
        assert page.holds(box.area)
        assert box.box.inside is None or frames[box.box.inside].holds(box.area)
    assert all(page.holds(at) for at, _ in labels(laid))
    assert laid.width <= SCREEN_PX


@FLOWS
def test_the_lines_of_a_label_fit_in_their_box(name: str) -> None:
    for box in laid_flow(name).boxes:
        names, others = box.lines[: box.names], box.lines[box.names :]
        assert all(width_of(line, "strong") < box.area.width for line in names)
        assert all(width_of(line, "small") < box.area.width for line in others)


def test_an_arrow_to_the_next_step_goes_up_and_moves_nothing() -> None:
    boxes = tuple(Box(f"n{place}", (f"box {place}",), "host") for place in range(3))
    down = (Arrow("n0", "n1", "a"), Arrow("n1", "n2", "b"))
    back = Arrow("n2", "n0", "next step", ArrowStyle.CARRY)
    plain, carried = (lay_out(Picture("p", boxes, (), arrows)) for arrows in (down, (*down, back)))
    tops = [[box.area.top for box in laid.boxes] for laid in (plain, carried)]
    assert tops[0] == sorted(tops[0]) and tops[1] == sorted(tops[1])
    arrow = carried.arrows[-1]
    assert arrow.tip[1] < arrow.points[0][1]  # it ends above where it begins


def test_a_picture_of_nothing_is_a_margin() -> None:
    assert lay_out(Picture("p", (), (), ())).boxes == ()


def test_devices_are_plates_at_the_head_of_their_frame() -> None:
    boxes = (Box("n0", ("policy",), "model", "f0"), Box("n1", ("node-0: 8 × h100", "devices 0–7"), "device", "f0"))
    laid = lay_out(Picture("p", boxes, (Frame("f0", "pool0: 8 of node-0", kind="pool"),), ()))
    model, plate = laid.boxes
    assert plate.lines == ("node-0: 8 × h100 · devices 0–7",)
    assert laid.frames[0].area.holds(plate.area) and plate.area.bottom < model.area.top


def test_a_model_is_wider_than_its_name_by_what_its_shape_takes() -> None:
    model, host = (box_size_px(Box("n0", ("policy.generate",), kind))[0] for kind in ("model", "host"))
    assert model > host


def test_a_label_far_from_its_arrow_is_moved_onto_it_but_not_onto_a_box() -> None:
    line = ((0.0, 100.0), (100.0, 100.0), (200.0, 100.0), (300.0, 100.0))
    far = Label(40.0, 12.0, line, (150.0, 300.0))
    (middle,) = label_places([far], [], 400.0)
    assert middle == pytest.approx((150.0, 100.0))
    box = Rect(120.0, 80.0, 60.0, 40.0)
    (moved,) = label_places([far], [box], 400.0)
    assert moved is not None
    assert not crowded(Rect(moved[0] - 20, moved[1] - 6, 40, 12), box) and moved[1] == pytest.approx(100.0)
    near = Label(40.0, 12.0, line, (150.0, 110.0))
    assert label_places([near], [], 400.0) == [(150.0, 110.0)]
    assert label_places([far], [Rect(0.0, 0.0, 400.0, 400.0)], 400.0) == [None]
