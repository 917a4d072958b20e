"""Every placement runs as it is drawn, and gives the same: the four named ones, and one that none of them is.

PPO with a policy, a critic, a reference and a reward model, against one process. The runs on Ray must
have passed with the files that tests/slow_inputs.toml lists; test_local.py runs a plan of many places for each change.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from flowgraph import Graph
from flowgraph.analysis.flat_graph import structure_hash, to_json
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool
from flowgraph.cluster.this_machine import laptop
from flowgraph.diagrams.build.plan_picture import plan_picture
from flowgraph.diagrams.write.mermaid.flowchart import mermaid
from flowgraph.flows.flow_files import find_flow
from flowgraph.flows.settings import resolve_settings
from flowgraph.language import Key
from flowgraph.language.region import Observations
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import HOST, Program, Run
from flowgraph.models import resolve
from flowgraph.passes import compile_graph
from flowgraph.runtime.batch import to_table
from flowgraph.runtime.hosting import ModelSetup, heads_of, host
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.local import InProcess
from flowgraph.runtime.places import RowSource
from flowgraph.runtime.ray.device import Flows
from flowgraph.runtime.ray.places import RayPlaces
from flowgraph.runtime.ray.session import Session
from flowgraph.runtime.ray.start import start
from flowgraph.runtime.ray.supervision import PendingCall
from flowgraph.runtime.record.run_folder import RecordedRollouts, rollout_file, write_rollout
from nodes import Columns, Rollout
from nodes.data.source import PromptSource
from nodes.values import Finished, Text
from placements.search.named_placements import name_of

pytestmark = pytest.mark.processes

LIMIT = 1e-5
OWN = Path(__file__).parent / "rewarded_flow.py"
SAMPLED = "policy.generate"
MODELS = ("policy", "critic", "ref", "judge")
MOST_DEVICES = 5

# Prompts of each replayed step; with one, a rank has no row at all.
PROMPTS = [[0, 2, 3, 5, 9], [4], [1, 6, 7], [8, 10, 11]]
LENGTHS = [1, 12, 3, 7, 2, 1, 9, 5, 12, 1]
LEARNING = {"optimizer": "sgd", "lr": 0.05, "max_grad_norm": 0, "minibatch": 2, "micro_batch_tokens": 40}
ONE_STEP = LEARNING | {"lr": 1.0, "minibatch": 0}  # so that weights move by the gradient itself


def graph_of(learning: Mapping[str, object]) -> Graph:
    """Return the flow with these settings of both updates."""
    found = {f"{model}.update.{name}": value for model in ("policy", "critic") for name, value in learning.items()}
    settings = {"policy.generate.n": 4, "policy.generate.max_tokens": 8} | found
    return resolve_settings(compile_graph(find_flow(f"{OWN}:rewarded").flow.graph()), [], settings)[0]


GRAPHS = {"minibatches": graph_of(LEARNING), "one step": graph_of(ONE_STEP)}
GRAPH = GRAPHS["minibatches"]


LOCAL, SHARDS = ("local", Layout()), ("fsdp", Layout(data=2, sharding="full"))
Homes = Mapping[str, tuple[str, str, Layout]]
"""By role its pool, engine and layout."""


def placed(homes: Homes, places: Mapping[str, Sequence[int]]) -> Plan:
    """Return the plan of roles that live so, on pools of these devices of a laptop."""
    return Plan(
        flow=GRAPH.name,
        structure_hash=structure_hash(GRAPH),
        cluster=laptop(MOST_DEVICES, 2**33),
        pools=tuple(Pool(name=pool, devices=tuple(("laptop", i) for i in at)) for pool, at in places.items()),
        placed=tuple(
            PlacedRole(role=role, pool=pool, engine=engine, layout=layout)
            for role, (pool, engine, layout) in homes.items()
        ),
    )


ROLES = ("policy.train", "policy.sample", "critic.train", "ref.infer", "judge.infer")
BOTH = ("local", Layout(data=2))

ALONE_PLAN = placed(dict.fromkeys(ROLES, ("all", *LOCAL)), {"all": (0,)})
PLANS = {
    "colocated": placed(
        {role: ("all", *(SHARDS if role.endswith("train") else BOTH)) for role in ROLES}, {"all": (0, 1)}
    ),
    "hybrid": placed(
        {
            "policy.train": ("main", *SHARDS),
            "policy.sample": ("main", *BOTH),
            "critic.train": ("main", *SHARDS),
            "ref.infer": ("main", *BOTH),
            "judge.infer": ("judge", *LOCAL),
        },
        {"main": (0, 1), "judge": (2,)},
    ),
    "split": placed(
        {
            "policy.train": ("actor", *LOCAL),
            "policy.sample": ("rollout", *LOCAL),
            "critic.train": ("critic", *SHARDS),
            "ref.infer": ("actor", *LOCAL),
            "judge.infer": ("critic", *BOTH),
        },
        {"actor": (0,), "rollout": (1,), "critic": (2, 3)},
    ),
    "standalone": placed(
        {role: (f"pool{place}", *LOCAL) for place, role in enumerate(ROLES)},
        {f"pool{place}": (place,) for place in range(len(ROLES))},
    ),
    # Three pools as no system has them: drawing beside the reference, both updates, and the reward model.
    "by hand": placed(
        {
            "policy.train": ("learns", *SHARDS),
            "policy.sample": ("draws", *LOCAL),
            "critic.train": ("learns", "fsdp", Layout(sequence=2, sharding="full")),
            "ref.infer": ("draws", *LOCAL),
            "judge.infer": ("judges", *BOTH),
        },
        {"draws": (4,), "learns": (0, 3), "judges": (1, 2)},
    ),
}
POOLS = {"colocated": [2], "hybrid": [2, 1], "split": [1, 1, 2], "standalone": [1] * 5, "by hand": [1, 2, 2]}


def programs_of(plan: Plan) -> dict[str, Program]:
    return {name: lower(graph, plan) for name, graph in GRAPHS.items()}


ALONE = programs_of(ALONE_PLAN)

Where = Mapping[str, set[tuple[str, int]]]
"""By node the pools and ranks that ran it."""


@dataclass(eq=False)
class Noting:
    """Places on Ray, with the report of every process that was sent a task, and where that is."""

    places: RayPlaces
    reports: list[tuple[Any, tuple[str, int]]] = field(default_factory=list[tuple[Any, tuple[str, int]]])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.places, name)

    def run(self, graph: Graph, task: Run, *rest: Any) -> Any:
        """Run a task, and keep what each process that it was sent to will report."""
        before = len(self._pending())
        results = self.places.run(graph, task, *rest)
        for pending in self._pending()[before:]:
            seat = pending.member.seat if pending.member is not None else None
            self.reports.append((pending.ref, (seat.pool, seat.rank) if seat is not None else (HOST, 0)))
        return results

    def _pending(self) -> list[PendingCall]:
        found: list[PendingCall] = vars(self.places)["_pending"]
        return found

    def ran(self) -> Where:
        """Return who reported to have run which node."""
        import ray

        found = dict[str, set[tuple[str, int]]]()
        for ref, at in self.reports:
            told = ray.get(ref)
            report = told[-1] if isinstance(told, tuple) else told
            assert isinstance(report, Observations)
            for node in report.seconds:
                found.setdefault(node, set()).add(at)
        return found


@dataclass(frozen=True)
class Outcome:
    """What five steps told, and the weights of both trained models before and after the last."""

    metrics: list[dict[str, float]]
    before: dict[str, torch.Tensor]
    after: dict[str, torch.Tensor]

    @property
    def gradients(self) -> dict[str, torch.Tensor]:
        """Return the gradients of the last step: its weights moved by them, for its learning rate is 1."""
        return {name: self.before[name] - self.after[name] for name in self.before}


def outcome(places: Any, programs: Mapping[str, Program], sources: Mapping[str, RowSource], folder: Path) -> Outcome:
    """Sample a step, train on it and on three that are replayed, and take one more step that shows the gradient."""
    executor, metrics = Executor(places), list[dict[str, float]]()
    prompts = {"prompts": sources["prompts"]}
    for step in range(4):
        ran = executor.run(programs["minibatches"], sources if step else prompts, Key(7, step))
        metrics.append(ran.observed.means())
    before = weights(executor, programs["minibatches"], folder / "before")
    metrics.append(executor.run(programs["one step"], sources, Key(7, 4)).observed.means())
    return Outcome(metrics, before, weights(executor, programs["one step"], folder / "after"))


def weights(executor: Executor, program: Program, folder: Path) -> dict[str, torch.Tensor]:
    """Return the newest weights of both trained models, as they are saved."""
    from safetensors.torch import load_file

    found = dict[str, torch.Tensor]()
    for name in ("policy", "critic"):
        executor.save(program, name, folder / name)
        tensors = {
            key: value for file in (folder / name).glob("*.safetensors") for key, value in load_file(file).items()
        }
        found |= {f"{name}: {key}": value for key, value in tensors.items()}
    return found


@pytest.fixture(scope="module")
def models(model_cache: Path) -> ModelSetup:
    source = resolve("tiny", cache=model_cache)
    return ModelSetup(dict.fromkeys(MODELS, source), 0, model_cache, heads=heads_of(GRAPH))


@pytest.fixture(scope="module")
def sources(
    make_rollout: Callable[..., Rollout], uneven_rows: pa.Table, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, RowSource]:
    """Return recorded rollouts of steps 1 to 4: four responses to each prompt, of 1 to 12 tokens; and prompts."""
    folder = tmp_path_factory.mktemp("replayed")
    for step, prompts in enumerate(PROMPTS, 1):
        group = [prompt for prompt in prompts for _ in range(4)]
        lengths = [LENGTHS[(step + 3 * row) % len(LENGTHS)] for row in range(len(group))]
        made = make_rollout(lengths, [1 + (5 * prompt) % 12 for prompt in group], group, seed=step)
        texts = ["".join(str((step + row + i) % 10) for i in range(row % 4)) for row in range(len(group))]
        parts: dict[str, Any] = {
            **made.parts,
            "columns": Columns(uneven_rows.take(group)),
            "text": Text(pa.array(texts, pa.string())),
            "finished": Finished(torch.arange(len(group)) % 5 != 0),
        }
        write_rollout([to_table(Rollout(**parts))], [], rollout_file(folder, SAMPLED, step))
    return {SAMPLED: RecordedRollouts(folder, SAMPLED, Rollout), "prompts": PromptSource(uneven_rows, 3, seed=3)}


@pytest.fixture(scope="module")
def alone(models: ModelSetup, sources: Mapping[str, RowSource], tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Return what one process tells, with every role on one device."""
    handles, _ = host(ALONE["minibatches"].homes, ALONE["minibatches"].trained, models)
    return outcome(InProcess(handles), ALONE, sources, tmp_path_factory.mktemp("alone"))


