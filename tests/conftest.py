"""What every test shares: one thread, no network, golden files, hypothesis without a clock, and a tiny model."""

from __future__ import annotations

import contextlib
import copy
import difflib
import functools
import gc
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Set before anything imports torch or a hub client: they read these once. The suite runs two processes on two cores.
os.environ.update(
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    TRANSFORMERS_OFFLINE="1",
    RAY_AUTH_MODE="token",
    RAY_NUM_REDIS_GET_RETRIES="20",  # Ray's default: a test of a wrong address would leave 1 for a start in its process
)
# Texts are as in a pipe, whoever runs the tests. Where `readline` is imported, as a debugger does, it sets COLUMNS for
# child processes, and `os.environ` does not show it: so it is imported first, and what it has set is set and removed.
with contextlib.suppress(ImportError):
    import readline  # noqa: F401
os.environ["COLUMNS"] = ""
del os.environ["COLUMNS"]

import hypothesis
import pytest

if TYPE_CHECKING:
    from flowgraph import Graph
    from flowgraph.cluster.plan import Plan
    from flowgraph.engines.local.model import LocalModel
    from flowgraph.language.region import Observations
    from flowgraph.lowering.program import Program
    from flowgraph.runtime.interpreter import Executor
    from nodes.values import Rollout

GOLDEN = Path(__file__).parent / "golden"
LONG = frozenset(Path(__file__).with_name("long_tests.txt").read_text(encoding="utf-8").splitlines())

# 20 examples of a property belong to each change, 200 to `make slow`: the same ones every time, so that none fails now
# and then. No deadline: a shared machine's clock would fail a test that is right.
for profile, examples in (("change", 20), ("slow", 200)):
    hypothesis.settings.register_profile(profile, deadline=None, max_examples=examples, derandomize=True, database=None)


def _slow_is_asked_for(config: pytest.Config) -> bool:
    return re.search(r"(?<!not )\bslow\b", config.option.markexpr or "") is not None


