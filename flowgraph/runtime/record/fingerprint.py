"""What the last digits of a run depend on beside its flow, and what a resumed run can promise. No weights, no files."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Literal

from flowgraph.cluster.plan import Plan
from flowgraph.engines.table import is_server

Promise = Literal["bitwise", "1e-5", "statistical"]
"""How near a resumed run is to one that was not interrupted: the same bits, within 1e-5, or alike on average."""

LIBRARIES = ("flowgraph", "torch", "transformers")


def fingerprint(plan: Plan, threads: int) -> dict[str, str]:
    """Say which libraries, which instructions of the CPU, which GPU, how many threads and which layouts compute."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return {
        **{name: version(name) for name in LIBRARIES},
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "gpu": gpu,
        "threads": str(threads),
        "plan": layouts_text(plan),
    }


def layouts_text(plan: Plan) -> str:
    """Say what computes each role: its engine, layout, and how old its weights may be; where that is, is left out."""
    kinds = ", ".join(sorted({device.kind for device in plan.used()}))
    roles = (" ".join([each.role, each.engine, str(each.layout), each.late]).strip() for each in plan.placed)
    return f"{'; '.join(sorted(roles))} on {kinds}"


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Give what is other than it was, a line each.

    >>> differences({"torch": "2.11.0", "cpu": "AVX2"}, {"torch": "2.12.0", "cpu": "AVX2"})
    ['torch was 2.11.0, is 2.12.0']
    """
    names = dict.fromkeys([*then, *now])
    return [
        f"{name} was {then.get(name) or 'none'}, is {now.get(name) or 'none'}"
        for name in names
        if then.get(name, "") != now.get(name, "")
    ]


def promised(plan: Plan, changed: bool = False) -> Promise:
    """Say how near a resumed run is: engines of other systems and GPUs promise no bits, another machine not all."""
    if without_bits(plan):
        return "statistical"
    return "1e-5" if changed else "bitwise"


def without_bits(plan: Plan) -> list[str]:
    """Name what of a plan promises no bits: roles on engines of other systems, and GPUs."""
    found = [f"{each.role} on {each.engine}" for each in plan.placed if is_server(each.engine)]
    return found + (["GPUs"] if any(each.kind == "gpu" for each in plan.used()) else [])
