"""Rename classes where they are defined, imported, and used; by Python's parser, so that no other name changes."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

import move_flowgraph as base
import rooms_table as table

PY_ROOTS = ("flowgraph", "nodes", "placements", "examples", "tests", "benchmarks", "docs")


def module_name(path: str) -> str:
    return path[:-3].replace("/", ".").removesuffix(".__init__")


def moved(module: str) -> str:
    short = module.removeprefix("flowgraph.")
    if module.startswith("flowgraph.") and short in table.MOVES:
        return f"flowgraph.{table.MOVES[short]}"
    return table.OTHERS.get(module, module)


class Tree:
    """Every Python file of the checkout, and what each module's names lead to."""

    def __init__(self, root: Path) -> None:
        names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
        self.files = {n: (root / n).read_text(encoding="utf-8") for n in names if n.endswith(".py") and n.split("/")[0] in PY_ROOTS and (root / n).is_file()}
        self.trees = {n: ast.parse(text) for n, text in self.files.items()}
        self.modules = {module_name(n): n for n in self.files}
        self.links = dict[str, dict[str, tuple[str, str]]]()
        self.defines = dict[str, set[str]]()
        for n, tree in self.trees.items():
            links = dict[str, tuple[str, str]]()
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    for alias in node.names:
                        links[alias.asname or alias.name] = (node.module, alias.name)
                elif isinstance(node, ast.Import):
                    for alias in node.names:
                        if alias.asname:
                            links[alias.asname] = (alias.name, "")
            self.links[module_name(n)] = links
            self.defines[module_name(n)] = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}

    def origin(self, module: str, name: str, deep: int = 0) -> tuple[str, str] | None:
        """Return the module that defines a class, and its name there."""
        if deep > 8 or module not in self.modules:
            return None
        if name in self.defines[module]:
            return module, name
        if name in self.links[module]:
            source, inner = self.links[module][name]
            return self.origin(source, inner, deep + 1) if inner else None
        return None

    def as_module(self, module: str, name: str) -> str | None:
        """Return the module that a name in another stands for, if it does."""
        if name in self.links[module]:
            source, inner = self.links[module][name]
            whole = f"{source}.{inner}" if inner else source
            return whole if whole in self.modules else None
        return None


def rename(root: Path, classes: dict[str, dict[str, str]], left_alone) -> list[str]:
    warnings = list[str]()
    tree = Tree(root)
    new = {(moved(module), old): name for module, names in classes.items() for old, name in names.items()}
    for module, old in new:
        if module not in tree.modules:
            warnings.append(f"no module {module} whose class {old} could be renamed")
        elif old not in tree.defines[module]:
            warnings.append(f"{module} has no class {old} to be renamed")
    taken = Counter(name for names in tree.defines.values() for name in names)
    for (module, old), name in new.items():
        if taken[name] and (module, name) not in {(m, o) for m, o in new}:
            warnings.append(f"the new name {name} of {module}:{old} is taken already")
    for path in tree.files:
        if not left_alone(path):
            _rename_in(root / path, path, tree, new, warnings)
    _in_text(root, new, left_alone)
    return warnings


