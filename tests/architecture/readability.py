"""How the packages read, in figures: imports, names, docstrings and prose.

`python -m tests.architecture.readability [FOLDER]` prints the figures of this checkout, or of another one beside it;
`test_readability.py` holds limits that may only shrink.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parents[2]
PACKAGES = ("flowgraph", "nodes", "placements")
FILLERS = frozenset(
    re.findall(
        r"\w+",
        """each found told there here own made said kept held done taken given most least more other others one both
        beside apart late whole asked wanted known deep near far alone drawn shown sought posed lent""",
    )
)
"""Identifiers that say nothing about what they hold."""

OLD_PHRASES = re.compile(
    r"\b(is no (?!longer|more)\w+|are no (?!longer|more)\w+|what (draws|trains|reads|runs|writes|samples)|so many"
    r"|told of|of which|are told|is told)\b"
)
"""Phrases of the project's first prose, which readers had to translate."""

RETURN_VERBS = ("Give", "Gives", "Say", "Says")
"""First words of docstrings that do not say what a function returns or does."""


@dataclass(frozen=True)
class Module:
    """One source file: its path, its dotted name, its text and its syntax tree."""

    path: Path
    name: str
    text: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Return the nodes of the tree, in the order of `ast.walk`."""
        return tuple(ast.walk(self.tree))

    @property
    def room(self) -> str:
        """Return the package and its folder, or the package for a file at its top."""
        return ".".join(self.name.split(".")[:2])


class Sources:
    """The source files of a checkout, with the figures of how they read."""

    def __init__(self, root: Path = ROOT) -> None:
        """Read every Python file of the three packages under `root`."""
        self.root = root
        self.modules = tuple(_modules(root))

    @cached_property
    def imports(self) -> nx.DiGraph[str]:
        """Return which module imports which, imports inside functions included, those for type checkers left out."""
        graph: nx.DiGraph[str] = nx.DiGraph()
        names = {module.name for module in self.modules}
        graph.add_nodes_from(names)
        for module in self.modules:
            graph.add_edges_from((module.name, name) for name, _ in _imports(module, names) if name != module.name)
        return graph

    @cached_property
    def cycles(self) -> list[list[str]]:
        """Return the groups of modules that import each other, the largest first."""
        groups = (sorted(group) for group in nx.strongly_connected_components(self.imports) if len(group) > 1)
        return sorted(groups, key=len, reverse=True)

    @property
    def late_imports(self) -> int:
        """Count the imports of the project's own modules inside functions."""
        names = {module.name for module in self.modules}
        return sum(inside for module in self.modules for _, inside in _imports(module, names))

    def floors(self, package: str) -> int:
        """Return the length of the longest chain of imports between rooms of a package, a cycle counted as one."""
        rooms = self._rooms(package)
        condensed = nx.condensation(rooms)
        return int(nx.dag_longest_path_length(condensed)) + 1 if len(condensed) else 0

    def arrows(self, package: str) -> int:
        """Count the pairs of rooms of a package of which one imports the other."""
        return int(self._rooms(package).number_of_edges())

    def _rooms(self, package: str) -> nx.DiGraph[str]:
        graph: nx.DiGraph[str] = nx.DiGraph()
        room = {module.name: module.room for module in self.modules}
        for one, other in self.imports.edges:
            if one.startswith(package + ".") and other.startswith(package + ".") and room[one] != room[other]:
                graph.add_edge(room[one], room[other])
        return graph

    @cached_property
    def classes(self) -> Counter[str]:
        """Return how many classes have each name."""
        return Counter(node.name for module in self.modules for node in module.nodes if isinstance(node, ast.ClassDef))

    @property
    def shared_class_names(self) -> float:
        """Return the share of classes whose name another class has too."""
        shared = sum(count for count in self.classes.values() if count > 1)
        return shared / max(1, self.classes.total())

    @property
    def filler_identifiers(self) -> float:
        """Return the share of assigned names and parameters that say nothing."""
        bound = Counter(name for module in self.modules for name in _bound(module))
        return sum(bound[name] for name in FILLERS) / max(1, bound.total())

    @property
    def private_functions_used_once(self) -> float:
        """Return the share of functions that are private and called in one place of their file."""
        functions, once = 0, 0
        for module in self.modules:
            used = Counter(_used(module))
            for function in _functions(module):
                functions += 1
                name = function.name
                once += name.startswith("_") and not name.startswith("__") and used[name] == 1
        return once / max(1, functions)

    @property
    def vague_docstrings(self) -> float:
        """Return the share of functions' docstrings that begin with "Give" or "Say"."""
        texts = [ast.get_docstring(each) for module in self.modules for each in _functions(module)]
        first = [text.split()[0] for text in texts if text]
        return sum(word in RETURN_VERBS for word in first) / max(1, len(first))

    @property
    def old_phrases(self) -> int:
        """Count the phrases of the project's first prose."""
        return sum(len(OLD_PHRASES.findall(module.text)) for module in self.modules)

    @property
    def lines(self) -> int:
        """Count the lines of source."""
        return sum(module.text.count("\n") for module in self.modules)

    @property
    def code_lines(self) -> int:
        """Count the lines outside docstrings and the folders of engines: a new engine changes nothing elsewhere."""
        engines = tuple(
            f"{module.name}."
            for module in self.modules
            if any(isinstance(node, ast.Assign) and _assigns(node, "ENGINE") for node in module.tree.body)
        )
        shared = [module for module in self.modules if not f"{module.name}.".startswith(engines)]
        return sum(module.text.count("\n") - _docstring_lines(module) for module in shared)

    @property
    def public_names(self) -> int:
        """Count what `flowgraph` exports."""
        front = next(module for module in self.modules if module.name == "flowgraph")
        lists = (node.value for node in front.tree.body if isinstance(node, ast.Assign) and _assigns(node, "__all__"))
        return sum(len(each.elts) for each in lists if isinstance(each, ast.List | ast.Tuple))

    @property
    def planner_names(self) -> int:
        """Count the names that the command line and the application import from `placements`."""
        found = set[tuple[str, str]]()
        for module in self.modules:
            if module.room in ("flowgraph.cli", "flowgraph.app"):
                found |= {(node.module or "", alias.name) for node, alias in _from_placements(module.tree)}
        return len(found)

    def table(self) -> Mapping[str, str]:
        """Return each figure by what it is, as text."""
        return {
            "planners, memory models, tables of engines": ", ".join(map(str, self.second_ways)),
            "lines of source": f"{self.lines:,}",
            "files": f"{len(self.modules)}",
            "modules in import cycles": ", ".join(str(len(each)) for each in self.cycles) or "none",
            "late imports of our own": f"{self.late_imports}",
            "floors, arrows of rooms of placements": f"{self.floors('placements')}, {self.arrows('placements')}",
            "floors, arrows of rooms of flowgraph": f"{self.floors('flowgraph')}, {self.arrows('flowgraph')}",
            "classes that share a name": f"{self.shared_class_names:.1%}",
            "filler words as identifiers": f"{self.filler_identifiers:.1%}",
            "private functions used once": f"{self.private_functions_used_once:.1%}",
            "docstrings that begin with Give or Say": f"{self.vague_docstrings:.1%}",
            "phrases of the first prose": f"{self.old_phrases}",
            "public names of flowgraph": f"{self.public_names}",
            "names that the command line imports from placements": f"{self.planner_names}",
            "lines of golden files": f"{self.golden_lines:,}",
        }

    @property
    def second_ways(self) -> tuple[int, int, int]:
        """Count the modules that make plans, those of the planner that make a plan's peaks, and tables of engines.

        Names of the first house are read too, so that both can be compared.
        """
        planner = [module for module in self.modules if module.name.startswith("placements.")]
        return (
            sum(_calls(module, {"Plan"}) for module in planner),
            sum(_calls(module, {"Peak", "PhasePeak"}) for module in planner),
            sum(_engine_tables(module.tree) for module in self.modules),
        )

    @property
    def golden_lines(self) -> int:
        """Count the lines of golden files."""
        files = (path for path in (self.root / "tests" / "golden").rglob("*") if path.is_file())
        return sum(path.read_bytes().count(b"\n") for path in files)