ON_RAY = [pytest.param(name, marks=pytest.mark.slow(group="ray")) for name in PLANS]


@pytest.fixture(scope="module", params=ON_RAY)
def run(
    request: pytest.FixtureRequest,
    ray_session: Callable[[], Session],
    models: ModelSetup,
    sources: Mapping[str, RowSource],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, Outcome, Where, set[int]]]:
    """Run a plan on Ray once; give its name, what it told, who ran what, and the processes of its devices."""
    name, programs = request.param, programs_of(PLANS[request.param])
    session = ray_session()
    flows = Flows(tuple(to_json(graph) for graph in GRAPHS.values()), str(OWN))
    places = start(programs["minibatches"], list(GRAPHS.values()), flows, models, session)
    try:
        noting = Noting(places)
        told = outcome(noting, programs, sources, tmp_path_factory.mktemp("on_ray"))
        yield name, told, noting.ran(), {member.pid for member in places.members}
    finally:
        places.close()


def near(ours: Mapping[str, float], theirs: Mapping[str, float], where: str) -> None:
    """Hold that all metrics of a step are the same."""
    assert ours.keys() == theirs.keys(), where
    far = {name: (ours[name], theirs[name]) for name in ours if not abs(ours[name] - theirs[name]) <= LIMIT}
    assert far == {}, where


