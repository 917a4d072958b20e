"""Files and command lines changed at random, and the command line run on them in this process.

A case is a function of its seed: which file of a folder of good ones is changed, how, and which command reads it. What
a case did is judged by `faults_of`. Nothing is trained, sampled, installed or shown: `sealed` has these four end where
the work would begin, when everything that can be checked has been.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import typer

from flowgraph.cli import main
from flowgraph.errors import UsageError
from tests.cli.small_run import quietly, small_run
from tests.property.json_faults import NAMED, broken_bytes, broken_text

CODES = (0, 1, 2, 3, 4)  # docs/runs.md
MOST_CPU_S = 2.0  # of this process's own time, so that a busy machine fails nothing
MOST_WALL_S = 60  # only what hangs takes this long
MOST_MEMORY_BYTES = 200 * 2**20

LAPTOP, RUN, CHECKPOINT = "plan.json", "run", "run/checkpoints/step_000002"

CLUSTER = """
[[node]]
name = "a"
count = 2
cores = 8
host_memory = "64GiB"
domain = 2
network = "100Gbps"
[[node.device]]
count = 2
kind = "gpu"
model = "h100"
memory = "80GiB"
"""
SERVERS = '{"policy": [{"url": "http://127.0.0.1:30000", "key": "a", "admin_key": "b"}]}'
SCRIPT = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 \\
  data.max_prompt_length=512 data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \\
  actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=5 \\
  actor_rollout_ref.rollout.tensor_model_parallel_size=2 trainer.n_gpus_per_node=8 trainer.nnodes=1 $@
"""
PROFILE = '[local]\nflops = { value = 0.5, source = "measured" }\n'
SMALL = ("--set", "policy.generate.n=2", "--set", "policy.generate.max_tokens=4", "--checkpoint-every", "1")


def good_files(folder: Path) -> Path:
    """Fill a folder with a file of each kind that commands read: plans, a program, pictures, a run, clusters."""
    quietly(folder, "plan", "grpo", "--cluster", "laptop", "-o", LAPTOP)
    quietly(folder, "plan", "ppo", "--cluster", "1x4xh100", "--model", "qwen2.5-0.5b", "--prompt-tokens", "64",
            "--response-tokens", "mean=32,p99=128", "--batch", "32", "-o", "gpu.json")  # fmt: skip
    (folder / "program.json").write_text(quietly(folder, "show", "grpo", "--stage", "lowered", "--json"))
    for name in ("flow", "plan", "sequence", "timeline", "memory"):
        quietly(folder, "draw", LAPTOP, "--picture", name, "-o", f"{name}_picture.json")
    small_run(folder, "grpo", *SMALL, "--out", RUN)
    quietly(folder, "cp", "grpo", "my.py")
    for name, text in {"c.toml": CLUSTER, "p.toml": PROFILE, "s.json": SERVERS, "job.sh": SCRIPT}.items():
        (folder / name).write_text(text)
    return folder


