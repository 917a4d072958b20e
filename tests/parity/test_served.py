"""A real server generates as the reference engine reads: token ids, log-probs, versions, updates, and its end.

One server of each engine serves all tests of this file, in an environment that is installed first if it is not there.
It is started by a process of its own, which the last test kills. `make slow` runs them; SGLang's must have passed with
the files that tests/slow_inputs.toml lists.
Their models have heads of 32, the narrowest that vLLM's kernels for CPUs know.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
import torch

from flowgraph.app import cache_folder
from flowgraph.engines.local.model import LocalModel
from flowgraph.engines.servers.environments import install
from flowgraph.engines.servers.remote_model import RemoteModel
from flowgraph.engines.servers.server_control import ServerControl
from flowgraph.engines.servers.server_engine import ServerEngine
from flowgraph.engines.servers.server_process import ServerAddress
from flowgraph.engines.sglang.server import Sglang
from flowgraph.engines.vllm.server import Vllm
from flowgraph.engines.weight_sync.weight_updates import INCOMPLETE, By, Hold
from flowgraph.errors import ModelError, WorkerError
from flowgraph.language import Key
from flowgraph.language.handle import Completion, ResponseRows, SampleRequest, Stopping, Truncation, gather
from flowgraph.models import load, resolve, save
from tests.parity.test_truncations import chance, kept, likely

SERVERS = [pytest.mark.processes, pytest.mark.slow(group="servers")]
SGLANG = pytest.param(Sglang, marks=SERVERS, id="sglang")
VLLM = pytest.param(Vllm, marks=[pytest.mark.processes, pytest.mark.slow], id="vllm")
only_vllm = pytest.mark.parametrize("engine", [VLLM], indirect=True)

ROOT = Path(__file__).parents[2]
START_S = 600.0  # on two busy cores
LIMIT_S = 120.0
CLOSE = 1e-4
TRIES = 10  # to be in the middle of a generation
PARTS = (0.5, 0.3, 0.7, 0.4, 0.6, 0.2, 0.1)  # of a generation: its middle is somewhere, on a machine as busy as it is

SERVE = """
import json, sys, time
from dataclasses import asdict
from pathlib import Path
from flowgraph.engines.servers.server_engine import ServerSettings as Serving
from pkgutil import resolve_name
engine, folder, log, limit_s = sys.argv[1:]
server = resolve_name(engine)().serve(
    Path(folder), Serving(max_tokens_cached=8192), name="replica 0", log=Path(log), limit_s=float(limit_s)
)
print(json.dumps(asdict(server.door)), flush=True)
time.sleep(3600)
"""


@dataclass(frozen=True)
class Running:
    """A server, the process that started it, its log, and two models of one shape; it starts with the first."""

    engine: ServerEngine
    door: ServerAddress
    parent: subprocess.Popen[str]
    log: Path
    models: tuple[LocalModel, LocalModel]

    def processes(self) -> list[psutil.Process]:
        """Return the server's processes."""
        found = psutil.Process(self.parent.pid).children(recursive=True)
        return [each for each in found if each.status() != psutil.STATUS_ZOMBIE]

    def control(self, limit_s: float = LIMIT_S, **changed: Any) -> ServerControl:
        """Return what its control calls are made by."""
        return self.engine.model.control(replace(self.door, **changed), limit_s)

    def update(self, which: int, version: int, **settings: Any) -> None:
        """Have it serve one of the models."""
        with self.engine.model.updates([self.door], **settings) as updates:
            updates.send(self.models[which].weights().items(), version)


def sharp(seed: int, folder: Path) -> LocalModel:
    """Return a small model with heads of 32, sharper than at first, so that temperature and weights show."""
    from transformers import LlamaForCausalLM

    loaded = load(resolve("tiny", cache=folder), seed=seed, cache=folder, say=print)
    loaded.model.config.head_dim = 32
    torch.manual_seed(seed)
    model: Any = LlamaForCausalLM(loaded.model.config)
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    return LocalModel(model, loaded.tokenizer)


@pytest.fixture(scope="session", params=[SGLANG, VLLM])
def engine(request: pytest.FixtureRequest) -> ServerEngine:
    """Return each engine."""
    made: ServerEngine = request.param()
    return made


