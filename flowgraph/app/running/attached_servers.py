"""`--attach`: servers of engines that someone else started, as a JSON file says where and by which keys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError

from flowgraph.cluster.cluster import dotted
from flowgraph.engines.table import ENGINES, is_server
from flowgraph.errors import UsageError, nearest
from flowgraph.files.untrusted import parse_json, read_text
from flowgraph.lowering.program import Home


class AttachedServer(BaseModel):
    """One server: its address, and the keys it asks for, of those who sample and of those who change it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, Field(pattern=r"^https?://[^\s/@]+/?$")]
    key: SecretStr = SecretStr("")
    admin_key: SecretStr = SecretStr("")


def read_attached(path: Path, homes: Iterable[Home]) -> Mapping[str, tuple[AttachedServer, ...]]:
    """Read `{"policy": [{"url": "http://127.0.0.1:30000", "key": "…", "admin_key": "…"}]}`, a server for each replica.

    Raises UsageError for a file that cannot be read, that says anything else, or whose servers are not for the homes of
    a plan: for a model that no engine with servers hosts, or more or fewer than its replicas.
    """
    where = f"--attach {path}"
    try:
        text = read_text(path)
        parse_json(text)
        told = TypeAdapter(dict[str, Annotated[tuple[AttachedServer, ...], Field(min_length=1)]]).validate_json(text)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        hint = json.dumps({"policy": [{"url": "http://127.0.0.1:30000"}]})
        raise UsageError(f"{dotted(fault['loc'])}: {fault['msg']}", where=where, hint=hint) from None
    except (OSError, ValueError) as error:
        no_text = "it is no text" if isinstance(error, UnicodeDecodeError) else error
        why = error.strerror if isinstance(error, OSError) else no_text
        raise UsageError(f"cannot be read: {why}", where=where) from None
    served = {home.param: home for home in homes if is_server(home.engine)}
    for name, servers in told.items():
        if name not in served:
            engines = ", ".join(sorted(filter(is_server, ENGINES)))
            hint = nearest(name, served) if served else f"a plan's file says which engine hosts a role: {engines}"
            raise UsageError(f"the plan has no servers for `{name}`", where=where, hint=hint)
        home = served[name]
        if len(servers) != home.layout.data:
            what = f"{len(servers)} for `{name}`, of which {home.engine} in pool `{home.pool}` has {home.layout.data}"
            raise UsageError(what, where=where, hint="one server for each data rank")
    return told
