"""Static facts: FLOPs against those that torch counts on the real model, bytes against real tables that travel."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Graph, Loss, Mask, Trainable, Value, flow, node
from flowgraph.analysis.flat_graph import structure_hash
from flowgraph.analysis.roles import roles
from flowgraph.analysis.state import carried_state
from flowgraph.app.drawing.stages import facts_json, facts_text
from flowgraph.cluster.cluster import Cluster, Device
from flowgraph.cluster.cluster import Machine as Machine
from flowgraph.cluster.plan import Layout, PlacedRole, Plan, Pool
from flowgraph.engines.local.model import LocalModel
from flowgraph.language import Key, Kind
from flowgraph.language.graph import Node, rewrite
from flowgraph.language.handle import SampleRequest, gather
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Home, Transfer
from flowgraph.models import ModelShape, resolve, shape
from flowgraph.passes import compile_graph
from flowgraph.runtime.batch import to_table
from flowgraph.runtime.interpreter import Executor
from flowgraph.runtime.local import InProcess
from flowgraph.runtime.row_identity import StoredValue
from nodes import (
    Entropy,
    LanguageModel,
    Policy,
    Prompts,
    Reference,
    Rollout,
    Scores,
    clipped,
    entropy,
    entropy_bonus,
    generate,
    group_normalize,
    logprobs,
    policy_gradient,
    update,
)
from nodes.data.source import PromptSource
from nodes.refill import refill
from nodes.values import LogProbs
from placements.workload.flops import ModelPass, contexts_read, decoding, forward_flops, reading, training_flops
from placements.workload.graph_workload import StepWorkload
from placements.workload.step_facts import EdgeFacts, NodeFacts, StepFacts, step_facts
from placements.workload.value_bytes import ValueExtent, column_bytes
from tests.looped import looped

Tiny = Callable[..., LocalModel]
Make = Callable[..., Rollout]
GRPO, GPG = compile_graph(grpo.graph()), compile_graph(gpg.graph())


def set_to(graph: Graph, **settings: object) -> Graph:
    """Return the graph with settings changed wherever a node has them."""

    def change(each: Any) -> Node:
        known = {name: value for name, value in settings.items() if name in type(each.settings).model_fields}
        changed: Node = replace(each, settings=each.settings.model_copy(update=known))
        return changed

    return rewrite(graph, change)


@pytest.fixture(scope="session")
def tiny_shape(tmp_path_factory: pytest.TempPathFactory) -> ModelShape:
    return shape(resolve("tiny", cache=tmp_path_factory.mktemp("models")))


@pytest.fixture
def eager(tiny: Tiny) -> Callable[..., LocalModel]:
    """Return `eager(**fields)`: a handle whose attention is plain products, torch counts; rows never end early."""

    def made(**fields: Any) -> LocalModel:
        handle = tiny(**fields)
        handle.model.set_attn_implementation("eager")
        handle.ends = frozenset()
        return handle

    return made


def counted(work: Callable[[], object]) -> int:
    """Return the FLOPs of the products that torch does."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


# ------------------------------------------------------------------------------------------- FLOPs of a pass


def test_a_forward_pass_of_the_real_model_takes_what_is_said(eager: Tiny, tiny_shape: ModelShape) -> None:
    """Plain attention works out masked pairs too: all of 20 × 20, for each of three rows."""
    model = eager().model
    found = counted(lambda: model(input_ids=torch.zeros(3, 20, dtype=torch.long)))
    assert forward_flops(tiny_shape, ModelPass(60, 60, 3 * 20 * 20)) == pytest.approx(found, rel=1e-3)


@pytest.mark.parametrize("size", ["tiny:hidden=48,layers=3,heads=6,intermediate=64", "tiny:hidden=32,heads=2"])
def test_so_does_one_of_another_size(size: str, tmp_path: Path) -> None:
    from flowgraph.models import tiny

    source = resolve(size, cache=tmp_path)
    model, _ = tiny.build(0, source.size)
    untyped: Any = model
    untyped.set_attn_implementation("eager")
    found = counted(lambda: untyped(input_ids=torch.zeros(2, 9, dtype=torch.long)))
    assert forward_flops(shape(source), ModelPass(18, 18, 2 * 81)) == pytest.approx(found, rel=2e-3)


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_of_another_family_with_shared_keys_takes_what_is_said(tied: bool, tmp_path: Path) -> None:
    import transformers

    config = transformers.Qwen3Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=40, head_dim=8, tie_word_embeddings=tied, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.Qwen3ForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "model")
    found = counted(lambda: model(input_ids=torch.zeros(2, 9, dtype=torch.long)))
    sizes = shape(resolve(str(tmp_path / "model"), cache=tmp_path))
    assert forward_flops(sizes, ModelPass(18, 18, 2 * 81)) == pytest.approx(found, rel=0.01)