READERS: Mapping[str, Sequence[tuple[str, ...]]] = {
    LAPTOP: (
        ("check", LAPTOP),
        ("explain", LAPTOP),
        ("explain", LAPTOP, "policy.train", "--json"),
        ("draw", LAPTOP),
        ("draw", LAPTOP, "-o", "out.svg"),
        ("draw", LAPTOP, "-o", "out.html"),
        ("draw", LAPTOP, "--picture", "memory"),
        ("draw", LAPTOP, "--picture", "timeline", "--to", "mmd"),
        ("draw", LAPTOP, "--to", "dot"),
        ("simulate", LAPTOP),
        ("simulate", LAPTOP, "-o", "trace.json", "--json"),
        ("compare", LAPTOP, "gpu.json"),
        ("diff", LAPTOP, "gpu.json"),
        ("diff", "grpo", LAPTOP),
        ("show", "grpo", "--stage", "placed", "--plan", LAPTOP),
        ("show", "grpo", "--stage", "lowered", "--plan", LAPTOP, "--json"),
        ("plan", "grpo", "--plan", LAPTOP),
        ("check", "grpo", "--plan", LAPTOP),
        ("run", "--plan", LAPTOP, "--out", "new"),
        ("run", "grpo", "--plan", LAPTOP, "--out", "new"),
        ("calibrate", LAPTOP, "--measured", "policy.generate=3"),
        ("export", LAPTOP, "--to", "verl"),
        ("generate", "tiny", "--prompt", "1", "--plan", LAPTOP),
    ),
    "gpu.json": (
        ("check", "gpu.json"),
        ("check", "gpu.json", "--cluster", "1x8xa100"),
        ("explain", "gpu.json", "policy.sample"),
        ("draw", "gpu.json"),
        ("draw", "gpu.json", "--picture", "memory", "-o", "out.svg"),
        ("draw", "gpu.json", "--picture", "timeline"),
        ("simulate", "gpu.json", "--steps", "5"),
        ("compare", "gpu.json", LAPTOP, "--json"),
        ("diff", "gpu.json", LAPTOP),
        ("run", "--plan", "gpu.json", "--out", "new"),
        ("calibrate", "gpu.json", "--measured", "policy.generate=3"),
        ("export", "gpu.json", "--to", "verl"),
    ),
    "program.json": (
        ("draw", "program.json"),
        ("draw", "program.json", "-o", "out.html"),
        ("diff", "program.json", LAPTOP),
    ),
    **{
        f"{name}_picture.json": (
            ("draw", f"{name}_picture.json"),
            ("draw", f"{name}_picture.json", "-o", "out.svg"),
            ("draw", f"{name}_picture.json", "--to", "mmd"),
            ("draw", f"{name}_picture.json", "-o", "out.html"),
        )
        for name in ("flow", "plan", "sequence", "timeline", "memory")
    },
    **{
        f"{RUN}/{name}": (
            ("report", RUN),
            ("report", RUN, "--json"),
            ("runs", "."),
            ("runs", ".", "--json"),
            ("trace", RUN),
            ("trace", RUN, "--compare"),
            ("draw", RUN),
            ("draw", RUN, "-o", "out.html"),
            ("diff", RUN, "grpo"),
            ("resume", RUN),
            ("resume", RUN, "--steps", "5"),
            ("eval", RUN),
            ("generate", RUN, "-o", "out.parquet"),
            ("calibrate", RUN),
            ("run", "grpo", "--replay", RUN, "--out", "new"),
        )
        for name in ("run.json", "settings.json", "graph.json", "plan.json", "metrics.jsonl", "measured.jsonl")
    },
    f"{RUN}/graph.txt": (("resume", RUN, "--steps", "5"),),
    f"{RUN}/weights/policy/config.json": (("eval", RUN), ("check", "grpo", "--model", f"{RUN}/weights/policy")),
    f"{RUN}/weights/policy/model.safetensors": (
        ("eval", RUN),
        ("plan", "grpo", "--model", f"{RUN}/weights/policy", "--cluster", "1xcpu"),
    ),
    f"{CHECKPOINT}/MANIFEST.json": (("resume", RUN, "--steps", "5"),),
    f"{CHECKPOINT}/state.json": (("resume", RUN, "--steps", "5"),),
    f"{CHECKPOINT}/parts/versions.json": (("resume", RUN, "--steps", "5"),),
    f"{RUN}/rollouts/policy.generate/000001.parquet": (
        ("eval", "--generations", f"{RUN}/rollouts/policy.generate/000001.parquet", "--by", "exact"),
        ("run", "grpo", "--replay", RUN, "--out", "new"),
        ("resume", RUN, "--steps", "5"),
    ),
    "c.toml": (
        ("plan", "grpo", "--cluster", "c.toml", "--model", "qwen2.5-0.5b"),
        ("check", "grpo", "--cluster", "c.toml"),
    ),
    "p.toml": (("plan", "grpo", "--cluster", "laptop", "--profile", "p.toml"),),
    "s.json": (
        ("run", "grpo", "--plan", "gpu.json", "--attach", "s.json", "--out", "new"),
        ("run", "--plan", LAPTOP, "--attach", "s.json", "--out", "new"),
    ),
    "job.sh": (("import", "job.sh"),),
}
"""By a file of the good folder: the commands that read it."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "plan": (LAPTOP, "gpu.json"),
    "program": ("program.json",),
    "picture": tuple(name for name in READERS if name.endswith("_picture.json")),
    "run": tuple(name for name in READERS if name.startswith(f"{RUN}/") and "checkpoints" not in name),
    "checkpoint": tuple(name for name in READERS if "checkpoints" in name),
    "settings": ("c.toml", "p.toml", "s.json", "job.sh"),
    "special": tuple(READERS),
    "stray": (f"{RUN}/run.json",),
    "command": (),
}
WEIGHTS = {
    "plan": 5,
    "program": 1,
    "picture": 2,
    "run": 5,
    "checkpoint": 2,
    "settings": 2,
    "special": 2,
    "stray": 1,
    "command": 6,
}


# ------------------------------------------------------------------------------------------------------- the cases


@dataclass
class Case:
    """One command in a folder, and what came of it."""

    seed: int
    kind: str
    command: tuple[str, ...]
    about: str
    code: object = None
    out: str = ""
    err: str = ""
    raised: str = ""
    cpu_s: float = 0.0
    grown_bytes: int = 0

    def __str__(self) -> str:
        return f"seed {self.seed} [{self.kind}] {self.about}\n$ flowgraph {' '.join(map(repr, self.command))}"

    def faults(self) -> Iterator[str]:
        """Yield what must not be."""
        if self.raised:
            yield f"raised:\n{self.raised}"
        elif not (self.code is None or (isinstance(self.code, int) and self.code in CODES)):
            yield f"exit code {self.code!r}\n{self.err[-2000:]}"
        if "Traceback (most" in self.out + self.err:
            yield f"prints a traceback:\n{(self.out + self.err)[-2000:]}"
        if self.cpu_s > MOST_CPU_S:
            yield f"took {self.cpu_s:.1f} s of processor time"
        if self.grown_bytes > MOST_MEMORY_BYTES:
            yield f"took {self.grown_bytes / 2**20:.0f} MiB more"


def chosen_kind(rng: random.Random) -> str:
    """Return the kind of a case, drawn before all else of it."""
    return rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]


def tried(seed: int, good: Path, folder: Path) -> Case:
    """Run the case of a seed in a folder, made anew from the good one; one that was slow is run once more."""
    return twice_if_slow(lambda: _tried(seed, good, folder))


def twice_if_slow(run: Callable[[], Case]) -> Case:
    """Run a case; run one that was slow or large once more, since the first of a process imports what it needs."""
    case = run()
    if case.cpu_s > MOST_CPU_S or case.grown_bytes > MOST_MEMORY_BYTES:
        again = run()
        case.cpu_s, case.grown_bytes = min(case.cpu_s, again.cpu_s), min(case.grown_bytes, again.grown_bytes)
    return case


def _tried(seed: int, good: Path, folder: Path) -> Case:
    rng = random.Random(seed)
    kind = chosen_kind(rng)
    name = rng.choice(KINDS[kind]) if kind != "command" else ""
    command = rng.choice(READERS[name]) if name else odd_command(rng)
    _lay_out(good, folder, name, run=name.startswith(RUN) or any(each.startswith(RUN) for each in command))
    about = f"{name}: {CHANGED.get(kind, _changed)(rng, folder / name)}" if name else ""
    case = Case(seed, kind, command, about)
    return carried_out(case, folder)


def _lay_out(good: Path, folder: Path, name: str, *, run: bool) -> None:
    """Copy the good files, the run only if it is needed; weights are linked, unless they are what is changed."""
    shutil.rmtree(folder, ignore_errors=True)

    def copy(source: str, target: str) -> None:
        linked = source.endswith(".safetensors") and not source.endswith(name or "-")
        (os.link if linked else shutil.copyfile)(source, target)

    ignored = shutil.ignore_patterns(*([] if run else [RUN]))
    shutil.copytree(good, folder, copy_function=copy, ignore=ignored)


def _changed(rng: random.Random, path: Path) -> str:
    data = path.read_bytes()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        path.write_bytes(broken_bytes(rng, data))
        return "bytes"
    try:
        path.write_bytes(broken_text(rng, text) if path.suffix in (".json", ".jsonl") else _broken_lines(rng, text))
    except (RecursionError, ValueError):
        path.write_bytes(broken_bytes(rng, data))
    if path.match("checkpoints/*/*") and path.name != "MANIFEST.json" and rng.random() < 0.7:
        _sign_again(path)
    return "text"


def _sign_again(path: Path) -> None:
    """Let a checkpoint's manifest have the hash of what was changed."""
    import json

    from flowgraph.runtime.record.checkpoint import manifest_of

    folder = next(each for each in path.parents if each.name.startswith("step_"))
    manifest = folder / "MANIFEST.json"
    about = {name: told for name, told in json.loads(manifest.read_text()).items() if name not in ("schema", "files")}
    manifest.write_text(json.dumps(manifest_of(folder, about)))