@pytest.fixture(scope="session")
def seeds() -> Callable[[int, int], range]:
    """Return `seeds(change, slow)`: the seeds below one bound for each change, below the other in `make slow`."""
    from tests.looped import all_is_asked_for

    return lambda change, slow: range(slow if all_is_asked_for() else change)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-golden`."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what is printed now")


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples a property has, note which slow groups passed, and build the command line once.

    `-m slow` asks for all examples. Typer builds every command anew for each call, which takes a third of the time of a
    short one.
    """
    import typer

    from tests.slow_inputs import SlowResults

    gc.disable()  # until the tests are collected
    hypothesis.settings.load_profile("slow" if _slow_is_asked_for(config) else "change")
    config.pluginmanager.register(SlowResults())
    typer.main.get_command = functools.cache(typer.main.get_command)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave programs under tests/ that are data (wrong on purpose, say) unimported: tests are named test_*.py."""
    if collection_path.suffix == ".py" and not collection_path.name.startswith("test_"):
        return True
    return None


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests that start processes one after another, and let `-m slow` run what each change runs only a part of.

    Tests that start processes share one Ray, and do not crowd each other out.
    """
    slow = _slow_is_asked_for(config)
    for item in items:
        if item.get_closest_marker("processes"):
            item.add_marker(pytest.mark.xdist_group("processes"))
        elif "tests/architecture/" in item.nodeid:
            item.add_marker(pytest.mark.xdist_group("sources"))  # so that one process parses them
        if item.nodeid.partition("[")[0] in LONG:
            item.add_marker("long")
        if slow and _has_more_in_slow(item):
            item.add_marker("slow")
    items.sort(key=_place_in_the_order)


def _place_in_the_order(item: pytest.Item) -> int:
    """Return 0 for the longest lane, which must begin at once, and 2 for tests that read what type checkers cached."""
    groups = {mark.args[0] for mark in item.iter_markers("xdist_group")}
    return 0 if "processes" in groups else 2 if "typing" in groups else 1


def _has_more_in_slow(item: pytest.Item) -> bool:
    test = getattr(item, "obj", None)
    more = getattr(test, "is_hypothesis_test", False) or getattr(test, "has_more_in_slow", False)
    return more or "seeds" in getattr(item, "fixturenames", ())


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse a pytest of which xdist does not keep a group in one process: each would start Ray and servers anew.

    What was collected and imported stays to the end, so the garbage collector need not visit it again and again.
    """
    gc.freeze()
    gc.enable()
    grouped = [each for each in session.items if each.get_closest_marker("xdist_group")]
    if getattr(session.config.option, "loadgroup", False) and not all("@" in each.nodeid for each in grouped):
        raise pytest.UsageError(f"xdist does not see the groups of tests with pytest {pytest.__version__}")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return `golden(text, name)`: compare a text with the file tests/golden/<name>."""
    update: bool = request.config.getoption("--update-golden")

    def compare(text: str, name: str) -> None:
        path, text = GOLDEN / name, text if text.endswith("\n") else text + "\n"
        old = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text == old:
            return
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        lines = difflib.unified_diff(
            old.splitlines(keepends=True), text.splitlines(keepends=True), f"tests/golden/{name}", "printed now"
        )
        pytest.fail(f"{''.join(lines)}\nif this is meant: pytest --update-golden", pytrace=False)

    return compare


@pytest.fixture(autouse=True)
def _verified() -> Iterator[None]:
    """Check the laws after each pass, in every test."""
    from flowgraph.passes.verify import verified

    with verified():
        yield


@pytest.fixture(scope="session")
def tiny_parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Return the tiny model and its tokenizer, shared by all tests: copy the model before anything trains it."""
    from flowgraph.models import load, resolve

    cache = tmp_path_factory.mktemp("models")
    loaded = load(resolve("tiny", cache=cache), seed=0, cache=cache, say=print)
    return loaded.model, loaded.tokenizer


@pytest.fixture
def tiny(tiny_parts: tuple[Any, Any]) -> Callable[..., LocalModel]:
    """Return `tiny(**fields)`: a handle on a copy of the tiny model, made with these fields of `LocalModel`."""
    from flowgraph.engines.local.model import LocalModel

    model, tokenizer = tiny_parts
    return lambda **fields: LocalModel(copy.deepcopy(model), tokenizer, **fields)


@dataclass(frozen=True)
class RanGraph:
    """What a graph gave when its nodes were run one after another, without a plan."""

    outputs: tuple[Any, ...]
    values: dict[Any, Any]
    observed: Observations


@pytest.fixture(scope="session")
def run_graph() -> Callable[..., RanGraph]:
    """Return `run_graph(graph, arguments, key, given)`: run a graph's nodes here, those in `given` left out."""
    return _run_graph


def _run_graph(graph: Graph, arguments: Mapping[str, Any], key: Any = None, given: Any = None) -> RanGraph:
    import torch

    from flowgraph.analysis.node_order import order_nodes
    from flowgraph.language import Key
    from flowgraph.language.region import Observations, evaluate, read

    env: dict[Any, Any] = {param: arguments[param.name] for param in graph.params} | (given or {})
    observed = Observations()
    with torch.no_grad():
        evaluate(order_nodes(graph), env, key or Key(), observed)
    return RanGraph(tuple(read(env, edge) for edge in graph.outputs), env, observed)


@pytest.fixture(scope="session")
def one_device() -> Callable[[Graph], Plan]:
    """Return `one_device(graph)`: the plan that has every role on one CPU device, on the engine `local`."""
    return _one_device


def _one_device(graph: Graph) -> Plan:
    from flowgraph.analysis.flat_graph import structure_hash
    from flowgraph.analysis.roles import roles
    from flowgraph.cluster.cluster import Cluster, Device, Machine
    from flowgraph.cluster.plan import PlacedRole, Plan, Pool

    device = Device(kind="cpu", memory_bytes=2**30)
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(Machine(name="laptop", devices=(device,), host_memory_bytes=2**30, cores=1),)),
        pools=(Pool(name="all", devices=(("laptop", 0),)),),
        placed=tuple(PlacedRole(role=role.name, pool="all", engine="local") for role in roles(graph)),
    )


@pytest.fixture(scope="session")
def alone() -> Callable[..., tuple[Program, Executor]]:
    """Return `alone(graph, handles)`: a graph's program on one device, and an executor with handles by parameter."""
    return _alone


def _alone(graph: Graph, handles: Mapping[str, LocalModel]) -> tuple[Program, Executor]:
    from flowgraph.lowering.lower import lower
    from flowgraph.runtime.interpreter import Executor
    from flowgraph.runtime.local import InProcess

    program = lower(graph, _one_device(graph))
    return program, Executor(InProcess({home: handles[home.param] for home in program.homes}))


@pytest.fixture(scope="session")
def digit_rows() -> Any:
    """Return the training rows of the task of copying three digits, a `pyarrow.Table`."""
    from nodes.data.tasks import digits

    return digits("copy")[0]


@pytest.fixture(scope="session")
def uneven_rows() -> Any:
    """Return rows whose prompts have 1 to 12 characters, a `pyarrow.Table`."""
    from nodes.data.rows import row, table_of

    texts = ["7", "12", "3+4=?", "999", "0 0 0 0", "5-5", "1+2+3+4+5=?1", "42", "8=8", "10-20-30=?", "6", "77+11"]
    return table_of(
        [row("digits", text, text[0], ability="copy", extra_info={"index": i}) for i, text in enumerate(texts)]
    )


@pytest.fixture(scope="session")
def make_rollout() -> Callable[..., Rollout]:
    """Return `make_rollout(lengths, …)`: a rollout of random tokens whose context and response lengths are as told."""
    return _rollout


def _rollout(
    lengths: Sequence[int],
    contexts: Sequence[int] | None = None,
    group: Sequence[int] | None = None,
    mask: Sequence[Sequence[float]] | None = None,
    temperature: float = 1.0,
    seed: int = 0,
) -> Rollout:
    import numpy as np
    import pyarrow as pa
    import torch

    from flowgraph.language.values import Context, Group, Lengths, Mask, Sample, Tokens, Trajectory
    from nodes.values import Columns, Finished, LogProbs, Rollout, Temperature, Text, Versions

    random, rows = np.random.default_rng(seed), len(lengths)
    inside = torch.arange(max(lengths, default=0))[None] < torch.tensor(lengths, dtype=torch.int64)[:, None]
    heads = [random.integers(5, 20, size).tolist() for size in contexts or [3] * rows]
    tokens = torch.from_numpy(random.integers(3, 20, inside.shape)) * inside
    logprobs = torch.where(inside, torch.from_numpy(random.uniform(-4, -1, inside.shape)).float(), 0.0)
    texts = pa.array([f"response {row}" for row in range(rows)], pa.string())
    return Rollout(
        group=Group(torch.tensor(range(rows) if group is None else group, dtype=torch.int64)),
        sample=Sample(torch.arange(rows)),
        trajectory=Trajectory(torch.zeros(rows, dtype=torch.int64)),
        context=Context(pa.array(heads, pa.list_(pa.int32()))),
        tokens=Tokens(tokens),
        mask=Mask(inside.float() if mask is None else torch.tensor(mask, dtype=torch.float32)),
        lengths=Lengths(torch.tensor(lengths, dtype=torch.int64)),
        logprobs=LogProbs(logprobs),
        versions=Versions(inside.long()),
        finished=Finished(torch.arange(rows) % 2 == 0),
        text=Text(texts),
        columns=Columns(
            pa.table({"data_source": pa.array(["digits"] * rows, pa.string()), "place": list(range(rows))})
        ),
        temperature=Temperature(temperature),
    )


def ray_is_here() -> bool:
    """Return whether this process is connected to Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


@pytest.fixture
def ray_of_its_own() -> None:
    """End the Ray that tests share, for a test that starts one in this process itself."""
    if ray_is_here():
        sys.modules["ray"].shutdown()
