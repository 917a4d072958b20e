"""Errors of a flow as it is written: types, settings, laws, names, and what its own code raises."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path

from flowgraph.errors.base import FlowError, nearest, with_article


class FlowTypeError(FlowError, TypeError):
    """A value of one type where a node takes another, or an edge used as if it were data."""

    @classmethod
    def wrong_type(
        cls, where: str, port: str, expected: str, got: str, origin: str = "", hint: str = ""
    ) -> FlowTypeError:
        """Report what a port takes, what it got, and where that came from."""
        return cls(f"{port} takes {expected}, but got {got}", where=where, notes=[origin] if origin else [], hint=hint)

    @classmethod
    def not_data(cls, where: str, value: str, use: str, origin: str) -> FlowTypeError:
        """Report that an edge has no value yet, so Python cannot branch on it or read it."""
        return cls(
            f"{use} {with_article(value)}, which has no value while the flow is described",
            where=where,
            notes=[origin],
            hint="code that depends on values belongs in the body of a @node",
        )

    @classmethod
    def bad_node(cls, where: str, name: str, why: str, hint: str = "") -> FlowTypeError:
        """Report why a function cannot be a node."""
        return cls(f"@node{name and f' {name}'}: {why}", where=where, hint=hint)

    @classmethod
    def bad_flow(cls, where: str, name: str, why: str, hint: str = "") -> FlowTypeError:
        """Report why a function cannot be a flow."""
        return cls(f"@flow {name}: {why}", where=where, hint=hint)

    @classmethod
    def bad_call(cls, where: str, name: str, why: str, hint: str = "") -> FlowTypeError:
        """Report why a node or a flow cannot be called with these arguments."""
        return cls(f"{name}: {why}", where=where, hint=hint)


def _short_repr(value: object) -> str:
    if callable(value) and hasattr(value, "__name__"):
        return "a lambda" if value.__name__ == "<lambda>" else f"the function {value.__name__}"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - __repr__ is any code, and an int of thousands of digits has no text
        return f"({type(value).__name__})"
    return text if len(text) <= 120 else f"{text[:120]}…"


class SettingError(FlowError, ValueError):
    """A setting that is unknown or out of its range."""

    @classmethod
    def unknown(
        cls, where: str, owner: str, setting: str, names: Iterable[str], aliases: Iterable[str] = ()
    ) -> SettingError:
        """Report which setting is unknown, and name the nearest; `aliases` are other names of the owner."""
        hint = nearest(setting, [*names, *aliases])
        hint = hint if hint.startswith("did you mean") else nearest(setting, names)
        return cls(f"{owner} has no setting `{setting}`", where=where, hint=hint)

    @classmethod
    def refused(cls, where: str, setting: str, value: object, why: str) -> SettingError:
        """Report which value a setting refuses, and why."""
        return cls(f"{setting}={_short_repr(value)}: {why}", where=where)

    @classmethod
    def no_owner(cls, name: str, names: Iterable[str]) -> SettingError:
        """Report that nothing in the flow has this dotted name."""
        return cls(f"the flow has no node or setting `{name}`", where="--set", hint=nearest(name, names))


class LawError(FlowError, ValueError):
    """A graph that breaks a law of its stage (see `flowgraph.language.laws`)."""

    @classmethod
    def not_there(cls, task: str, value: str, place: str) -> LawError:
        """Report which task of a program reads a value that no other task brought to its place."""
        what = f"`{' '.join(task.split())}` reads `{value}`, which is not in the store of {place}"
        return cls(what, hint="a transfer or a sync that brings it there is missing before")

    @classmethod
    def other_rows(cls, where: str, first: str, rows: str, second: str, second_rows: str, hint: str) -> LawError:
        """Report which two inputs have different rows, so that they cannot be read row by row."""
        what = f"{second} has the rows of {second_rows}, but {first} those of {rows}"
        return cls(what, where=where, hint=hint)

    @classmethod
    def other_weights(cls, where: str, port: str, wants: str, got: str, origin: str, hint: str) -> LawError:
        """Report which weights a port asks for, and which weights made its value."""
        return cls(f"{port} wants values of {wants}, but got those of {got}", where=where, notes=[origin], hint=hint)

    @classmethod
    def narrowed(cls, record: str, part: str, declared: Iterable[str]) -> LawError:
        """Report which part of a record a body reads that its node does not declare."""
        what = f"it reads the part `{part}` of {record}, and declares {', '.join(declared) or 'none'}"
        return cls(what, hint=f'add "{part}" to the Parts(…) of its port')

    @classmethod
    def not_stored(cls, place: str, why: str) -> LawError:
        """Report why a text is not a stored graph, and where in it."""
        return cls(f"this is not a stored graph: {f'{place}: ' if place else ''}{why}")

    @classmethod
    def not_counted(cls, region: str, where: str) -> LawError:
        """Report that a term of a loss is under a mask that the loss does not count over all ranks."""
        what = f"the loss `{region}` has a term under a mask that it does not count"
        return cls(what, where=where, hint="the pass count_masks says which masks a loss counts")

    @classmethod
    def not_aligned(cls, value: str, second: str, why: str) -> LawError:
        """Report that two values which one node reads have different rows."""
        return cls(f"the rows of `{value}` are not those of `{second}`: {why}")

    @classmethod
    def no_identity(cls, value: str, ranks: int) -> LawError:
        """Report that rows without identity cannot be split over ranks."""
        what = f"the rows of `{value}` have no identity, so they cannot be split over {ranks} ranks"
        return cls(what, hint="make it from a record with Group, Sample and Trajectory, or run its reader with data=1")

    @classmethod
    def not_told(cls, port: str, lacking: int, tokens: int) -> LawError:
        """Report how many tokens lack the log-probs that they were sampled with."""
        what = f"{port} wants the log-probs that rows were sampled with, but {lacking} of {tokens} tokens have none"
        return cls(what, hint="sample on an engine that reports them, or leave the correction out")


class UnknownNameError(FlowError, LookupError):
    """A flow, file or name that is not there."""

    @classmethod
    def of(cls, what: str, name: str, names: Iterable[str], where: str = "") -> UnknownNameError:
        """Report which name is unknown, and name the nearest."""
        return cls(f"no {what} `{name}`", where=where, hint=nearest(name, names))


def _raised_at(error: BaseException, *hidden: str) -> str:
    """Return the line and function that raised an exception, outside files whose names begin with a `hidden` text."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((frame for frame in reversed(frames) if not frame.filename.startswith(("<", *hidden))), None)
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" if frame is not None else ""


