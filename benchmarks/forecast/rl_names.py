"""What the columns of published runs name: models, devices, engines, degrees of parallelism, and shares of the devices.

Read by form, never by row: a new row of a known format is read the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from flowgraph.cluster.plan import Layout, Sharding
from flowgraph.errors import UnknownNameError
from flowgraph.models.table import full_name, listed, table
from placements.profiles import Profile, profile

# The LLaMA of a size, where a row says only that. Source: Mei et al. 2024 (ReaL), arXiv 2406.14088, table 1, whose 34B
# is CodeLlama's, and Sheng et al. 2024, arXiv 2409.19256, section 8.
LLAMA: Mapping[str, str] = {
    "7B": "meta-llama/Llama-2-7b-hf",
    "13B": "meta-llama/Llama-2-13b-hf",
    "34B": "codellama/CodeLlama-34b-hf",
    "70B": "meta-llama/Llama-2-70b-hf",
}
FORM = re.compile(r"[-_ ](base|instruct|chat|thinking|hf|zero|it|sft|fp8|bf16|\d{4})$", re.IGNORECASE)
RACKED = 4  # devices of a machine where a rack is one domain: GB200 and GB300
MACHINE = 8


@cache
def model(text: str) -> str | None:
    """Give the id of a model by how a row names it; None if no model, or more than one size, has that name.

    What a model was tuned for does not change its sizes, and a name may leave out how many parameters are active.

    >>> model("Qwen2.5-Math-7B"), model("Qwen3-30B3A"), model("LLAMA3.1_8B"), model("Qwen3-235B")
    ('Qwen/Qwen2.5-7B', 'Qwen/Qwen3-30B-A3B', 'meta-llama/Llama-3.1-8B', 'Qwen/Qwen3-235B-A22B')
    """
    name = re.sub(r"\(.*?\)", "", text).strip()
    name = re.sub(r"(\d+)B(\d+)A\b", r"\1B-A\2B", name)
    tuned = re.sub(r"-(Math|Coder|VL)(?=-)", "", name)
    for form in (name, name.rpartition("/")[2], tuned, f"DeepSeek-{name}"):
        for each in _shorter(form):
            entry = listed(full_name(each) or "")
            if entry is not None:
                return entry.name
    return LLAMA.get(name.upper()) or _only(name)


def _shorter(name: str) -> Iterator[str]:
    """Give a name, and without what it was tuned for, ending by ending."""
    yield name
    if (shorter := FORM.sub("", name)) != name:
        yield from _shorter(shorter)


def _only(name: str) -> str | None:
    """Give the one model whose short name begins with this one, up to a dash."""
    key = re.sub(r"[-_ ]", "", name.casefold())
    short = {each: each.rpartition("/")[2] for each in table()}
    fits = [each for each, own in short.items() if re.sub(r"[-_ ]", "", own.casefold()).startswith(key) and key]
    rest = [each for each in fits if re.match(r"-?a\d", short[each].casefold()[len(name) :])]
    return (rest or fits)[0] if len(rest or fits) == 1 else None


@cache
def device(text: str) -> Profile | None:
    """Give the profile of a device by how a row names it; None if there is none.

    >>> found = [device(text) for text in ("H100-SXM-80GB", "A100-80GB 8/node NVLink", "H20-96GB", "TPU")]
    >>> [each and each.name for each in found]
    ['h100-sxm-80g', 'a100-sxm-80g', 'h20-sxm-96g', None]
    """
    word = re.split(r"[ (,/]", text.strip())[0]
    short = re.sub(r"(?<=\d)GB$", "g", word, flags=re.IGNORECASE)
    for each in (short, re.sub(r"-\d+g$", "", short), word.split("-")[0]):
        try:
            return profile(each)
        except UnknownNameError:
            continue
    return None


def machine_devices(kind: Profile) -> int:
    """Give how many devices of a kind a machine has, where a row does not say: eight, or four of a rack."""
    return RACKED if kind.joins_machines else MACHINE


ENGINES = ("vllm", "sglang", "trtllm", "megatron", "fsdp")


def engine(text: str, other: str) -> str:
    """Give the engine that a column names first, else the other one.

    >>> engine("Megatron DP8", "fsdp"), engine("FSDP2", "megatron"), engine("vLLM x8", "sglang"), engine("", "fsdp")
    ('megatron', 'fsdp', 'vllm', 'fsdp')
    """
    plain = re.sub(r"[-_ ]", "", text.casefold())
    found = sorted((plain.find(each), each) for each in ENGINES if each in plain)
    return found[0][1] if found else other


@dataclass(frozen=True)
class Degrees:
    """How a model is cut, but for data ranks, which are what is left of the devices."""

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    sequence: int = 1

    def layout(self, devices: int, engine: str, *, trains: bool) -> Layout | None:
        """Give the layout on so many devices; None if they are no multiple, or experts have too few data ranks.

        Megatron cuts the optimizer's states over data ranks and keeps weights whole; FSDP cuts all.
        """
        data, left = divmod(devices, self.tensor * self.pipeline * self.sequence)
        if left or not data:
            return None
        # Megatron spreads experts over tensor and sequence ranks too; a layout has them over data ranks alone.
        expert = min(self.expert, data)
        cut: Sharding = "full" if engine == "fsdp" else "optimizer" if trains else "none"
        return Layout(
            data=data,
            tensor=self.tensor,
            pipeline=self.pipeline,
            expert=expert,
            sequence=self.sequence,
            sharding="none" if data * self.sequence == 1 else cut,
        )


NAMES = {"TP": "tensor", "PP": "pipeline", "EP": "expert", "CP": "sequence", "SP": "sequence", "ULYSSES": "sequence"}


def degrees(text: str) -> Degrees | None:
    """Read degrees of parallelism such as `DP4 TP2 EP8` or `tp=2,pp=1`; None where none is said.

    >>> degrees("Megatron DP4 TP2 EP8"), degrees("FSDP"), degrees("TP4")
    (Degrees(tensor=2, pipeline=1, expert=8, sequence=1), None, Degrees(tensor=4, pipeline=1, expert=1, sequence=1))
    """
    found = re.findall(r"\b(TP|PP|EP|CP|SP|ULYSSES|DP)[ =:]?(\d+)", text.upper())
    told = {NAMES[name]: int(degree) for name, degree in found if name in NAMES}
    return Degrees(**told) if found and all(told.values()) else None


def listed_degrees(text: str) -> Degrees | None:
    """Read a list `[TP,CP,EP,PP,VPP]`, whatever stands between the first three and the last two; None for another.

    >>> listed_degrees("[2,1,8,4,n/a]"), listed_degrees("[1,1,1,1,1,2,n/a]").pipeline, listed_degrees("")
    (Degrees(tensor=2, pipeline=4, expert=8, sequence=1), 2, None)
    """
    parts = [part.strip() for part in text.strip("[] ").split(",")]
    if len(parts) < 5 or not all(part.isdecimal() and int(part) for part in (*parts[:3], parts[-2])):
        return None
    return Degrees(tensor=int(parts[0]), sequence=int(parts[1]), expert=int(parts[2]), pipeline=int(parts[-2]))


@dataclass(frozen=True)
class Placing:
    """What a row says of where roles run: by which roles share devices, how many draw and train, and how they overlap.

    `lag` is how many updates old weights may be. `streamed` says that drawing goes on while weights change, so that no
    step waits for its longest response, and that the sampler's own log-probs are trained on. `draw` and `train` are
    devices or shares of them, None where a row does not say.
    """

    form: str
    lag: int = 0
    streamed: bool = False
    draw: int | None = None
    train: int | None = None
    why: str = ""


COLOCATED = ("colocate", "co-locate", "on policy", "on-policy", "hybrid", "sync")


def placing(text: str) -> Placing:
    """Read where roles run from the text of a row, `why` said where that is not clear.

    >>> placing("one-step-off 4 gen : 12 train"), placing("8-step Off").lag, placing("colocate sync").form
    (Placing(form='apart', lag=1, streamed=False, draw=4, train=12, why=''), 8, 'together')
    >>> placing("fully async 64:64 staleness 0.1")
    Placing(form='apart', lag=1, streamed=True, draw=64, train=64, why='')
    """
    said = text.casefold()
    split = re.search(r"(\d+)\s*(?:rollout|gen\w*|infer\w*)?\s*:\s*(\d+)", said)
    draw, train = (int(split[1]), int(split[2])) if split else (None, None)
    stepped = re.search(r"(one|\d+)-step[- ]off", said)
    if stepped:
        return Placing("apart", 1 if stepped[1] == "one" else int(stepped[1]), False, draw, train)
    if re.search(r"staleness 0(?![.\d])", said):
        return Placing("apart", 0, "stream" in said, draw, train)
    if "async" in said and not any(each in said for each in ("colocate", "hybrid")):
        return Placing("apart", 1, True, draw, train)
    if re.search(r"\bmtp\b|speculat|spec[- ]decod|draft", said):
        return Placing("together", why="drafts several tokens at a time")
    if any(each in said for each in COLOCATED) and "async" not in said:
        return Placing("together")
    return Placing("", why=f"placement `{text}`" if text else "no placement")
