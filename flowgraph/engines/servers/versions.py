"""What is known of the versions of an engine; each engine's own are in its folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from flowgraph.errors import WorkerError


@dataclass(frozen=True)
class VersionTraits:
    """What differs in one version.

    `session` says that weights by group or memory stand between `begin_weight_update` and `end_weight_update`, `spans`
    that an answer tells the version of its weights span by span, `tried` on which devices it was run by us.
    """

    session: bool
    spans: bool
    tried: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineVersions:
    """The versions of one engine; `hint` says how another is had."""

    engine: str
    table: Mapping[str, VersionTraits]
    hint: str

    @property
    def oldest(self) -> str:
        """Give the oldest version that is known."""
        return min(self.table, key=numbers)

    @property
    def newest(self) -> str:
        """Give the newest version that is known."""
        return max(self.table, key=numbers)

    def __str__(self) -> str:
        return f"{self.engine} {self._range}"

    @property
    def _range(self) -> str:
        return " to ".join(dict.fromkeys((self.oldest, self.newest)))

    def known(self, version: str, device: str) -> tuple[VersionTraits, str]:
        """Give what is known of a version, and a line of warning where it was not tried on this kind of device.

        One that is not in the table is taken for the newest before it. Raises WorkerError where it is older than all.

        >>> from flowgraph.engines.sglang.versions import SGLANG
        >>> from flowgraph.engines.vllm.versions import VLLM
        >>> SGLANG.known("0.5.23", "cpu")
        (VersionTraits(session=True, spans=True, tried=('cpu',)), '')
        >>> SGLANG.known("0.9.1", "cpu")[1]
        'SGLang 0.9.1 is not in the table of versions (0.5.18 to 0.5.23): it is taken for 0.5.23'
        >>> VLLM.known("0.32.0", "cuda")[1]
        'vLLM 0.32.0 was not tried here on cuda'
        """
        if numbers(version) < numbers(self.oldest):
            what = f"{self.engine} {version} is too old: {self.oldest} is the oldest that is known"
            raise WorkerError(what, hint=self.hint)
        before = max((name for name in self.table if numbers(name) <= numbers(version)), key=numbers)
        found = self.table[before]
        if numbers(before) != numbers(version):
            what = f"{self.engine} {version} is not in the table of versions ({self._range})"
            return found, f"{what}: it is taken for {before}"
        return found, "" if device in found.tried else f"{self.engine} {version} was not tried here on {device}"


def numbers(version: str) -> tuple[int, ...]:
    """Give the numbers that a version begins with.

    >>> numbers("0.5.23"), numbers("0.5.23.post1"), numbers("0.6.0rc1"), numbers("?")
    ((0, 5, 23), (0, 5, 23), (0, 6, 0), ())
    """
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(each) for each in found[0].split(".")) if found else ()