def farthest(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> float:
    """Return the largest difference between two sets of tensors."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


# ------------------------------------------------------------------------------------------- the plans


@pytest.mark.parametrize("name", PLANS)
def test_each_plan_shares_pools_as_its_name_says(name: str) -> None:
    plan = PLANS[name]
    parts = [tuple(each.role for each in plan.placed if each.pool == pool.name) for pool in plan.pools]
    assert name_of(GRAPH, parts).partition(":")[0] == ("" if name == "by hand" else name)
    assert [len(pool.devices) for pool in plan.pools] == POOLS[name]


def test_what_is_compared_is_trained(alone: Outcome) -> None:
    assert len(alone.metrics) == 5
    for told in alone.metrics:
        for model in ("policy", "critic"):
            assert told[f"{model}.update.grad_norm"] > 0.01, "nothing is trained, so nothing is compared"
    assert [told["policy.update.optimizer_steps"] for told in alone.metrics] == [2, 3, 1, 2, 1]
    assert len({told["judge.reward.reward"] for told in alone.metrics}) == 5


def test_the_last_step_moves_weights_by_the_gradient_itself(alone: Outcome) -> None:
    for model in ("policy", "critic"):
        gradient = torch.cat([each.flatten() for name, each in alone.gradients.items() if name.startswith(model)])
        assert float(gradient.norm()) == pytest.approx(alone.metrics[-1][f"{model}.update.grad_norm"], abs=LIMIT)


# ------------------------------------------------------------------------------------------- what they gave


def test_the_metrics_of_every_step_are_those_of_one_process(
    run: tuple[str, Outcome, Where, set[int]], alone: Outcome
) -> None:
    name, told, _, _ = run
    for step, (ours, theirs) in enumerate(zip(told.metrics, alone.metrics, strict=True)):
        near(ours, theirs, f"{name}, step {step}")


def test_gradients_and_weights_are_those_of_one_process(
    run: tuple[str, Outcome, Where, set[int]], alone: Outcome
) -> None:
    _, told, _, _ = run
    assert farthest(told.before, alone.before) < LIMIT
    assert farthest(told.after, alone.after) < LIMIT
    assert farthest(told.gradients, alone.gradients) < LIMIT


def test_five_pools_in_one_process_with_a_store_each_give_what_one_pool_gives(
    models: ModelSetup, sources: Mapping[str, RowSource], alone: Outcome, tmp_path: Path
) -> None:
    programs = programs_of(PLANS["standalone"])
    handles, _ = host(programs["minibatches"].homes, programs["minibatches"].trained, models)
    told = outcome(InProcess(handles), programs, sources, tmp_path)
    for step, (ours, theirs) in enumerate(zip(told.metrics, alone.metrics, strict=True)):
        near(ours, theirs, f"step {step}")
    assert farthest(told.after, alone.after) < LIMIT


# ------------------------------------------------------------------------------------------- what was drawn


def drawn(text: str, nodes: Mapping[str, object]) -> Where:
    """Read of a diagram's text which pool each node is drawn in, with a rank for each device that the pool names."""
    frames, found = list[str](), dict[str, set[tuple[str, int]]]()
    for line in map(str.strip, text.splitlines()):
        if opened := re.fullmatch(r'subgraph \w+\["(.*)"\]', line):
            frames.append(unescaped(opened[1]))
        elif line == "end":
            frames.pop()
        elif (box := re.match(r'\w+\S*?"([^"]*)"', line)) and frames:
            node = unescaped(box[1]).partition("<br/>")[0]
            if node in nodes:
                pool, _, devices = frames[0].partition(": ")
                found[node] = {(pool, rank) for rank in range(len(devices.split(", ")))}
    return found


def unescaped(text: str) -> str:
    return html.unescape(re.sub(r"#(\d+);", r"&#\1;", text))


def test_what_ran_is_what_is_drawn(run: tuple[str, Outcome, Where, set[int]]) -> None:
    name, _, ran, processes = run
    program = programs_of(PLANS[name])["minibatches"]
    assert drawn(mermaid(plan_picture(program)), program.nodes) == ran
    assert ran.keys() == program.nodes.keys()
    assert len(processes) == sum(POOLS[name]), "each device is a process of its own"


def test_no_two_plans_are_drawn_the_same() -> None:
    programs = [programs_of(plan)["minibatches"] for plan in PLANS.values()]
    pictures = [drawn(mermaid(plan_picture(program)), program.nodes) for program in programs]
    assert all(one != other for one, other in combinations(pictures, 2))
