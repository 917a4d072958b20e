"""The host of programs with its walls taken down: its programs have the user's rights, and limits that spare a machine.

`test_hostile_programs` starts it in the place of `program_host`, to show that the programs do harm where nothing
confines them.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import sys
from pathlib import Path
from types import ModuleType

FILE = Path(__file__).parents[5] / "nodes" / "scoring" / "program_host.py"
LIMITS = {
    resource.RLIMIT_AS: 8 << 30,
    resource.RLIMIT_CPU: 60,
    resource.RLIMIT_FSIZE: 64 << 20,
    resource.RLIMIT_NOFILE: 256,
    resource.RLIMIT_CORE: 0,
}
OUTPUT_BYTES = 8 << 20


def nothing(*_: object) -> None:
    """Put up no wall."""


def limit(_: dict[str, int]) -> None:
    for kind, amount in LIMITS.items():
        resource.setrlimit(kind, (amount, amount))


def main() -> None:
    spec = importlib.util.spec_from_file_location("program_host", FILE)
    assert spec is not None and spec.loader is not None
    host = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(host)
    closed = host.beside

    def beside(name: str) -> ModuleType:
        module: ModuleType = closed(name)
        walls = {"program_child": ("forbid_processes",), "grader_inside": ("close_sockets", "enclose")}
        for wall in walls.get(name, ()):
            setattr(module, wall, nothing)
        if name == "program_child":
            module.limit = limit  # type: ignore[attr-defined]
        return module

    class Patient(host.Watched):  # type: ignore[misc, name-defined]
        def watch(self, end_s: float) -> str:
            self.limit_bytes = OUTPUT_BYTES
            return str(super().watch(end_s))

    host.beside, host.confine, host.Watched = beside, nothing, Patient
    host.main(**json.loads(sys.argv[1]))


if __name__ == "__main__":
    main()
