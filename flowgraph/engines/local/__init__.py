"""The reference engine: torch and transformers in the process of a device. All layouts that are modelled can run."""

from __future__ import annotations

from flowgraph.engines.capabilities import EVERYWHERE, MAX_RANKS, EngineCapabilities, Support

_SUPPORT = Support(
    devices=EVERYWHERE,
    data=MAX_RANKS,
    single_device=frozenset({"step"}),
    settings={"sleeps": (), "contract": (), "hold": ("retract",)},
)

ENGINE = EngineCapabilities(
    name="local",
    hands_out=True,
    order=0,
    verbs=frozenset({"token_stats", "sample", "step", "weights"}),
    supported=_SUPPORT,
    modelled=_SUPPORT,
    handle="flowgraph.engines.local.model:LocalModel",
)
