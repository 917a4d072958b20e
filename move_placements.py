#!/usr/bin/env python3
"""Give `placements/` its rooms in the checkout that this runs in: `python ROOMS/move_placements.py [ROOT]`.

Moves modules, their data and tests with `git mv`, rewrites imports, dotted names and paths, renames classes and public
functions, and ends with ruff. May be run again on a checkout that was merged since: what has moved already is left,
and what still says an old name is rewritten. Nothing is committed.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import textwrap
import tokenize
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from placements_rooms import DATA, DEFAULT_ROOM, MODULES, NAMES, POLISH, ROOMS, STAY, TESTS  # noqa: E402

ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
TEXTS = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".cfg", ".json", ".sh", ".html", ""}
PACKAGE, UNIT = "placements", "tests/unit/placements"
warnings: list[str] = []


def warn(text: str) -> None:
    warnings.append(text)


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def tracked() -> list[Path]:
    return [ROOT / name for name in git("ls-files", "-co", "--exclude-standard").splitlines() if (ROOT / name).is_file()]


def dotted(place: str) -> str:
    return f"{PACKAGE}.{place.replace('/', '.')}"


# ------------------------------------------------------------------------------------------------ files


def add_new_modules() -> None:
    """Give modules that the table does not know the default room, and say so."""
    for file in sorted((ROOT / PACKAGE).glob("*.py")):
        if file.stem in MODULES or file.stem in {"__init__", "format"}:
            continue
        MODULES[file.stem] = f"{DEFAULT_ROOM}/{file.stem}"
        warn(f"{PACKAGE}/{file.name} is new: it goes to {DEFAULT_ROOM}/, by default")


def move(old: str, new: str) -> bool:
    source, target = ROOT / old, ROOT / new
    if not source.exists():
        return False
    if target.exists() and target.is_file():
        warn(f"{old} and {new} both exist: merge them by hand")
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    git("mv", old, new)
    return True


def move_files() -> dict[str, str]:
    """Move all files; return the paths of tests, old to new, whether or not they move today."""
    for name, doc in ROOMS.items():
        front = ROOT / PACKAGE / name / "__init__.py"
        front.parent.mkdir(parents=True, exist_ok=True)
        if not front.exists():
            front.write_text(f'"""{doc}"""\n', encoding="utf-8")
            git("add", str(front))
    for old, new in MODULES.items():
        if old == "__init__":
            continue
        move(f"{PACKAGE}/{old}.py", f"{PACKAGE}/{new}.py")
    for old, new in DATA.items():
        move(f"{PACKAGE}/{old}", f"{PACKAGE}/{new}")
    tests = test_places()
    for old, new in tests.items():
        if move(old, new):
            deepen(ROOT / new)
    return tests


def test_places() -> dict[str, str]:
    """Return where each test file of the package goes: as its module."""
    places = {f"test_{old}": f"{Path(new).parent / ('test_' + Path(new).name)}" for old, new in MODULES.items()}
    places |= TESTS
    for file in sorted((ROOT / UNIT).glob("*.py")):
        if file.stem in places or file.stem in STAY:
            continue
        places[file.stem] = f"{DEFAULT_ROOM}/{file.stem}"
        warn(f"{UNIT}/{file.name} is new: it goes to {DEFAULT_ROOM}/, by default")
    return {f"{UNIT}/{old}.py": f"{UNIT}/{new}.py" for old, new in places.items()}


def deepen(file: Path) -> None:
    """Let a test that moved one folder down still find the root."""
    text = file.read_text(encoding="utf-8")
    changed = re.sub(r"(__file__\)(?:\.resolve\(\))?\.parents\[)(\d+)(\])", lambda m: f"{m[1]}{int(m[2]) + 1}{m[3]}", text)
    if changed != text:
        file.write_text(changed, encoding="utf-8")
    if re.search(r"__file__\)(?:\.resolve\(\))?\.(?:parent\b|with_name)", changed):
        warn(f"{file.relative_to(ROOT)} finds files beside itself")


# ------------------------------------------------------------------------------------------------ texts


def rewrite_texts(tests: dict[str, str]) -> None:
    """Rewrite dotted names of modules and paths of files wherever they stand."""
    modules = {old: dotted(new) for old, new in MODULES.items()}
    names = "|".join(sorted(map(re.escape, modules), key=len, reverse=True))
    module = re.compile(rf"(?<![\w./]){PACKAGE}\.({names})\b(?!\.(?:txt|json|svg|html|png)\b)")
    paths = {f"{PACKAGE}/{old}.py": f"{PACKAGE}/{new}.py" for old, new in MODULES.items()}
    paths |= {f"{PACKAGE}/{old}": f"{PACKAGE}/{new}" for old, new in DATA.items()}
    paths |= tests
    paths = {old: new for old, new in paths.items() if old != new}
    path = re.compile("(?<![\\w])(?<!unit/)(" + "|".join(sorted(map(re.escape, paths), key=len, reverse=True)) + r")(?![\w-])")
    unit = re.compile("(" + "|".join(sorted(map(re.escape, tests), key=len, reverse=True)) + r")(?![\w-])")
    renamed = {f"{dotted(MODULES.get(module, module))}.{old}": new for (module, old), new in NAMES.items()}
    name = re.compile("(" + "|".join(sorted(map(re.escape, renamed), key=len, reverse=True)) + r")\b")
    for file in tracked():
        if file.suffix not in TEXTS:
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if PACKAGE not in text:
            continue
        changed = module.sub(lambda m: modules[m[1]], text)
        changed = unit.sub(lambda m: tests[m[1]], changed)
        changed = path.sub(lambda m: paths[m[1]], changed)
        changed = name.sub(lambda m: m[1].rpartition(".")[0] + "." + renamed[m[1]], changed)
        if changed != text:
            file.write_text(changed, encoding="utf-8")


def rewrite_module_imports() -> None:
    """Rewrite `from placements import module`, which names no module with a dot."""
    for file in tracked():
        if file.suffix != ".py":
            continue
        text = file.read_text(encoding="utf-8")
        if f"from {PACKAGE} import" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module == PACKAGE and not node.level:
                door = names_of(PACKAGE)
                for alias in node.names:
                    if alias.name in MODULES and alias.name not in door:
                        if file == ROOT / PACKAGE / "__init__.py":
                            continue
                        warn(f"{file.relative_to(ROOT)}:{node.lineno}: `from {PACKAGE} import {alias.name}`: by hand")


def rewrite_siblings() -> None:
    """Rewrite backticked names of sibling modules in docstrings of modules."""
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        places = {old: Path(new) for old, new in MODULES.items()}
        short = {
            old: new.name if (ROOT / PACKAGE / new).parent == file.parent else ".".join(new.parts)
            for old, new in places.items()
            if not file.with_name(f"{old}.py").exists()
        }
        pattern = re.compile("`(" + "|".join(sorted(short, key=len, reverse=True)) + ")`")
        text = file.read_text(encoding="utf-8")
        body = ast.parse(text).body
        if not body or not isinstance(body[0], ast.Expr) or not isinstance(body[0].value, ast.Constant):
            continue
        lines = text.splitlines(keepends=True)
        end = body[0].end_lineno or 0
        head = pattern.sub(lambda m: f"`{short[m[1]]}`", "".join(lines[:end]))
        changed = head + "".join(lines[end:])
        if changed != text:
            file.write_text(changed, encoding="utf-8")


# ------------------------------------------------------------------------------------------------ names

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Names(ast.NodeVisitor):
    """Collect positions of names of a module's own scope, or imported ones, that are to be renamed."""

    def __init__(self, renames: dict[str, str], modules: dict[str, dict[str, str]], own: bool) -> None:
        self.renames, self.modules, self.own = renames, modules, own
        self.shadows: list[set[str]] = []
        self.spots: list[tuple[int, int, str, str]] = []  # line, byte offset, old, new

    def add(self, node: ast.AST, old: str, offset: int = 0) -> None:
        self.spots.append((node.lineno, node.col_offset + offset, old, self.renames[old]))

    def is_shadowed(self, name: str) -> bool:
        return any(name in shadow for shadow in self.shadows)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self.renames and not self.is_shadowed(node.id):
            self.add(node, node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in self.modules and not self.is_shadowed(node.value.id):
            new = self.modules[node.value.id].get(node.attr)
            if new is not None:
                line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
                self.spots.append((line, end - len(node.attr.encode()), node.attr, new))
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        for name in node.names:
            if name in self.renames:
                warn(f"`global {name}` on line {node.lineno}: by hand")

    def _scope(self, node: ast.AST, bound: set[str]) -> None:
        self.shadows.append(bound & (self.renames.keys() | self.modules.keys()))
        for child in ast.iter_child_nodes(node):
            self.visit(child)
        self.shadows.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if not self.shadows and self.own and node.name in self.renames:
            self.spots.append((node.lineno, -1, node.name, self.renames[node.name]))
        for each in (*node.decorator_list, *node.args.defaults, *(d for d in node.args.kw_defaults if d)):
            self.visit(each)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        for each in arguments:
            if each is not None and each.annotation is not None:
                self.visit(each.annotation)
        if node.returns is not None:
            self.visit(node.returns)
        bound = {each.arg for each in arguments if each is not None} | stores(node.body)
        self.shadows.append(bound & (self.renames.keys() | self.modules.keys()))
        for each in node.body:
            self.visit(each)
        self.shadows.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        bound = {each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
        self._scope(node, bound)

    def _comprehension(self, node: ast.AST) -> None:
        bound = {
            each.id
            for generator in node.generators
            for each in ast.walk(generator.target)
            if isinstance(each, ast.Name)
        }
        self._scope(node, bound)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if not self.shadows and self.own and node.name in self.renames:
            self.spots.append((node.lineno, -1, node.name, self.renames[node.name]))
        for each in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(each)
        fields = stores([each for each in node.body if not isinstance(each, ast.FunctionDef)])
        fields |= {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        for each in node.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                # A method sees the module's names past its class; its own header sees the class's.
                inner, self.shadows = self.shadows, [*self.shadows, set()]
                self.visit(each)
                self.shadows = inner
            else:
                self.shadows.append(fields & self.renames.keys())
                self.visit(each)
                self.shadows.pop()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        table = BY_MODULE.get(node.module or "", {})
        for alias in node.names:
            if alias.name in table:
                self.spots.append((alias.lineno, alias.col_offset, alias.name, table[alias.name]))


def stores(body: list[ast.stmt]) -> set[str]:
    """Return the names that statements bind in their own scope; imports of what is renamed do not count."""
    found, waiting = set[str](), list[ast.AST](body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(node.id)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            table = BY_MODULE.get(getattr(node, "module", "") or "", {})
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names if alias.name not in table}
        if isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
        if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            found.add(node.name)
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        waiting += ast.iter_child_nodes(node)
    return found


BY_MODULE: dict[str, dict[str, str]] = {}


def rename_everywhere() -> None:
    for (module, old), new in NAMES.items():
        place = dotted(MODULES.get(module, module))
        BY_MODULE.setdefault(place, {})[old] = new
    passed_on()
    for file in tracked():
        if file.suffix == ".py" and (file.is_relative_to(ROOT / PACKAGE) or PACKAGE in file.read_text("utf-8")):
            rename_in(file)


def passed_on() -> None:
    """Let what a module imports be imported from it too, by its old name or its new one."""
    first = {place: dict(table) for place, table in BY_MODULE.items()}
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        own = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in first:
                names = {alias.name for alias in node.names if alias.asname is None}
                for old, new in first[node.module].items():
                    if old in names or new in names:
                        BY_MODULE.setdefault(own, {}).setdefault(old, new)


def check_imports() -> None:
    """Warn of each name that is imported from a module of the package which has none such."""
    bound: dict[str, set[str]] = {}
    for file in tracked():
        if file.suffix != ".py":
            continue
        text = file.read_text(encoding="utf-8")
        if PACKAGE not in text:
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] != PACKAGE:
                continue
            for alias in node.names:
                if node.module not in bound:
                    bound[node.module] = names_of(node.module)
                if alias.name not in bound[node.module]:
                    warn(f"{file.relative_to(ROOT)}:{node.lineno}: {node.module} has no {alias.name}")


def names_of(module: str) -> set[str]:
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return set()
    inner = {each.stem for each in path.iterdir()} if path.is_dir() else set()
    found = inner
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom | ast.Import):
            found |= {alias.asname or alias.name for alias in node.names}
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def rename_in(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    own = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    renames, modules, defined = {}, {}, False
    top = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for old, new in BY_MODULE.get(own, {}).items():
        if old in top:
            renames[old] = new
            defined = True
    imported = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in BY_MODULE:
            table = BY_MODULE[node.module]
            for alias in node.names:
                if alias.name in table:
                    imported.add(alias.name)
                    if alias.asname is None:
                        if renames.get(alias.name, table[alias.name]) != table[alias.name]:
                            warn(f"{own}: two things named {alias.name}: by hand")
                        renames[alias.name] = table[alias.name]
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                place = f"{node.module}.{alias.name}"
                if place in BY_MODULE:
                    modules[alias.asname or alias.name] = BY_MODULE[place]
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in BY_MODULE and alias.asname:
                    modules[alias.asname] = BY_MODULE[alias.name]
    if not renames and not modules and not imported and ">>> from placements" not in text:
        return
    bound_at_top = stores(tree.body) - (top if defined else set())
    for old in [*renames]:
        if old in bound_at_top:
            warn(f"{own}: {old} is bound twice at the top: left to a person")
    taken = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    taken |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for old, new in renames.items():
        if new in taken:
            warn(f"{file.relative_to(ROOT)}: {new} (was {old}) is in use there already")
    visitor = Names(renames, modules, defined)
    for node in tree.body:
        visitor.visit(node)
    changed = replaced(text, visitor.spots, file)
    changed = mentioned(changed, renames)
    changed = doctest_imports(changed)
    if changed != text:
        ast.parse(changed)
        file.write_text(changed, encoding="utf-8")


def replaced(text: str, spots: list[tuple[int, int, str, str]], file: Path) -> str:
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    for number, offset, old, new in sorted(set(spots), reverse=True):
        line, name = lines[number - 1], old.encode()
        if offset < 0:  # the header of a class or function
            match = re.search(rb"\b(?:class|def)\s+(" + name + rb")\b", line)
            if match is None:
                warn(f"{file}:{number}: no header of {old}")
                continue
            offset = match.start(1)
        if line[offset : offset + len(name)] != name:
            match = re.search(rb"(?<![\w.])" + name + rb"\b", line)  # a name inside an f-string
            if match is None:
                warn(f"{file.relative_to(ROOT)}:{number}: {old} was not there")
                continue
            offset = match.start()
        lines[number - 1] = line[:offset] + new.encode() + line[offset + len(name) :]
    return b"".join(lines).decode()


def mentioned(text: str, renames: dict[str, str]) -> str:
    """Rename in comments and strings: backticked names, doctests, `__all__`, annotations in quotes."""
    if not renames:
        return text
    names = "|".join(sorted(map(re.escape, renames), key=len, reverse=True))
    ticked = re.compile(rf"(?<=`)({names})(?=[`.(\[])")
    doctest = re.compile(rf"^(\s*(?:>>>|\.\.\.) .*)$", re.M)
    named = re.compile(rf"(?<![\w.])({names})\b(?=[(\[.])")
    out, places = [], []
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    everything = {a.value for node in ast.parse(text).body if is_all(node) for a in ast.walk(node) if isinstance(a, ast.Constant)}
    everything |= {text for text in type_strings(ast.parse(text)) if text[:1].isupper()}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (tokenize.STRING, tokenize.COMMENT):
            continue
        begin, end = starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1]
        new = ticked.sub(lambda m: renames[m[1]], token.string)
        camel = {k: v for k, v in renames.items() if k[:1].isupper() or len(k) > 3}
        new = doctest.sub(lambda m: named.sub(lambda n: camel.get(n[1], n[1]), m[1]), new)
        if ">>>" in new:
            new = re.sub(rf"^([ \t]*[\[({{]*)({names})(?=\()", lambda m: m[1] + renames[m[2]], new, flags=re.M)
        bare = token.string[1:-1]
        if bare in renames and bare in everything:
            new = f'"{renames[bare]}"'
        if new != token.string:
            places.append((begin, end, new))
    last = 0
    for begin, end, new in places:
        out += [text[last:begin], new]
        last = end
    return "".join([*out, text[last:]])


DOCTEST_IMPORT = re.compile(r"^(\s*>>> from )(placements[\w.]*)( import )([\w, ]+)$", re.M)


def doctest_imports(text: str) -> str:
    """Rename what doctests import, and where they use it."""
    renames = {
        name: BY_MODULE[match[2]][name]
        for match in DOCTEST_IMPORT.finditer(text)
        for name in match[4].split(", ")
        if name in BY_MODULE.get(match[2], {})
    }
    if not renames:
        return text
    used = re.compile(r"(?<![\w.'\"])(" + "|".join(map(re.escape, renames)) + r")\b")
    line = re.compile(r"^\s*(?:>>>|\.\.\.) .*$", re.M)
    return line.sub(lambda m: used.sub(lambda n: renames[n[1]], m[0]), text)


def type_strings(tree: ast.AST) -> set[str]:
    """Return types that are written as strings: bounds of type variables, first arguments of `cast`, annotations."""
    found = list[ast.AST | None]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "TypeVar":
                found += [each.value for each in node.keywords]
            if node.func.id == "cast":
                found += node.args[:1]
        if isinstance(node, ast.AnnAssign | ast.arg):
            found.append(node.annotation)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node.returns)
    return {node.value for node in found if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def is_all(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)


def rename_in_docs() -> None:
    """Say where documents name a class by its old name; prose is left to people."""
    camel = {old: new for (_, old), new in NAMES.items() if old[0].isupper()}
    pattern = re.compile("`(" + "|".join(sorted(camel, key=len, reverse=True)) + ")`")
    for file in tracked():
        if file.suffix == ".md":
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                for match in pattern.finditer(line):
                    warn(f"{file.relative_to(ROOT)}:{number}: names `{match[1]}`; is it {camel[match[1]]}?")


def wrap_long_lines() -> None:
    """Fill paragraphs of docstrings again where a longer name made a line too long."""
    for file in tracked():
        if file.suffix != ".py" or file.is_relative_to(ROOT / "tests" / "typing"):
            continue
        lines = file.read_text(encoding="utf-8").splitlines()
        if all(len(line) <= WIDTH for line in lines):
            continue
        try:
            prose = docstring_lines("\n".join(lines))
        except SyntaxError:
            continue
        changed, number = list[str](), 0
        while number < len(lines):
            line = lines[number]
            if len(line) <= WIDTH or number not in prose or line.lstrip().startswith(('"""', ">>>", "...")):
                changed.append(line)
                number += 1
                continue
            indent = line[: len(line) - len(line.lstrip())]
            paragraph = [line]
            while number + len(paragraph) in prose and is_same_paragraph(lines[number + len(paragraph)], indent):
                paragraph.append(lines[number + len(paragraph)])
            number += len(paragraph)
            words = " ".join(each.strip() for each in paragraph)
            changed += textwrap.wrap(words, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        file.write_text("\n".join(changed) + "\n", encoding="utf-8")


WIDTH = 120


def polish() -> None:
    """Put the literal texts of POLISH in place, where their old forms stand."""
    for name, pairs in POLISH.items():
        file = ROOT / name
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        changed = text
        for old, new in pairs:
            changed = changed.replace(old, new)
        if changed != text:
            file.write_text(changed, encoding="utf-8")


def docstring_lines(text: str) -> set[int]:
    """Return the lines, from 0, of docstrings, the ones of their closing quotes left out."""
    found = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found |= set(range(node.lineno - 1, (node.end_lineno or node.lineno) - 1))
    return found


def is_same_paragraph(line: str, indent: str) -> bool:
    return bool(line.strip()) and line.startswith(indent) and not line[len(indent) :].startswith((" ", "-", "*", ">>>"))


# ------------------------------------------------------------------------------------------------ all of it


def main() -> int:
    if not (ROOT / PACKAGE / "__init__.py").is_file():
        print(f"{ROOT} has no {PACKAGE}/", file=sys.stderr)
        return 2
    add_new_modules()
    tests = move_files()
    rewrite_module_imports()
    rewrite_texts(tests)
    rewrite_siblings()
    rename_everywhere()
    rename_in_docs()
    folders = [name for name in ("flowgraph", "nodes", "placements", "examples", "benchmarks", "tests") if (ROOT / name).exists()]
    subprocess.run(["ruff", "check", "--quiet", "--fix", "--select", "I,F401,RUF022", *folders], cwd=ROOT, check=False)
    subprocess.run(["ruff", "format", "--quiet", *folders], cwd=ROOT, check=False)
    wrap_long_lines()
    polish()
    check_imports()
    subprocess.run(["ruff", "check", "--output-format", "concise"], cwd=ROOT, check=False)
    for each in warnings:
        print(f"warning: {each}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
