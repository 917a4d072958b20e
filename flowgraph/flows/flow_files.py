"""Find flows: `file.py:name` is a flow in a user's file, a single word a shipped or installed flow.

A file is always imported under the same module name, so that its types are the same classes wherever it is read.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

from flowgraph.errors import FlowError, UnknownNameError, UserCodeError
from flowgraph.errors.distribution import HOME, OURS
from flowgraph.files.shipped import flows_folder
from flowgraph.flows.entry_points import find, load_entry, named, names, package_of
from flowgraph.language.flow import Flow, traceback_line

SHIPPED = "flowgraph"  # the package that brings the shipped flows
USER_MODULES = "flowgraph_flow"  # a user's file is imported as `flowgraph_flow.<stem>`


@dataclass(frozen=True)
class FlowFile:
    """A flow, the path of its file, and the name of the package that provides it; "" for a user's file."""

    flow: Flow[..., Any]
    path: Path
    package: str = ""

    @property
    def source(self) -> str:
        """Return the text of the flow's file; without a file, the text of its function, or "" if that is unknown.

        Raises OSError if the file cannot be read, and UnicodeDecodeError if it is not UTF-8.
        """
        if self.path.is_file():
            return self.path.read_text(encoding="utf-8")
        try:
            return inspect.getsource(self.flow.fn)
        except OSError:
            return ""

    @property
    def named(self) -> bool:
        """Return whether other processes can find the flow: it is in a package or was imported from a file by name."""
        return bool(self.package) or (self.flow.fn.__module__ or "").startswith(f"{USER_MODULES}.")


def flow_text(flow: str | Flow[..., Any]) -> str:
    """Return the text by which `find_flow` finds a flow again: `grpo` for a shipped one, else `/path/my.py:name`.

    A text is returned unchanged. A flow without a file, such as one in a notebook, gets its bare name, by which
    `find_flow` does not find it.
    """
    if isinstance(flow, str):
        return flow
    path = Path(flow.signature.at.file)
    if _is_shipped(path):
        return path.stem
    return f"{path.absolute()}:{flow.name}" if path.is_file() else flow.name


def _is_shipped(path: Path) -> bool:
    return path.resolve().parent == flows_folder()


def find_flow(text: str | Flow[..., Any]) -> FlowFile:
    """Return the flow that a text names: `grpo`, `my.py` (its only flow), or `my.py:name`; its file is imported.

    A Flow is returned with its file. Raises UnknownNameError for a file or name that does not exist, for a file without
    a flow or with several if none is named, and for a name that two packages register, or that is also shipped;
    UserCodeError for an installed name that is not a flow; and the errors of `import_file` or `load_entry`.
    """
    if isinstance(text, Flow):
        place = Path(text.signature.at.file)
        return _by_name(place.stem) if _is_shipped(place) else FlowFile(text, place)
    file, colon, name = text.rpartition(":") if ":" in text else (text, "", "")
    if not file.endswith(".py"):
        return _by_name(text)
    path = Path(file)
    if not path.is_file():
        raise UnknownNameError(f"no file {path.absolute()}", hint="write a shipped flow without .py: `grpo`")
    flows = flows_in(path)
    if not flows:
        raise UnknownNameError("has no flow", where=str(path), hint="a flow is a function under @flow, in this file")
    if len(flows) > 1 and not name:
        hint = " or ".join(f"{path}:{flow}" for flow in list(flows)[:3])
        raise UnknownNameError(f"has {len(flows)} flows", where=str(path), hint=f"name one: {hint}")
    if colon and name and name not in flows:
        raise UnknownNameError.of("flow", name, flows, str(path))
    return FlowFile(flows[name or next(iter(flows))], path)


def _by_name(name: str) -> FlowFile:
    files = {path.stem: path for path in shipped_files()}
    entry = find("flowgraph.flows", name, files)
    if entry is not None:
        return _installed(entry)
    if name not in files:
        installed = names("flowgraph.flows")
        kind = "shipped or installed flow" if installed else "shipped flow"
        raise UnknownNameError.of(kind, name, [*files, *installed])
    return FlowFile(flows_in(files[name])[name], files[name], SHIPPED)


