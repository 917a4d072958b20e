"""Export plans to the files that verl, OpenRLHF and NeMo RL start from, and import runs of verl and OpenRLHF."""

from nodes.interop.changes import Change, changes
from nodes.interop.export import Exported, export
from nodes.interop.export_spec import LongestLengths
from nodes.interop.imported import NEEDLESS, UNREAD, Imported, SharedDevices, SystemRun
from nodes.interop.keys import SYSTEMS, exported_versions, system_of, versions
from nodes.interop.read_runs import read_command, read_yaml

__all__ = [
    "NEEDLESS",
    "SYSTEMS",
    "UNREAD",
    "Change",
    "Exported",
    "Imported",
    "LongestLengths",
    "SharedDevices",
    "SystemRun",
    "changes",
    "export",
    "exported_versions",
    "read_command",
    "read_yaml",
    "system_of",
    "versions",
]
