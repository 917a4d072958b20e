"""`--attach`: servers of engines that someone else started, as a JSON file says where and by which keys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError

from flowgraph.cluster import dotted
from flowgraph.errors import UsageError, nearest


class Attached(BaseModel):
    """One server: its address, and the keys it asks for, of those who sample and of those who change it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, Field(pattern=r"^https?://[^\s/@]+/?$")]
    key: SecretStr = SecretStr("")
    admin_key: SecretStr = SecretStr("")


def read_attached(path: Path, params: Iterable[str]) -> Mapping[str, tuple[Attached, ...]]:
    """Read `{"policy": [{"url": "http://127.0.0.1:30000", "key": "…", "admin_key": "…"}]}`, a server for each replica.

    Raises UsageError for a file that cannot be read, that says anything else, or that names no model of the flow.
    """
    try:
        text = path.read_text("utf-8")
        told = TypeAdapter(dict[str, Annotated[tuple[Attached, ...], Field(min_length=1)]]).validate_json(text)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=f"--attach {path}") from None
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        hint = json.dumps({"policy": [{"url": "http://127.0.0.1:30000"}]})
        raise UsageError(f"{dotted(fault['loc'])}: {fault['msg']}", where=f"--attach {path}", hint=hint) from None
    known = list(params)
    for name in told:
        if name not in known:
            raise UsageError(f"the flow has no model `{name}`", where=f"--attach {path}", hint=nearest(name, known))
    return told
