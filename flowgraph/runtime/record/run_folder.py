"""A run's folder: plain files with the flow of the run, its settings, and its results, written during the run.

`run.json`, `settings.json`, `graph.json`, `graph.txt`, `plan.json`, `program.txt`, `flow.py`, `flow.mmd`, `plan.mmd`,
`metrics.jsonl`, `groups.jsonl` if steps take finished groups, `rollouts/NODE/STEP.parquet` with their hashes in
`rollouts/SHA256SUMS`, `validation/STEP.parquet`, `checkpoints/`, `best/PARAM/`, `weights/PARAM/`, and `lock`, locked by
the process that runs it. `recorder` writes the files of each step.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flowgraph.analysis.flat_graph import full_hash, structure_hash, to_json
from flowgraph.errors import DataError, RunFolderError
from flowgraph.files.hashes import SUMS, file_mismatches, read_sums, sha256, text_hash
from flowgraph.files.untrusted import parse_json, read_bytes, read_json, read_text
from flowgraph.flows.settings import ResolvedSetting
from flowgraph.language.graph import Graph
from flowgraph.language.region import Observations
from flowgraph.language.values import Metric, Value
from flowgraph.lowering.program import Program
from flowgraph.runtime.batch import from_table
from flowgraph.runtime.finished_groups import TakenRows
from flowgraph.runtime.places import RowSource
from flowgraph.runtime.record.checkpoint import disk_fault
from flowgraph.runtime.record.group_journal import GROUPS, read_groups
from flowgraph.runtime.record.recorded_values import rollout_nodes, with_extras, with_values
from flowgraph.runtime.record.run_facts import MetricsLine, RunFacts, SettingsFacts, schema_fault
from flowgraph.serialize.graph import from_json
from flowgraph.serialize.graph_text import graph_text
from flowgraph.serialize.program_text import program_text

if TYPE_CHECKING:
    import pyarrow as pa

METRICS, ROLLOUTS = "metrics.jsonl", "rollouts"
RECORDS = "records"  # in a checkpoint's state: the sizes and hashes of `JOURNALS` at that step
VALIDATION = "validation"  # the responses of each check of held-out data, by its step
JOURNALS = (METRICS, f"{ROLLOUTS}/{SUMS}", GROUPS)
MAX_METRICS_BYTES = 2**28  # of `metrics.jsonl`: some hundred thousand steps
ROLLOUT = re.compile(r"([0-9]{6,18})\.(parquet|part)")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run: `create` makes a new one, `open` returns an existing one."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Create the folder of a new run, with its parents, and return it.

        Raises RunFolderError if the folder exists or cannot be created, and for a name that is longer than 64
        characters, has others than letters, digits, `.`, `_` and `-`, or does not begin with a letter or digit.
        """
        if not NAME.fullmatch(path.name):
            raise RunFolderError.bad_name(path.name)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise RunFolderError.exists(str(path), str(unused_run_path(path.parent, path.name))) from None
        except OSError as error:
            raise RunFolderError.cannot(str(path), error) from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return the folder of an existing run. Raises RunFolderError if its `run.json` is missing or invalid."""
        if not cls(path).begun:
            runs = [file.parent.name for file in path.parent.glob("*/run.json")] if path.parent.is_dir() else []
            raise RunFolderError.no_run(str(path), runs)
        if fault := schema_fault(RunFacts, cls(path).facts()):
            raise RunFolderError.cannot(str(path / "run.json"), ValueError(fault))
        return cls(path)

    def begin(
        self,
        graph: Graph,
        program: Program,
        settings: Sequence[ResolvedSetting],
        source: str,
        about: Mapping[str, Any],
        diagrams: Mapping[str, str],
    ) -> None:
        """Write the files of a run that precede its first step: the flow, settings and plan, and `run.json` last.

        `source` is the text of the flow's file; `about` is added to `run.json`; `diagrams` maps file names to texts.
        """
        self._write("settings.json", json.dumps([asdict(setting) for setting in settings], indent=1, default=str))
        self._write("graph.json", to_json(graph))
        self._write("graph.txt", graph_text(graph) + "\n")
        self._write("flow.py", source)
        self.planned(program, diagrams)
        metrics = {name: asdict(metric) for name, metric in declared_metrics(program.graph).items()}
        hashes = {"structure_hash": structure_hash(graph), "full_hash": full_hash(graph)}
        identity = {"id": secrets.token_hex(8), "flow_sha256": text_hash(source)}
        self.note(**identity, **about, **hashes, metrics=metrics, status="running", steps_done=0)

    def planned(self, program: Program, diagrams: Mapping[str, str]) -> None:
        """Write the plan that the run follows from now on to `plan.json` and `program.txt`, and write its diagrams.

        `diagrams` maps file names to texts. Existing files are replaced.
        """
        self._write("plan.json", program.plan.to_json())
        self._write("program.txt", program_text(program) + "\n")
        for name, text in diagrams.items():
            self._write(name, text)

    @contextmanager
    def locked(self) -> Generator[None]:
        """Lock the folder for this process within a block; the lock also ends when the process ends or is killed.

        Raises RunFolderError if another process has the lock, with its process id, or if the file `lock` is a pipe or
        device, and OSError if it cannot be opened, for example because it is a symbolic link.
        """
        import fcntl

        path = self.path / "lock"
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        except OSError as error:  # a link, or a folder
            raise RunFolderError.cannot(str(path), error) from error
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise RunFolderError.cannot(str(path), ValueError("it is not a plain file"))
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = os.read(handle, 32).decode(errors="replace").strip() or "that is just starting"
                what = f"process {pid} runs this; two runs would overwrite each other"
                raise RunFolderError(what, where=str(self.path), hint="wait for it, or end it") from None
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
            yield
        finally:
            os.close(handle)

    def rewind(self, steps: int, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Remove everything that was recorded after the first `steps` steps, and files that were not completed.

        These are metrics, groups, rollouts and responses of checks. `records` are the `RunFolder.records` in the
        checkpoint after these steps; if there is none, they are empty, and every line of metrics, groups and hashes is
        removed. What a check before the next step recorded is removed too, because the resumed run repeats it. Other
        files stay.
        """
        for name in JOURNALS:
            path, size = self.path / name, int(records.get(name, {}).get("size_bytes", 0))
            if path.is_file():
                os.truncate(path, path.read_bytes()[:size].rfind(b"\n") + 1)  # a line that was cut is removed
        for path in (*(self.path / ROLLOUTS).glob("*/*"), *(self.path / VALIDATION).glob("*")):
            file = ROLLOUT.fullmatch(path.name)
            if file and path.is_file() and (file[2] == "part" or int(file[1]) >= steps):
                path.unlink()

    def records(self) -> dict[str, dict[str, Any]]:
        """Return the size in bytes and the hash of each existing file of `JOURNALS`, by name."""
        return {
            name: {"size_bytes": path.stat().st_size, "sha256": sha256(path)}
            for name in JOURNALS
            if (path := self.path / name).is_file()
        }

    def damage(self, records: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Return a line for each difference of the metrics and rollouts from a checkpoint's `records`; [] if intact.

        Journals that `records` lacks are not checked, and neither is what was appended after the checkpoint.
        """
        lines = list[str]()
        for name in JOURNALS:
            if name not in records:
                continue
            path, size = self.path / name, int(records[name]["size_bytes"])
            if not path.is_file():
                lines.append(f"{path} is missing")
            elif path.stat().st_size < size:
                lines.append(f"{path} has {path.stat().st_size} bytes, not {size}")
            elif sha256(path, size) != records[name]["sha256"]:
                lines.append(f"{path} has changed since it was written")
            elif path.name == SUMS:
                try:
                    sums = read_sums(path.read_bytes()[:size].decode())
                except ValueError as error:
                    return [*lines, f"{path} cannot be read: {error}"]
                lines += [f"{path.parent}/{fault}" for fault in file_mismatches(path.parent, sums)]
        return lines

    @property
    def begun(self) -> bool:
        """Return whether `run.json`, the last file that `begin` writes, exists; without it, no run can be resumed."""
        return (self.path / "run.json").is_file()

    def discard(self) -> None:
        """Remove the folder with everything in it, so that its name can be used again; errors are ignored.

        Only for a run that did not begin; this is not checked.
        """
        shutil.rmtree(self.path, ignore_errors=True)

    def note(self, **facts: Any) -> None:
        """Add facts to `run.json`, or replace those of the same name, in one rename.

        Raises RunFolderError if the file cannot be read, and OSError if it cannot be written.
        """
        self._write("run.json", json.dumps(self.facts() | facts, indent=1, default=str))

    def facts(self) -> dict[str, Any]:
        """Return the content of `run.json`; empty if it does not exist. Raises RunFolderError if it cannot be read."""
        with _readable(self.path / "run.json") as path:
            facts = read_json(path) if path.is_file() else {}
            if not isinstance(facts, dict):
                raise ValueError("it is not a JSON object")
            return facts

    def metrics(self) -> list[dict[str, Any]]:
        """Return the content of each line of `metrics.jsonl`, without an incomplete last line; empty without the file.

        Raises RunFolderError for an invalid line, and for a file that cannot be read.
        """
        with _readable(self.path / METRICS) as path:
            lines = read_bytes(path, MAX_METRICS_BYTES).split(b"\n")[:-1] if path.is_file() else []
            metrics = [parse_json(line, finite=False) for line in lines]
            for number, line in enumerate(metrics, 1):
                if fault := schema_fault(MetricsLine, line):
                    raise ValueError(f"line {number}: {fault}")
            return metrics

    def graph(self) -> Graph:
        """Return the flow's graph in `graph.json`, as it was before the compiler changed it.

        Raises RunFolderError if the file cannot be read, and FlowError as `from_json` does.
        """
        return from_json(self.text("graph.json"))

    def settings(self) -> list[dict[str, Any]]:
        """Return the entries of `settings.json`: the name, value and origin of each setting.

        Raises RunFolderError if the file cannot be read, or is not such a list.
        """
        with _readable(self.path / "settings.json") as path:
            settings: list[dict[str, Any]] = read_json(path)
            if fault := schema_fault(SettingsFacts, settings):
                raise ValueError(fault)
            return settings

    def text(self, name: str) -> str:
        """Return the text of a file in the folder. Raises RunFolderError if it cannot be read."""
        with _readable(self.path / name) as path:
            return read_text(path)

    def _write(self, name: str, text: str) -> None:
        draft = self.path / f".{name}.part"
        draft.write_text(text, "utf-8")
        draft.replace(self.path / name)


@contextmanager
def _readable(path: Path) -> Generator[Path]:
    try:
        yield path
    except (OSError, ValueError) as error:
        raise RunFolderError.cannot(str(path), error) from error


def declared_metrics(graph: Graph) -> dict[str, Metric]:
    """Return the metrics that the nodes of a graph declare, by `NODE.METRIC`.

    Nodes inside losses are included. Metrics of nodes that score come first, as displays show them.
    """
    nodes = sorted(graph.all_nodes, key=lambda node: node.op.kind != "score")
    return {f"{node.name}.{metric.name}": metric for node in nodes for metric in node.op.metrics}


def unused_run_path(runs: Path, stem: str) -> Path:
    """Return the first unused path among `stem-1`, `stem-2` and so on in the folder `runs`, which need not exist.

    The path is not created.
    """
    names = {path.name for path in runs.iterdir()} if runs.is_dir() else set[str]()
    return next(runs / name for i in range(1, len(names) + 2) if (name := f"{stem}-{i}") not in names)


def token_sum(graph: Graph, observed: Observations) -> float:
    """Return the number of tokens in a step: the sum of its metrics in tokens, of nodes outside losses."""
    keys = {(node.name, metric.name) for node in graph.nodes for metric in node.op.metrics if metric.unit == "tokens"}
    return sum(total for key, (total, _) in observed.sums.items() if key in keys)


def validation_file(run: Path, step: int) -> Path:
    """Return the path of the responses of the held-out check before step `step`, such as `validation/000020.parquet`.

    The path is in the run's folder `run`. No file is created.
    """
    return run / VALIDATION / f"{step:06d}.parquet"


def rollout_file(run: Path, node: str, step: int) -> Path:
    """Return the path of a node's rollout of one step in the folder `run`, such as `rollouts/NODE/000020.parquet`."""
    return run / ROLLOUTS / node / f"{step:06d}.parquet"


class RolloutWrite(NamedTuple):
    """The result of writing a rollout: the SHA-256 of its file, or why the disk `refused` it; the other is ""."""

    sha256: str
    refused: str


def write_rollout(
    tables: Sequence[pa.Table],
    names: Sequence[str],
    path: Path,
    types: Mapping[str, str] | None = None,
    token_rows: int = 0,
) -> RolloutWrite:
    """Write a rollout and values of its rows to a Parquet file; return the file's hash, or why the disk refused it.

    The first of `tables` is the rollout; the others are plain values, called `names`, that become columns as in
    `recorded_values.with_values`, and so do their extras. An existing file at `path` is replaced once the new one is
    complete; parent folders are created. Raises OSError if writing fails for a reason other than a full, limited or
    failing disk.
    """
    import pyarrow.parquet as pq

    rollout, *values = tables
    table = with_extras(with_values(rollout, values, names, types or {}, token_rows))
    draft = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, draft, write_page_checksum=True, compression="zstd")
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
    """The recorded rollouts of node `node` in the run folder `run`, of type `kind`, as a source of rows."""

    run: Path
    node: str
    kind: type[Value]

    def batch(self, step: int) -> Value:
        """Return the recorded rollout of step `step`. Raises DataError if its file cannot be read or lacks a part."""
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
    """The rollouts of a recorded run, which replace the nodes that sample."""

    folder: RunFolder
    graph: Graph

    def steps(self) -> int:
        """Return the number of steps, from the first, for which every sampling node has a recorded rollout.

        Steps that `run.json` does not count as done are left out; without nodes that sample, it is 0. The last rollout
        of a run that was interrupted may be missing. Raises RunFolderError if a node has no rollouts, if one before its
        last is missing, or if `run.json` cannot be read.
        """
        steps = list[int]()
        for node in rollout_nodes(self.graph):
            files = set((self.folder.path / ROLLOUTS / node.name).glob("*.parquet"))
            if not files:
                raise RunFolderError.no_rollouts(str(self.folder.path), node.name)
            recorded = int(self.folder.facts().get("steps_done", len(files)))
            bound = min(recorded, len(files) + 2)  # a gap shows by then, whatever number a file says
            exist = [rollout_file(self.folder.path, node.name, step) in files for step in range(bound)]
            if not all(exist[:-1]):
                raise RunFolderError.no_rollouts(str(self.folder.path), f"{node.name} for step {exist.index(False)}")
            steps.append(sum(exist))
        return min(steps, default=0)

    def refuse_damaged(self, steps: int) -> None:
        """Raise RunFolderError if a rollout of the first `steps` steps does not match the run's list of hashes.

        The list may lack the last step and the end of its last line; an unreadable list is refused too.
        """
        folder, last, nodes = self.folder.path / ROLLOUTS, self.steps() - 1, rollout_nodes(self.graph)
        with _readable(folder / SUMS) as path:
            text = read_text(path)
            listed = read_sums(text[: text.rfind("\n") + 1])
        replayed = {f"{node.name}/{step:06d}.parquet": step for node in nodes for step in range(steps)}
        unlisted = (f"{SUMS} lacks {name}" for name, step in replayed.items() if name not in listed and step < last)
        changed = file_mismatches(folder, {name: digest for name, digest in listed.items() if name in replayed})
        if why := next(chain(unlisted, changed), ""):
            raise RunFolderError(f"cannot be replayed: {why}", where=str(folder))

    def in_their_order(self, rows: RowSource, oldest: Callable[[int], int]) -> RowSource:
        """Return a source of the prompts in `rows` in the order of the run's groups, if its steps took finished groups.

        Otherwise, `rows` is returned. `oldest` returns the oldest version of weights that a step may train on. Raises
        DataError as `read_groups` does, and for a group of an older version; `batch` raises it for a step without
        groups and for groups that are not of these prompts.
        """
        groups, where = read_groups(self.folder.path), str(self.folder.path / GROUPS)
        if groups is None:
            return rows
        for step, of_step in groups.items():
            if (first := min((group.first_version for group in of_step), default=oldest(step))) < oldest(step):
                why = (
                    f"step {step} trained on responses of version {first}, and the flow allows {oldest(step)} and newer"
                )
                raise DataError.unusable(where, why, "replay it with the flow of that run")
        return TakenRows(rows, groups, where)

    def sources(self) -> dict[str, RecordedRollouts]:
        """Return the recorded rollouts by the name of their node."""
        path = self.folder.path.absolute()
        return {node.name: RecordedRollouts(path, node.name, node.returns[0]) for node in rollout_nodes(self.graph)}
