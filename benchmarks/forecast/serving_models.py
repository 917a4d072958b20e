"""What the serving tables name: models, devices, releases of engines."""

from __future__ import annotations

import re
import tomllib
from functools import cache

from flowgraph.errors import UnknownNameError
from flowgraph.models.sizes import ModelShape, shape_of
from flowgraph.models.table import full_name, listed
from placements.hardware.device_profiles import DeviceProfile, PoolLinks, profile
from placements.hardware.engine_constants import FILES

ENGINES = ("sglang", "vllm", "trtllm")
QUANTISED = re.compile(r"[-_](fp8|nvfp4|mxfp4|fp4|static|pertensor|dynamic|0528|v2)\b", re.IGNORECASE)


@cache
def model(name: str) -> ModelShape | None:
    """Return the sizes of a model by how a table names it, whoever has quantised it; None if they are not known."""
    plain = QUANTISED.sub("", name)
    for text in (name, plain, plain.rpartition("/")[2]):
        found = full_name(text)
        entry = listed(found) if found else None
        if entry is not None:
            return shape_of(entry.config, entry.name)
    return None


@cache
def device(name: str) -> DeviceProfile | None:
    """Return the profile of a device by how a table names it: `h100_sxm`, `H200-SXM`, `b300_sxm`."""
    for text in (name, name.replace("_", "-"), re.split("[-_]", name)[0]):
        try:
            return profile(text)
        except UnknownNameError:
            continue
    return None


def links_within(kind: DeviceProfile) -> PoolLinks:
    """Return links of a machine of which all devices are one domain."""
    return PoolLinks(kind, kind.domain, kind.domain, kind.network_bytes_per_s or kind.host_bytes_per_s)


def release(engine: str, version: str) -> str:
    """Return the newest release of an engine's constants that is not later than a version; the newest for none."""
    names = _releases(engine)
    known = [each for each in names if _numbers(each) <= _numbers(version)]
    return (known[-1] if known else names[0]) if _numbers(version) else names[-1]


@cache
def _releases(engine: str) -> tuple[str, ...]:
    return tuple(each["version"] for each in tomllib.loads(FILES[engine].read_text("utf-8"))["release"])


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, found[1].split("."))) if found else ()