def _broken_lines(rng: random.Random, text: str) -> bytes:
    lines, how = text.splitlines(keepends=True), rng.randrange(6)
    place = rng.randrange(len(lines))
    if how == 0:
        del lines[place]
    elif how == 1:
        lines.insert(place, lines[place])
    elif how == 2:
        rng.shuffle(lines)
    elif how == 3:
        head, equals, _ = lines[place].partition("=")
        odd = rng.choice(
            ["-1", "0", "1e400", "nan", "9" * 5000, '""', "[" * 2000, "{}", "true", "1979-05-27", '"\\u0000"', "''"]
        )
        lines[place] = f"{head}{equals} {odd}\n"
    else:
        return broken_bytes(rng, text.encode())
    return "".join(lines).encode()


def _special(rng: random.Random, path: Path) -> str:
    """Put something there that is no plain file, or none that can be read."""
    how = rng.choice(["missing", "folder", "pipe", "loop", "zeros", "sparse", "empty", "dangling", "random", "shut"])
    if how == "shut" and not os.geteuid():
        how = "missing"  # root reads whatever it wants
    if how == "shut":
        path.chmod(0)
        return how
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how in ("loop", "zeros", "dangling", "random"):
        targets = {"loop": path, "zeros": "/dev/zero", "dangling": "nowhere", "random": "/dev/urandom"}
        path.symlink_to(targets[how])
    elif how == "sparse":
        with path.open("wb") as file:
            file.truncate(10 * 2**30)
    elif how == "empty":
        path.touch()
    return how


