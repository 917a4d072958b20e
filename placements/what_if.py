"""One thing changed in a setting, as a person writes it: lengths, batch, network, staleness, devices and so on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import get_args

from flowgraph.cluster.cluster import Cluster, amount_bytes_per_s
from flowgraph.cluster.plan import Precision
from flowgraph.errors import SettingError, UnknownNameError
from placements.finding import Found
from placements.lengths import Lengths
from placements.setting import Setting

WHERE = "--what-if"
DEVICES = "devices"


@dataclass(frozen=True)
class Changed:
    """A setting with one thing changed, and what was found for it; None if nothing fits."""

    change: str
    found: Found | None


def changed(setting: Setting, text: str, clusters: Callable[[str], Cluster] | None = None) -> Setting:
    """Return a setting with one thing changed.

    `length.QUANTITY=N` and `prompt.QUANTITY=N` (mean, p50, p99, max, sigma), `batch=N`, `network=400Gbps` of each whole
    machine to others, `staleness=N` updates, `ratio=G:T` devices that draw to devices that train, `precision=fp8`,
    `devices=4x8xh200` where `clusters` reads these.

    Raises UnknownNameError for a name that is none of these, SettingError for a value that cannot be.
    """
    name, equals, value = text.partition("=")
    head, _, quantity = name.partition(".")
    known = [*_CHANGES, *([DEVICES] if clusters is not None else [])]
    if head not in known:
        raise UnknownNameError.of("change", name, known, f"{WHERE} {text}")
    if not equals:
        raise SettingError.refused(WHERE, name, "", "has no value: say it as in batch=1024")
    if clusters is not None and head == DEVICES:
        return replace(setting, cluster=clusters(value))
    return _CHANGES[head](setting, quantity, value)


def _length(setting: Setting, quantity: str, value: str) -> Setting:
    given = setting.response or Lengths.fixed(max(load.response.most for load in setting.loads))
    return replace(setting, response=given.with_changes({quantity or "mean": value}))


def _prompt(setting: Setting, quantity: str, value: str) -> Setting:
    return replace(setting, prompt=setting.prompt.with_changes({quantity or "mean": value}))


def _batch(setting: Setting, _: str, value: str) -> Setting:
    return replace(setting, prompts=_whole("batch", value, 1))


def _staleness(setting: Setting, _: str, value: str) -> Setting:
    staleness, bound = _whole("staleness", value, 0), setting.staleness_bound
    if bound and staleness > bound:
        why = f"{setting.graph.name} corrects for {bound} at most: stale(…, at_most={bound})"
        raise SettingError.refused(WHERE, "staleness", staleness, why)
    return replace(setting, staleness=staleness)


def _network(setting: Setting, _: str, value: str) -> Setting:
    try:
        rate = amount_bytes_per_s(value)
    except ValueError as error:
        raise SettingError.refused(WHERE, "network", value, str(error)) from None
    nodes = (node.model_copy(update={"network_bytes_per_s": float(rate)}) for node in setting.cluster.nodes)
    return replace(setting, cluster=setting.cluster.model_copy(update={"nodes": tuple(nodes)}))


def _ratio(setting: Setting, _: str, value: str) -> Setting:
    draws, colon, trains = value.partition(":")
    if not colon:
        raise SettingError.refused(WHERE, "ratio", value, "should be two whole numbers, as in 3:1")
    return replace(setting, ratio=(_whole("ratio", draws, 1), _whole("ratio", trains, 1)))


def _precision(setting: Setting, _: str, value: str) -> Setting:
    known: tuple[Precision, ...] = get_args(Precision)
    found = next((each for each in known if each == value), None)
    if found is None:
        raise UnknownNameError.of("precision", value, known, WHERE)
    return replace(setting, sampling=found)


_CHANGES: Mapping[str, Callable[[Setting, str, str], Setting]] = {
    "length": _length,
    "prompt": _prompt,
    "batch": _batch,
    "network": _network,
    "staleness": _staleness,
    "ratio": _ratio,
    "precision": _precision,
}


def _whole(name: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) >= least):
        raise SettingError.refused(WHERE, name, text, f"should be a whole number from {least}")
    return int(text)
