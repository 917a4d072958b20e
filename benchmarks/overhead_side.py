"""One way to take steps, in a process of its own: told by lines on its standard input, answers in JSON lines.

By hand: a loop of calls on real values, as a test of a node makes them. In process: the compiled program, each value
written and read as Arrow where it changes its place. Ray: the same program on one actor, and a process for host nodes.
Used by `overhead.py`, which says what is compared.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a script's own folder is on the path, the checkout is not

from benchmarks.cost import used_s  # noqa: E402
from flowgraph import Loss  # noqa: E402
from flowgraph.language import Key  # noqa: E402
from nodes import (  # noqa: E402
    Policy,
    Reference,
    clipped,
    generate,
    group_normalize,
    kl_k3,
    logprobs,
    score,
    update,
)

if TYPE_CHECKING:
    from flowgraph.cluster.plan import Plan
    from flowgraph.language.graph import Graph
    from flowgraph.lowering.program import Program
    from flowgraph.runtime.interpreter import Executor
    from flowgraph.runtime.places import Places

BY_HAND, IN_PROCESS, RAY = "by hand", "in process", "Ray"
WAYS = (BY_HAND, IN_PROCESS, RAY)
SEED = 7
HOST_MEMORY_BYTES, DEVICE_MEMORY_BYTES = 2**33, 2**32
CALLS = 12

Step = Callable[[int], Mapping[str, float]]
"""Takes the step of a number and gives its metrics."""


@dataclass(frozen=True)
class Job:
    """What a step is, and the folder of its model."""

    model: str
    cache: str
    prompts: int
    samples: int
    tokens: int
    lr: float = 1e-3

    @property
    def settings(self) -> dict[str, object]:
        """Return the flow's settings."""
        return {
            "policy.generate.n": self.samples,
            "policy.generate.max_tokens": self.tokens,
            "policy.update.lr": self.lr,
        }


