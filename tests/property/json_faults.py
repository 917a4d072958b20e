"""Ways to change stored data: one value of it, its text, or its bytes."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

Data = Any
Place = tuple[Any, ...]

ODD: tuple[Any, ...] = (
    *("os:system", "builtins:exec", "sys:exit", "this:s", "antigravity:x", "flowgraph.__main__:main", "nodes:generate"),
    *("tests:x", ":", "a:b:c", "nodes.sampling:generate", "nodes.values:Mask", "flowgraph.values:Mask", ".:x", "..a:b"),
    *("flowgraph.values:Value", "nodes.likelihood:logprobs.op", "nodes.likelihood:logprobs.__globals__"),
    *("flowgraph.store:SCHEMA", "p0", "n0", "n999", "..", "0.0", "group", ".group", "größe", "0", "x"),
    *("", "\ud800", "\x00", "a" * 10_000),
    *(None, True, False, [], {}, [[]], {"": {}}, ["p0"], [None], {"from": "p0"}),
    *(0, 1, -1, 10**30, -(10**30), 1.5, float("nan"), float("inf")),
)


def places(data: Data, at: Place = ()) -> Iterator[Place]:
    """Yield the place of every value in plain data."""
    if at:
        yield at
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from places(value, (*at, key))


def get(data: Data, at: Place) -> Data:
    """Return what stands at a place."""
    for key in at:
        data = data[key]
    return data


def put(data: Data, at: Place, value: Data) -> None:
    """Put a value at a place."""
    get(data, at[:-1])[at[-1]] = value


def odd(rng: random.Random, data: Data, at: Place) -> None:
    """Put something odd there."""
    put(data, at, copy.deepcopy(rng.choice(ODD)))


def dropped(rng: random.Random, data: Data, at: Place) -> None:
    """Leave it out."""
    del get(data, at[:-1])[at[-1]]


def doubled(rng: random.Random, data: Data, at: Place) -> None:
    """Say it twice, or under another key."""
    holder, value = get(data, at[:-1]), copy.deepcopy(get(data, at))
    if isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), value)
    else:
        holder[rng.choice(["more", "", "_x", "copy", "model_config", "__base__", str(at[-1]) * 2])] = value


def swapped(rng: random.Random, data: Data, at: Place) -> None:
    """Let it change places with another of the same key, or of the same sort."""
    here = get(data, at)
    alike = [each for each in places(data) if each[-1] == at[-1] and at != each[: len(at)] and each != at[: len(each)]]
    other = rng.choice(alike or [at])
    there = get(data, other)
    put(data, at, there)
    put(data, other, here)


def retyped(rng: random.Random, data: Data, at: Place) -> None:
    """Say the same in another type."""
    value = get(data, at)
    ways: list[Callable[[Any], Any]] = [
        str,
        lambda each: [each],
        lambda each: {"from": each},
        repr,
        lambda each: [each, each],
    ]
    put(data, at, rng.choice(ways)(value))


def turned(rng: random.Random, data: Data, at: Place) -> None:
    """Turn a list around, shift a number, change letters of a text."""
    value = get(data, at)
    if isinstance(value, list):
        value.reverse()
    elif isinstance(value, bool):
        put(data, at, not value)
    elif isinstance(value, int | float):
        put(data, at, rng.choice([-value, value + 1, value * 10**6, float(value)]))
    elif isinstance(value, str):
        place = rng.randrange(len(value) + 1)
        put(data, at, value[:place] + rng.choice(["", "x", ".", ":", "\n", "é"]) + value[place + 1 :])


CHANGES: tuple[Callable[[random.Random, Data, Place], None], ...] = (
    odd,
    odd,
    dropped,
    doubled,
    swapped,
    retyped,
    turned,
)


def changed(rng: random.Random, data: Data) -> Data:
    """Return data with one change, sometimes a few."""
    data = copy.deepcopy(data)
    for _ in range(1 if rng.random() < 0.8 else rng.randint(2, 4)):
        every = list(places(data))
        if every:
            rng.choice(CHANGES)(rng, data, rng.choice(every))
    return data


def spoiled(rng: random.Random, text: str) -> str:
    """Return a text with a hole, or cut off."""
    start = rng.randrange(len(text))
    return (
        text[:start]
        if rng.random() < 0.3
        else text[:start] + rng.choice(["", "[", "}", '"', "\\", "9" * 5000]) + text[start + rng.randint(1, 30) :]
    )


def deep(rng: random.Random, data: Data, at: Place) -> None:
    """Wrap it in many lists or objects."""
    value, many = get(data, at), rng.choice([20, 90, 150, 600])
    for _ in range(many):
        value = [value] if rng.random() < 0.5 else {"a": value}
    put(data, at, value)


def grown(rng: random.Random, data: Data, at: Place) -> None:
    """Make a list, a text or a number much larger."""
    value = get(data, at)
    if isinstance(value, list) and value:
        put(data, at, value * rng.choice([50, 1_000]))
    elif isinstance(value, str):
        put(data, at, value * 3_000)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        put(data, at, rng.choice([10**9, 2**31, 2**63, 2**64 - 1, 1e300, 5e-324, -(2**63), 65_536, 10**6]))


NAMED = ("../x", "a/b", "/etc/passwd", "\x1b[31m", "\u202e", "a\nb", "{0}", "%s", "[red]", "<script>", "", " ", "host")


def broken_text(rng: random.Random, text: str) -> bytes:
    """Return a text with one value changed, or as bytes that are no text."""
    how = rng.randrange(12)
    if how < 7:
        try:
            data = json.loads(text)
        except ValueError:  # many lines of JSON: one of them is changed
            lines = text.splitlines()
            place = rng.randrange(len(lines))
            lines[place] = broken_text(rng, lines[place]).decode("utf-8", "replace").replace("\n", " ")
            return ("\n".join(lines) + "\n").encode("utf-8", "replace")
        for _ in range(1 if rng.random() < 0.7 else rng.randint(2, 5)):
            _change(rng, data, rng.choice(CHANGES))
        if how == 0:
            _change(rng, data, rng.choice([deep, grown]), everywhere=False)  # at last: else it would grow again
        return json.dumps(data, indent=rng.choice([None, 1])).encode()
    if how == 7:
        return spoiled(rng, text).encode("utf-8", "surrogatepass")
    if how == 8:
        return renamed(rng, text).encode()
    return broken_bytes(rng, text.encode())


def _change(
    rng: random.Random, data: Data, change: Callable[[random.Random, Data, Place], None], *, everywhere: bool = True
) -> None:
    """Change one place, or one key wherever it stands; each key is as likely as each other, however often it stands."""
    every = list(places(data))
    if not every:
        return
    if rng.random() < 0.6:
        key = rng.choice(sorted({str(at[-1]) for at in every}))
        every = [at for at in every if str(at[-1]) == key]
    everywhere = everywhere and change is not swapped and rng.random() < 0.2
    for at in reversed(every) if everywhere else [rng.choice(every)]:
        with contextlib.suppress(LookupError, TypeError):  # what it stood in is gone
            change(rng, data, at)


def renamed(rng: random.Random, text: str) -> str:
    """Return a text in which one word, wherever it stands, is another: so that what it names stays together."""
    data = json.loads(text.splitlines()[0]) if "\n{" in text else json.loads(text)
    words = sorted({each for place in places(data) if isinstance(each := get(data, place), str) and each})
    word = rng.choice(words or ["a"])
    return text.replace(json.dumps(word), json.dumps(rng.choice([*NAMED, "x" * 300])))


def broken_bytes(rng: random.Random, data: bytes) -> bytes:
    """Return bytes with bits flipped, cut off, with zeros, doubled, or none."""
    how, start = rng.randrange(8), rng.randrange(len(data) + 1)
    if how == 0:
        return data[:start]
    if how == 1:
        flipped = bytearray(data)
        for _ in range(rng.choice([1, 1, 8, 64])):
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    if how == 2:
        return data[:start] + bytes(rng.choice([1, 100])) + data[start:]
    if how == 3:
        return b"\xef\xbb\xbf" + data
    if how == 4:
        return data + data
    if how == 5:
        return rng.randbytes(rng.choice([1, 100, 5_000]))
    if how == 6:
        return (
            data[:start]
            + rng.choice([b"\xff\xfe", b"[" * 5_000, b'{"a":' * 5_000, b"\x00", b"1" * 10_000])
            + data[start:]
        )
    return rng.choice([b"", b"null", b"[]", b"{}", b"0", b'""', b"[" * 100_000, data.replace(b"1", b"9" * 400)])
