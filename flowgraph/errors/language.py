"""Errors in a flow's text: types, settings, laws, names, and exceptions of user code."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path

from flowgraph.errors.base import FlowError, nearest, with_article, without_keys


class FlowTypeError(FlowError, TypeError):
    """A value of one type where a node takes another, or an edge used as if it were data."""

    @classmethod
    def wrong_type(
        cls, where: str, port: str, expected: str, got: str, origin: str = "", hint: str = ""
    ) -> FlowTypeError:
        """Return the error for a port that got a value of another type; `origin` says where the value came from."""
        return cls(f"{port} takes {expected}, but got {got}", where=where, notes=[origin] if origin else [], hint=hint)

    @classmethod
    def not_data(cls, where: str, value: str, use: str, origin: str) -> FlowTypeError:
        """Return the error for Python code that uses an edge as data, although an edge has no value yet.

        `use` is what the code does, such as "the flow reads the data of"; `value` is the edge's type.
        """
        return cls(
            f"{use} {with_article(value)}, which has no value while the flow is described",
            where=where,
            notes=[origin],
            hint="code that depends on values belongs in the body of a @node",
        )

    @classmethod
    def bad_node(cls, where: str, name: str, why: str, hint: str = "") -> FlowTypeError:
        """Return the error for a function that cannot be a node, with the reason; `name` is "" if it has no name."""
        return cls(f"@node{name and f' {name}'}: {why}", where=where, hint=hint)

    @classmethod
    def bad_flow(cls, where: str, name: str, why: str, hint: str = "") -> FlowTypeError:
        """Return the error for a function that cannot be a flow, with the reason."""
        return cls(f"@flow {name}: {why}", where=where, hint=hint)

    @classmethod
    def bad_call(cls, where: str, name: str, why: str, hint: str = "") -> FlowTypeError:
        """Return the error for a call of a node or a flow with invalid arguments, with the reason."""
        return cls(f"{name}: {why}", where=where, hint=hint)


class SettingError(FlowError, ValueError):
    """A setting that is unknown or out of its range."""

    @classmethod
    def unknown(
        cls, where: str, owner: str, setting: str, names: Iterable[str], aliases: Iterable[str] = ()
    ) -> SettingError:
        """Return the error for an unknown setting of `owner`.

        The hint has the nearest of `names` and `aliases`, or lists `names` if none is close.
        """
        hint = nearest(setting, [*names, *aliases])
        hint = hint if hint.startswith("did you mean") else nearest(setting, names)
        return cls(f"{owner} has no setting `{setting}`", where=where, hint=hint)

    @classmethod
    def refused(cls, where: str, setting: str, value: object, why: str) -> SettingError:
        """Return the error for a value that a setting refuses, with the reason.

        A text of more than 120 characters is cut, keys in URLs are hidden, and a function is shown by its name.
        """
        try:
            text = repr(value)
        except Exception:  # noqa: BLE001 - __repr__ is any code, and an int of thousands of digits has no text
            text = f"({type(value).__name__})"
        text = text if len(text) <= 120 else f"{text[:120]}…"
        if callable(value) and hasattr(value, "__name__"):
            text = "a lambda" if value.__name__ == "<lambda>" else f"the function {value.__name__}"
        return cls(f"{setting}={without_keys(text)}: {why}", where=where)

    @classmethod
    def no_owner(cls, name: str, names: Iterable[str]) -> SettingError:
        """Return the error for a name that no node or setting of the flow has; the hint is `nearest(name, names)`."""
        return cls(f"the flow has no node or setting `{name}`", where="--set", hint=nearest(name, names))


def allowed_weights(at_most: int) -> str:
    """Return the weights that a node may read, as text: at most `at_most` updates old, or the newest for 0."""
    return f"weights at most {at_most} update{'s' if at_most > 1 else ''} old" if at_most else "the newest weights"


def pipeline_text(ahead: int, every: int) -> str:
    """Return as text by how many steps sampling is ahead of training (`ahead`), and how often its weights are synced.

    >>> pipeline_text(1, 2)
    'depth 1 and a sync every 2 steps'
    """
    return f"depth {ahead} and a sync every {f'{every} steps' if every > 1 else 'step'}"


def smaller_pipeline(allowed: int, ahead: int, every: int, bound: int) -> str:
    """Return, as text for a hint, settings that keep weights at most `allowed` steps old, or allow older ones.

    Sampling is now `ahead` steps ahead of training (the depth), and its weights are synced every `every` steps. The
    hint keeps each of the two in turn and changes the other so that it fits; if neither can fit, it names `--depth 0`.
    It ends with the setting by which the flow allows weights that are `bound` updates old.

    >>> smaller_pipeline(2, 2, 2, 3)
    '--depth 1 --sync-every 2, or --depth 2 --sync-every 1, or at_most=3 in the flow'
    >>> smaller_pipeline(0, 1, 1, 1)
    '--depth 0, or stale(…, at_most=1) in the flow'
    """
    pairs = [(allowed - every + 1, every), (ahead, allowed - ahead + 1)]
    fit = [f"--depth {depth} --sync-every {period}" for depth, period in dict.fromkeys(pairs) if min(depth, period) > 0]
    flow = f"at_most={bound} in the flow" if allowed else f"stale(…, at_most={bound}) in the flow"
    return ", or ".join([*(fit or ["--depth 0"]), flow])


class LawError(FlowError, ValueError):
    """A graph that breaks a law of its stage (see `flowgraph.language.laws`)."""

    @classmethod
    def not_there(cls, task: str, value: str, place: str) -> LawError:
        """Return the error for a task of a program that reads a value which is not available where the task runs."""
        what = f"`{' '.join(task.split())}` reads `{value}`, which is not in the store of {place}"
        return cls(what, hint="a transfer or a sync to that store is missing before this task")

    @classmethod
    def too_stale(cls, node: str, bound: int, at_most: int, ahead: int, every: int, updates: int) -> LawError:
        """Return the error for a node that could read weights which are `bound` updates old.

        The edge allows `at_most`. The node works `ahead` steps ahead, its weights are synced every `every` steps, and a
        step makes `updates` updates. The hint names smaller depths and periods that keep `at_most`.
        """
        reads = f"{node} reads {allowed_weights(at_most)}"
        what = f"{reads}, but with {pipeline_text(ahead, every)} they could be {bound} updates old"
        return cls(what, hint=smaller_pipeline(at_most // updates, ahead, every, bound))

    @classmethod
    def other_version(cls, task: str, step: int, name: str, home: str, version: int, scheduled: int) -> LawError:
        """Return the error for a task that reads `version` of the weights `name` where the schedule says `scheduled`.

        `home` is the copy of the weights that it reads, as text such as `apart/sglang`: its pool and engine.
        """
        reads = f"`{' '.join(task.split())}` of step {step} reads version {version} of `{name}` on {home}"
        what = f"{reads}; by the schedule it is {scheduled}"
        return cls(what, hint="an update waits for all readers of the version that it replaces, a sync for the update")

    @classmethod
    def drawn_by_other(cls, node: str, step: int, version: int, allowed: str) -> LawError:
        """Return the error for a token that was drawn by another version of the weights than its step allows."""
        what = f"{node} drew a token of step {step} by version {version} of the weights; its step allows {allowed}"
        return cls(what, hint="an update waits for the rows of its step, and a sync comes before the rows that need it")

    @classmethod
    def no_window(cls, step: int) -> LawError:
        """Return the error for a step whose responses no earlier step began to sample, although steps overlap."""
        what = f"step {step} has not begun, and the weights that draw its rows are gone"
        return cls(what, hint="run steps in order, or continue from a checkpoint: flowgraph resume RUN")

    @classmethod
    def reads_ahead(cls, task: str, ahead: int, name: str) -> LawError:
        """Return the error for a task that runs `ahead` steps early but reads state that its own step starts from."""
        steps = f"{ahead} step{'s' if ahead > 1 else ''}"
        what = f"`{' '.join(task.split())}` runs {steps} ahead, but reads `{name}`, which its step begins with"
        return cls(what, hint="only weights that are read with stale(…) may be read ahead")

    @classmethod
    def other_rows(cls, where: str, first: str, rows: str, second: str, second_rows: str, hint: str) -> LawError:
        """Return the error for two inputs of a node that have different rows: `rows` and `second_rows`."""
        what = f"{second} has the rows of {second_rows}, but {first} those of {rows}"
        return cls(what, where=where, hint=hint)

    @classmethod
    def other_weights(cls, where: str, port: str, wants: str, got: str, origin: str, hint: str) -> LawError:
        """Return the error for a port that needs values computed with some weights, but got those of other weights."""
        return cls(f"{port} needs values of {wants}, but got those of {got}", where=where, notes=[origin], hint=hint)

    @classmethod
    def narrowed(cls, record: str, part: str, declared: Iterable[str]) -> LawError:
        """Return the error for a node body that reads a part of a record which is not among the `declared` parts."""
        what = f"it reads the part `{part}` of {record}, but declares {', '.join(declared) or 'none'}"
        return cls(what, hint=f'add "{part}" to the Parts(…) of its port')

    @classmethod
    def not_stored(cls, place: str, why: str) -> LawError:
        """Return the error for a text that is not a stored graph, with the place of the fault and the reason."""
        return cls(f"this is not a stored graph: {f'{place}: ' if place else ''}{why}")

    @classmethod
    def not_counted(cls, region: str, where: str) -> LawError:
        """Return the error for a loss with a term under a mask whose tokens the loss does not count over all ranks."""
        what = f"the loss `{region}` has a term under a mask that it does not count"
        return cls(what, where=where, hint="the pass count_masks says which masks a loss counts")

    @classmethod
    def not_aligned(cls, value: str, second: str, why: str) -> LawError:
        """Return the error for two values with different rows that one node reads; `why` says how they differ."""
        return cls(f"the rows of `{value}` are not those of `{second}`: {why}")

    @classmethod
    def no_identity(cls, value: str, ranks: int) -> LawError:
        """Return the error for rows that have no identity, so that they cannot be split over ranks."""
        what = f"the rows of `{value}` have no identity, so they cannot be split over {ranks} ranks"
        return cls(what, hint="make it from a record with Group, Sample and Trajectory, or run its reader with data=1")

    @classmethod
    def not_told(cls, port: str, lacking: int, tokens: int) -> LawError:
        """Return the error for tokens without the log-probs with which they were sampled: `lacking` of `tokens`."""
        what = f"{port} needs the log-probs that rows were sampled with, but {lacking} of {tokens} tokens have none"
        return cls(what, hint="sample on an engine that reports them, or leave the correction out")


class UnknownNameError(FlowError, LookupError):
    """A flow, file or name that does not exist."""

    @classmethod
    def of(cls, what: str, name: str, names: Iterable[str], where: str = "") -> UnknownNameError:
        """Return the error for an unknown name of the kind `what`; the hint is `nearest(name, names)`."""
        return cls(f"no {what} `{name}`", where=where, hint=nearest(name, names))


def _raised_at(error: BaseException, *hidden: str) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((frame for frame in reversed(frames) if not frame.filename.startswith(("<", *hidden))), None)
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" if frame is not None else ""


def _with_message(what: str, error: BaseException) -> str:
    return f"{what} raised {type(error).__name__}: {str(error).strip() or 'no message'}"


class UserCodeError(FlowError, RuntimeError):
    """An exception raised by a user's own file or node."""

    @classmethod
    def raised(cls, what: str, error: BaseException, where: str, hint: str = "") -> UserCodeError:
        """Return the error for an exception in user code; `what` is what was being done.

        A note has the innermost line of the traceback outside `flowgraph/`, unless there is none, `where` is in that
        file, or the error is a RecursionError.
        """
        line = "" if isinstance(error, RecursionError) else _raised_at(error, str(Path(__file__).parents[1]))
        notes = [f"at {line}"] if line and not where.startswith(line.partition(":")[0]) else []
        return cls(_with_message(what, error), where=where, notes=notes, hint=hint)

    @classmethod
    def shadows(cls, path: str, name: str) -> UserCodeError:
        """Return the error for a user's file that has the name of one of flowgraph's packages, and so hides it."""
        what = f"this file hides flowgraph's package `{name}` from every import of it"
        return cls(what, where=path, hint=f"rename it, for example to my_{name}.py")

    @classmethod
    def other_project(cls, path: str, name: str, owner: str, ours: str) -> UserCodeError:
        """Return the error for an installed package of another project that has the name of one of flowgraph's.

        `owner` is that project's distribution with its version, and `ours` the name of flowgraph's distribution.
        """
        what = f"this is the package `{name}` of another project, {owner}, and not that of {ours}"
        theirs = owner.partition(" ")[0]
        hint = f"pip uninstall {theirs}, then install {ours} again, since they share a folder; or use two environments"
        return cls(what, where=path, hint=hint)

    @classmethod
    def another_module(cls, path: str, name: str, got: str) -> UserCodeError:
        """Return the error for an import in a user's file that gave the module in `got`, not the one next to it."""
        what = f"`{name}` is next to this file, but importing that name gives {got}"
        return cls(what, where=path, hint="a process has one module per name: rename the file, or run it alone")

    @classmethod
    def in_node(cls, name: str, error: BaseException, where: str) -> UserCodeError:
        """Return the error for an exception in a node's body, with the line that raised; `where` is the node's line."""
        line = _raised_at(error)
        return cls(_with_message(name, error), where=where, notes=[f"at {line}"] if line else [])
