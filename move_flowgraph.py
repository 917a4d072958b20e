#!/usr/bin/env python3
"""Give the package `flowgraph` its rooms: move modules and their tests, and rewrite whatever names them.

Run in the root of a clean checkout whose `flowgraph/` still lies flat:

    python ROOMS/move_flowgraph.py [--no-ruff] [--no-classes]

Names are rewritten where Python's own parser and tokenizer say that they stand: imports, dotted attributes, strings
and comments; in other files dotted names and paths only. What cannot be decided is printed as a warning.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import class_table  # noqa: E402
import patches  # noqa: E402
import rooms_table as table  # noqa: E402

ROOT = Path.cwd()
PY_ROOTS = ("flowgraph", "nodes", "placements", "examples", "tests", "benchmarks", "docs")
TEXTS = (".md", ".toml", ".j2", ".yml", ".yaml", ".cfg", ".txt", ".svg", ".html")
warnings: list[str] = []


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def tracked() -> list[str]:
    return [name for name in git("ls-files", "-z").split("\0") if name and (ROOT / name).is_file()]


# ------------------------------------------------------------------------------------------------ what goes where


def mapping() -> tuple[dict[str, str], dict[str, str]]:
    """Return old to new dotted names of modules, and old to new paths of files."""
    modules, files = dict[str, str](), dict[str, str]()
    for name in tracked():
        if name.startswith("flowgraph/") and name.endswith(".py"):
            key = name[len("flowgraph/") : -3].replace("/", ".")
            if key in table.MOVES:
                new = table.MOVES[key]
                modules[f"flowgraph.{key}"] = f"flowgraph.{new}"
                files[name] = f"flowgraph/{new.replace('.', '/')}.py"
            elif not key.endswith("__init__") and key != "__main__":
                folder, _, leaf = key.rpartition(".")
                if folder in table.DEFAULT_ROOM:
                    new = f"{table.DEFAULT_ROOM[folder]}.{leaf}"
                    warnings.append(f"{name} is not in the table: it goes to {new}")
                    modules[f"flowgraph.{key}"] = f"flowgraph.{new}"
                    files[name] = f"flowgraph/{new.replace('.', '/')}.py"
        if name.endswith(".py") and (whole := name[:-3].replace("/", ".")) in table.OTHERS:
            modules[whole] = table.OTHERS[whole]
            files[name] = table.OTHERS[whole].replace(".", "/") + ".py"
        for old, new in table.DATA.items():
            if name.startswith(f"{old}/"):
                files[name] = new + name[len(old) :]
        if name.startswith("tests/unit/flowgraph/") and name.endswith(".py"):
            key = name[len("tests/unit/flowgraph/") : -3]
            new = test_place(key)
            if new is not None and new != key:
                files[name] = f"tests/unit/flowgraph/{new}.py"
                modules[f"tests.unit.flowgraph.{key.replace('/', '.')}"] = f"tests.unit.flowgraph.{new.replace('/', '.')}"
    missing = [key for key in table.MOVES if f"flowgraph.{key}" not in modules]
    warnings.extend(f"flowgraph.{key} is in the table, but not in this checkout" for key in missing)
    return modules, files


def test_place(key: str) -> str | None:
    if key in table.TESTS:
        return table.TESTS[key]
    folder, _, leaf = key.rpartition("/")
    module = f"{folder.replace('/', '.')}.{leaf.removeprefix('test_')}".strip(".")
    if module in table.MOVES:
        room, _, name = table.MOVES[module].rpartition(".")
        return f"{room.replace('.', '/')}/test_{name}"
    if not folder or folder in table.FOLDERS:
        warnings.append(f"tests/unit/flowgraph/{key}.py mirrors no module in the table: it stays")
    return None


def move(files: dict[str, str]) -> None:
    for old in files:  # by way of a name that nothing has: a file may give its place to a folder
        (ROOT / f"{old}.moving").parent.mkdir(parents=True, exist_ok=True)
        git("mv", old, f"{old}.moving")
    for old, new in files.items():
        (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
        git("mv", f"{old}.moving", new)
    for folder in table.FOLDERS:
        init = ROOT / "flowgraph" / folder / "__init__.py"
        if init.is_file():
            git("rm", "-q", "-f", str(init.relative_to(ROOT)))
    for new in files.values():
        folder = (ROOT / new).parent
        while folder.is_relative_to(ROOT / "flowgraph") and folder != ROOT / "flowgraph":
            init = folder / "__init__.py"
            if not init.exists() and any(folder.glob("*.py")) or folder.name in {"write", "diagrams", "runtime"} and not init.exists():
                room = folder.relative_to(ROOT / "flowgraph").as_posix()
                init.write_text(patches.ROOM_DOCS.get(room, f'"""The room `{room}`."""') + "\n", encoding="utf-8")
                git("add", str(init.relative_to(ROOT)))
            elif init.exists() and not init.read_text(encoding="utf-8").strip():
                room = folder.relative_to(ROOT / "flowgraph").as_posix()
                if room in patches.ROOM_DOCS:
                    init.write_text(patches.ROOM_DOCS[room] + "\n", encoding="utf-8")
            folder = folder.parent


# ------------------------------------------------------------------------------------------------ rewriting text

DOTTED = re.compile(r"(?<![\w./-])(flowgraph|nodes|tests\.unit\.flowgraph)((?:\.[A-Za-z_]\w*)+)")
PATH = re.compile(r"(?<![\w-])(tests/unit/)?(?:flowgraph|nodes)((?:/\w+)+)(\.py)?(/?)")


IMPORTED = re.compile(r"\bfrom (flowgraph(?:\.\w+)*|nodes(?:\.\w+)+) import (\w+(?: as \w+)?(?:, \w+(?: as \w+)?)*)")


class Renamer:
    """Rewrite names of modules."""

    def __init__(self, modules: dict[str, str], files: dict[str, str]) -> None:
        self.modules, self.files = modules, files

    def prefix(self, dotted: str) -> str | None:
        """Return the longest part of a dotted name that is a module which has moved."""
        parts = dotted.split(".")
        for end in range(len(parts), 1, -1):
            if (found := ".".join(parts[:end])) in self.modules:
                return found
        return None

    def text(self, text: str) -> str:
        """Rewrite dotted names and paths in prose."""

        def dotted(match: re.Match[str]) -> str:
            whole = match[0]
            found = self.prefix(whole)
            if found is None:
                return whole
            rest = whole[len(found) :]
            short = found.removeprefix("flowgraph.")
            if short in table.STORED and not rest and match.string[match.end() : match.end() + 1] == ":":
                after = match.string[match.end() + 1 : match.end() + 2]
                if after.isalpha() or after == "_":
                    return whole
            return self.modules[found] + rest

        def path(match: re.Match[str]) -> str:
            whole = match[0]
            if match[3]:
                return self.files.get(whole.rstrip("/"), whole)
            inner = match[2].strip("/")
            if match[1] is None and inner in table.FOLDERS and whole.startswith("flowgraph"):
                return f"flowgraph/{table.FOLDERS[inner]}{match[4]}"
            return whole

        def imported(match: re.Match[str]) -> str:
            groups = dict[str, list[str]]()
            for each in match[2].split(", "):
                name, _, shown = each.partition(" as ")
                whole = f"{match[1]}.{name}"
                if whole in self.modules:
                    parent, _, leaf = self.modules[whole].rpartition(".")
                    groups.setdefault(parent, []).append(leaf if leaf == (shown or name) else f"{leaf} as {shown or name}")
                else:
                    groups.setdefault(match[1], []).append(each)
            return "; ".join(f"from {module} import {', '.join(names)}" for module, names in groups.items())

        return PATH.sub(path, DOTTED.sub(dotted, IMPORTED.sub(imported, text)))


class Source:
    """A Python file with edits by place."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.edits: dict[tuple[int, int], str] = {}

    def at(self, line: int, utf8: int) -> int:
        row = self.lines[line - 1] if line <= len(self.lines) else ""
        return self.starts[line - 1] + len(row.encode()[:utf8].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def put(self, span: tuple[int, int], new: str) -> None:
        if self.text[span[0] : span[1]] != new:
            self.edits[span] = new

    def done(self) -> str:
        out, last = list[str](), 0
        for (start, end), new in sorted(self.edits.items()):
            if start < last:
                continue  # inside of what was replaced already
            out += [self.text[last:start], new]
            last = end
        return "".join([*out, self.text[last:]])


def bound_names(tree: ast.AST) -> set[str]:
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
    return found


SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def own_names(scope: ast.AST) -> set[str]:
    """Return what a function binds itself: parameters and variables, not those of functions inside; imports apart."""
    found = {each.arg for each in ast.walk(scope.args) if isinstance(each, ast.arg)}  # type: ignore[attr-defined]
    waiting = list(scope.body) if isinstance(scope.body, list) else [scope.body]  # type: ignore[attr-defined]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if not isinstance(node, SCOPES):
            waiting += ast.iter_child_nodes(node)
    return found


def free_names(tree: ast.AST, names: set[str]):
    """Yield every use of these names that no function around it has bound to something of its own."""
    waiting: list[tuple[ast.AST, frozenset[str]]] = [(tree, frozenset())]
    while waiting:
        node, hidden = waiting.pop()
        if isinstance(node, ast.Name) and node.id in names and node.id not in hidden:
            yield node
        inner = hidden | own_names(node) if isinstance(node, SCOPES) else hidden
        waiting += [(child, inner) for child in ast.iter_child_nodes(node)]


def rewrite_imports(source: Source, tree: ast.Module, names: Renamer, where: str) -> None:
    bound, renamed = bound_names(tree), dict[str, str]()
    builtins = {"open", "map", "filter", "format", "type", "model", "local"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found = names.prefix(alias.name)
                if found:
                    start, _ = source.span(alias)
                    source.put((start, start + len(found)), names.modules[found])
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            groups = dict[str, list[str]]()
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in names.modules:
                    parent, _, leaf = names.modules[whole].rpartition(".")
                    text = leaf
                    if alias.asname:
                        text = f"{leaf} as {alias.asname}" if alias.asname != leaf else leaf
                    elif leaf != alias.name:
                        if leaf in bound or leaf in builtins:
                            text = f"{leaf} as {alias.name}"
                        else:
                            renamed[alias.name] = leaf
                    groups.setdefault(parent, []).append(text)
                else:
                    module = names.modules.get(node.module, node.module)
                    groups.setdefault(module, []).append(
                        f"{alias.name} as {alias.asname}" if alias.asname else alias.name
                    )
            if list(groups) == [node.module] and not any(f"{node.module}.{a.name}" in names.modules for a in node.names):
                continue
            if len(groups) == 1 and node.module in names.modules:
                line = source.lines[node.lineno - 1]
                start = source.at(node.lineno, node.col_offset) + len("from ")
                assert source.text[start : start + len(node.module)] == node.module, (where, line)
                source.put((start, start + len(node.module)), next(iter(groups)))
                continue
            indent = " " * node.col_offset
            after = re.match(r"\s*(# noqa[^\n]*)", source.lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode())
            glue = f"  {after[1]}\n{indent}" if after else f"\n{indent}"
            said = glue.join(f"from {module} import {', '.join(each)}" for module, each in groups.items())
            start, end = source.span(node)
            if "#" in source.text[start:end]:
                warnings.append(f"{where}:{node.lineno}: a comment inside an import was lost")
            source.put((start, end), said)
    for name in free_names(tree, set(renamed)):
        source.put(source.span(name), renamed[name.id])
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node) if is_chain(node) else ""
            if dotted in names.modules and dotted.split(".")[0] in {"flowgraph", "nodes", "tests"}:
                source.put(source.span(node), names.modules[dotted])


def is_chain(node: ast.AST) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


STRINGS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}