def read(handle: LocalModel, rollout: Rollout) -> torch.Tensor:
    return logprobs(Policy(handle), rollout).data  # type: ignore[no-any-return]


def test_a_pass_over_responses_reads_each_context_once(eager: Tiny, tiny_shape: ModelShape, make_rollout: Make) -> None:
    """Two prompts of 12 tokens with three responses of 5 each; masked pairs, half of a context's, are not counted."""
    handle = eager()
    rollout = make_rollout([5] * 6, contexts=[12] * 6, group=[0, 0, 0, 1, 1, 1])
    texts = rollout.context.data.to_pylist()
    rollout = replace_part(rollout, context=pa.array([texts[0]] * 3 + [texts[3]] * 3, pa.list_(pa.int32())))
    with torch.no_grad():
        found = counted(lambda: read(handle, rollout))
    own = reading(2, 6, 12, 5)
    assert own == ModelPass(2 * 11 + 6 * 5, 2 + 6 * 5, 2 * 66 + 6 * (12 + 13 + 14 + 15 + 16))
    assert forward_flops(tiny_shape, own) == pytest.approx(found, rel=0.03)
    assert forward_flops(tiny_shape, reading(6, 6, 12, 5)) > 1.4 * found, "each row with a context of its own"


def replace_part(rollout: Rollout, **parts: Any) -> Rollout:
    return Rollout(**{**rollout.parts, **{name: type(rollout.parts[name])(data) for name, data in parts.items()}})


def test_training_takes_three_times_as_much(eager: Tiny, tiny_shape: ModelShape, make_rollout: Make) -> None:
    """Of a context's last layer only keys and values are read, so most of it has no backward pass; it counts here."""
    handle = eager(trainable=True)
    rollout = make_rollout([16] * 4, contexts=[2] * 4)
    found = counted(lambda: read(handle, rollout).sum().backward())
    assert found < training_flops(tiny_shape, reading(4, 4, 2, 16)) < 1.03 * found


def test_sampling_reads_a_prompt_once_and_then_a_token_at_a_time(eager: Tiny, tiny_shape: ModelShape) -> None:
    """Three responses of 7 tokens to each of two prompts of 9: the last token of each is drawn and not read."""
    handle = eager()
    prompts = [tuple(range(5, 14)), tuple(range(6, 15))]
    asked = [SampleRequest(text, i, sample, 7, 1.0, Key()) for i, text in enumerate(prompts) for sample in range(3)]
    found = counted(lambda: gather(handle, asked))
    own = decoding(2, 6, 9, 7)
    assert own == ModelPass(2 * 9 + 6 * 6, 2 + 6 * 6, 2 * 45 + 6 * (10 + 11 + 12 + 13 + 14 + 15))
    assert forward_flops(tiny_shape, own) == pytest.approx(found, rel=0.03)


@looped("groups, n, take", [(3, 4, 5), (2, 4, 8), (5, 3, 1), (1, 16, 6), (4, 6, 4), (3, 2, 100)])
def test_a_group_that_is_cut_is_read_once_in_each_part(groups: int, n: int, take: int) -> None:
    rows = [group for group in range(groups) for _ in range(n)]
    parts = [rows[start : start + take] for start in range(0, len(rows), take)]
    assert contexts_read(groups, n, take) == sum(len(set(part)) for part in parts)


# ------------------------------------------------------------------------------------------- facts of nodes


def node_of(facts: StepFacts, name: str) -> NodeFacts:
    return next(each for each in facts.nodes if each.node == name)


def facts_of(graph: Graph, tiny_shape: ModelShape, workload: StepWorkload | None = None, **more: Any) -> StepFacts:
    shapes = {param.name: tiny_shape for param in graph.params}
    return step_facts(graph, shapes, workload or StepWorkload(4, 6), **more)


