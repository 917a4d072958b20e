"""A forecast of memory, in bytes of float32 on one CPU device: what each role holds, part by part, phase by phase.

Counted for the executor that runs everything in one process, with plain attention and unfused logits. It is an upper
bound for steps whose responses are all of full length. Not here: what to do when it is too much (`fits`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from flowgraph.errors import PlanError
from flowgraph.graph import Graph
from flowgraph.roles import Role, roles
from placements.work import PHASES, Phase, Work, Workload, work_of

if TYPE_CHECKING:
    from flowgraph.models import ModelShape

Part = Literal["weights", "gradients", "optimizer", "rollout", "heap", "activations", "logits", "kv_cache", "working"]
PARTS: tuple[Part, ...] = get_args(Part)

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


def forecast(graph: Graph, shapes: Mapping[str, ModelShape], workload: Workload) -> tuple[Need, ...]:
    """Give what each role of a named graph needs, with everything in one process.

    `shapes` are the sizes of each model by the flow's parameter. Roles of one model share its weights, which count in
    the first of them. Raises PlanError when a model's sizes are not given.
    """
    found, works = roles(graph), work_of(graph, workload)
    for role in found:
        if role.param not in shapes:
            raise PlanError.no_shape(graph.name, role.param, shapes)
    first = {role.param: role for role in reversed(found)}
    needs = list[Need]()
    for role in found:
        own = [work for work in works if work.role == role]
        if first[role.param] == role:
            needs.append(Need(role.name, "weights", None, FLOAT * shapes[role.param].parameters))
        needs += _held(role, shapes[role.param], own)
        for phase in PHASES:
            needs += _largest([_passing(shapes[role.param], work) for work in own if work.phase == phase])
    return tuple(need for need in needs if need.needed_bytes)


def peaks(needs: Sequence[Need]) -> tuple[PhasePeak, ...]:
    """Give the peak of each phase that has work: the process, what is held throughout, and the role that needs most.

    >>> needs = Need("m.infer", "weights", None, 2), Need("m.infer", "logits", "logprob", 3)
    >>> peaks(needs)[0].peak_bytes - PROCESS_BYTES
    5
    """
    held = PROCESS_BYTES + sum(need.needed_bytes for need in needs if need.phase is None)
    found = list[PhasePeak]()
    for phase in PHASES:
        working = dict[str, int]()
        for need in needs:
            if need.phase == phase:
                working[need.role] = working.get(need.role, 0) + need.needed_bytes
        if working:
            role = max(working, key=lambda name: working[name])
            found.append(PhasePeak(phase, role, held + working[role]))
    return tuple(found)


def by_part(needs: Iterable[Need]) -> dict[str, int]:
    """Give the most that these needs of one role hold of each part at once, in the order of PARTS.

    >>> by_part([Need("m.train", "logits", "logprob", 3), Need("m.train", "logits", "update", 5)])
    {'logits': 5}
    """
    most = dict[str, int]()
    for need in needs:
        most[need.part] = max(most.get(need.part, 0), need.needed_bytes)
    return {part: most[part] for part in PARTS if part in most}


def _held(role: Role, shape: ModelShape, works: Sequence[Work]) -> list[Need]:
    """Give what a role holds from the first step on, its weights apart.

    AdamW keeps two moments of each parameter, plain SGD nothing.
    Source: Kingma and Ba 2015 (Adam), arXiv 1412.6980, algorithm 1.
    """
    updates = [work for work in works if work.phase == "update"]
    moments = any(work.optimizer != "sgd" for work in updates)
    samples = [work.batch_tokens for work in works if work.phase == "generate"]
    return [
        Need(role.name, "optimizer", None, 2 * FLOAT * shape.parameters * moments),
        Need(role.name, "rollout", None, ROLLOUT_TOKEN_BYTES * sum(samples)),
        Need(role.name, "heap", None, max((_kept_by_heap(shape, work) for work in updates), default=0)),
    ]


def _passing(shape: ModelShape, work: Work) -> list[Need]:
    parts = {"generate": _generating, "logprob": _reading, "update": _updating}[work.phase](shape, work)
    return [Need(work.role.name, part, work.phase, count) for part, count in parts.items()]


def _largest(works: Sequence[list[Need]]) -> list[Need]:
    return max(works, key=lambda needs: sum(need.needed_bytes for need in needs), default=[])


def _updating(shape: ModelShape, work: Work) -> dict[Part, int]:
    """Give what a micro-batch holds at the start of its backward pass, with the gradients of those before it.

    Of the logits there are four: themselves, and as gradients those of logsumexp, of the token read out, and their sum.
    One layer is in progress. The optimizer's own step, when the micro-batch is gone, needs two copies of the largest
    parameter, the embeddings.
    """
    activations, logits = activation_bytes(shape, work), logits_bytes(shape, work, 4)
    stepping = 2 * FLOAT * shape.vocabulary * shape.hidden
    return {
        "gradients": FLOAT * shape.parameters,
        "activations": activations,
        "logits": logits,
        "working": max(activations // shape.layers, stepping - activations - logits),
    }


def _reading(shape: ModelShape, work: Work) -> dict[Part, int]:
    """Give what a pass without gradients holds: the cache of contexts and rows, a layer, the logits twice."""
    return {
        "logits": logits_bytes(shape, work, 2),
        "kv_cache": kv_bytes_per_token(shape) * (work.padded_tokens + work.context_tokens),
        "working": activation_bytes(shape, work) // shape.layers,
    }


def _generating(shape: ModelShape, work: Work) -> dict[Part, int]:
    """Give what decoding holds: keys and values of every row at full length, and what one step works on.

    The cache grows by copying one layer at a time. Distinct contexts are read in one pass, whose cache is there beside
    the rows'. Logits [rows, V]: two steps' raw ones, the scaled ones, and two of noise.
    """
    rows = kv_bytes_per_token(shape) * work.padded_tokens
    reading = replace(work, padded_tokens=0)
    return {
        "logits": 5 * FLOAT * shape.vocabulary * work.rows,
        "kv_cache": rows + rows // shape.layers + kv_bytes_per_token(shape) * work.context_tokens,
        "working": activation_bytes(shape, reading) // shape.layers,
    }


def logits_bytes(shape: ModelShape, work: Work, copies: int) -> int:
    """Give the bytes of so many copies of the logits [responses, V]; entropy and a temperature take one more each."""
    return FLOAT * shape.vocabulary * work.read_out * (copies + ("entropy" in work.stats) + work.heated)


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