def rewrite_strings(source: Source, change) -> None:
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type in STRINGS:
            start = source.starts[token.start[0] - 1] + token.start[1]
            end = source.starts[token.end[0] - 1] + token.end[1]
            text = source.text[start:end]
            if (new := change(text)) != text:
                source.put((start, end), new)


PARENTS = re.compile(r"(Path\((?:str\()?__file__\)?\)(?:\.resolve\(\))?\.parents\[)(\d+)(\])")
CHAIN = re.compile(r"Path\(__file__\)(\.resolve\(\))?\.(parent\b|with_name)")


def rewrite_python(path: str, old: str, names: Renamer) -> None:
    file = ROOT / path
    text = file.read_text(encoding="utf-8")
    delta = path.count("/") - old.count("/")
    if path != old and delta:
        text = PARENTS.sub(lambda match: f"{match[1]}{int(match[2]) + delta}{match[3]}", text)
    if (before := Path(old).name) != Path(path).name and path.startswith("tests/"):
        text = re.sub(rf"(?<![\w/]){re.escape(before)}\b", Path(path).name, text)
    if path != old and CHAIN.search(text):
        warnings.append(f"{path} asks for files beside itself, and has moved: see PATCHES")
    source = Source(text)
    tree = ast.parse(text)
    rewrite_imports(source, tree, names, path)
    rewrite_strings(source, names.text)
    new = source.done()
    if new != file.read_text(encoding="utf-8"):
        ast.parse(new)
        file.write_text(new, encoding="utf-8")


