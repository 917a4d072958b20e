"""Flows in files: `file.py:name` names one of a user's, a bare name a shipped one or one of an installed package.

A file gets one stable module name, so that its types are one class wherever it is read.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

from flowgraph.errors import FlowError, UnknownNameError, UserCodeError
from flowgraph.files.shipped import flows_folder
from flowgraph.flows.entry_points import find, load_entry, named, names, package_of
from flowgraph.language.flow import Flow, line_of

OURS = ("flowgraph", "nodes", "placements")
SHIPPED = "flowgraph"  # the package that brings the shipped flows


@dataclass(frozen=True)
class FlowFile:
    """A flow and the file it is in; `package` is what brings it, with its version, "" for a user's own file."""

    flow: Flow[..., Any]
    path: Path
    package: str = ""

    @property
    def source(self) -> str:
        """Give the file's text."""
        return self.path.read_text(encoding="utf-8")


def find_flow(text: str) -> FlowFile:
    """Find the flow that a text names: `grpo`, `my.py` (its only flow), or `my.py:name`.

    Raises `UnknownNameError` for a file or name that is not there, or that two packages bring; `UserCodeError` for a
    file or package that does not import.
    """
    file, colon, name = text.rpartition(":") if ":" in text else (text, "", "")
    if not file.endswith(".py"):
        return _by_name(text)
    path = Path(file)
    if not path.is_file():
        raise UnknownNameError(f"there is no file {path.absolute()}", hint="a shipped flow has no .py: `grpo`")
    flows = flows_in(path)
    if not flows:
        raise UnknownNameError("holds no flow", where=str(path), hint="a flow is a function under @flow, in this file")
    if len(flows) > 1 and not name:
        hint = " or ".join(f"{path}:{each}" for each in list(flows)[:3])
        raise UnknownNameError(f"holds {len(flows)} flows", where=str(path), hint=f"name one: {hint}")
    if colon and name and name not in flows:
        raise UnknownNameError.of("flow", name, flows, str(path))
    return FlowFile(flows[name or next(iter(flows))], path)


def _by_name(name: str) -> FlowFile:
    files = {path.stem: path for path in shipped_files()}
    entry = find("flowgraph.flows", name, files)
    if entry is not None:
        return _installed(entry)
    if name not in files:
        others = names("flowgraph.flows")
        raise UnknownNameError.of("shipped or installed flow" if others else "shipped flow", name, [*files, *others])
    return FlowFile(flows_in(files[name])[name], files[name], SHIPPED)


def _installed(entry: EntryPoint) -> FlowFile:
    flow = load_entry(entry)
    if not isinstance(flow, Flow):
        what = f"its entry point `{entry.name}` names `{entry.value}`, which is no flow"
        raise UserCodeError(what, where=package_of(entry), hint="a flow is a function under @flow")
    return FlowFile(flow, Path(flow.signature.at.file), package_of(entry))


def known_flows() -> dict[str, FlowFile]:
    """Give the flows that need no file, by name: the shipped ones, then those of installed packages.

    Raises `UserCodeError` for a package that does not import, `UnknownNameError` for a name that two bring.
    """
    shipped = {name: FlowFile(each, path, SHIPPED) for path in shipped_files() for name, each in flows_in(path).items()}
    entries = named("flowgraph.flows", [path.stem for path in shipped_files()])
    return shipped | {name: _installed(entry) for name, entry in entries.items()}


def shipped_files() -> Iterator[Path]:
    """Give the files of the shipped flows, in order of name."""
    return (path for path in sorted(flows_folder().glob("*.py")) if not path.stem.startswith("_"))


def flows_in(path: Path) -> dict[str, Flow[..., Any]]:
    """Import a file and give the flows it defines, by name."""
    module = import_file(path)
    found = {name: each for name, each in vars(module).items() if isinstance(each, Flow)}
    own = {name: each for name, each in found.items() if each.fn.__module__ == module.__name__}
    return {name: each for name, each in own.items() if each.name == name or own.get(each.name) is not each}


def import_file(path: Path) -> ModuleType:
    """Import a user's file under its one name, `flowgraph_flow.<stem>`; modules beside it can be imported by it.

    A file whose text has not changed since is not run again: its types stay the same classes. Raises `UserCodeError`
    with the line at fault, or when a file beside it has the name of one of our packages.
    """
    path = path.resolve()
    _refuse_shadow(path.parent)
    name, text = f"flowgraph_flow.{path.stem}", path.read_bytes()
    known = _imported.get(path)
    if known is None or known[0] != text:
        known = _imported[path] = (text, _run(path, name))
    sys.modules[name] = known[1]
    return known[1]


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
        _refuse_others_of_a_name(path)
    except BaseException as error:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before
        if isinstance(error, FlowError) or not isinstance(error, (Exception, SystemExit)):
            raise
        raise _at_fault(error, path) from error
    return module


def _at_fault(error: BaseException, path: Path) -> UserCodeError:
    """Say at which line a file, or one that it imports, does not parse or run."""
    if isinstance(error, SyntaxError):
        where = Path(error.filename or path).name + (f":{error.lineno}" if error.lineno else "")
        return UserCodeError(f"does not parse: {error.msg}", where=where)
    return UserCodeError.raised("importing it", error, line_of(error, str(path)))


def _refuse_others_of_a_name(path: Path) -> None:
    """Say plainly when a file got another module than the one beside it that it names."""
    tree = ast.parse(path.read_bytes())
    named = [alias.name for each in ast.walk(tree) if isinstance(each, ast.Import) for alias in each.names]
    named += [each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom) and not each.level]
    for root in dict.fromkeys(name.partition(".")[0] for name in named):
        beside = path.parent / f"{root}.py"
        got = getattr(sys.modules.get(root), "__file__", None)
        if beside.is_file() and got is not None and Path(got).resolve() != beside.resolve():
            raise UserCodeError.another_module(str(path), root, got)


def _refuse_shadow(folder: Path) -> None:
    """Say plainly when a file beside the flow has the name of one of our packages."""
    for name in OURS:
        for path in (folder / f"{name}.py", folder / name / "__init__.py"):
            ours = Path(__file__).resolve().parents[2] / name
            if path.exists() and not path.resolve().is_relative_to(ours):
                raise UserCodeError.shadows(str(path), name)


def refuse_shadowed_packages() -> None:
    """Say plainly when Python finds something else under the name of one of our packages."""
    home = Path(__file__).resolve().parents[2]
    for name in OURS:
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin) if spec is not None and spec.origin else None
        if found is not None and not found.resolve().is_relative_to(home):
            raise UserCodeError.shadows(str(found), name)
