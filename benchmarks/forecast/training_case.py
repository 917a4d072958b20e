"""One measured optimizer step as what `update_seconds` takes, and its forecast.

Not here: how the tables say it (`training_rows`), and what is asked of them (`training`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from benchmarks.forecast.report import Row
from flowgraph.cluster.plan import Checkpointing, Layout, Precision
from flowgraph.errors import UnknownNameError
from flowgraph.models.sizes import ModelShape, shape_of
from flowgraph.models.table import full_name, listed
from placements.profiles import Links, Profile, profile
from placements.training import Tokens, update_seconds
from placements.training_passes import TrainingConstants

RANK = 16  # of adapters, where a table only says that there are some


@dataclass(frozen=True)
class Trained:
    """One measured step: what was trained how, on what, and with which engine's constants it is forecast.

    `name` is of the model, `told` are constants that the row itself says, in place of the engine's.
    """

    label: str
    name: str
    group: str
    seconds: float
    shape: ModelShape
    tokens: Tokens
    layout: Layout
    links: Links
    engine: str
    version: str
    micro_batch_tokens: float
    checkpointing: Checkpointing = "full"
    precision: Precision = "bfloat16"
    told: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def nodes(self) -> int:
        """Count the machines."""
        return -(-self.layout.devices // self.links.node_devices)

    @property
    def peak_s(self) -> float:
        """Give the seconds at the peak of bfloat16: FLOPs of a forward and a backward pass, none computed again."""
        shape, tokens = self.shape, self.tokens
        forward = 2 * (shape.matmul_parameters * tokens.tokens + shape.outputs * shape.hidden * tokens.read_out)
        forward += 2 * shape.attention_products(round(tokens.tokens), round(tokens.pairs))
        return 3 * forward / (self.links.device.peak_flops["bfloat16"] * self.layout.devices)

    @property
    def chosen(self) -> bool:
        """Say whether it is of the fifth of all rows that a calibration may read, by a digest of what it says."""
        return hashlib.sha256(self.label.encode()).digest()[0] % 5 == 0


def forecast_s(constants: TrainingConstants, row: Trained) -> float:
    """Give the forecast of a row, with what the row says of the engine; raises ValueError where a part is not known."""
    found = update_seconds(
        row.shape,
        row.tokens,
        row.layout,
        row.links,
        constants.moved(row.told),
        micro_batch_tokens=row.micro_batch_tokens,
        checkpointing=row.checkpointing,
        precision=row.precision,
    ).total_s
    if found is None:
        raise ValueError(f"{row.links.device.name} has no peak for {row.precision}")
    return found


def full_rows(rows: float, tokens: float) -> Tokens:
    """Give rows of so many tokens each, all of which have logits."""
    return Tokens(rows * tokens, rows * tokens * tokens / 2, rows * tokens, rows)


@cache
def gpt(hidden: int, layers: int, heads: int, vocabulary: int) -> ModelShape:
    """Give a decoder as GPT-2 has it: no gates, its embedding tied."""
    sizes = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": 2048, "vocab_size": vocabulary}
    return shape_of({"model_type": "gpt2", **sizes}, "gpt")


@cache
def model(name: str, *, adapted: bool = False) -> ModelShape | None:
    """Give the sizes of a model of the hub by how a table names it, brackets left out; None if they are not known."""
    found = full_name(re.sub(r"\(.*\)", "", name).strip())
    entry = listed(found) if found else None
    return None if entry is None else shape_of(entry.config, entry.name, rank=RANK if adapted else 0)


@cache
def device(name: str) -> Profile | None:
    """Give the profile of a device by how a table names it: `h100_80gb`, `A100-SXM-80GB`, `DGX-GB200`, `H100 HBM3`."""
    plain = name.lower().removeprefix("dgx-").replace("_", "-")
    sized = re.match(r"([a-z0-9]+)(?:-(sxm|pcie))?[ -](\d+)gb", plain)
    tried = [f"{sized[1]}-{sized[2] or 'sxm'}-{sized[3]}g"] if sized else []
    for each in (*tried, plain, *re.findall(r"[a-z]+\d+", plain)):
        try:
            return profile(each)
        except UnknownNameError:
            continue
    return None


def links(kind: Profile, devices: int, network_bytes_per_s: float | None = None) -> Links:
    """Give links of so many devices: in machines of eight, or of four where racks are joined.

    The network is what is usual for such devices unless it is known.
    """
    machine = min(devices, 4 if kind.joins_machines else 8)
    network = network_bytes_per_s or kind.network_bytes_per_s or kind.host_bytes_per_s
    return Links(kind, kind.domain if kind.joins_machines else min(kind.domain, machine), machine, network)


def label(row: Row, *columns: str) -> str:
    """Name a row by some of its columns."""
    return " ".join(f"{name}={row[name]}" for name in columns)