def _stray(rng: random.Random, path: Path) -> str:
    """Put something into a run's folder that we did not write."""
    where = rng.choice(
        ["rollouts", "rollouts/policy.generate", "checkpoints", CHECKPOINT.partition("/")[2], "weights", "."]
    )
    name = rng.choice(
        [
            "notes.txt",
            "a.parquet",
            "000009.parquet",
            "12.parquet",
            "step_x",
            "step_000009",
            "tmp_",
            "é.part",
            "bad_step",
        ]
    )
    target = path.parent / where / name
    if rng.random() < 0.5:
        target.mkdir()
    else:
        target.write_bytes(rng.randbytes(20))
    return f"{where}/{name}"


CHANGED: Mapping[str, Callable[[random.Random, Path], str]] = {"special": _special, "stray": _stray}


# ------------------------------------------------------------------------------------------------ odd command lines

TEXTS = (
    *(
        "",
        " ",
        "-",
        "--",
        "x",
        "é",
        "\U0001f600",
        "0",
        "-1",
        "1e400",
        "nan",
        "1" * 5_000,
        "x" * 5_000,
        "a\nb",
        "\x1b[31m",
    ),
    *(
        "\udcff",
        "[",
        "{}",
        "[" * 3_000,
        "a=b",
        "=",
        "a=",
        "=b",
        ":",
        "a:b:c",
        "..",
        "/",
        ".",
        "~",
        "/dev/null",
        "/dev/zero",
    ),
    *("1,2", "None", "true", "%s", "{0}", "$HOME", "*", "x" * 300),
)
KNOWN = (
    *("grpo", "ppo", "dpo", "my.py", "my.py:grpo", "tiny", "policy=tiny", "tiny+lora=4", "tiny+lora=0", "qwen2.5-0.5b"),
    *(
        "laptop",
        "1xcpu",
        "1x2xh100",
        "c.toml",
        "0x0xh100",
        "1x1x1x1",
        "99999x99999xh100",
        "1xcpu-1B",
        "colocated",
        "split",
    ),
    *(
        "split:openrlhf",
        "digits",
        "digits:max",
        "digits:nope",
        "addition",
        "rg/nope",
        "hf:a/b",
        "gsm8k",
        LAPTOP,
        "gpu.json",
    ),
    *(
        "program.json",
        "plan_picture.json",
        "memory_picture.json",
        RUN,
        f"{RUN}/plan.json",
        "p.toml",
        "s.json",
        "job.sh",
    ),
    *(
        "512",
        "mean=1k,p99=4k",
        "mean=0,p99=0",
        "mean=4k,p99=1k",
        "p99=1e300",
        "train=fsdp",
        "sample=vllm",
        "sample=nope",
    ),
    *("policy.generate.n=4", "policy.generate.n=0", "policy.generate.n=NaN", "policy.generate.n=[1]", "score.by=exact"),
    *(
        "policy.generate.n=" + "9" * 30,
        "score.by=os:system",
        "group_normalize.eps=-1",
        "nope.x=1",
        "n=1",
        "policy.generate=",
    ),
    *(
        "described",
        "named",
        "placed",
        "lowered",
        "svg",
        "mmd",
        "dot",
        "json",
        "text",
        "out.svg",
        "out.html",
        "out.nope",
    ),
    *(
        "verl",
        "openrlhf",
        "nemo-rl",
        "nope",
        "bfloat16",
        "fp8",
        "exact",
        "greedy",
        "cost",
        "devices",
        "auto",
        "3:1",
        "0:0",
    ),
    *("2GiB", "0GiB", "-1GiB", "1e30TiB", "local", "ray", "tensorboard", "wandb", "0,1", "5-1", "policy.sample=pool0"),
    *(
        "policy.generate",
        "policy.generate=1",
        "policy.generate=inf",
        "policy.train",
        "h100",
        "1.5",
        "100",
        "1000000000",
    ),
    *(
        "9223372036854775807",
        "out.parquet",
        f"{RUN}/rollouts/policy.generate/000001.parquet",
        "policy",
        "test",
        "train",
    ),
)
FIRST: Mapping[str, Sequence[str]] = {  # what a first argument most often is, so that more than its refusal is seen
    **dict.fromkeys(("show", "check", "run", "plan", "fit", "cp"), ("grpo", "ppo", "my.py", "reinforce_pp")),
    **dict.fromkeys(("explain", "simulate", "export"), (LAPTOP, "gpu.json")),
    **dict.fromkeys(
        ("compare", "diff", "draw"), (LAPTOP, "gpu.json", "grpo", "program.json", RUN, "memory_picture.json")
    ),
    **dict.fromkeys(("report", "trace", "resume", "calibrate", "eval", "generate"), (RUN,)),
    "import": ("job.sh",),
    "runs": (".",),
}


