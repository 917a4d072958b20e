"""A forecast of memory, in bytes of float32 on each device: what each role of a plan holds, part by part, by phase.

Counted for executors that run all roles of a device in one process, with plain attention and unfused logits. It is an
upper bound for steps whose responses are all of full length. Not here: sums over a pool (`pools`), what to do when it
is too much (`fits`), tensor and pipeline degrees, which no engine runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from flowgraph.errors import PlanError
from flowgraph.graph import Graph
from flowgraph.plan import Layout, Placed, Plan
from flowgraph.roles import Role, roles
from placements.work import PHASES, Phase, Work, Workload, work_of

if TYPE_CHECKING:
    from flowgraph.models import ModelShape

Part = Literal[
    "weights",
    "gathered",
    "gradients",
    "optimizer",
    "rollout",
    "heap",
    "activations",
    "logits",
    "kv_cache",
    "working",
    "sync",
]
PARTS: tuple[Part, ...] = get_args(Part)
PROCESS = "process"
"""What holds the bytes that no role does."""

FLOAT = 4  # bytes of float32, the only precision that the executor computes in on a CPU

# Python, torch and transformers themselves, imported and warm. Measured: 380 MiB with torch 2.13 and transformers 5.12.
PROCESS_BYTES = 448 * 2**20
# Tokens and log-probs of a response as Python lists (72), and its columns in the batch: ids, mask, log-probs, versions,
# reference, text (56). Counted from the types.
ROLLOUT_TOKEN_BYTES = 128
# The C library returns blocks of this size and more to the system when they are freed, and keeps smaller ones.
# Source: glibc manual, mallopt, M_MMAP_THRESHOLD: its dynamic value grows up to 32 MiB on 64-bit systems.
KEPT_BLOCK_BYTES = 32 * 2**20
# What is kept of the smaller ones, as a share of the activations they hold. Measured on runs of three steps of models
# of 0.1M, 27M and 135M parameters: up to 0.5 on top of an update's peak, and up to 1.1 after it, when others run.
KEPT_SHARE = 1.0


@dataclass(frozen=True)
class Need:
    """Bytes that a role holds as one part: through the whole step (phase None), or in one phase."""

    role: str
    part: Part
    phase: Phase | None
    needed_bytes: int


@dataclass(frozen=True)
class PhasePeak:
    """The most that is held at once in a phase, the process included, and the role that works then."""

    phase: Phase
    role: str
    peak_bytes: int


def forecast(plan: Plan, graph: Graph, shapes: Mapping[str, ModelShape], workload: Workload) -> tuple[Need, ...]:
    """Give what each role of a named graph needs on each of its devices, under a plan that is for this graph.

    `shapes` are the sizes of each model by the flow's parameter. Roles that share a copy of the weights count them in
    the first of them; a pool's responses count in the role that samples them, or else in the first that reads them.
    Raises PlanError when a model's sizes are not given.
    """
    found, placed = roles(graph), {each.role: each for each in plan.placed}
    works = work_of(graph, workload, {name: each.layout.data for name, each in placed.items()})
    for role in found:
        if role.param not in shapes:
            raise PlanError.no_shape(graph.name, role.param, shapes)
    needs = [*_copies(found, placed, shapes), *_rollouts(found, placed, works)]
    for role in found:
        own, shape, layout = [work for work in works if work.role == role], shapes[role.param], placed[role.name].layout
        needs += _held(role, shape, layout, own)
        for phase in PHASES:
            needs += _largest([_passing(shape, layout, work) for work in own if work.phase == phase])
    return tuple(need for need in needs if need.needed_bytes)


def peaks(needs: Sequence[Need], process_bytes: int = PROCESS_BYTES) -> tuple[PhasePeak, ...]:
    """Give the peak of each phase that has work: the process, what is held throughout, and the role that needs most.

    >>> needs = Need("m.infer", "weights", None, 2), Need("m.infer", "logits", "logprob", 3)
    >>> peaks(needs)[0].peak_bytes - PROCESS_BYTES
    5
    """
    held = process_bytes + total_bytes(need for need in needs if need.phase is None)
    found = list[PhasePeak]()
    for phase in PHASES:
        names = dict.fromkeys(need.role for need in needs if need.phase == phase)
        working = {name: total_bytes(at_once(needs, name, phase)) for name in names}
        if working:
            role = max(working, key=lambda name: working[name])
            found.append(PhasePeak(phase, role, held + working[role]))
    return tuple(found)


def held_by(needs: Sequence[Need], peak: PhasePeak, process_bytes: int = PROCESS_BYTES) -> dict[str, int]:
    """Give the bytes of a peak by role, in the order of their needs, those of the process first.

    >>> needs = Need("a", "weights", None, 2), Need("b", "weights", None, 1), Need("b", "logits", "logprob", 3)
    >>> held_by(needs, peaks(needs, 9)[0], 9)
    {'process': 9, 'a': 2, 'b': 4}
    """
    there = [*(need for need in needs if need.phase is None), *at_once(needs, peak.role, peak.phase)]
    names = dict.fromkeys(need.role for need in needs)
    found = {PROCESS: process_bytes} | {
        name: total_bytes(need for need in there if need.role == name) for name in names
    }
    return {name: held for name, held in found.items() if held}


def at_once(needs: Iterable[Need], role: str, phase: str) -> list[Need]:
    """Give what a role holds in one phase only, when that is most: a sync is over before the role works.

    >>> [need.part for need in at_once([Need("m", "sync", "generate", 2), Need("m", "logits", "generate", 1)],
    ...                                "m", "generate")]
    ['sync']
    """
    own = [need for need in needs if (need.role, need.phase) == (role, phase)]
    syncing, working = ([need for need in own if (need.part == "sync") is sync] for sync in (True, False))
    return max(working, syncing, key=total_bytes)


def total_bytes(needs: Iterable[Need]) -> int:
    """Add up bytes."""
    return sum(need.needed_bytes for need in needs)


def by_part(needs: Iterable[Need]) -> dict[str, int]:
    """Give the most that these needs of one role hold of each part at once, in the order of PARTS.

    >>> by_part([Need("m.train", "logits", "logprob", 3), Need("m.train", "logits", "update", 5)])
    {'logits': 5}
    """
    most = dict[str, int]()
    for need in needs:
        most[need.part] = max(most.get(need.part, 0), need.needed_bytes)
    return {part: most[part] for part in PARTS if part in most}


def _copies(found: Sequence[Role], placed: Mapping[str, Placed], shapes: Mapping[str, ModelShape]) -> Iterator[Need]:
    """Give the weights of each copy, in the first of the roles that share it, and what passes when one is filled.

    A copy apart from the one that is trained is filled from gathered weights, whole in both processes if two.
    """
    trained = {role.param: role for role in found if role.use == "train"}
    seen = set[tuple[str, str, str, Layout]]()
    for role in found:
        at, shape = placed[role.name], shapes[role.param]
        home = role.param, at.pool, at.engine, at.layout
        if home in seen or _lent(shape, at, [(placed[each.name], shapes[name]) for name, each in trained.items()]):
            continue
        seen.add(home)
        yield Need(role.name, "weights", None, shard_bytes(shape.parameters, at.layout))
        origin = trained.get(role.param, role)
        if origin != role:
            yield Need(role.name, "sync", "generate", FLOAT * shape.trained)
            if placed[origin.name].pool != at.pool:
                yield Need(origin.name, "sync", "generate", FLOAT * shape.trained)


def _lent(shape: ModelShape, at: Placed, trained: Iterable[tuple[Placed, ModelShape]]) -> bool:
    """Say whether a frozen model is one that is trained there, without its adapters: then it has no copy of its own."""
    return any(
        other.adapters > 0 and not shape.adapters and (other.base, other.head) == (shape.base, shape.head)
        for place, other in trained
        if (place.pool, place.engine, place.layout) == (at.pool, at.engine, at.layout)
    )


def _rollouts(found: Sequence[Role], placed: Mapping[str, Placed], works: Sequence[Work]) -> Iterator[Need]:
    """Give the responses that the store of each pool holds: of each sampler once, as the rank with the most has."""
    most, holders = dict[tuple[str, str], int](), dict[tuple[str, str], str]()
    order = {role: place for place, role in enumerate(found)}
    for work in sorted(works, key=lambda work: (work.phase != "generate", order[work.role])):
        for sampler, tokens in work.responses:
            key = placed[work.role.name].pool, sampler
            most[key] = max(most.get(key, 0), tokens)
            holders.setdefault(key, work.role.name)
    for name in dict.fromkeys(holders.values()):
        tokens = sum(most[key] for key, holder in holders.items() if holder == name)
        yield Need(name, "rollout", None, ROLLOUT_TOKEN_BYTES * tokens)


def _held(role: Role, shape: ModelShape, layout: Layout, works: Sequence[Work]) -> list[Need]:
    """Give what a role alone holds from the first step on.

    AdamW keeps two moments of each parameter, plain SGD nothing.
    Source: Kingma and Ba 2015 (Adam), arXiv 1412.6980, algorithm 1.
    """
    updates = [work for work in works if work.phase == "update"]
    moments = any(work.optimizer != "sgd" for work in updates)
    return [
        Need(role.name, "optimizer", None, 2 * shard_bytes(shape.trained, layout) * moments),
        Need(role.name, "heap", None, max((_kept_by_heap(shape, work) for work in updates), default=0)),
    ]


def shard_bytes(parameters: int, layout: Layout) -> int:
    """Give the bytes of one number for each of so many parameters that a device holds: all, or a shard of them.

    Source: Rajbhandari et al. 2020 (ZeRO), arXiv 1910.02054, section 5.3.
    """
    return FLOAT * -(-parameters // layout.shards)


def gathered_bytes(shape: ModelShape, layout: Layout, *, backward: bool) -> int:
    """Give the most of a sharded model that is whole at once: the embeddings and head throughout, and layers in turn.

    Forward: a layer, the buffer that it came in and that of the next one, or that of the root if larger. Backward: of
    all that is whole the gradients too, and of a layer the buffers of the next one and of gradients that leave.
    Derived from torch's FSDP2 with each layer sharded by itself and the rest as the root; its own FSDPMemTracker counts
    the same forward, and up to a quarter less in all backward.
    """
    if layout.sharding == "none":
        return 0
    root = shape.hidden * (1 + shape.vocabulary * shape.tables)
    layer = -(-max(0, shape.parameters - root) // shape.layers)
    return FLOAT * (2 * root + 4 * layer if backward else root + 2 * layer + max(root, layer))


def _passing(shape: ModelShape, layout: Layout, work: Work) -> list[Need]:
    parts = {"generate": _generating, "logprob": _reading, "update": _updating}[work.phase](shape, layout, work)
    return [Need(work.role.name, part, work.phase, count) for part, count in parts.items()]


def _largest(works: Sequence[list[Need]]) -> list[Need]:
    return max(works, key=total_bytes, default=[])


def _updating(shape: ModelShape, layout: Layout, work: Work) -> dict[Part, int]:
    """Give what a micro-batch holds at the start of its backward pass, with the gradients of those before it.

    Of the logits there are four: themselves, and as gradients those of logsumexp, of the token read out, and their sum.
    One layer is in progress. The optimizer's own step, when the micro-batch is gone, needs two copies of the largest
    parameter, the embeddings; so does the end of a backward pass through sharded embeddings that are the head as well.
    """
    activations, logits = activation_bytes(shape, work), logits_bytes(shape, work, 4)
    stepping = 0 if shape.adapters else 2 * FLOAT * shape.vocabulary * shape.hidden
    return {
        "gathered": gathered_bytes(shape, layout, backward=True),
        "gradients": shard_bytes(shape.trained, layout),
        "activations": activations,
        "logits": logits,
        "working": max(activations // shape.layers, stepping - activations - logits),
    }


def _reading(shape: ModelShape, layout: Layout, work: Work) -> dict[Part, int]:
    """Give what a pass without gradients holds: the cache of contexts and rows, a layer, the logits twice."""
    return {
        "gathered": gathered_bytes(shape, layout, backward=False),
        "logits": logits_bytes(shape, work, 2),
        "kv_cache": kv_bytes_per_token(shape) * (work.padded_tokens + work.context_tokens),
        "working": activation_bytes(shape, work) // shape.layers,
    }


def _generating(shape: ModelShape, layout: Layout, work: Work) -> dict[Part, int]:
    """Give what decoding on whole weights holds: keys and values of every row at full length, and one step's work.

    The cache grows by copying one layer at a time. Distinct contexts are read in one pass, whose cache is there beside
    the rows'. Logits [rows, V]: two steps' raw ones, the scaled ones, and two of noise.
    """
    rows = kv_bytes_per_token(shape) * work.padded_tokens
    reading = replace(work, padded_tokens=0)
    return {
        "logits": 5 * FLOAT * shape.outputs * work.rows,
        "kv_cache": rows + rows // shape.layers + kv_bytes_per_token(shape) * work.context_tokens,
        "working": activation_bytes(shape, reading) // shape.layers,
    }


def logits_bytes(shape: ModelShape, work: Work, copies: int) -> int:
    """Give the bytes of so many copies of the logits [responses, V]; entropy and a temperature take one more each."""
    return FLOAT * shape.outputs * work.read_out * (copies + ("entropy" in work.stats) + work.heated)


def kv_bytes_per_token(shape: ModelShape) -> int:
    """Give the bytes of the keys and values of one token: 2 · layers · KV heads · head dimension, in float32.

    Source: Pope et al. 2022, arXiv 2211.05102, section 3.3 (multi-query: one pair for each KV head).
    """
    return 2 * FLOAT * shape.layers * shape.kv_heads * shape.head_dim


def activation_bytes(shape: ModelShape, work: Work) -> int:
    """Give the bytes that a forward pass keeps for the backward pass, without checkpointing, logits apart."""
    return sum(block * count for block, count in _kept_blocks(shape, work))


def _kept_blocks(shape: ModelShape, work: Work) -> Iterator[tuple[int, int]]:
    """List what is kept for the backward pass, as (bytes of a block, how many of them): of contexts, then of responses.

    In each layer, with h the hidden width, of each token read: of both norms the input, the normalised and the scaled
    (6 h); the queries after rotation and the attention's result (2 H·d); of the MLP the gate, its activation, the other
    branch, and their product (4 f). Of each token attended to: key and value, repeated for each head (2 H·d). Of each
    pair: the mask. Once: the last norm (3 h).
    Derived from the autograd graph of transformers' Llama; equal to its saved tensors within 1% on three sizes. Counted
    as in Korthikanti et al. 2022, arXiv 2205.05198, section 4.1, here for a gated MLP, RMSNorm and no dropout.
    """
    heads, layers = shape.heads * shape.head_dim, shape.layers
    contexts = work.context_tokens, work.context_tokens, work.context_tokens * work.prompt_tokens
    responses = work.read_out, work.padded_tokens, work.read_out * work.width
    for read, attended, pairs in (contexts, responses):
        yield FLOAT * read * shape.hidden, 6 * layers + 3
        yield FLOAT * read * heads, 2 * layers
        yield FLOAT * attended * heads, 2 * layers
        yield FLOAT * read * shape.intermediate, 4 * layers
        yield FLOAT * pairs, layers


def _kept_by_heap(shape: ModelShape, work: Work) -> int:
    """Give what the C library keeps of freed activations: a share of those in blocks too small to be returned."""
    kept = sum(block * count for block, count in _kept_blocks(shape, work) if block < KEPT_BLOCK_BYTES)
    return int(KEPT_SHARE * kept)