def left_alone(name: str) -> bool:
    """Leave golden files: they are what is printed, and say where something changed."""
    return name.startswith(("tests/golden/", "docs/pictures/", "benchmarks/measured/")) or name == "CHANGELOG.md"


def rewrite(names: Renamer, olds: dict[str, str]) -> None:
    for name in tracked():
        if left_alone(name):
            continue
        if name.endswith(".py"):
            if name.split("/")[0] in PY_ROOTS:
                rewrite_python(name, olds.get(name, name), names)
        elif name.endswith(TEXTS) or name in {"Makefile", ".pre-commit-config.yaml"}:
            file = ROOT / name
            text = file.read_text(encoding="utf-8")
            if (new := names.text(text)) != text:
                file.write_text(new, encoding="utf-8")


def rewrite_law_table(names: Renamer) -> None:
    """Rewrite what the table of laws says of who holds each: dotted names below `flowgraph`."""
    file = ROOT / "flowgraph" / "language" / "laws.py"
    if not file.is_file():
        return
    part = re.compile(r"(?<=[\" ])([a-z_]+(?:\.[A-Za-z_]+)+)(?=[\",])")

    def change(match: re.Match[str]) -> str:
        whole = f"flowgraph.{match[1]}"
        found = names.prefix(whole)
        return (names.modules[found] + whole[len(found) :]).removeprefix("flowgraph.") if found else match[0]

    file.write_text(part.sub(change, file.read_text(encoding="utf-8")), encoding="utf-8")


def patch() -> None:
    for path, old, new in patches.PATCHES:
        file = ROOT / path
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if old in text:
            file.write_text(text.replace(old, new), encoding="utf-8")
        elif new not in text or not new:
            warnings.append(f"{path}: a patch finds no {old!r}")


def main() -> int:
    if (ROOT / "flowgraph" / "language").exists():
        print("this checkout has its rooms already")
        return 1
    modules, files = mapping()
    names = Renamer(modules, files)
    move(files)
    rewrite(names, {new: old for old, new in files.items()})
    rewrite_law_table(names)
    patch()
    if "--no-classes" not in sys.argv:
        import rename_classes

        warnings.extend(rename_classes.rename(ROOT, class_table.CLASSES, left_alone))
    if "--no-ruff" not in sys.argv:
        subprocess.run(["ruff", "check", "-q", "--fix", "--select", "I,F401,RUF022", "."], cwd=ROOT, check=False)
        subprocess.run(["ruff", "format", "-q", "."], cwd=ROOT, check=False)
    print(f"{len(files)} files moved")
    for each in warnings:
        print("warning:", each)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