@cache
def sources() -> Sources:
    """Return the sources of this checkout, parsed once for all tests of a process."""
    return Sources()


def _modules(root: Path) -> Iterator[Module]:
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            text = path.read_text("utf-8")
            yield Module(path=path, name=name, text=text, tree=ast.parse(text))


def _imports(module: Module, names: set[str]) -> Iterator[tuple[str, bool]]:
    """Yield each of `names` that a module imports, and whether it does so inside a function."""
    waiting: list[tuple[ast.AST, bool]] = [(module.tree, False)]
    while waiting:
        node, inside = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if is_type_checking(child):
                continue
            for target in _targets(child):
                parent = target.rpartition(".")[0]
                if target in names or parent in names:
                    yield (target if target in names else parent), inside
            waiting.append((child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)))


def is_type_checking(node: ast.AST) -> bool:
    """Return whether a node is `if TYPE_CHECKING:`, whose imports never happen."""
    test = getattr(node, "test", None) if isinstance(node, ast.If) else None
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


def _targets(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def _from_placements(tree: ast.AST) -> Iterator[tuple[ast.ImportFrom, ast.alias]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "placements":
            yield from ((node, alias) for alias in node.names)


def _docstring_lines(module: Module) -> int:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    owners = (node for node in (module.tree, *module.nodes) if isinstance(node, documented))
    texts = {owner.body[0] for owner in owners if ast.get_docstring(owner, clean=False) is not None}
    return sum((text.end_lineno or text.lineno) - text.lineno + 1 for text in texts)


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def _calls(module: Module, names: set[str]) -> bool:
    """Return whether a module calls one of `names`."""
    calls = (node.func for node in module.nodes if isinstance(node, ast.Call))
    return any(isinstance(function, ast.Name) and function.id in names for function in calls)


def _engine_tables(tree: ast.Module) -> int:
    """Count the tables of what engines can do, by the types of a module's constants."""
    types = (ast.unparse(node.annotation) for node in tree.body if isinstance(node, ast.AnnAssign))
    return sum(re.fullmatch(r"\w+\[str, (Offer|EngineCapabilities)\]", text) is not None for text in types)


def _bound(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _used(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def _functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in module.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def main() -> int:
    """Print the figures of this checkout, and beside them those of another one if its folder is named."""
    tables = [Sources(Path(folder)).table() for folder in sys.argv[1:]] + [Sources().table()]
    for name in tables[-1]:
        print(f"{name:55}" + "".join(f"{table[name]:>22}" for table in tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