@pytest.fixture(scope="session")
def running(engine: ServerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Start a server of an engine."""
    install(engine.on_cpu, cache_folder(None), say=print)
    folder = tmp_path_factory.mktemp("served")
    models = (sharp(0, folder), sharp(1, folder))
    save(models[0].model, models[0].raw_tokenizer, folder / "model")
    log, kind = folder / "server.log", type(engine)
    command = [sys.executable, "-c", SERVE, f"{kind.__module__}:{kind.__name__}"]
    command += [str(folder / "model"), str(log), str(START_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        try:
            assert parent.stdout is not None
            told = parent.stdout.readline()
            assert told, log.read_text(errors="replace")[-2000:]
            yield Running(engine, ServerAddress(**json.loads(told)), parent, log, models)
        finally:
            parent.kill()


@pytest.fixture
def served(running: Running, tmp_path: Path) -> Iterator[Callable[..., RemoteModel]]:
    """Yield `served(**fields)`: a handle on the server as it is; the first model is served again afterwards."""
    made: list[RemoteModel] = []

    def make(**fields: Any) -> RemoteModel:
        with running.control() as control:
            version = int(control.version())
        settings: dict[str, Any] = {"version": version, "limit_s": LIMIT_S, "scratch": tmp_path / "scratch"} | fields
        made.append(running.engine.model([running.door], running.models[0].raw_tokenizer, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()
    with running.control() as control:
        newest = int(control.version()) if control.version().isdecimal() else 1000
    running.update(0, newest + 1, scratch=tmp_path / "scratch")


def asked(
    temperatures: Sequence[float] = (1.0,), prompts: int = 6, samples: int = 2, most: int = 24
) -> list[SampleRequest]:
    """Return requests of several lengths and temperatures."""
    key = Key(3, 1, "policy.generate")
    return [
        SampleRequest(
            (1, *(5 + (prompt + place) % 15 for place in range(1 + prompt % 5)), 4), prompt, sample, most, heat, key
        )
        for prompt in range(prompts)
        for heat in temperatures
        for sample in range(samples)
    ]


def apart(model: LocalModel, requests: Sequence[SampleRequest], done: Sequence[Completion]) -> float:
    """Return how far the engine's log-probs are at most from those that a forward pass of the model reads."""
    far = 0.0
    for request, each in zip(requests, done, strict=True):
        context = pa.array([list(request.context)], pa.list_(pa.int32()))
        distribution = request.temperature, request.truncation
        rows = ResponseRows(context, torch.tensor([each.tokens]), torch.tensor([len(each.tokens)]), *distribution)
        read = model.token_stats(rows, ("logprobs",)).logprobs
        assert read is not None
        far = max(far, float((read[0] - torch.tensor(each.logprobs)).abs().max()))
    return far


@pytest.mark.parametrize("temperatures", [(1.0,), (0.7,), (0.0,), (0.0, 0.7, 1.0, 1.3)], ids=str)
def test_log_probs_of_the_engine_are_those_of_a_forward_pass_at_the_samples_temperature(
    running: Running, served: Callable[..., RemoteModel], temperatures: tuple[float, ...]
) -> None:
    requests = asked(temperatures)
    done = gather(served(), requests)
    assert apart(running.models[0], requests, done) < CLOSE
    assert apart(running.models[1], requests, done) > 0.1
    elsewhere = [replace(each, temperature=(each.temperature or 1.0) * 1.5) for each in requests]
    assert apart(running.models[0], elsewhere, done) > 0.1


def test_samples_are_of_the_truncated_distribution_and_so_are_their_log_probs(
    running: Running, served: Callable[..., RemoteModel]
) -> None:
    """Compare the first tokens with the distribution by G tests, which fail a right engine in one of 1,000 runs."""
    model, context = served(), (1, 5, 6, 7, 4)
    pairs = [Truncation(top_p=0.8, min_p=0.1) if running.engine.name == "SGLang" else Truncation(top_k=8, top_p=0.8)]
    truncations = [Truncation(top_k=3), Truncation(top_p=0.7), Truncation(min_p=0.3), *pairs]
    for truncation in truncations:
        requests = [replace(request, truncation=truncation) for request in asked((0.7, 1.3))]
        assert apart(running.models[0], requests, gather(model, requests)) < CLOSE
        first = [SampleRequest(context, 0, sample, 1, 1.3, Key(3), truncation) for sample in range(300)]
        expected = kept(likely(running.models[0], context, 1.3), truncation)
        tokens = [done.tokens[0] for done in gather(model, first)]
        assert chance(tokens, expected) > 1e-3 / len(truncations), truncation


def test_responses_end_at_stops_and_not_at_the_models_end_if_it_is_ignored(
    running: Running, served: Callable[..., RemoteModel]
) -> None:
    model, decode = served(), running.models[0].raw_tokenizer.decode
    for stopping in (Stopping(texts=("3",)), Stopping(ids=(8,)), Stopping(ids=(8,), ignore_eos=True)):
        done = gather(model, [replace(request, stopping=stopping) for request in asked((1.3,), samples=4)])
        assert {each.finished for each in done} == {True, False} or all(each.finished for each in done)
        for each in done:
            assert 8 not in each.tokens[:-1]
            ends = {8} if stopping.ignore_eos else {8, *model.ends}
            assert each.finished == (each.tokens[-1] in ends)
            assert not stopping.texts or "3" not in decode(each.tokens[:-1])


def test_greedy_samples_are_the_reference_engines_token_by_token(
    running: Running, served: Callable[..., RemoteModel]
) -> None:
    requests = asked((0.0,), samples=1, most=40)
    mine, theirs = gather(served(), requests), gather(running.models[0], requests)
    assert [(each.tokens, each.finished) for each in mine] == [(each.tokens, each.finished) for each in theirs]


@only_vllm
def test_the_same_requests_give_the_same_samples_and_another_step_gives_others(
    served: Callable[..., RemoteModel],
) -> None:
    model, requests = served(), asked((1.0,))
    first = [each.tokens for each in gather(model, requests)]
    assert [each.tokens for each in gather(model, requests[::-1])] == first[::-1]
    other = [replace(each, key=Key(3, 2, "policy.generate")) for each in requests]
    assert [each.tokens for each in gather(model, other)] != first


def test_a_response_ends_with_an_end_token_or_at_its_longest(
    running: Running, served: Callable[..., RemoteModel]
) -> None:
    model = served()
    assert model.ends == running.models[0].ends
    done = gather(model, asked((1.3,), prompts=16, samples=4, most=30))
    assert {each.finished for each in done} == {True, False}
    for each in done:
        assert each.finished == (each.tokens[-1] in model.ends)
        assert not model.ends & set(each.tokens[:-1])
        assert each.finished or len(each.tokens) == 30
        assert each.versions == ((0, model.version),)


def test_a_sample_may_fill_every_position_and_not_one_more(served: Callable[..., RemoteModel]) -> None:
    model = served()
    assert model.positions == 128
    whole = [SampleRequest((5,) * 64, 0, sample, 64, 0.0, Key()) for sample in range(2)]
    assert all(each.finished or len(each.tokens) == 64 for each in gather(model, whole))
    with pytest.raises(ModelError, match="128"):
        gather(model, [SampleRequest((5,) * 64, 0, 0, 65, 0.0, Key())])
    with pytest.raises(ModelError):
        gather(model, [SampleRequest((), 0, 0, 1, 0.0, Key())])


@pytest.mark.parametrize("hold", ["idle", "retract", "in_place"])
@pytest.mark.parametrize("by", ["disk", "group", "memory"])
def test_each_way_of_weights_changes_the_log_probs_to_the_other_models_and_back(
    running: Running, served: Callable[..., RemoteModel], by: By, hold: Hold, tmp_path: Path
) -> None:
    model, requests = served(update_by=by, hold=hold), asked((0.7,), prompts=3)
    for one, other in ((1, 0), (0, 1)):
        model.take(running.models[one].weights(), model.version + 1)
        if hold == "in_place":  # what was cached of the old weights stays until the server is idle
            with running.control() as control:
                assert control.flush()
        done = gather(model, requests)
        assert apart(running.models[one], requests, done) < CLOSE
        assert apart(running.models[other], requests, done) > 0.1
        assert {each.versions for each in done} == {((0, model.version),)}
    assert list((tmp_path / "scratch").glob("*")) == []


def test_weights_in_many_buckets_arrive_whole(running: Running, served: Callable[..., RemoteModel]) -> None:
    model, requests = served(), asked(prompts=2)
    for by, which in (("group", 1), ("memory", 0)):
        running.update(which, model.version + 1, by=by, bucket_bytes=20_000)
        model.version += 1
        assert apart(running.models[which], requests, gather(model, requests)) < CLOSE


def test_the_version_that_is_set_after_a_load_is_stamped(running: Running, served: Callable[..., RemoteModel]) -> None:
    model = served()
    before = model.version
    model.load(running.models[1].weights())
    assert gather(model, asked(prompts=1))[0].versions == ((0, before),)
    model.version = before + 5
    assert gather(model, asked(prompts=1))[0].versions == ((0, before + 5),)


def test_a_sample_of_another_version_is_refused_and_both_are_named(served: Callable[..., RemoteModel]) -> None:
    model = served()
    stamped, model.version = model.version, model.version + 7
    with pytest.raises(WorkerError) as error:
        gather(model, asked(prompts=1, samples=1))
    expected = f"replica 0 sampled with version {stamped} of the weights; {stamped + 7} was expected"
    assert str(error.value) == f"{expected}\n    sample 0 of prompt 0"


def test_weights_that_do_not_fit_are_told_before_a_server_is_asked_to_take_them(
    running: Running, served: Callable[..., RemoteModel]
) -> None:
    model, weights = served(), running.models[1].weights()
    with pytest.raises(WorkerError, match=r"`model.norm.weight` have shape \(7,\); the servers' model has \(64,\)"):
        model.take(weights | {"model.norm.weight": torch.ones(7)}, 2)
    with pytest.raises(WorkerError, match=r"the servers' model has no weights `model.norms.weight`"):
        model.take({"model.norms.weight": torch.ones(64)}, 2)
    requests = asked(prompts=1)
    assert apart(running.models[0], requests, gather(model, requests)) < CLOSE


@pytest.mark.parametrize("by", ["disk", "group", "memory"])
def test_after_an_update_that_stopped_midway_no_sample_is_taken_for_one_of_either_version(
    running: Running, served: Callable[..., RemoteModel], by: By
) -> None:
    weights = running.models[1].weights()
    del weights["model.norm.weight"]
    model = served(version=1, update_by=by)
    started = time.monotonic()
    with pytest.raises(WorkerError, match=r"1 tensors of the model were not sent\n    model.norm.weight"):
        model.take(weights, 2)
    assert time.monotonic() - started < LIMIT_S / 2  # nobody waits for a broadcast that does not come
    told = "was expected" if by == "disk" else f"sampled with version {INCOMPLETE} of the weights; 1 was expected"
    with pytest.raises(WorkerError, match=told):
        gather(model, asked(prompts=1, samples=1))


@only_vllm
def test_what_a_worker_cannot_do_is_told_and_the_server_goes_on(
    running: Running, served: Callable[..., RemoteModel], tmp_path: Path
) -> None:
    with running.control() as control:
        with pytest.raises(WorkerError, match=r"cannot do /update_weights_from_disk\n.*no weights in"):
            control.post("/update_weights_from_disk", model_path=str(tmp_path), flush_cache=False)
        with pytest.raises(WorkerError, match="cannot do /update_weights_from_distributed"):
            control.post("/update_weights_from_distributed", names=[], dtypes=[], shapes=[], group_name="none", why=1)
            control.post("/update_weights_from_distributed", names=["a"], dtypes=["b"], shapes=[[1]], group_name="none")
    requests = asked(prompts=1)
    assert apart(running.models[0], requests, gather(served(), requests)) < CLOSE


@only_vllm
def test_a_temperature_that_the_engine_would_replace_is_refused(served: Callable[..., RemoteModel]) -> None:
    with pytest.raises(WorkerError, match=r"greedily or at temperature 0\.01 or more, not at 0\.001"):
        gather(served(), asked((0.001,), prompts=1))


def test_weights_that_were_changed_on_their_way_are_found_by_their_checksum(
    running: Running, served: Callable[..., RemoteModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = served(update_by="memory")
    way: Any = model._updates._way
    stage = way.stage

    def flipped(buckets: Any) -> None:
        stage([[(name, tensor + (name == "model.norm.weight") * 1e-3) for name, tensor in each] for each in buckets])

    monkeypatch.setattr(way, "stage", flipped)
    with pytest.raises(WorkerError) as error:
        model.take(running.models[0].weights(), model.version + 1)
    told = "replica 0 has different weights than were sent: 1 of 15 tensors differ\n    model.norm.weight"
    assert str(error.value) == told


def endless(model: LocalModel) -> list[SampleRequest]:
    """Return greedy requests of 120 tokens that a model answers without an end, so that there is a middle."""
    tried = [
        SampleRequest((1, 5 + prompt % 15, 5 + prompt // 15, 4), prompt, 0, 120, 0.0, Key()) for prompt in range(60)
    ]
    found = [each for each, done in zip(tried, gather(model, tried), strict=True) if not done.finished]
    assert len(found) >= 4
    return found[:24]


def amid(
    model: RemoteModel, requests: Sequence[SampleRequest], act: Callable[[], Any], after_s: float = 0.2
) -> list[Completion | BaseException]:
    """Draw samples, and do something when the server has begun with them, as far as can be told."""

    async def both() -> list[Completion | BaseException]:
        waiting = asyncio.gather(*(model.sample(each) for each in requests), return_exceptions=True)
        await asyncio.sleep(after_s)
        await asyncio.to_thread(act)
        return await waiting

    return asyncio.run(both())


@pytest.mark.parametrize("hold", ["retract", "in_place"])
def test_an_update_in_mid_generation_gives_a_span_of_each_version(
    running: Running, served: Callable[..., RemoteModel], hold: Hold
) -> None:
    model, requests = served(hold=hold), endless(running.models[0])
    spanned: list[tuple[SampleRequest, Completion]] = []
    started = time.monotonic()
    gather(model, requests)
    whole_s = time.monotonic() - started
    for part in PARTS:
        first = model.version
        done = amid(model, requests, lambda: model.take(running.models[1].weights(), model.version + 1), part * whole_s)
        assert [each for each in done if isinstance(each, BaseException)] == []
        drawn = [(r, d) for r, d in zip(requests, done, strict=True) if isinstance(d, Completion)]
        spanned = [(request, each) for request, each in drawn if len(each.versions) == 2]
        if spanned:
            break
        model.take(running.models[0].weights(), model.version + 1)
        with running.control() as control:
            assert control.flush()  # held in place, it still has the caches of the other weights
    assert spanned
    for request, each in spanned:
        (start, old), (middle, new) = each.versions
        assert (start, old, new) == (0, first, first + 1)
        assert 0 < middle < len(each.tokens)
        head = replace(each, tokens=each.tokens[:middle], logprobs=each.logprobs[:middle])
        assert apart(running.models[0], [request], [head]) < CLOSE
        if hold == "retract":  # caches are computed anew, so that the rest is drawn by the new weights alone
            rest = replace(request, context=(*request.context, *each.tokens[:middle]))
            tail = replace(each, tokens=each.tokens[middle:], logprobs=each.logprobs[middle:])
            assert apart(running.models[1], [rest], [tail]) < CLOSE


def test_samples_wait_while_generation_is_paused(served: Callable[..., RemoteModel]) -> None:
    model = served()

    async def paused() -> bool:
        await asyncio.to_thread(model.pause)
        waiting = asyncio.gather(*(model.sample(each) for each in asked(prompts=2)))
        await asyncio.sleep(0.5)
        was_done = waiting.done()
        await asyncio.to_thread(model.resume)
        await waiting
        return was_done

    assert not asyncio.run(paused())


def test_aborted_samples_are_told_and_the_server_goes_on(running: Running, served: Callable[..., RemoteModel]) -> None:
    model, requests = served(), endless(running.models[0])
    done = list[Completion | BaseException]()
    while len(done) < TRIES * len(requests) and not any(isinstance(each, BaseException) for each in done):
        done += amid(model, requests, model.abort)
    lost = [each for each in done if isinstance(each, BaseException)]
    assert lost
    ended = "the sample ended with the reason `abort`"
    assert all(isinstance(each, WorkerError) and ended in str(each) for each in lost)
    assert len(gather(model, asked())) == 12


def test_sleep_and_wake_answer_and_the_server_generates_after_them(served: Callable[..., RemoteModel]) -> None:
    model = served()
    model.sleep()
    model.wake()
    assert len(gather(model, asked())) == 12


def test_a_sample_that_is_no_longer_wanted_leaves_the_server(
    running: Running, served: Callable[..., RemoteModel]
) -> None:
    model = served()

    async def leave() -> None:
        waiting = [asyncio.ensure_future(model.sample(each)) for each in asked(prompts=8, most=120)]
        await asyncio.sleep(0.2)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(leave())
    with running.control() as control:
        until = time.monotonic() + LIMIT_S
        while not control.flush():
            assert time.monotonic() < until
            time.sleep(0.05)


def test_a_wrong_key_is_refused(running: Running) -> None:
    door = replace(running.door, key="wrong", admin_key="wrong")
    model = running.engine.model([door], running.models[0].raw_tokenizer, limit_s=LIMIT_S)
    with pytest.raises(WorkerError, match=rf"replica 0 answers {model.path} .* with status 401"):
        gather(model, asked(prompts=1, samples=1))
    with pytest.raises(WorkerError, match="status 401"):
        model.pause()
    with pytest.raises(WorkerError, match="the key does not match the server's"):
        running.engine.attach(door.url, key="wrong")
    with pytest.raises(WorkerError, match="status 401"), running.control(admin_key="") as control:
        control.stamp("9")  # the key of requests is not that of control
    model.close()


def test_a_running_server_can_be_attached_to(running: Running) -> None:
    keys = {"key": running.door.key, "admin_key": running.door.admin_key}
    assert running.engine.attach(running.door.url, name="replica 0", **keys) == running.door


def test_no_process_of_the_server_listens_beyond_loopback(running: Running, served: Callable[..., RemoteModel]) -> None:
    before = listening([psutil.Process()])  # another test of this process may have opened a Ray
    served(update_by="group").take(running.models[0].weights(), 500)
    opened = listening([psutil.Process(), *running.processes()]) - before
    assert opened
    assert {ip for ip, _ in opened} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}  # the last is the first, for IPv6


def listening(processes: Sequence[psutil.Process]) -> set[tuple[str, int]]:
    """Return the addresses and ports at which processes listen."""
    connections = (connection for each in processes for connection in each.net_connections("inet"))
    return {tuple(each.laddr) for each in connections if each.status == psutil.CONN_LISTEN}


def test_no_key_stands_in_the_log_a_command_line_or_an_environment(running: Running) -> None:
    secrets = (running.door.key, running.door.admin_key)
    told = running.log.read_text(errors="replace")
    told += "".join(" ".join([*each.cmdline(), *each.environ().values()]) for each in running.processes())
    assert [secret for secret in secrets if secret in told] == []


def test_killed_in_generation_with_its_parent_the_server_is_gone_and_its_samples_say_so(
    running: Running,
) -> None:
    with running.control() as control:
        version = int(control.version())
    model = running.engine.model([running.door], running.models[0].raw_tokenizer, version=version, limit_s=LIMIT_S)
    processes = running.processes()
    assert len(processes) >= 3
    mapped = {each.path for process in processes for each in process.memory_maps() if each.path.startswith("/dev/shm/")}

    async def kill() -> list[Any]:
        waiting = [asyncio.ensure_future(model.sample(each)) for each in asked(prompts=16, most=110)]
        await asyncio.sleep(0.15)
        os.kill(running.parent.pid, signal.SIGKILL)
        return await asyncio.gather(*waiting, return_exceptions=True)

    lost = [each for each in asyncio.run(kill()) if isinstance(each, BaseException)]
    assert lost
    assert all(isinstance(each, WorkerError) and "replica 0" in str(each) for each in lost)
    assert any("broke the connection" in str(each) or "cannot be reached" in str(each) for each in lost)
    psutil.wait_procs(processes, timeout=LIMIT_S)
    assert [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []
    assert [path for path in mapped if Path(path.removesuffix(" (deleted)")).exists()] == []
    with pytest.raises(WorkerError, match="replica 0 cannot be reached"):
        gather(model, asked(prompts=1, samples=1))
    model.close()
