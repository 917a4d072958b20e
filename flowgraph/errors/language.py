"""Errors of a flow as it is written: types, settings, laws, names, and what its own code raises."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path

from flowgraph.errors.base import FlowError, nearest, with_article


class FlowTypeError(FlowError, TypeError):
    """A value of one type where a node takes another, or an edge used as if it were data."""

    @classmethod
    def wrong_type(cls, where: str, port: str, wanted: str, got: str, made: str = "", hint: str = "") -> FlowTypeError:
        """Say which port takes what, what it was given, and where that came from."""
        return cls(f"{port} takes {wanted}, but got {got}", where=where, notes=[made] if made else [], hint=hint)

    @classmethod
    def not_data(cls, where: str, value: str, use: str, made: str) -> FlowTypeError:
        """Say that an edge has no value yet, so Python cannot branch on it or read it."""
        return cls(
            f"{use} {with_article(value)}, which has no value while the flow is described",
            where=where,
            notes=[made],
            hint="what depends on the values belongs in the body of a @node",
        )

    @classmethod
    def bad_node(cls, where: str, name: str, why: str, hint: str = "") -> FlowTypeError:
        """Say why a function cannot be a node."""
        return cls(f"@node{name and f' {name}'}: {why}", where=where, hint=hint)

    @classmethod
    def bad_flow(cls, where: str, name: str, why: str, hint: str = "") -> FlowTypeError:
        """Say why a function cannot be a flow."""
        return cls(f"@flow {name}: {why}", where=where, hint=hint)

    @classmethod
    def bad_call(cls, where: str, name: str, why: str, hint: str = "") -> FlowTypeError:
        """Say why a node or a flow cannot be called so."""
        return cls(f"{name}: {why}", where=where, hint=hint)


def _shown(value: object, most: int = 120) -> str:
    """Give a value's own text, cut where it is long; a number of thousands of digits has none."""
    if callable(value) and hasattr(value, "__name__"):
        return "a lambda" if value.__name__ == "<lambda>" else f"the function {value.__name__}"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a value's own text is any code
        return f"({type(value).__name__})"
    return text if len(text) <= most else f"{text[:most]}…"


class SettingError(FlowError, ValueError):
    """A setting that is unknown or out of its range."""

    @classmethod
    def unknown(
        cls, where: str, owner: str, setting: str, known: Iterable[str], others: Iterable[str] = ()
    ) -> SettingError:
        """Say which setting is unknown, and name the nearest; `others` are names that are near, but no settings."""
        near = nearest(setting, [*known, *others])
        hint = near if near.startswith("did you mean") else nearest(setting, known)
        return cls(f"{owner} has no setting `{setting}`", where=where, hint=hint)

    @classmethod
    def refused(cls, where: str, setting: str, value: object, why: str) -> SettingError:
        """Say which value a setting refuses, and why."""
        return cls(f"{setting}={_shown(value)}: {why}", where=where)

    @classmethod
    def no_owner(cls, name: str, known: Iterable[str]) -> SettingError:
        """Say that nothing in the flow carries this dotted name."""
        return cls(f"the flow has no node or setting `{name}`", where="--set", hint=nearest(name, known))