@dataclass(eq=False)
class Counting(InProcess):
    """Places that note the FLOPs of each task, and the bytes of each table and of its rows' ids that travels."""

    flops: dict[str, int] = field(default_factory=dict[str, int])
    travelled: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def run(self, graph: Graph, task: Any, *rest: Any) -> Any:
        given: list[Any] = []
        self.flops[", ".join(task.nodes)] = counted(lambda: given.append(super(Counting, self).run(graph, task, *rest)))
        return given[0]

    def transfer(self, task: Transfer, item: StoredValue) -> StoredValue:
        table = to_table(item.value)
        kept = [n for n in table.column_names if not task.parts or {n, n.partition(".")[0]} & {*task.parts}]
        size = table.select(kept).nbytes + sum(column.nbytes for column in item.ids.values())
        self.travelled[task.value, task.target] = size
        return super().transfer(task, item)


def apart(graph: Graph) -> Plan:
    """Return a plan with a pool of one device for each role."""
    found = roles(graph)
    machine = Machine(
        name="laptop",
        devices=(Device(kind="cpu", memory_bytes=2**30),) * len(found),
        host_memory_bytes=2**33,
        cores=2,
    )
    return Plan(
        flow=graph.name,
        structure_hash=structure_hash(graph),
        cluster=Cluster(nodes=(machine,)),
        pools=tuple(Pool(name=role.name, devices=(("laptop", i),)) for i, role in enumerate(found)),
        placed=tuple(PlacedRole(role=role.name, pool=role.name, engine="local") for role in found),
    )


@pytest.fixture
def ran(eager: Tiny, digit_rows: pa.Table) -> tuple[Graph, Counting]:
    """One real step of GRPO, each role in a pool of its own: 4 prompts of 5 tokens, 3 responses of 7 to each."""
    graph = set_to(GRPO, n=3, max_tokens=7, minibatch=2, epochs=2, micro_batch_tokens=60, by="partial")
    program = lower(graph, apart(graph))
    handles: dict[Home, LocalModel] = {home: eager(trainable=home in program.trained) for home in program.homes}
    places = Counting(handles)
    Executor(places).run(program, {"prompts": PromptSource(digit_rows, 4)}, Key(0, 0))
    return graph, places


def test_flops_of_a_step_are_those_of_a_real_one(ran: tuple[Graph, Counting], tiny_shape: ModelShape) -> None:
    graph, places = ran
    facts = facts_of(graph, tiny_shape, StepWorkload(4, 5))
    found = {name: count for name, count in places.flops.items() if count > 100_000}
    told = {each.node: each.flops for each in facts.nodes if each.role != "host"}
    assert told.keys() == found.keys()
    for name, flops in told.items():
        assert flops == pytest.approx(found[name], rel=0.07 if name == "policy.update" else 0.03), name


def test_bytes_of_an_edge_are_those_of_a_real_table(ran: tuple[Graph, Counting], tiny_shape: ModelShape) -> None:
    graph, places = ran
    facts = facts_of(graph, tiny_shape, StepWorkload(4, 5), plan=apart(graph))
    parts = dict[tuple[str, str], dict[str, int | None]]()
    for each in (edge for edge in facts.edges if edge.crosses):
        place = parts.setdefault((each.value, node_of(facts, each.reader).role), {})
        place |= {part.name: part.size_bytes for part in each.parts}
    known = {where: sum(sizes.values()) for where, sizes in parts.items() if all(sizes.values())}  # type: ignore[arg-type]
    compared = known.keys() & places.travelled.keys()
    assert compared == {
        ("policy.generate", "ref.infer"),
        ("policy.generate", "policy.train"),
        ("group_normalize", "policy.train"),
        ("ref.logprobs", "policy.train"),
    }
    for where in compared:
        assert known[where] == pytest.approx(places.travelled[where], rel=0.03), where