def _installed(entry: EntryPoint) -> FlowFile:
    flow = load_entry(entry)
    if not isinstance(flow, Flow):
        what = f"its entry point `{entry.name}` names `{entry.value}`, which is not a flow"
        raise UserCodeError(what, where=package_of(entry), hint="a flow is a function under @flow")
    return FlowFile(flow, Path(flow.signature.at.file), package_of(entry))


def known_flows() -> dict[str, FlowFile]:
    """Import all flows that have a short name, and return them by name: the shipped ones, then those of packages.

    Raises UnknownNameError for a name that two packages register, or that is also shipped; UserCodeError for an entry
    that is not a flow; and the errors of `import_file` and `load_entry`.
    """
    shipped = {name: FlowFile(flow, path, SHIPPED) for path in shipped_files() for name, flow in flows_in(path).items()}
    entries = named("flowgraph.flows", [path.stem for path in shipped_files()])
    return shipped | {name: _installed(entry) for name, entry in entries.items()}


def shipped_files() -> Iterator[Path]:
    """Yield the paths of the shipped flows, sorted; files whose names begin with `_` are left out."""
    return (path for path in sorted(flows_folder().glob("*.py")) if not path.stem.startswith("_"))


def flows_in(path: Path) -> dict[str, Flow[..., Any]]:
    """Import a file and return the flows that it defines, by the names of the variables that hold them.

    A flow that the file imports is left out, and so is a second variable for the same flow. Raises the errors of
    `import_file`.
    """
    module = import_file(path)
    flows = {name: flow for name, flow in vars(module).items() if isinstance(flow, Flow)}
    flows = {name: flow for name, flow in flows.items() if flow.fn.__module__ == module.__name__}
    return {name: flow for name, flow in flows.items() if flow.name == name or flows.get(flow.name) is not flow}


def import_file(path: Path) -> ModuleType:
    """Import a user's file as the module `flowgraph_flow.<stem>`, and return the module.

    The file can import modules in its folder, which is added to the end of `sys.path`. If its text has not changed
    since the last call, the file is not executed again, so that its types stay the same classes. Raises UserCodeError
    if the file does not parse or raises an exception, if its folder has a module or package of its own called
    `flowgraph`, `nodes` or `placements`, or if it imports a name for which its folder has a file, and Python found a
    different module of that name. A FlowError of the file is raised unchanged. Raises OSError if the file cannot be
    read.
    """
    path = path.resolve()
    for package in OURS:
        for rival in (path.parent / f"{package}.py", path.parent / package / "__init__.py"):
            if rival.exists() and not rival.resolve().is_relative_to(HOME / package):
                raise UserCodeError.shadows(str(rival), package)
    name, text = f"{USER_MODULES}.{path.stem}", path.read_bytes()
    cached = _imported.get(path)
    if cached is None or cached[0] != text:
        cached = _imported[path] = (text, _run(path, name))
    sys.modules[name] = cached[1]
    return cached[1]


_imported: dict[Path, tuple[bytes, ModuleType]] = {}


def _run(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    before, sys.modules[name] = sys.modules.get(name), module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
        _refuse_namesakes(path)
    except BaseException as error:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before
        if isinstance(error, FlowError) or not isinstance(error, (Exception, SystemExit)):
            raise
        if isinstance(error, SyntaxError):
            where = Path(error.filename or path).name + (f":{error.lineno}" if error.lineno else "")
            raise UserCodeError(f"does not parse: {error.msg}", where=where) from error
        if isinstance(error, ValueError) and b"\0" in path.read_bytes():  # a SyntaxError from Python 3.11.4 on
            raise UserCodeError("does not parse: source code cannot contain null bytes", where=path.name) from error
        raise UserCodeError.raised("importing it", error, traceback_line(error, str(path))) from error
    return module


def _refuse_namesakes(path: Path) -> None:
    tree = ast.parse(path.read_bytes())
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    for root in dict.fromkeys(name.partition(".")[0] for name in imported):
        neighbour = path.parent / f"{root}.py"
        got = getattr(sys.modules.get(root), "__file__", None)
        if neighbour.is_file() and got is not None and Path(got).resolve() != neighbour.resolve():
            raise UserCodeError.another_module(str(path), root, got)