class LawError(FlowError, ValueError):
    """A graph that breaks a law of its stage (see `flowgraph.language.laws`)."""

    @classmethod
    def not_there(cls, task: str, value: str, place: str) -> LawError:
        """Say which task of a program reads a value that nothing brought to its place."""
        what = f"`{' '.join(task.split())}` reads `{value}`, which is not in the store of {place}"
        return cls(what, hint="a transfer or a sync that brings it there is missing before")

    @classmethod
    def other_rows(cls, where: str, first: str, rows: str, other: str, others: str, hint: str) -> LawError:
        """Say which two inputs are of different rows, so that they cannot be read row by row."""
        what = f"{other} has the rows of {others}, but {first} those of {rows}"
        return cls(what, where=where, hint=hint)

    @classmethod
    def other_weights(cls, where: str, port: str, wants: str, got: str, made: str, hint: str) -> LawError:
        """Say which weights a port asks for, and which made what it was given."""
        return cls(f"{port} wants values of {wants}, but got those of {got}", where=where, notes=[made], hint=hint)

    @classmethod
    def narrowed(cls, record: str, part: str, held: Iterable[str]) -> LawError:
        """Say which part of a record a body reads that its node does not declare."""
        what = f"it reads the part `{part}` of {record}, and declares {', '.join(held) or 'none'}"
        return cls(what, hint=f'add "{part}" to the Parts(…) of its port')

    @classmethod
    def not_stored(cls, place: str, why: str) -> LawError:
        """Say what in a file is not as in a stored graph, and where in it."""
        return cls(f"this is no stored graph: {f'{place}: ' if place else ''}{why}")

    @classmethod
    def not_counted(cls, region: str, where: str) -> LawError:
        """Say that a term of a loss is under a mask that nothing counts over all ranks."""
        what = f"the loss `{region}` has a term under a mask that it does not count"
        return cls(what, where=where, hint="the pass count_masks says which masks a loss counts")

    @classmethod
    def not_aligned(cls, value: str, other: str, why: str) -> LawError:
        """Say that two values which one node reads are of different rows."""
        return cls(f"the rows of `{value}` are not those of `{other}`: {why}")

    @classmethod
    def no_identity(cls, value: str, ranks: int) -> LawError:
        """Say that rows which nothing tells apart cannot be split over ranks."""
        what = f"the rows of `{value}` have no identity, so they cannot be split over {ranks} ranks"
        return cls(what, hint="make it from a record with Group, Sample and Trajectory, or run its reader with data=1")

    @classmethod
    def not_told(cls, port: str, lacking: int, tokens: int) -> LawError:
        """Say of how many tokens it is not known how likely they were when they were drawn."""
        what = f"{port} wants the log-probs that rows were drawn with, but {lacking} of {tokens} tokens have none"
        return cls(what, hint="sample on an engine that tells them, or leave the correction out")


class UnknownNameError(FlowError, LookupError):
    """A flow, file or name that is not there."""

    @classmethod
    def of(cls, what: str, name: str, known: Iterable[str], where: str = "") -> UnknownNameError:
        """Say what is not known by this name, and name the nearest."""
        return cls(f"no {what} `{name}`", where=where, hint=nearest(name, known))


def _raised_at(error: BaseException, hidden: tuple[str, ...] = ()) -> str:
    """Say at which line of which function an exception was raised; files whose names begin so are passed over."""
    passed = ("<", *hidden)
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(passed)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""


class UserCodeError(FlowError, RuntimeError):
    """An exception raised by a user's own file or node."""

    @classmethod
    def raised(cls, what: str, error: BaseException, where: str, hint: str = "") -> UserCodeError:
        """Say what was being done when the user's code raised, and at which of its lines."""
        text = str(error).strip() or "no message"
        at = "" if isinstance(error, RecursionError) else _raised_at(error, (str(Path(__file__).parents[1]),))
        notes = [f"at {at}"] if at and not where.startswith(at.partition(" ")[0].partition(":")[0]) else []
        return cls(f"{what} raised {type(error).__name__}: {text}", where=where, notes=notes, hint=hint)

    @classmethod
    def shadows(cls, path: str, name: str) -> UserCodeError:
        """Say which file hides one of our packages by its name."""
        what = f"this file hides flowgraph's package `{name}` from whatever imports it"
        return cls(what, where=path, hint=f"rename it, for example to my_{name}.py")

    @classmethod
    def another_module(cls, path: str, name: str, got: str) -> UserCodeError:
        """Say which module a file got by a name that a file beside it has too."""
        what = f"`{name}` is beside this file, but what it imports by that name is {got}"
        return cls(what, where=path, hint="one process knows one module by a name: rename the file, or run it alone")

    @classmethod
    def in_node(cls, name: str, error: BaseException, where: str) -> UserCodeError:
        """Say which node raised, at which line of the flow, and at which line of its body."""
        text = str(error).strip() or "no message"
        at = _raised_at(error)
        return cls(f"{name} raised {type(error).__name__}: {text}", where=where, notes=[f"at {at}"] if at else [])
