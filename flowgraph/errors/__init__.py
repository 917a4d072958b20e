"""Every error that a user can meet: where, what, the other side, and a hint if one is truly known.

One base class; each error also derives from the standard type it refines, is built from data by a named constructor,
and survives pickling (it must cross processes).
"""

from flowgraph.errors.base import FlowError, nearest, with_article
from flowgraph.errors.inputs import BatchError, DataError, ModelError, RuleError, RunFolderError, UsageError
from flowgraph.errors.language import FlowTypeError, LawError, SettingError, UnknownNameError, UserCodeError
from flowgraph.errors.running import ClusterError, PlanError, ResourceError, WorkerError

__all__ = [
    "BatchError",
    "ClusterError",
    "DataError",
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
    "nearest",
    "with_article",
]