@cache
def commands() -> Mapping[tuple[str, ...], Any]:
    """Return every command of the command line by its words, as it describes itself."""
    from flowgraph.cli.application import commands as application

    found = dict[tuple[str, ...], Any]()
    waiting: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_command(application))]
    while waiting:
        words, command = waiting.pop()
        inner = getattr(command, "commands", {})
        waiting += [((*words, name), each) for name, each in inner.items()]
        if words:
            found[words] = command
    return dict(sorted(found.items()))


def odd_command(rng: random.Random) -> tuple[str, ...]:
    """Return a command line: a command, some of its options and arguments, most of them with a value that is odd."""
    words, command = rng.choice(list(commands().items()))
    given, known = [*words], rng.random() < 0.7
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and "--help" not in each.opts]
    for place, each in enumerate(arguments):
        if known and place == 0 and words[0] in FIRST:
            given.append(rng.choice(FIRST[words[0]]))
        elif each.required or rng.random() < 0.3:
            given.append(_value(rng, each))
        if each.nargs == -1 and rng.random() < 0.6:
            given += [rng.choice(FIRST.get(words[0], KNOWN))]
    for each in rng.sample(options, min(len(options), rng.choice([0, 1, 1, 1, 2, 2, 3, 5]))):
        given.append(rng.choice(each.opts))
        if not getattr(each, "is_flag", False):
            given += [_value(rng, each) for _ in range(each.nargs)]
    return tuple(given)


def _is_number(param: Any) -> bool:
    kind = str(param.type_descriptor.annotation)
    return "int" in kind or "float" in kind


