"""Data sets of the hub, from a server that answers as the hub does: its copy in Parquet, or the files themselves."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowgraph.errors import DataError
from flowgraph.models import hub
from nodes.data.columns import parse_columns
from nodes.data.hub import COPY
from nodes.data.sets import DataSet, load


def commit(revision: str) -> str:
    return hashlib.sha1(revision.encode()).hexdigest()


def parquet(*questions: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"question": questions, "answer": [f"{each}!" for each in questions]}), sink)
    return sink.getvalue()


def lines(*questions: str) -> bytes:
    return "".join(f"{json.dumps({'question': each, 'answer': each})}\n" for each in questions).encode()


HELD: dict[tuple[str, str], dict[str, bytes]] = {
    ("org/maths", COPY): {
        "main/train/0000.parquet": parquet("a", "b"),
        "main/train/0001.parquet": parquet("c"),
        "main/test/0000.parquet": parquet("d"),
        "other/train/0000.parquet": parquet("e"),
    },
    ("org/one", COPY): {"default/train/0000.parquet": parquet("a")},
    ("org/large", COPY): {"default/partial-train/0000.parquet": parquet("x")},
    ("org/large", "main"): {
        "README.md": b"",
        "data/train-00000-of-00002-abc.parquet": parquet("a"),
        "data/train-00001-of-00002-abc.parquet": parquet("b"),
        "data/validation-00000-of-00001.parquet": parquet("c"),
    },
    ("org/plain", "main"): {"train.jsonl": lines("a", "b"), "notes.txt": b""},
    ("org/none", "main"): {"pictures.zip": b""},
}
"""The files of data sets, by name and revision."""


class Hub(BaseHTTPRequestHandler):
    """The few answers of the hub that its client asks for."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = unquote(self.path.partition("?")[0]).strip("/").split("/")
        if parts[:2] == ["api", "datasets"]:
            name, revision = "/".join(parts[2:4]), "/".join(parts[5:])
            names = {known for known, _ in HELD}
            revision = next((known for held, known in HELD if held == name and revision == commit(known)), revision)
            if (files := HELD.get((name, revision))) is None:
                self.answer(404, b"", {"X-Error-Code": "RevisionNotFound" if name in names else "RepoNotFound"})
                return
            if parts[4] == "tree":
                tree = [{"type": "file", "path": file, "size": len(files[file]), "oid": file} for file in files]
                self.answer(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
                return
            siblings = [{"rfilename": file} for file in files]
            about = {
                "id": name,
                "sha": commit(revision),
                "siblings": siblings,
                "private": False,
                "tags": [],
                "downloads": 0,
            }
            self.answer(200, json.dumps(about).encode(), {"Content-Type": "application/json"})
            return
        name, file = "/".join(parts[1:3]), "/".join(parts[5:])
        content, sha = next(
            (files[file], commit(revision))
            for (held, revision), files in HELD.items()
            if held == name and file in files
        )
        self.answer(200, content, {"X-Repo-Commit": sha, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'})

    def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(hub, "fetch_data", functools.partial(hub.fetch_data, endpoint=endpoint))
    yield server
    server.shutdown()
    server.server_close()


def loaded(spec: str) -> DataSet:
    return load(spec, cache=Path(), columns=parse_columns(["prompt=question,answer=answer"]))


def texts(table: pa.Table | None) -> list[str]:
    return [] if table is None else [chat[0]["content"] for chat in table["prompt"].to_pylist()]


def fault_of(spec: str) -> str:
    with pytest.raises(DataError) as caught:
        loaded(spec)
    return str(caught.value)


def test_a_data_set_of_the_hub_is_read_by_configuration_and_split(server: ThreadingHTTPServer) -> None:
    data = loaded("hf:org/maths:main")
    assert (texts(data.train), texts(data.held_out)) == (["a", "b", "c"], ["d"])
    assert (data.name, data.data_source, data.origin) == ("org/maths", "org/maths", "hf:org/maths:main")
    assert data.train["reward_model"].to_pylist()[0]["ground_truth"] == "a!"
    assert fault_of("hf:org/maths") == (
        "hf:org/maths: has several configurations\n  hint: hf:org/maths:NAME with one of main, other"
    )
    assert fault_of("hf:org/maths:man").startswith("hf:org/maths:man: has no configuration `man`")
    for spec, train, held_out in (
        ("hf:org/one", ["a"], []),
        ("hf:org/large", ["a", "b"], ["c"]),
        ("hf:org/plain", ["a", "b"], []),
    ):
        data = loaded(spec)
        assert (texts(data.train), texts(data.held_out)) == (train, held_out)
    assert fault_of("hf:org/none").startswith(
        "hf:org/none: has no Parquet or JSON Lines files of a train or test split"
    )
    assert fault_of("hf:org/missing").startswith("hf:org/missing: is not a data set of the hub")
    assert fault_of("hf:").startswith("hf:: is not an ID of a data set\n    an ID is ORGANISATION/NAME")
    with pytest.raises(DataError, match=r"hf:org/one train/0000\.parquet: lacks column `prompt`"):
        load("hf:org/one", cache=Path())


def test_what_was_read_before_needs_no_hub(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    before = loaded("hf:org/maths:main")
    server.shutdown()
    server.server_close()
    assert loaded("hf:org/maths:main").digest == before.digest
    part = next((tmp_path / "hub").glob("datasets--org--maths/snapshots/*/main/train/0001.parquet"))
    part.unlink()
    assert "the hub was not reached" in fault_of("hf:org/maths:main"), "a part of the rows is not all of them"
    assert fault_of("hf:org/one").startswith(
        "hf:org/one: is not in the hub's cache here, and the hub was not reached\n    ConnectError: "
    )
