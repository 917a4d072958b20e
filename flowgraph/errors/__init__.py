"""Every error that a user can meet: where, what, the other side, and a hint if one is known.

One base class; each error also derives from the standard type it refines, is built from data by a named constructor,
and survives pickling (it must cross processes). The tree, and the file with the constructors of each branch:

FlowError
    of the language, `language.py`
        FlowTypeError, a TypeError: a value, node or flow of the wrong type
        SettingError, a ValueError: a setting that is unknown or out of its range
        LawError, a ValueError: a graph, program or result that breaks a law
        UnknownNameError, a LookupError: a flow, file or name that does not exist
        UserCodeError, a RuntimeError: an exception of a user's own lines
    of what a command line names, `inputs.py`
        UsageError, a ValueError: a command line that contradicts itself
        DataError, a ValueError: rows that cannot be read
        BatchError, a ValueError: sizes of a step that do not fit together
        ModelError, an OSError: a model that cannot be found, read or saved
        RuleError, a RuntimeError: a scoring rule that cannot be used
    of planning and running, `running.py`
        PlanError, a ValueError: a plan of another flow, or one that does not fit
        ClusterError, a ValueError: a cluster that cannot be read
        ResourceError, a MemoryError: more than the machine has
        WorkerError, a RuntimeError: a process that failed, died or stopped answering
        RunFolderError, a FileExistsError: a folder that already exists, or is not a run folder
        EnvironmentFailure, a RuntimeError: an environment of conversations that cannot be used, or that failed
"""

from flowgraph.errors.base import FlowError, interrupt_behind, nearest, with_article
from flowgraph.errors.inputs import BatchError, DataError, ModelError, RuleError, UsageError
from flowgraph.errors.language import FlowTypeError, LawError, SettingError, UnknownNameError, UserCodeError
from flowgraph.errors.running import (
    ClusterError,
    EnvironmentFailure,
    PlanError,
    ResourceError,
    RunFolderError,
    WorkerError,
)

__all__ = [
    "BatchError",
    "ClusterError",
    "DataError",
    "EnvironmentFailure",
    "FlowError",
    "FlowTypeError",
    "LawError",
    "ModelError",
    "PlanError",
    "ResourceError",
    "RuleError",
    "RunFolderError",
    "SettingError",
    "UnknownNameError",
    "UsageError",
    "UserCodeError",
    "WorkerError",
    "interrupt_behind",
    "nearest",
    "with_article",
]