def test_rows_tokens_and_passes_of_grpo_by_hand(tiny_shape: ModelShape) -> None:
    """Four prompts of 6 tokens, two responses of 3 to each: 8 rows of 9 tokens."""
    facts = facts_of(set_to(GRPO, n=2, max_tokens=3), tiny_shape)
    assert {each.node: (each.role, each.rows, each.tokens) for each in facts.nodes} == {
        "policy.generate": ("policy.sample", 8, 4 * 6 + 8 * 2),
        "score": ("host", 8, 0),
        "group_normalize": ("host", 8, 0),
        "ref.logprobs": ("ref.infer", 8, 4 * 5 + 8 * 3),
        "policy.update": ("policy.train", 8, 4 * 5 + 8 * 3),
    }
    assert [each.flops for each in facts.nodes if each.role == "host"] == [0, 0]
    one = forward_flops(tiny_shape, reading(4, 8, 6, 3))
    assert (node_of(facts, "ref.logprobs").flops, node_of(facts, "policy.update").flops) == (one, 3 * one)
    assert facts.flops == sum(each.flops or 0 for each in facts.nodes)


def test_epochs_and_small_parts_read_more(tiny_shape: ModelShape) -> None:
    """Rows of 9 tokens in parts of 27: three rows, so that of 4 groups of two rows two are cut."""
    small = set_to(GRPO, n=2, max_tokens=3, micro_batch_tokens=27, epochs=5)
    assert node_of(facts_of(small, tiny_shape), "policy.update").tokens == 5 * ((4 + 1) * 5 + 8 * 3)
    by_two = set_to(small, minibatch=2, epochs=1)
    assert node_of(facts_of(by_two, tiny_shape), "policy.update").tokens == 2 * ((2 + 1) * 5 + 4 * 3)


def test_ranks_cut_fewer_groups_in_two(tiny_shape: ModelShape) -> None:
    graph = set_to(GRPO, n=2, max_tokens=3, micro_batch_tokens=27)
    plan = apart(graph)
    two = tuple(each.model_copy(update={"layout": Layout(data=2)}) for each in plan.placed)
    split = facts_of(graph, tiny_shape, plan=plan.model_copy(update={"placed": two}))
    assert node_of(split, "policy.update").tokens == 2 * ((2 + 1) * 5 + 4 * 3)
    one = set_to(graph, micro_batch_tokens=1)
    assert node_of(facts_of(one, tiny_shape), "policy.update").tokens == 8 * 5 + 8 * 3


class Critic(LanguageModel, Trainable):
    """A second model."""


class Worths(Value):
    """What a critic says of each token; of which type is not said."""

    kind = Kind.TOKEN


@node(kind="score")
def compared(entropies: Entropy, *, old: LogProbs) -> Scores:
    """Score by two statistics."""
    raise NotImplementedError


@node(kind="score")
def judged(judge: Reference, rollout: Rollout) -> Scores:
    """Score by a model, in a way of one's own."""
    raise NotImplementedError


@node(kind="logprob")
def worths(model: Critic, rollout: Rollout) -> Worths:
    """Judge each token."""
    raise NotImplementedError


@node
def near(worths: Worths, mask: Mask) -> Loss:
    """Bring them near to something."""
    raise NotImplementedError


@node(rows="new")
def longest(rollout: Rollout) -> Rollout:
    """Keep some rows."""
    raise NotImplementedError


@flow
def shared(prompts: Prompts, policy: Policy, ref: Reference) -> tuple[Policy, Scores]:
    """Two statistics of one pass, in the loss and outside."""
    rollout = generate(policy, prompts, n=2, max_tokens=3)
    scores = compared(entropy(ref, rollout), old=logprobs(ref, rollout))
    advantages = group_normalize(scores, rollout.group)

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask) + entropy_bonus(
            entropy(pi, rollout), rollout.mask
        )

    return update(policy, loss), scores


@flow
def own(prompts: Prompts, policy: Policy, judge: Reference, critic: Critic) -> tuple[Policy, Critic]:
    rollout = generate(policy, prompts, n=2, max_tokens=3)
    kept = longest(rollout)
    advantages = group_normalize(judged(judge, kept), kept.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, kept), advantages, kept.mask, old=kept.logprobs)

    def distance(pi: Critic) -> Loss:
        return near(worths(pi, rollout), rollout.mask)

    return update(policy, loss), update(critic, distance)


