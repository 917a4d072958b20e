"""The palette's contrasts (WCAG 2.2) and its distances for eyes that see fewer colours, and on a grey print."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import get_args

import pytest

from flowgraph.diagrams.model.picture import BoxKind, FrameKind
from flowgraph.diagrams.write.palette import ARROW_INKS, FRAME_LINES, INKS, TEXT

Rgb = tuple[float, float, float]  # linear light, 0 to 1

WHITE, NEARLY_BLACK = "#ffffff", "#0d1117"
UNCOLOURED = {"data", "arithmetic", "result", "device"}  # told apart by their shapes
KINDS = [kind for kind in INKS if kind not in UNCOLOURED]

# Source: Machado, Oliveira and Fernandes 2009, "A physiologically-based model for simulation of color vision
# deficiency", severity 1.0.
EYES: dict[str, tuple[Rgb, Rgb, Rgb]] = {
    "common": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def linear(colour: str) -> Rgb:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return red, green, blue


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def lab(colour: Rgb) -> Rgb:
    """Give CIE L*a*b* under D65."""
    red, green, blue = (min(1.0, max(0.0, part)) for part in colour)
    xyz = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883,
    )
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def seen(colour: str, eye: str) -> Rgb:
    red, green, blue = (sum(w * c for w, c in zip(row, linear(colour), strict=True)) for row in EYES[eye])
    return lab((red, green, blue))


def test_every_kind_of_box_has_its_colours() -> None:
    nodes, others = get_args(BoxKind)
    assert set(INKS) == {*get_args(nodes), *get_args(others)}


def test_text_stands_out_from_every_fill() -> None:
    assert min(contrast(TEXT, ink.fill) for ink in INKS.values()) >= 8


def test_borders_stand_out_from_white() -> None:
    assert min(contrast(ink.border, WHITE) for ink in INKS.values()) >= 3


def test_coloured_arrows_stand_out_from_white_and_from_black() -> None:
    assert min(contrast(ink, page) for ink in ARROW_INKS.values() for page in (WHITE, NEARLY_BLACK)) >= 3


def test_frames_stand_out_from_white_and_from_black_and_no_class_is_of_a_box_too() -> None:
    assert set(FRAME_LINES) == {*get_args(FrameKind)}
    assert FRAME_LINES.keys().isdisjoint(INKS)
    borders = [line.partition(":")[2][:7] for line in FRAME_LINES.values()]
    assert min(contrast(ink, page) for ink in borders for page in (WHITE, NEARLY_BLACK)) >= 3


@pytest.mark.parametrize("eye", EYES)
def test_any_two_kinds_differ_to_every_kind_of_eye(eye: str) -> None:
    places = {kind: seen(INKS[kind].fill, eye) for kind in KINDS}
    gaps = {
        (one, other): sum((a - b) ** 2 for a, b in zip(places[one], places[other], strict=True)) ** 0.5
        for one, other in combinations(KINDS, 2)
    }
    assert {pair: gap for pair, gap in gaps.items() if gap < 10} == {}


def test_any_two_kinds_differ_on_a_grey_print() -> None:
    greys = sorted(lab(linear(INKS[kind].fill))[0] for kind in KINDS)
    assert min(light - dark for dark, light in pairwise(greys)) >= 2.5
