"""Describe what the last digits of a run depend on apart from its flow, and how closely a resumed run can repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Literal

from flowgraph.cluster.plan import Plan
from flowgraph.engines.table import is_server
from flowgraph.errors.distribution import installed_version

Promise = Literal["bitwise", "1e-5", "statistical"]
"""How closely a resumed run repeats an uninterrupted one: to the bit, within 1e-5, or only on average."""

LIBRARIES = ("torch", "transformers")


def fingerprint(plan: Plan, threads: int) -> dict[str, str]:
    """Return what the numbers of a run depend on besides its flow, as text by name.

    The entries are the versions of flowgraph, torch and transformers, the CPU's instruction set ("cpu"), the name of
    the GPU ("" without one), `threads`, the number of CPU threads per process, and the plan's layouts ("plan").
    """
    import torch

    return {
        "flowgraph": installed_version() or "",
        **{name: version(name) for name in LIBRARIES},
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "threads": str(threads),
        "plan": layouts_text(plan),
    }


def layouts_text(plan: Plan) -> str:
    """Return a line with the engine, layout and staleness settings of each role of a plan, and the kinds of devices.

    A role is one use of a model, such as `policy.sample`; roles are sorted by name.
    """
    kinds = ", ".join(sorted({device.kind for device in plan.used()}))
    roles = (" ".join([r.role, r.engine, str(r.layout), r.late]).strip() for r in plan.placed)
    return f"{'; '.join(sorted(roles))} on {kinds}"


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a line of text for each entry in which two fingerprints differ; a missing or empty entry is `none`.

    >>> differences({"torch": "2.11.0", "cpu": "AVX2"}, {"torch": "2.12.0", "cpu": "AVX2"})
    ['torch was 2.11.0, is 2.12.0']
    """
    names = dict.fromkeys([*then, *now])
    return [
        f"{name} was {then.get(name) or 'none'}, is {now.get(name) or 'none'}"
        for name in names
        if then.get(name, "") != now.get(name, "")
    ]


def resume_promise(plan: Plan, changed: bool = False) -> Promise:
    """Return how closely a resumed run repeats an uninterrupted one: "bitwise", "1e-5" or "statistical".

    It is "statistical" if `irreproducible_parts` returns any. Otherwise it is "1e-5" if `changed`, which means that the
    software or the machine is not the same as before.
    """
    if irreproducible_parts(plan):
        return "statistical"
    return "1e-5" if changed else "bitwise"


def irreproducible_parts(plan: Plan) -> list[str]:
    """Return the parts of a plan whose results do not repeat to the bit, as text; empty if there are none.

    They are each role (use of a model) on inference servers, each role that goes on sampling while new weights arrive
    ("in flight" or "ready"; listed again if it is on servers), and `GPUs` if the plan uses any.
    """
    served = [f"{role.role} on {role.engine}" for role in plan.placed if is_server(role.engine)]
    contracts = {"in_flight": "in flight", "ready": "ready"}
    served += [f"{r.role} {contracts[r.running.contract]}" for r in plan.placed if r.running.contract in contracts]
    return served + (["GPUs"] if any(device.kind == "gpu" for device in plan.used()) else [])