@flow
def refilled(prompts: Prompts, policy: Policy) -> Policy:
    rollout = refill(policy, prompts, groups=2, n=3, max_tokens=5)
    advantages = group_normalize(rollout.scores, rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return update(policy, loss)


SHARED, OWN, REFILLED = (compile_graph(each.graph()) for each in (shared, own, refilled))


def test_nodes_that_read_one_pass_count_it_once(tiny_shape: ModelShape) -> None:
    facts = facts_of(SHARED, tiny_shape)
    one = reading(4, 8, 6, 3)
    tokens = {each.node: each.tokens for each in facts.nodes if each.role == "ref.infer"}
    assert sorted(tokens.values(), key=str) == [0, one.tokens]
    assert node_of(facts, "policy.update").flops == training_flops(tiny_shape, one)


def test_what_is_not_known_is_none_and_never_nothing(tiny_shape: ModelShape) -> None:
    facts = facts_of(OWN, tiny_shape)
    assert (node_of(facts, "judge.judged").tokens, node_of(facts, "judge.judged").flops) == (None, None)
    assert (node_of(facts, "policy.update").rows, node_of(facts, "policy.update").flops) == (None, None)
    assert node_of(facts, "critic.update").flops == training_flops(tiny_shape, reading(4, 8, 6, 3))
    assert facts.flops is None
    kept = edge_of(facts, "longest", "policy.update")
    assert all(part.size_bytes is None for part in kept.parts if part.name != "temperature")


def test_a_model_of_unknown_size_has_tokens_but_no_flops(tiny_shape: ModelShape) -> None:
    facts = step_facts(GRPO, {"policy": tiny_shape}, StepWorkload(4, 6))
    told = node_of(facts, "ref.logprobs")
    assert told.tokens and told.flops is None
    unknown = step_facts(GRPO, {}, StepWorkload(4, 6))
    assert edge_of(unknown, "policy", "policy.generate").size_bytes is None
    assert edge_of(unknown, "ref", "ref.logprobs").size_bytes == 0, "it does not travel, whatever its size"


def test_a_refill_draws_to_all_prompts_and_hands_on_its_groups(tiny_shape: ModelShape) -> None:
    facts = facts_of(REFILLED, tiny_shape)
    drawn, trained = node_of(facts, "policy.refill"), node_of(facts, "policy.update")
    assert (drawn.tokens, drawn.rows, trained.rows) == (decoding(4, 12, 6, 5).tokens, 6, 6)
    assert trained.tokens == reading(2, 6, 6, 5).tokens


# ------------------------------------------------------------------------------------------- facts of edges


def edge_of(facts: StepFacts, value: str, reader: str) -> EdgeFacts:
    return next(each for each in facts.edges if (each.value, each.reader) == (value, reader))


def parts_of(edge: EdgeFacts) -> dict[str, int | None]:
    return {part.name: part.size_bytes for part in edge.parts}


def test_columns_by_hand(tiny_shape: ModelShape) -> None:
    """8 rows of 6 + 3 tokens: three ids of 8 bytes a row, and of each list where it ends."""
    facts = facts_of(set_to(GRPO, n=2, max_tokens=3), tiny_shape)
    ends = 4 * 9
    assert parts_of(edge_of(facts, "policy.generate", "ref.logprobs")) == {
        "context": 8 * 6 * 4 + ends,
        "tokens": 8 * 3 * 8 + ends,
        "lengths": 8 * 8,
        "temperature": 8,
        "ids": 8 * 3 * 8,
    }
    assert parts_of(edge_of(facts, "ref.logprobs", "policy.update")) == {"value": 8 * 3 * 4 + ends, "ids": 8 * 3 * 8}
    assert parts_of(edge_of(facts, "prompts", "policy.generate")) == {"group": 4 * 8, "columns": None, "ids": 4 * 8}
    assert parts_of(edge_of(facts, "policy", "policy.generate")) == {"weights": 4 * tiny_shape.parameters}


def test_only_what_a_reader_reads_counts(tiny_shape: ModelShape) -> None:
    facts = facts_of(GRPO, tiny_shape)
    assert {"finished", "text", "columns"} <= set(parts_of(edge_of(facts, "policy.generate", "score")))
    assert not {"mask", "logprobs", "versions"} & set(parts_of(edge_of(facts, "policy.generate", "score")))
    trained = set(parts_of(edge_of(facts, "policy.generate", "policy.update")))
    assert {"tokens", "mask", "logprobs", "context"} <= trained and not {"text", "columns", "versions"} & trained


def test_an_edge_with_an_unknown_part_has_known_bytes_but_no_sum(tiny_shape: ModelShape) -> None:
    edge = edge_of(facts_of(GRPO, tiny_shape), "policy.generate", "score")
    assert edge.size_bytes is None and edge.known_bytes > 0
    assert edge.unknown == ("text", "columns")


def test_what_a_flow_returns_is_read_by_its_end(tiny_shape: ModelShape) -> None:
    facts = facts_of(SHARED, tiny_shape)
    assert edge_of(facts, "compared", "return").size_bytes == 8 * 4 + 8 * 3 * 8


def test_a_plan_says_what_crosses(tiny_shape: ModelShape) -> None:
    crosses = {(each.value, each.reader): each.crosses for each in facts_of(GRPO, tiny_shape, plan=apart(GRPO)).edges}
    assert {edge for edge, found in crosses.items() if not found} == {
        ("score", "group_normalize"),
        ("ref", "ref.logprobs"),
        ("policy", "policy.update"),
    }
    assert {each.crosses for each in facts_of(GRPO, tiny_shape).edges} == {None}


def test_what_crosses_is_what_the_program_transfers_or_syncs(tiny_shape: ModelShape) -> None:
    for graph in (GRPO, GPG, SHARED):
        plan = apart(graph)
        pools = {role.name: role.name for role in roles(graph)} | {"host": "host"}
        facts = facts_of(graph, tiny_shape, plan=plan)
        place = {each.node: pools[each.role] for each in facts.nodes} | {"return": "host"}
        found = {(each.value, place[each.reader]) for each in facts.edges if each.crosses}
        tasks = lower(graph, plan).tasks
        moved = {(task.value, getattr(task.target, "pool", task.target)) for task in tasks if hasattr(task, "target")}
        assert found == moved


@pytest.mark.parametrize(
    ("dtype", "kind", "size"),
    [
        ("float32", Kind.ROW, 40),
        ("bool", Kind.ROW, 2),
        ("int64", Kind.TOKEN, 8 * 10 * 5 + 44),
        ("text", Kind.ROW, None),
    ],
)
def test_a_column_is_as_wide_as_its_type(dtype: str, kind: Kind, size: int | None) -> None:
    made = type("Made", (Value,), {"kind": kind, "dtype": dtype})
    assert column_bytes(made, ValueExtent(10, 1, 5), 3) == size
    assert column_bytes(made, ValueExtent(None), 3) is None


# ------------------------------------------------------------------------------------------- as text


@pytest.mark.parametrize("graph", [GRPO, GPG], ids=["grpo", "gpg"])
def test_facts_print_in_few_columns(graph: Graph, tiny_shape: ModelShape, golden: Callable[[str, str], None]) -> None:
    text = facts_text(facts_of(graph, tiny_shape, StepWorkload(16, 8)), carried_state(graph))
    assert max(map(len, text.splitlines())) <= 120
    golden(text, f"facts/{graph.name}.txt")


def test_facts_print_what_travels_under_a_plan(tiny_shape: ModelShape, golden: Callable[[str, str], None]) -> None:
    text = facts_text(facts_of(GRPO, tiny_shape, StepWorkload(16, 8), plan=apart(GRPO)), carried_state(GRPO))
    assert max(map(len, text.splitlines())) <= 120
    golden(text, "facts/grpo_apart.txt")


def test_facts_print_what_is_not_known(tiny_shape: ModelShape, golden: Callable[[str, str], None]) -> None:
    golden(facts_text(facts_of(OWN, tiny_shape), carried_state(OWN)), "facts/own_nodes.txt")


def test_facts_go_through_json(tiny_shape: ModelShape) -> None:
    facts = facts_of(GRPO, tiny_shape)
    back = json.loads(json.dumps(facts_json(facts, carried_state(GRPO))))
    assert [each["node"] for each in back["nodes"]] == [node.name for node in GRPO.nodes]
    score = next(each for each in back["edges"] if (each["value"], each["reader"]) == ("policy.generate", "score"))
    assert (score["bytes"], score["parts"]["text"], score["crosses"]) == (None, None, None)
    assert back["state"][0] == {"kind": "weights", "name": "policy", "holds": ["weights", "version", "state of adamw"]}
