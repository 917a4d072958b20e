"""A run's folder: what was run, from which settings, and what came of it. Plain files, written as the run goes.

`run.json`, `settings.json`, `graph.json`, `graph.txt`, `plan.json`, `program.txt`, `flow.py`, `flow.mmd`, `plan.mmd`,
`metrics.jsonl`, `rollouts/NODE/STEP.parquet` with their hashes in `rollouts/SHA256SUMS`, `checkpoints/`,
`weights/PARAM/`, and `lock`, held by who runs it. What is written step by step is the work of `recorder`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flowgraph.analysis.flat_graph import full_hash, structure_hash, to_json
from flowgraph.errors import DataError, RunFolderError
from flowgraph.files.hashes import SUMS, faults, read_sums, sha256, text_hash
from flowgraph.files.untrusted import parse_json, read_bytes, read_json, read_text
from flowgraph.flows.settings import ResolvedSetting
from flowgraph.language.graph import Graph, Node
from flowgraph.language.region import Observations
from flowgraph.language.values import Kind, Metric, Record
from flowgraph.lowering.program import Program
from flowgraph.runtime.batch import PLAIN, from_table
from flowgraph.runtime.record.checkpoint import disk_fault
from flowgraph.runtime.record.run_facts import MetricsLine, RunFacts, SettingsFacts, fault_in
from flowgraph.serialize.graph import from_json
from flowgraph.serialize.graph_text import graph_text
from flowgraph.serialize.program_text import program_text

if TYPE_CHECKING:
    import pyarrow as pa

METRICS, ROLLOUTS = "metrics.jsonl", "rollouts"
RECORDS = "records"  # in a checkpoint's state: the sizes and hashes of `JOURNALS` up to there
JOURNALS = (METRICS, f"{ROLLOUTS}/{SUMS}")
MOST_METRICS_BYTES = 2**28  # of `metrics.jsonl`: some hundred thousand steps
ROLLOUT = re.compile(r"([0-9]{6,18})\.(parquet|part)")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class RunFolder:
    """One run's folder. `create` makes it, `open` reads one that is there."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Make the folder; refuse one that exists, and a name that is no plain file name."""
        if not NAME.fullmatch(path.name):
            raise RunFolderError.bad_name(path.name)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise RunFolderError.exists(str(path), str(fresh(path.parent, path.name))) from None
        except OSError as error:
            raise RunFolderError.cannot(str(path), error) from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open a folder that a run has left; refuse what is none."""
        if not cls(path).begun:
            near = [each.parent.name for each in path.parent.glob("*/run.json")] if path.parent.is_dir() else []
            raise RunFolderError.no_run(str(path), near)
        if fault := fault_in(RunFacts, cls(path).facts()):
            raise RunFolderError.cannot(str(path / "run.json"), ValueError(fault))
        return cls(path)

    def begin(
        self,
        graph: Graph,
        program: Program,
        settings: Sequence[ResolvedSetting],
        source: str,
        about: Mapping[str, Any],
        drawn: Mapping[str, str],
    ) -> None:
        """Write what is known before the first step of a graph's program; `drawn` are diagrams by their file's name."""
        self._write("settings.json", json.dumps([asdict(each) for each in settings], indent=1, default=str))
        self._write("graph.json", to_json(graph))
        self._write("graph.txt", graph_text(graph) + "\n")
        self._write("flow.py", source)
        self.planned(program, drawn)
        metrics = {name: asdict(metric) for name, metric in declared_metrics(program.graph).items()}
        hashes = {"structure_hash": structure_hash(graph), "full_hash": full_hash(graph)}
        own = {"id": secrets.token_hex(8), "flow_sha256": text_hash(source)}
        self.note(**own, **about, **hashes, metrics=metrics, status="running", steps_done=0)

    def planned(self, program: Program, drawn: Mapping[str, str]) -> None:
        """Write what the run goes by from here on; `drawn` are diagrams by their file's name."""
        self._write("plan.json", program.plan.to_json())
        self._write("program.txt", program_text(program) + "\n")
        for name, text in drawn.items():
            self._write(name, text)

    @contextmanager
    def locked(self) -> Generator[None]:
        """Hold the folder for this process: it is released when the process ends, however it does.

        Raises RunFolderError while another holds it, with its process id, and for a lock that is no plain file.
        """
        import fcntl

        path = self.path / "lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise RunFolderError.cannot(str(path), ValueError("it is not a plain file"))
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = os.read(handle, 32).decode(errors="replace").strip() or "that is just starting"
                what = f"process {pid} runs this; two would write over each other"
                raise RunFolderError(what, where=str(self.path), hint="wait for it, or end it") from None
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
            yield
        finally:
            os.close(handle)

    def rewind(self, steps: int, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Take back what was recorded after so many steps: metrics, rollouts, files that were not finished.

        `records` are those of the checkpoint after these steps, if there is one. A check that was made before the next
        step is taken back too: it is made again. Files of other names are left alone.
        """
        for name in JOURNALS:
            path, size = self.path / name, int(records.get(name, {}).get("size_bytes", 0))
            if path.is_file():
                kept = path.read_bytes()[:size]
                os.truncate(path, kept.rfind(b"\n") + 1)  # one that was cut in a line is written on at its start
        for path in (self.path / ROLLOUTS).glob("*/*"):
            written = ROLLOUT.fullmatch(path.name)  # whatever else lies there is not ours to remove
            if written and path.is_file() and (written[2] == "part" or int(written[1]) >= steps):
                path.unlink()

    def records(self) -> dict[str, dict[str, Any]]:
        """Return how large the journals are, in bytes, and their hashes."""
        there = [self.path / name for name in JOURNALS]
        return {
            name: {"size_bytes": path.stat().st_size, "sha256": sha256(path)}
            for name, path in zip(JOURNALS, there, strict=True)
            if path.is_file()
        }

    def damage(self, records: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return what of the metrics and rollouts is not as it was when a checkpoint noted these `records`."""
        found = {name: _cut_or_changed(self.path / name, records[name]) for name in JOURNALS if name in records}
        lines, (_, listed) = [why for why in found.values() if why], JOURNALS
        if found.get(listed) == "":
            path, size = self.path / listed, int(records[listed]["size_bytes"])
            try:
                sums = read_sums(path.read_bytes()[:size].decode())
            except ValueError as error:
                return [*lines, f"{path} cannot be read: {error}"]
            lines += [f"{path.parent}/{each}" for each in faults(path.parent, sums)]
        return lines

    @property
    def begun(self) -> bool:
        """Say whether all was written that `resume` asks for: `run.json` is written last."""
        return (self.path / "run.json").is_file()

    def discard(self) -> None:
        """Remove the folder of a run that did not begin, so that its name is free again."""
        shutil.rmtree(self.path, ignore_errors=True)

    def note(self, **facts: Any) -> None:
        """Add facts to `run.json`, replaced in one rename."""
        self._write("run.json", json.dumps(self.facts() | facts, indent=1, default=str))

    def facts(self) -> dict[str, Any]:
        """Read `run.json`, empty if it is not there yet."""
        path = self.path / "run.json"
        try:
            facts = read_json(path) if path.is_file() else {}
        except (OSError, ValueError) as error:
            raise RunFolderError.cannot(str(path), error) from error
        if not isinstance(facts, dict):
            raise RunFolderError.cannot(str(path), ValueError("is no JSON object"))
        return facts

    def metrics(self) -> list[dict[str, Any]]:
        """Read `metrics.jsonl`; a torn last line, from a run that was killed, is dropped."""
        path = self.path / METRICS
        try:
            lines = read_bytes(path, MOST_METRICS_BYTES).split(b"\n")[:-1] if path.is_file() else []
            found = [parse_json(line, finite=False) for line in lines]
        except (OSError, ValueError) as error:
            raise RunFolderError.cannot(str(path), error) from error
        for number, line in enumerate(found, 1):
            if fault := fault_in(MetricsLine, line):
                raise RunFolderError.cannot(str(path), ValueError(f"line {number}: {fault}"))
        return found

    def graph(self) -> Graph:
        """Read `graph.json`, the flow as it was described. Raises RunFolderError or LawError for what is none."""
        return from_json(self.text("graph.json"))

    def settings(self) -> list[dict[str, Any]]:
        """Read `settings.json`: each setting's name, value and origin."""
        path = self.path / "settings.json"
        try:
            found: list[dict[str, Any]] = read_json(path)
        except (OSError, ValueError) as error:
            raise RunFolderError.cannot(str(path), error) from error
        if fault := fault_in(SettingsFacts, found):
            raise RunFolderError.cannot(str(path), ValueError(fault))
        return found

    def text(self, name: str) -> str:
        """Read one of the folder's files of text. Raises RunFolderError where that cannot be."""
        try:
            return read_text(self.path / name)
        except (OSError, ValueError) as error:
            raise RunFolderError.cannot(str(self.path / name), error) from error

    def _write(self, name: str, text: str) -> None:
        draft = self.path / f".{name}.part"
        draft.write_text(text, "utf-8")
        draft.replace(self.path / name)


def _cut_or_changed(path: Path, told: Mapping[str, Any]) -> str:
    size = int(told["size_bytes"])
    if not path.is_file() or path.stat().st_size < size:
        return f"{path} has {path.stat().st_size} bytes, not {size}" if path.is_file() else f"{path} is missing"
    return "" if sha256(path, size) == told["sha256"] else f"{path} has other bytes than were written"


def declared_metrics(graph: Graph) -> dict[str, Metric]:
    """Give every metric that a node declares, by `node.metric`; those of scores first, as displays lead with them."""
    nodes = sorted(graph.all_nodes, key=lambda node: node.op.kind != "score")
    return {f"{node.name}.{metric.name}": metric for node in nodes for metric in node.op.metrics}


def fresh(runs: Path, stem: str) -> Path:
    """Name a folder in `runs` that is not there yet: the first free one of `stem-1`, `stem-2` and so on."""
    taken = {path.name for path in runs.iterdir()} if runs.is_dir() else set[str]()
    return next(runs / name for i in range(1, len(taken) + 2) if (name := f"{stem}-{i}") not in taken)


def token_sum(graph: Graph, observed: Observations) -> float:
    """Add up the metrics that nodes declare in tokens: how many were generated."""
    told = {(node.name, metric.name) for node in graph.nodes for metric in node.op.metrics if metric.unit == "tokens"}
    return sum(total for key, (total, _) in observed.sums.items() if key in told)


def rollout_file(run: Path, node: str, step: int) -> Path:
    """Name the file of one node's rollout of one step."""
    return run / ROLLOUTS / node / f"{step:06d}.parquet"


def row_values(graph: Graph, node: Node) -> list[str]:
    """Name what later nodes make of each row of a rollout and of nothing else: scores, advantages."""
    reads, found = {node}, list[str]()
    for each in graph.nodes:
        sources = {edge.source for _, edge in each.inputs if isinstance(edge.source, Node)}
        if sources & reads and sources <= reads:
            reads.add(each)
            kind = each.returns[0]
            if len(each.returns) == 1 and not issubclass(kind, Record) and kind.kind is Kind.ROW:
                found.append(each.name)
    return found


class RolloutWrite(NamedTuple):
    """What came of writing a rollout: the hash of its file, or why the disk refused it."""

    sha256: str
    refused: str


def write_rollout(tables: Sequence[pa.Table], names: Sequence[str], path: Path) -> RolloutWrite:
    """Write a rollout, the first of `tables`, with a column for each of the others, plain values by these names.

    A value of other rows is left out; a node named as a part of the rollout is written as a call, `mask()`. The file is
    there whole or not at all. Raises OSError for what is no fault of the disk's.
    """
    import pyarrow.parquet as pq

    rollout, *more = tables
    for name, table in zip(names, more, strict=True):
        if PLAIN in table.column_names and table.num_rows == rollout.num_rows:
            called = f"{name}()" if name in rollout.column_names else name
            rollout = rollout.append_column(called, table.column(PLAIN))
    draft = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rollout, draft, write_page_checksum=True, compression="zstd")
        digest = sha256(draft)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        if why := disk_fault(error):
            return RolloutWrite("", why)
        raise
    return RolloutWrite(digest, "")


