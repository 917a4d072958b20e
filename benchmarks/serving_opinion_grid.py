"""What two opinions are asked about serving: a grid of cases, and the published rows that both cover.

Not here: who answers (`serving_opinion_answers`, `serving_opinion_ours`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from benchmarks.forecast.report import Row
from benchmarks.forecast.serving import Served, cached, served
from benchmarks.forecast.serving_models import model
from flowgraph.models.sizes import ModelShape
from placements.profiles import Precision

MODELS = (
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-32B",
    "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Meta-Llama-3.1-70B",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-235B-A22B",
)
SYSTEMS = ("h100_sxm", "h200_sxm", "b200_sxm", "a100_sxm")
ENGINES = ("sglang", "vllm", "trtllm")
TENSOR = (1, 2, 4, 8)
LENGTHS = ((1024, 1024), (4096, 512), (512, 4096))
BATCHES = (1, 8, 32, 128, 256)

PRODUCTS = {"sglang": "fp8", "vllm": "fp8", "trtllm": "fp8_static"}
"""What fp8 means where a model is dense: scales of activations found in each step, or kept.

Its own word is `fp8` for the first. TensorRT-LLM serves checkpoints whose scales are kept: on the published rows of
Llama-3.1-70B the package is 3 % off with them, and 20 to 31 % too slow without.
"""

THEIR_NAMES = {
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
}
"""Models of the published rows by the name that the package has sizes under."""


@dataclass(frozen=True)
class Setup:
    """A replica of a model on an engine: `products` and `cache` are the package's words for their numbers."""

    model: str
    system: str
    engine: str
    products: str
    cache: str = "bfloat16"
    tensor: int = 1
    ranks: int = 1
    expert: int = 1

    @property
    def key(self) -> str:
        """Name it, in a file.

        >>> Setup("Qwen/Qwen3-8B", "h200_sxm", "sglang", "bfloat16", tensor=2).key
        'Qwen/Qwen3-8B h200_sxm sglang bfloat16 bfloat16 tp2 dp1 ep1'
        """
        of = (self.model, self.system, self.engine, self.products, self.cache)
        return " ".join((*of, f"tp{self.tensor}", f"dp{self.ranks}", f"ep{self.expert}"))

    @property
    def shape(self) -> ModelShape:
        """Give the sizes of the model; raises KeyError for one that is not known."""
        found = model(self.model)
        if found is None:
            raise KeyError(self.model)
        return found

    @property
    def precision(self) -> Precision:
        """Give our word for the numbers of its products."""
        if self.products == "bfloat16":
            return "bfloat16"
        return "fp4" if self.products == "nvfp4" else "fp8"


@dataclass(frozen=True)
class Question:
    """So many requests of these lengths under way at a replica."""

    setup: Setup
    prompt_tokens: int
    response_tokens: int
    batch: int

    @property
    def asked(self) -> dict[str, str | int]:
        """Give the arguments of the package's `cli_estimate`."""
        setup = self.setup
        arguments: dict[str, str | int] = {
            "model_path": setup.model,
            "system_name": setup.system,
            "backend_name": setup.engine,
            "gemm_quant_mode": setup.products,
            "kvcache_quant_mode": setup.cache,
            "tp_size": setup.tensor,
            "attention_dp_size": setup.ranks,
            "isl": self.prompt_tokens,
            "osl": self.response_tokens,
            "batch_size": self.batch,
        }
        if setup.shape.experts:
            arguments["moe_quant_mode"] = "fp8" if setup.products == "fp8_static" else setup.products
            arguments["moe_tp_size"] = setup.tensor * setup.ranks // setup.expert
            arguments["moe_ep_size"] = setup.expert
        return arguments


def grid() -> Iterator[Question]:
    """Give every case of the grid; fp8 not on an A100, which cannot multiply it."""
    for name, system, engine, narrow, tensor in product(MODELS, SYSTEMS, ENGINES, (False, True), TENSOR):
        if narrow and system == "a100_sxm":
            continue
        setup = Setup(name, system, engine, fp8(name, engine) if narrow else "bfloat16", tensor=tensor)
        for (prompt, response), batch in product(LENGTHS, BATCHES):
            yield Question(setup, prompt, response, batch)


def fp8(name: str, engine: str) -> str:
    """Give the package's word for fp8 on an engine: SGLang has tables of experts for blocks alone.

    >>> fp8("Qwen/Qwen3-8B", "sglang"), fp8("Qwen/Qwen3-30B-A3B", "sglang")
    ('fp8', 'fp8_block')
    """
    found = model(name)
    blocks = engine == "sglang" and found is not None and bool(found.experts)
    return "fp8_block" if blocks else PRODUCTS[engine]


def published(rows: Sequence[Row]) -> Iterator[tuple[Question, Served]]:
    """Give what was measured, and the question to it; each measurement once, and none whose prompts were cached."""
    seen = set[object]()
    for row in rows:
        told = served(row)
        if isinstance(told, str) or cached(row) or told.measurement in seen:
            continue
        seen.add(told.measurement)
        yield _question(row, told), told


def _question(row: Row, told: Served) -> Question:
    name = THEIR_NAMES.get(row["model_path"], row["model_path"])
    products = row["gemm_quant_mode"] or "bfloat16"
    setup = Setup(
        name,
        row["system"],
        row["backend"],
        fp8(name, row["backend"]) if products == "fp8" else products,
        told.cache_precision,
        told.layout.tensor,
        told.layout.data,
        told.layout.expert,
    )
    return Question(setup, round(told.prompt_tokens), round(told.response_tokens), max(1, round(told.batch)))