def _value(rng: random.Random, param: Any) -> str:
    kind = rng.random()
    if kind < 0.4 and _is_number(param):
        return rng.choice(
            ["1", "2", "3", "0", "-1", "7", "1000", "1000000000", "9223372036854775807", "1" * 40, "1.5", "inf", "nan"]
        )
    return rng.choice(KNOWN) if kind < 0.8 else rng.choice(NAMED) if kind < 0.85 else rng.choice(TEXTS)


# --------------------------------------------------------------------------------------------------------- running


class Reached(UsageError):
    """The work itself would begin here."""


@contextlib.contextmanager
def sealed() -> Generator[None]:
    """Let commands end where they would train, sample, install or open a viewer."""

    def reached(*_: object, **__: object) -> Any:
        raise Reached("all checks are passed")

    with contextlib.ExitStack() as stack:
        for place in (
            "running.training._train",
            "responses.evaluating.sample_responses",
            "responses.sampling.sample_responses",
        ):
            stack.enter_context(mock.patch(f"flowgraph.app.{place}", reached))
        stack.enter_context(mock.patch("flowgraph.engines.servers.environments.install", reached))
        stack.enter_context(mock.patch("webbrowser.open", return_value=False))
        yield


class HangError(BaseException):
    """A command that takes too long; no `except Exception` keeps it."""


def _hangs(_: int, __: FrameType | None) -> None:
    raise HangError(f"not done after {MOST_WALL_S} s")


def carried_out(case: Case, folder: Path) -> Case:
    """Run a case's command in a folder, and note in it what it did."""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), "utf-8", errors, write_through=True) for errors in ("strict", "backslashreplace")
    )
    _forget_peak()
    path, before = list(sys.path), _memory_bytes("VmRSS:")
    argv = ["flowgraph", *case.command]
    old = signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(MOST_WALL_S)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_memory_bytes("VmSize:") + 2**30, limits[1]))
    start = time.process_time()
    try:
        with (
            contextlib.chdir(folder),
            mock.patch.object(sys, "argv", argv),
            mock.patch.object(sys, "stdin", io.StringIO("")),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main()
    except SystemExit as stop:
        case.code = stop.code
    except BaseException as error:  # noqa: BLE001 - any exception at all is what is looked for
        case.raised = _short(error)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    case.cpu_s = time.process_time() - start
    case.grown_bytes = _memory_bytes("VmHWM:") - before
    sys.path[:] = path
    case.out, case.err = (each.buffer.getvalue().decode("utf-8", "replace") for each in (out, err))  # type: ignore[attr-defined]
    return case


def _short(error: BaseException) -> str:
    """Return what was raised, and through which lines of ours it went."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if "site-packages" not in each.filename]
    lines = [f"  {each.filename}:{each.lineno} {each.name}: {each.line}" for each in frames[-6:]]
    return "\n".join([f"{type(error).__name__}: {str(error)[:300]}", *lines])


def _memory_bytes(word: str) -> int:
    """Return what the kernel says of this process's memory: `VmRSS:` now, `VmHWM:` at most, `VmSize:` of addresses."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(word)) * 1024


def _forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _report(first: int, last: int, good: Path) -> int:
    """Run the cases of many seeds; print each fault that no case before had, and counts of all."""
    counts, codes, seen = Counter[str](), Counter[str](), Counter[str]()
    with sealed():
        for seed in range(first, last):
            (good.parent / "seed").write_text(str(seed))
            case = tried(seed, good, good.parent / f"case-{os.getpid()}")
            counts[case.kind] += 1
            codes[f"{case.kind} {case.code or 0}"] += 1
            for fault in case.faults():
                alike = "\n".join([fault.splitlines()[0][:40], case.command[0], fault.splitlines()[-1]])
                seen[alike] += 1
                if seen[alike] == 1:
                    print(f"=== {case}\n{fault}\n", flush=True)
    print(f"{last - first} cases, {seen.total()} faults of {len(seen)} sorts")
    print(f"by kind {dict(counts)}; by exit code {dict(sorted(codes.items()))}")
    return seen.total()


if __name__ == "__main__":  # python -m tests.property.fuzz_files FIRST LAST FOLDER
    home = Path(sys.argv[3])
    if not home.is_dir():
        home.mkdir(parents=True)
        good_files(home)
    sys.exit(1 if _report(int(sys.argv[1]), int(sys.argv[2]), home) else 0)