@dataclass(frozen=True)
class RecordedRollouts:
    """A node's recorded rollouts, a source of rows."""

    run: Path
    node: str
    kind: type[Record]

    def batch(self, step: int) -> Record:
        """Read the rollout of one step. Raises DataError for a file that cannot be read."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = rollout_file(self.run, self.node, step)
        try:
            table = pq.read_table(path, page_checksum_verification=True)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"cannot be read: {error}", where=str(path)) from error
        return from_table(self.kind, table, str(path))


@dataclass(frozen=True)
class Replay:
    """A recorded run's rollouts, step by step, in place of the nodes that sample."""

    folder: RunFolder
    graph: Graph

    def steps(self) -> int:
        """Count the steps that every sampling node has on record; refuse a run of other nodes, or with a gap.

        Of a run that was cut off, the last step's rollout may not have been written.
        """
        return min((self._steps_of(node) for node in self._nodes()), default=0)

    def _steps_of(self, node: Node) -> int:
        files = set((self.folder.path / ROLLOUTS / node.name).glob("*.parquet"))
        if not files:
            raise RunFolderError.no_rollouts(str(self.folder.path), node.name)
        done = int(self.folder.facts().get("steps_done", len(files)))
        looked_at = min(done, len(files) + 2)  # a gap shows by then, whatever number a file says
        there = [rollout_file(self.folder.path, node.name, step) in files for step in range(looked_at)]
        if not all(there[:-1]):
            raise RunFolderError.no_rollouts(str(self.folder.path), f"{node.name} for step {there.index(False)}")
        return sum(there)

    def refuse_damaged(self, steps: int) -> None:
        """Raise RunFolderError where a rollout of the first `steps` is not as the run's list of hashes says.

        Of a run that was cut off, the list may lack the last step, and the end of its last line.
        """
        folder, last = self.folder.path / ROLLOUTS, self.steps() - 1
        try:
            text = read_text(folder / SUMS)
            listed = read_sums(text[: text.rfind("\n") + 1])
        except (OSError, ValueError) as error:
            raise RunFolderError.cannot(str(folder / SUMS), error) from error
        wanted = {f"{node.name}/{step:06d}.parquet": step for node in self._nodes() for step in range(steps)}
        unlisted = (f"{SUMS} lacks {name}" for name, step in wanted.items() if name not in listed and step < last)
        changed = faults(folder, {name: digest for name, digest in listed.items() if name in wanted})
        if why := next(chain(unlisted, changed), ""):
            raise RunFolderError(f"cannot be replayed: {why}", where=str(folder))

    def sources(self) -> dict[str, RecordedRollouts]:
        """Give the recorded rollouts by the name of their node."""
        return {node.name: self._source(node) for node in self._nodes()}

    def _source(self, node: Node) -> RecordedRollouts:
        kind = node.returns[0]
        assert issubclass(kind, Record), "a rollout is a record"
        return RecordedRollouts(self.folder.path.absolute(), node.name, kind)

    def _nodes(self) -> list[Node]:
        return [node for node in self.graph.nodes if node.op.kind == "generate"]
