"""What differs between versions of an engine; each engine's table is in its folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from flowgraph.errors import WorkerError


@dataclass(frozen=True)
class VersionTraits:
    """What one version does.

    `session`: weights by group or memory must come between `begin_weight_update` and `end_weight_update`. `tried`: the
    devices on which we ran it.
    """

    session: bool
    tried: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineVersions:
    """The versions of one engine; `hint` says how to install another one."""

    engine: str
    table: Mapping[str, VersionTraits]
    hint: str

    @property
    def oldest(self) -> str:
        """Return the oldest version in the table."""
        return min(self.table, key=numbers)

    @property
    def newest(self) -> str:
        """Return the newest version in the table."""
        return max(self.table, key=numbers)

    def __str__(self) -> str:
        return f"{self.engine} {self._range}"

    @property
    def _range(self) -> str:
        return " to ".join(dict.fromkeys((self.oldest, self.newest)))

    def known(self, version: str, device: str) -> tuple[VersionTraits, str]:
        """Return the traits of a version, and a warning if it is not in the table or was not tried on this device.

        A version that is not in the table is taken for the newest before it. Raises WorkerError if it is too old.

        >>> from flowgraph.engines.sglang import SGLANG
        >>> from flowgraph.engines.vllm import VLLM
        >>> SGLANG.known("0.5.23", "cpu")
        (VersionTraits(session=True, tried=('cpu',)), '')
        >>> SGLANG.known("0.9.1", "cpu")[1]
        'SGLang 0.9.1 is not in the table of versions (0.5.18 to 0.5.23): it is taken for 0.5.23'
        >>> VLLM.known("0.32.0", "cuda")[1]
        'vLLM 0.32.0 was not tried here on cuda'
        """
        if numbers(version) < numbers(self.oldest):
            what = f"{self.engine} {version} is too old: {self.oldest} is the oldest that is known"
            raise WorkerError(what, hint=self.hint)
        before = max((name for name in self.table if numbers(name) <= numbers(version)), key=numbers)
        traits = self.table[before]
        if numbers(before) != numbers(version):
            what = f"{self.engine} {version} is not in the table of versions ({self._range})"
            return traits, f"{what}: it is taken for {before}"
        return traits, "" if device in traits.tried else f"{self.engine} {version} was not tried here on {device}"


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version.

    >>> numbers("0.5.23"), numbers("0.5.23.post1"), numbers("0.6.0rc1"), numbers("?")
    ((0, 5, 23), (0, 5, 23), (0, 6, 0), ())
    """
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
