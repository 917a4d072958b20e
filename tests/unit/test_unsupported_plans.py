"""What a plan may name that is only modelled, what of a plan cannot be run here, and its fields and JSON."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flowgraph import Graph
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.placed_graph import PlacedGraph, check_plan
from flowgraph.analysis.roles import USES
from flowgraph.checks.placed import refuse_unsupported, unsupported_parts
from flowgraph.cluster.cluster import Cluster, Device, Machine
from flowgraph.cluster.plan import (
    Checkpointing,
    Layout,
    Offloaded,
    PlacedRole,
    Plan,
    PlanAssumptions,
    Pool,
    Precision,
    RoleSettings,
    Sharding,
    StepForecast,
    TaskKind,
    TaskOrder,
    TimedTask,
)
from flowgraph.engines.table import ENGINES, engines_for
from flowgraph.errors import PlanError
from flowgraph.language import laws
from tests.looped import looped
from tests.unit.placements.small_problems import graph_of

GPU = Device(kind="gpu", memory_bytes=80 * 2**30, model="h100-sxm-80g")
ENGINE_OF = {"policy.train": "fsdp", "policy.sample": "sglang", "ref.infer": "fsdp"}
WHOLE, SHARDS = Layout(data=8), Layout(data=8, sharding="full")
LAYOUTS = {"policy.train": SHARDS, "policy.sample": WHOLE, "ref.infer": SHARDS}


@pytest.fixture(scope="module")
def graph() -> Graph:
    """prompts, policy, ref → generate → score, ref log-probs → update."""
    return graph_of("grpo")


def plan_of(graph: Graph, changed: str = "", kind: Any = GPU, **parts: Any) -> Plan:
    """Return a plan for GRPO on eight devices that runs here, with parts of one role replaced."""
    device = kind if isinstance(kind, Device) else Device(kind=kind, memory_bytes=2**36)
    node = Machine(name="node-1", devices=(device,) * 8, host_memory_bytes=2**40, cores=64)
    right: list[dict[str, Any]] = [
        {"role": role, "pool": "all", "engine": each, "layout": LAYOUTS[role]} for role, each in ENGINE_OF.items()
    ]
    placed = [PlacedRole(**(each | (parts if each["role"] == changed else {}))) for each in right]
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(node,)),
        pools=(Pool(name="all", devices=tuple(("node-1", place) for place in range(8))),),
        placed=tuple(placed),
    )


def refusal(plan: Plan, graph: Graph) -> str:
    """Return what is said of a wrong plan."""
    with pytest.raises(PlanError) as caught:
        check_plan(plan, graph, "plan.json")
    return str(caught.value)


MODELLED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("policy.train", {}, []),
    (
        "policy.train",
        {"layout": Layout(data=4, tensor=2, sharding="full")},
        ["data=4 tensor=2 sharding=full on `fsdp` for policy.train"],
    ),
    ("policy.train", {"layout": WHOLE}, ["sharding=none on `fsdp` for policy.train"]),
    (
        "policy.train",
        {"engine": "megatron", "layout": Layout(data=2, tensor=2, pipeline=2, sharding="optimizer")},
        ["`megatron` for policy.train"],
    ),
    (
        "policy.train",
        {"running": RoleSettings(precision="bfloat16", checkpointing="full", offload=("optimizer",), sleeps=True)},
        [],
    ),
    (
        "policy.train",
        {"running": RoleSettings(precision="fp8", offload=("gradients",))},
        ["fp8 on `fsdp` for policy.train", "offload=gradients on `fsdp` for policy.train"],
    ),
    ("policy.train", {"running": RoleSettings(cache_share=0.5)}, ["cache_share=0.5 on `fsdp` for policy.train"]),
    ("policy.train", {"layout": Layout(data=4, sequence=2, replicas=2, sharding="full")}, []),
    (
        "policy.sample",
        {"engine": "vllm", "layout": Layout(data=4, tensor=2, expert=4)},
        ["data=4 tensor=2 expert=4 on `vllm` for policy.sample"],
    ),
    ("policy.sample", {"engine": "vllm", "layout": Layout(data=4, tensor=2)}, []),
    (
        "policy.sample",
        {"running": RoleSettings(precision="fp8", cache_share=0.6)},
        ["fp8 on `sglang` for policy.sample"],
    ),
    (
        "policy.sample",
        {"engine": "trtllm", "running": RoleSettings(precision="fp8", cache_share=0.6, sleeps=True)},
        ["`trtllm` for policy.sample"],
    ),
    ("ref.infer", {"engine": "megatron", "layout": Layout(sequence=8)}, ["`megatron` for ref.infer"]),
]


@looped("role, parts, names", MODELLED)
def test_a_plan_may_name_what_is_only_modelled_and_says_which_of_it_cannot_be_run(
    graph: Graph, role: str, parts: Any, names: list[str]
) -> None:
    plan = plan_of(graph, role, **parts)
    check_plan(plan, graph)
    assert unsupported_parts(plan) == names


def test_a_refusal_names_all_that_cannot_be_run(graph: Graph) -> None:
    refuse_unsupported(plan_of(graph), "plan.json")
    assumed = PlanAssumptions(flow="grpo", models={}, batch=1, prompt_tokens="512", staleness=1, without=("ref",))
    plan = plan_of(graph, "policy.train", engine="megatron")
    placed = tuple(row.model_copy(update={"lag": int(row.role == "policy.sample")}) for row in plan.placed)
    with pytest.raises(PlanError) as caught:
        refuse_unsupported(plan.model_copy(update={"assumed": assumed, "placed": placed}), "plan.json")
    assert str(caught.value) == (
        "plan.json: this plan of grpo names `megatron` for policy.train, which cannot be run here\n"
        "    nor weights that are older than the flow allows\n"
        "    nor a run without `ref`\n"
        "  hint: plan it without --engine, or `flowgraph export` it"
    )


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("policy.train", {"engine": "megatorn"}, "no engine of policy.train: `megatorn`\n  hint: did you mean `megatron`?"),
    (
        "policy.train",
        {"engine": "local"},
        "policy.train: the engine `local` does not run `step` on 8 devices\n  hint: it does that on one device",
    ),
    (
        "policy.train",
        {"engine": "sglang"},
        "policy.train: the engine `sglang` does not run `step`\n  hint: it supports sample, weights",
    ),
    (
        "policy.sample",
        {"engine": "fsdp"},
        "policy.sample: the engine `fsdp` does not run `sample`\n  hint: it supports step, token_stats, weights",
    ),
    (
        "policy.train",
        {"layout": Layout(data=4, pipeline=2)},
        (
            "policy.train: the engine `fsdp` does not run data=4 tensor=1 pipeline=2\n"
            "  hint: it runs up to data of any degree, tensor=8, pipeline=1"
        ),
    ),
    (
        "policy.train",
        {"layout": Layout(data=2, sharding="optimizer")},
        "policy.train: the engine `fsdp` does not run sharding=optimizer\n  hint: it runs sharding=full, none",
    ),
    (
        "policy.sample",
        {"layout": Layout(data=2, tensor=2, sequence=2)},
        (
            "policy.sample: the engine `sglang` does not run data=2 tensor=2 sequence=2\n"
            "  hint: it runs up to data of any degree, tensor=64, pipeline=1"
        ),
    ),
    (
        "policy.train",
        {"layout": Layout(data=4, tensor=2, sequence=2)},
        "policy.train: data=4 tensor=2 sequence=2 takes 16 devices, its pool has 8",
    ),
]


@looped("role, parts, said", WRONG)
def test_a_plan_is_held_to_what_is_modelled_of_its_engines(graph: Graph, role: str, parts: Any, said: str) -> None:
    assert refusal(plan_of(graph, role, **parts), graph) == f"plan.json: {said}"


@pytest.mark.parametrize("parts", [{"engine": "megatorn"}, {"engine": "local", "layout": SHARDS}], ids=str)
def test_what_is_not_modelled_is_refused_as_that_and_not_as_what_cannot_be_run(graph: Graph, parts: Any) -> None:
    plan = plan_of(graph, "ref.infer", **parts)
    assert unsupported_parts(plan) == []
    assert "hint: did you mean `megatron`?" in (said := refusal(plan, graph)) or "it runs sharding=none" in said


def test_a_role_may_leave_devices_of_its_pool_idle(graph: Graph) -> None:
    check_plan(plan_of(graph, "policy.train", layout=Layout(data=7, sharding="full")), graph)


SPREAD: list[tuple[Layout, int | None, str]] = [
    (Layout(data=4, tensor=2, expert=4), 128, ""),
    (Layout(data=4, sequence=2, expert=4), 8, ""),
    (Layout(data=8, expert=2), None, ""),
    (Layout(data=8), 0, ""),
    (Layout(data=4, tensor=2, expert=8), 128, "policy.train: expert=8, but data and sequence give 4 ranks"),
    (Layout(data=8, expert=3), 6, "policy.train: expert=3, but data and sequence give 8 ranks"),
    (Layout(data=8, expert=4), 6, "policy.train: expert=4, but its model has 6 experts"),
    (Layout(data=8, expert=8), 0, "policy.train: expert=8, but its model has no experts"),
]


@looped("layout, experts, said", SPREAD)
def test_experts_go_in_equal_parts_to_ranks_that_there_are(
    graph: Graph, layout: Layout, experts: int | None, said: str
) -> None:
    plan = plan_of(graph, "policy.train", engine="megatron", layout=layout)
    known = {} if experts is None else {"policy": experts}
    faults = list(laws.faults("placed", PlacedGraph(graph, plan, "plan.json", known)))
    hint = "\n  hint: experts are split equally over ranks, so `expert` must divide both"
    assert [str(each) for each in faults] == ([f"plan.json: {said}{hint}"] if said else [])


def test_a_plan_may_lag_as_far_as_was_assumed_and_leave_out_models_that_were(graph: Graph) -> None:
    assumed = PlanAssumptions(flow="grpo", models={}, batch=1, prompt_tokens="512", staleness=2, without=("ref",))
    late = plan_of(graph, "policy.sample", lag=2)
    apart = late.model_copy(
        update={
            "assumed": assumed,
            "pools": (
                Pool(name="all", devices=(("node-1", 0),)),
                Pool(name="draws", devices=(("node-1", 1),)),
            ),
            "placed": tuple(
                each.model_copy(update={"pool": "draws" if each.lag else "all", "layout": Layout()})
                for each in late.placed
                if each.role != "ref.infer"
            ),
        }
    )
    check_plan(apart, graph)
    assert "not placed: ref.infer" in refusal(apart.model_copy(update={"assumed": None}), graph)
    further = apart.model_copy(update={"assumed": assumed.model_copy(update={"staleness": 1})})
    assert "policy.sample: lag=2, but policy.generate reads the newest weights" in refusal(further, graph)


def test_an_engine_that_is_only_modelled_on_gpus_is_on_no_cpu(graph: Graph) -> None:
    assert refusal(plan_of(graph, "policy.train", kind="cpu", engine="megatron", layout=WHOLE), graph) == (
        "plan.json: policy.train: the engine `megatron` does not run a cpu of `all`\n  hint: it runs on gpu"
    )


def test_whole_copies_divide_the_ranks_that_share_a_model(graph: Graph) -> None:
    uneven = plan_of(graph, "policy.train", layout=Layout(data=8, replicas=3, sharding="full"))
    assert refusal(uneven, graph) == (
        "plan.json: policy.train: the engine `fsdp` does not run replicas=3\n"
        "  hint: whole copies divide the 8 ranks over which full sharding cuts a model"
    )


def test_experts_take_no_devices_of_their_own_and_sequences_do() -> None:
    assert Layout(data=4, tensor=2, expert=8).devices == 8
    assert Layout(data=4, tensor=2, sequence=3).devices == 24
    assert str(Layout(data=4, expert=4, sequence=2, sharding="full")) == (
        "data=4 tensor=1 expert=4 sequence=2 sharding=full"
    )


def test_only_what_is_not_as_an_executor_does_it_unasked_is_said() -> None:
    assert str(RoleSettings()) == ""
    whole = RoleSettings(
        precision="fp8",
        checkpointing="selective",
        offload=("parameters", "optimizer"),
        micro_batch_tokens=4096,
        cache_share=0.75,
        sleeps=True,
    )
    assert str(whole) == (
        "fp8 checkpointing=selective offload=parameters+optimizer micro_batch_tokens=4096 cache_share=0.75 sleeps"
    )


def test_a_task_takes_the_sum_of_its_parts_or_an_unknown_time() -> None:
    assert TimedTask(name="a", kind="update", parts={"matmul": 1.0, "data": 0.5}).seconds == 1.5
    assert TimedTask(name="a", kind="update", parts={"matmul": 1.0, "data": None}).seconds is None
    assert TimedTask(name="a", kind="host").seconds == 0


NO_VALUES: list[tuple[Any, dict[str, Any]]] = [
    (RoleSettings, {"precision": "int8"}),
    (RoleSettings, {"cache_share": 0.0}),
    (RoleSettings, {"cache_share": 1.1}),
    (RoleSettings, {"micro_batch_tokens": 0}),
    (RoleSettings, {"offload": ("activations",)}),
    (Layout, {"expert": 0}),
    (TaskOrder, {"before": "a", "after": "b", "delay": -1}),
    (TimedTask, {"name": "a", "kind": "sleep"}),
    (TimedTask, {"name": "a", "kind": "update", "parts": {"matmul": -1.0}}),
    (TimedTask, {"name": "a", "kind": "update", "parts": {"matmul": float("nan")}}),
    (TimedTask, {"name": "a", "kind": "update", "parts": {"matmul": 1e308}}),
    (StepForecast, {"tasks": (), "waits": (), "period_s": -1.0}),
    (StepForecast, {"tasks": (), "waits": (), "period_s": float("inf")}),
    (PlanAssumptions, {"flow": "grpo", "models": {}, "batch": 0, "prompt_tokens": "512"}),
    (PlanAssumptions, {"flow": "grpo", "models": {}, "batch": 10**10, "prompt_tokens": "512"}),
]


@looped("kind, values", NO_VALUES)
def test_values_that_cannot_be_are_refused(kind: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        kind(**values)


@pytest.mark.parametrize(
    ("place", "wrong", "right"),
    [
        (("placed", 0, "running"), "precison", "precision"),
        (("placed", 0, "layout"), "experts", "expert"),
        (("step",), "period", "period_s"),
        (("assumed",), "promt_tokens", "prompt_tokens"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(graph: Graph, place: Any, wrong: str, right: str) -> None:
    plan = plan_of(graph).model_copy(
        update={
            "step": StepForecast(tasks=(), waits=(), period_s=None),
            "assumed": PlanAssumptions(flow="grpo", models={}, batch=1, prompt_tokens="512"),
        }
    )
    data = json.loads(plan.to_json())
    there = data
    for step in place:
        there = there[step]
    there[wrong] = 1
    with pytest.raises(PlanError) as caught:
        Plan.from_json(json.dumps(data), "plan.json")
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in (*place, wrong)).lstrip(".")
    assert str(caught.value) == f"plan.json: {where}: a plan has no `{wrong}` here\n  hint: did you mean `{right}`?"


@pytest.mark.parametrize("costed", [None, False, True])
def test_a_plan_written_before_there_was_one_planner_is_read(graph: Graph, costed: bool | None) -> None:
    data = json.loads(plan_of(graph).to_json())
    del data["step"], data["assumed"]
    for placed in data["placed"]:
        del placed["running"], placed["layout"]["expert"], placed["layout"]["sequence"]
    old = data if costed is None else data | {"costed": costed}
    assert Plan.from_json(json.dumps(old)) == plan_of(graph)
    assert "costed" not in json.loads(Plan.from_json(json.dumps(old)).to_json())


DEGREES = st.integers(1, 64)
SECONDS = st.none() | st.floats(0, 1e6)
NAMES = st.text(min_size=1, max_size=8)


@given(
    layout=st.builds(
        Layout,
        data=DEGREES,
        tensor=DEGREES,
        pipeline=DEGREES,
        expert=DEGREES,
        sequence=DEGREES,
        sharding=st.sampled_from(get_args(Sharding)),
    ),
    running=st.builds(
        RoleSettings,
        precision=st.sampled_from(get_args(Precision)),
        checkpointing=st.sampled_from(get_args(Checkpointing)),
        offload=st.lists(st.sampled_from(get_args(Offloaded)), unique=True).map(tuple),
        micro_batch_tokens=st.none() | st.integers(1, 2**20),
        cache_share=st.none() | st.floats(0.01, 1),
        sleeps=st.booleans(),
    ),
    tasks=st.lists(
        st.builds(
            TimedTask,
            name=NAMES,
            kind=st.sampled_from(get_args(TaskKind)),
            role=NAMES,
            pools=st.lists(NAMES, max_size=2).map(tuple),
            parts=st.dictionaries(NAMES, SECONDS, max_size=3),
        ),
        max_size=3,
    ),
    waits=st.lists(st.builds(TaskOrder, before=NAMES, after=NAMES, delay=st.integers(0, 9)), max_size=3),
    period_s=SECONDS,
    settings=st.lists(NAMES, max_size=2),
    ratio=st.none() | st.tuples(DEGREES, DEGREES),
    constants=st.dictionaries(NAMES, st.dictionaries(NAMES, st.floats(-1e9, 1e9), max_size=2), max_size=2),
)
def test_a_plan_with_seconds_survives_json(
    layout: Layout,
    running: RoleSettings,
    tasks: list[TimedTask],
    waits: list[TaskOrder],
    period_s: float | None,
    settings: list[str],
    ratio: tuple[int, int] | None,
    constants: dict[str, dict[str, float]],
) -> None:
    plan = plan_of(graph_of("grpo"), "policy.train", layout=layout, running=running).model_copy(
        update={
            "step": StepForecast(tasks=tuple(tasks), waits=tuple(waits), period_s=period_s, cycle=("a",)),
            "assumed": PlanAssumptions(
                flow="grpo",
                models={"policy": "tiny"},
                batch=1,
                prompt_tokens="512",
                settings=tuple(settings),
                passes=tuple(settings),
                ratio=ratio,
                without=tuple(settings),
                constants=constants,
            ),
        }
    )
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()


def test_each_use_of_a_model_has_an_engine_that_runs_and_one_that_is_only_modelled() -> None:
    for use in USES:
        running = engines_for(use, supported=True)
        assert running and {*running} < {*engines_for(use)}
        assert all(ENGINES[name].supported is not None for name in running)