def _rename_in(file: Path, path: str, tree: Tree, new, warnings: list[str]) -> None:
    module = module_name(path)
    text, parsed = tree.files[path], tree.trees[path]
    source = base.Source(text)
    others = base.bound_names(parsed)
    local = dict[str, str]()
    for name in tree.defines[module]:
        if (module, name) in new:
            local[name] = new[module, name]
    for node in ast.walk(parsed):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                origin = tree.origin(node.module, alias.name)
                if origin is None or origin not in new:
                    continue
                name = new[origin]
                start, _ = source.span(alias)
                span = (start, start + len(alias.name))
                if alias.asname:
                    source.put(span, name)
                    if alias.asname == name:
                        source.put(source.span(alias), name)
                elif name in others:
                    warnings.append(f"{path}: {name} is there already: it is imported as {alias.name}")
                    source.put(span, f"{name} as {alias.name}")
                else:
                    source.put(span, name)
                    local[alias.name] = name
    for name in base.free_names(parsed, set(local)):
        source.put(source.span(name), local[name.id])
    for node in ast.walk(parsed):
        if isinstance(node, ast.ClassDef) and node.name in local and node in parsed.body:
            start = source.at(node.lineno, node.col_offset) + len("class ")
            source.put((start, start + len(node.name)), local[node.name])
        elif isinstance(node, ast.Attribute):
            where = None
            if isinstance(node.value, ast.Name):
                where = tree.as_module(module, node.value.id)
            elif base.is_chain(node.value) and ast.unparse(node.value) in tree.modules:
                where = ast.unparse(node.value)
            origin = tree.origin(where, node.attr) if where else None
            if origin in new:
                _, end = source.span(node)
                source.put((end - len(node.attr), end), new[origin])
        elif isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.args[0], ast.Name):
            where, what = tree.as_module(module, node.args[0].id), node.args[1]
            if where and isinstance(what, ast.Constant) and isinstance(what.value, str):
                origin = tree.origin(where, what.value)
                if origin in new:
                    source.put(source.span(what), repr(new[origin]).replace("'", '"'))
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            for each in ast.walk(node.value):
                if isinstance(each, ast.Constant) and each.value in local:
                    source.put(source.span(each), f'"{local[each.value]}"')
        if isinstance(node, ast.Subscript | ast.Call):
            inner = node.slice if isinstance(node, ast.Subscript) else (node.args[0] if node.args and ast.unparse(node.func) == "cast" else None)
            for each in ast.walk(inner) if inner is not None else ():
                if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.isidentifier() and each.value in local:
                    generic = isinstance(node, ast.Subscript) and ast.unparse(node.value) in {"list", "dict", "tuple", "set", "type", "Sequence", "Mapping"}
                    if isinstance(node, ast.Call) or generic or inner is not each:
                        source.put(source.span(each), f'"{local[each.value]}"')
    if local:
        ticked = re.compile(r"`(" + "|".join(map(re.escape, local)) + r")([`.(])")
        called = re.compile(r"(?<![\w.`])(" + "|".join(map(re.escape, local)) + r")(?=[(.])")

        def reworded(said: str) -> str:
            said = ticked.sub(lambda m: f"`{local[m[1]]}{m[2]}", said)
            return called.sub(lambda m: local[m[1]], said) if ">>> " in said else said  # a doctest, and what it prints

        base.rewrite_strings(source, reworded)
    done = source.done()
    if done != text:
        ast.parse(done)
        file.write_text(done, encoding="utf-8")


def _in_text(root: Path, new, left_alone) -> None:
    """Rewrite `module:Class` and `module.Class` wherever they are written in full."""
    full = re.compile(r"\b((?:flowgraph|nodes)(?:\.\w+)+)([:.])([A-Z]\w*|_[A-Z]\w*)")

    def change(match: re.Match[str]) -> str:
        name = new.get((match[1], match[3]))
        return f"{match[1]}{match[2]}{name}" if name else match[0]

    line = re.compile(
        r"(\bfrom )((?:flowgraph|nodes)(?:\.\w+)+)( import )(\w+(?: as \w+)?(?:, \w+(?: as \w+)?)*)"
    )

    def imported(match: re.Match[str]) -> str:
        said = list[str]()
        for each in match[4].split(", "):
            old, _, shown = each.partition(" as ")
            name = new.get((match[2], old), old)
            said.append(name if name == (shown or old) else f"{name} as {shown or old}")
        return f"{match[1]}{match[2]}{match[3]}{', '.join(said)}"

    for name in base.git("ls-files", "-co", "--exclude-standard", "-z").split("\0"):
        if name and name.endswith((".py", *base.TEXTS)) and (root / name).is_file() and not left_alone(name):
            text = (root / name).read_text(encoding="utf-8")
            done = full.sub(change, text)
            if name.endswith(".md"):
                done = line.sub(imported, done)
            elif name.endswith(".py"):
                source = base.Source(done)
                base.rewrite_strings(source, lambda said: line.sub(imported, said))
                done = source.done()
            if done != text:
                (root / name).write_text(done, encoding="utf-8")
