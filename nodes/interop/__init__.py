"""Plans and other systems: what verl, OpenRLHF and NeMo RL start from, written from a plan, and read into our words."""

from nodes.interop.export import Exported, export
from nodes.interop.imported import NEEDLESS, Imported, Shared, read_command, read_yaml
from nodes.interop.keys import SYSTEMS, exported_versions, versions

__all__ = [
    "NEEDLESS",
    "SYSTEMS",
    "Exported",
    "Imported",
    "Shared",
    "export",
    "exported_versions",
    "read_command",
    "read_yaml",
    "versions",
]