def _with_message(what: str, error: BaseException) -> str:
    return f"{what} raised {type(error).__name__}: {str(error).strip() or 'no message'}"


class UserCodeError(FlowError, RuntimeError):
    """An exception raised by a user's own file or node."""

    @classmethod
    def raised(cls, what: str, error: BaseException, where: str, hint: str = "") -> UserCodeError:
        """Report what the user's code was doing when it raised, and at which of its lines."""
        line = "" if isinstance(error, RecursionError) else _raised_at(error, str(Path(__file__).parents[1]))
        notes = [f"at {line}"] if line and not where.startswith(line.partition(":")[0]) else []
        return cls(_with_message(what, error), where=where, notes=notes, hint=hint)

    @classmethod
    def shadows(cls, path: str, name: str) -> UserCodeError:
        """Report which file hides one of our packages by its name."""
        what = f"this file hides flowgraph's package `{name}` from every import of it"
        return cls(what, where=path, hint=f"rename it, for example to my_{name}.py")

    @classmethod
    def another_module(cls, path: str, name: str, got: str) -> UserCodeError:
        """Report which module a file got by a name that a file in its folder has too."""
        what = f"`{name}` is beside this file, but importing that name gives {got}"
        return cls(what, where=path, hint="a process has one module of a name: rename the file, or run it alone")

    @classmethod
    def in_node(cls, name: str, error: BaseException, where: str) -> UserCodeError:
        """Report which node raised, at which line of the flow, and at which line of its body."""
        line = _raised_at(error)
        return cls(_with_message(name, error), where=where, notes=[f"at {line}"] if line else [])