def main() -> None:
    """Get ready, then take steps until there is no line more."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # what libraries print is no answer
        way, job = sys.argv[1], Job(**json.loads(sys.argv[2]))
        import torch

        torch.set_num_threads(1)
        with opened(way, job) as (step, calls):
            tell(answers, {"ready": way})
            for line in sys.stdin:
                told = json.loads(line)
                tell(answers, calls() if told == "calls" else [measured(step, number) for number in told])


def tell(answers: Any, told: object) -> None:
    """Answer one line."""
    answers.write(json.dumps(told) + "\n")
    answers.flush()


def measured(step: Step, number: int) -> dict[str, Any]:
    """Take one step; give its seconds, the CPU seconds of this process and all below it, and its metrics."""
    cpu_s, start = used_s(), time.perf_counter()
    metrics = step(number)
    return {"seconds": time.perf_counter() - start, "cpu_s": used_s() - cpu_s, "metrics": dict(metrics)}


@contextmanager
def opened(way: str, job: Job) -> Generator[tuple[Step, Callable[[], dict[str, float]]]]:
    """Yield what takes a step, and what times calls of nodes that do nothing."""
    from flowgraph.lowering.lower import lower
    from flowgraph.runtime.interpreter import Executor

    flow = grpo_graph(job)
    program = lower(flow, one_pool(flow))
    if way == BY_HAND:
        yield hand_loop(program, job), dict
        return
    graphs = {name: call_graph(name) for name in ("on_models", "in_turns")}
    sources = {"prompts": rows(job)}
    with places(way, program, [flow, *graphs.values()], job) as there:
        executor = Executor(there)

        def step(number: int) -> Mapping[str, float]:
            return executor.run(program, sources, Key(SEED, number)).observed.means()

        def calls() -> dict[str, float]:
            return {name: call_s(executor, graph, job) for name, graph in graphs.items()}

        yield step, calls


def grpo_graph(job: Job) -> Graph:
    """Compile the flow that is measured."""
    from examples.grpo import grpo
    from flowgraph.flows.settings import resolve_settings
    from flowgraph.passes import compile_graph

    return resolve_settings(compile_graph(grpo.graph()), [], job.settings)[0]


def call_graph(name: str) -> Graph:
    """Compile a flow of nodes that do nothing."""
    from flowgraph.flows.flow_files import find_flow
    from flowgraph.passes import compile_graph

    return compile_graph(find_flow(f"{HERE / 'flows' / 'calls.py'}:{name}").flow.graph({"calls": CALLS}))


def one_pool(graph: Graph) -> Plan:
    """Put all roles on one CPU device."""
    from flowgraph.analysis.flat_graph import structure_hash
    from flowgraph.analysis.roles import roles
    from flowgraph.cluster.cluster import Cluster, Device, Machine
    from flowgraph.cluster.plan import PlacedRole, Plan, Pool

    cpu = Device(kind="cpu", memory_bytes=DEVICE_MEMORY_BYTES)
    laptop = Machine(name="laptop", devices=(cpu,), host_memory_bytes=HOST_MEMORY_BYTES, cores=2)
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(laptop,)),
        pools=(Pool(name="all", devices=(("laptop", 0),)),),
        placed=tuple(PlacedRole(role=role.name, pool="all", engine="local") for role in roles(graph)),
    )


def rows(job: Job) -> Any:
    """Return the prompts of each step."""
    from nodes.data.sets import load
    from nodes.data.source import PromptSource

    return PromptSource(load("digits", cache=Path(job.cache)).train, job.prompts, 0)


def setup(job: Job) -> Any:
    """Return where both models come from, and that none of their passes is cut."""
    from flowgraph.models import resolve
    from flowgraph.runtime.hosting import ModelSetup

    source, cache = resolve(job.model, cache=Path(job.cache)), Path(job.cache)
    return ModelSetup({"policy": source, "ref": source}, 0, cache)


def hand_loop(program: Program, job: Job) -> Step:
    """Return a loop that calls the bodies of the flow's nodes on real values."""
    import torch

    from flowgraph.runtime.hosting import host

    handles, _ = host(program.homes, program.trained, setup(job))
    hosted = {home.param: handle for home, handle in handles.items()}
    source = rows(job)
    assert len(hosted) == len(handles), "one copy of each model"

    def step(number: int) -> Mapping[str, float]:
        policy, ref = Policy(hosted["policy"], hosted["policy"].version), Reference(hosted["ref"])
        drawn, trained = Key(SEED, number, "policy.generate"), Key(SEED, number, "policy.update")
        with torch.no_grad():
            rollout = generate(policy, source.batch(number), n=job.samples, max_tokens=job.tokens, key=drawn)
            scores = score(rollout)
            advantages = group_normalize(scores, rollout.group)
            ref_logprobs = logprobs(ref, rollout)

            def loss(pi: Policy) -> Loss:
                new = logprobs(pi, rollout)
                surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs, eps=0.2)
                return surrogate + 0.1 * kl_k3(new, rollout.mask, ref=ref_logprobs)

            after = update(policy, loss, lr=job.lr, key=trained)
        named = {"policy.generate": rollout, "score": scores, "policy.update": after}
        return {
            f"{name}.{each.name}": each.total / each.count
            for name, value in named.items()
            for each in value.measures
            if each.count
        }

    return step


@contextmanager
def places(way: str, program: Program, graphs: list[Graph], job: Job) -> Generator[Places]:
    """Yield the places of the program's plan, ready to run any of the graphs, which share its homes."""
    from flowgraph.runtime.hosting import host
    from flowgraph.runtime.local import InProcess

    if way == IN_PROCESS:
        yield InProcess(host(program.homes, program.trained, setup(job))[0])
        return
    from flowgraph.runtime.ray.session import connect

    session = connect(program.plan, None, None, threads=1)
    from flowgraph.analysis.flat_graph import to_json
    from flowgraph.runtime.ray.device import Flows
    from flowgraph.runtime.ray.start import start

    flows = Flows(tuple(map(to_json, graphs)), str(HERE / "flows" / "calls.py"))
    there = start(program, graphs, flows, setup(job), session)
    try:
        yield there
    finally:
        there.close()


def call_s(executor: Executor, graph: Graph, job: Job, times: int = 5) -> float:
    """Return the seconds of a whole run of a flow of calls: the least of some, the first left out."""
    from flowgraph.lowering.follow import plan_second_flow
    from flowgraph.lowering.lower import lower

    program = lower(graph, plan_second_flow(one_pool(grpo_graph(job)), graph, {"policy": "policy"}))
    sources, seconds = {"prompts": rows(replace(job, prompts=16))}, list[float]()
    for number in range(times + 1):
        start = time.perf_counter()
        executor.run(program, sources, Key(SEED, number))
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


if __name__ == "__main__":
    main()
