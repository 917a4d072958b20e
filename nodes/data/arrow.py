"""Names for pyarrow's classes in our signatures. pyarrow has no types of its own, so that a checker sees Any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    Array: TypeAlias = Any
    ChunkedArray: TypeAlias = Any
    DataType: TypeAlias = Any
    Schema: TypeAlias = Any
    Table: TypeAlias = Any
else:
    from pyarrow import Array, ChunkedArray, DataType, Schema, Table

__all__ = ["Array", "ChunkedArray", "DataType", "Schema", "Table"]
