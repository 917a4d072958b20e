"""The direction of imports, read from the sources: who may know whom."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from networkx import DiGraph, strongly_connected_components

from tests.architecture import readability
from tests.architecture.readability import is_type_checking

ROOT = Path(__file__).parents[2]
PACKAGES = ("flowgraph", "nodes", "placements", "examples")

# What each package may import of the others. Only `flowgraph.app` and `flowgraph.cli` know all three.
MAY_IMPORT = {
    "flowgraph": {"flowgraph"},
    "flowgraph.app": {"flowgraph", "nodes", "placements"},
    "flowgraph.cli": {"flowgraph", "nodes", "placements"},
    "nodes": {"flowgraph", "nodes"},
    "placements": {"flowgraph", "placements"},
    "examples": {"flowgraph", "nodes", "placements"},
}

# The rooms of flowgraph, lowest first: a module imports its own room and those before it, never a later one, and that
# holds for imports inside functions too. `app` is the public Python API, which the command line calls.
ROOMS = (
    *("errors", "files", "language", "cluster", "models", "engines", "analysis", "passes", "lowering", "checks"),
    *("serialize", "flows", "runtime", "diagrams", "app", "cli"),
)
FRONT = {"__init__", "__main__"}  # the front door names the language; the other one is the command line

# Plans and clusters are data: of ours they import errors and the reader of files only, of others pydantic only.
DATA = "cluster"
DATA_MAY_IMPORT = ("flowgraph.errors", "flowgraph.files.untrusted", "flowgraph.language.notebook", "flowgraph.cluster")

# What `nodes` may name of flowgraph, and what `placements` may: their public faces, not how a flow is described.
FACES = {
    "nodes": (
        *("", "language"),
        "files.untrusted",  # of `nodes.data.published`, which reads anyone's JSON
        "flows.entry_points",
        "errors",
        "language.graph",  # of `nodes.mismatch`, which adds a measurement to a graph
        "language.keys",
        "language.loss",
        "models",
        "models.hub",  # of `nodes.data.hub`, whose data sets come from the same hub
        *(
            "cluster.plan",
            "analysis.roles",
        ),  # of `nodes.interop`, which writes plans as other systems' commands and reads those
        "language.rows",
        "language.traits",
        "language.values",
        "language.handle",
    ),
    "placements": (
        *("", "language"),
        "errors",
        "checks.placed",
        *("cluster.calibration", "cluster.cluster"),
        "language.graph",
        "models",
        "models.hub",  # of `nodes.data.hub`, whose data sets come from the same hub
        "cluster.plan",
        "analysis.roles",
        "analysis.flat_graph",
        "language.values",
        "language.rows",
        "files.untrusted",  # a profile, which is anyone's file
        "lowering",
        *("lowering.lower", "lowering.pipeline_steps"),  # a forecast simulates the program
        *("checks.overlap", "checks.streaming"),  # the laws of steps that overlap and of chunks: every plan keeps them
        *("lowering.parts", "lowering.program", "lowering.project_columns"),
        *("lowering.task_names", "lowering.waits"),
        *(
            "diagrams.model.arrow_sizes",
            "diagrams.model.charts",
            "diagrams.model.series",
        ),  # pictures as data, and the words on them
        "diagrams.model.quantities",
        *("engines.capabilities", "engines.table"),
    ),
}

# Slow to import: 0.2 s (networkx) to 4 s (peft) each. They are imported inside the function that needs them.
HEAVY = {
    *("accelerate", "datasets", "gguf", "httpx", "huggingface_hub", "math_verify", "peft", "ray", "reasoning_gym"),
    *("safetensors", "sglang", "tokenizers", "torch", "transformers", "vllm"),
}

# What only an engine loads once it is asked for: these import torch at their top. Ray reads its token when it is
# imported, so it is imported late everywhere.
LOADED_BY_RUNS = tuple(
    f"flowgraph.engines.{each}." for each in ("local", "fsdp", "forward_pass", "model_state", "weight_sync")
)

# Budgets. They may only get tighter.
OURS_LATE_AT_MOST = 132  # commands load what they are asked for; 360 at first
LATE_AT_MOST = 308  # all of `flowgraph`, heavy libraries included; 632 at first


@dataclass(frozen=True)
class Import:
    """One imported module: where, what, and whether it happens when the file is imported."""

    file: Path
    line: int
    module: str
    names: tuple[str, ...]
    at_top: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: imports {self.module}"


@cache
def sources(*packages: str) -> list[Path]:
    """List the packages' Python files; a package that is not there yet has none."""
    return [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def imports(file: Path, *, types_too: bool = False) -> tuple[Import, ...]:
    """Return every import of a file; those for types only are left out unless asked for."""
    return tuple(_imports(file, types_too=types_too))


def tree_of(file: Path) -> ast.Module:
    """Return the syntax tree of a file; those of the packages are parsed once for all tests."""
    return _trees().get(file) or ast.parse(file.read_text(encoding="utf-8"))


@cache
def _trees() -> dict[Path, ast.Module]:
    return {module.path: module.tree for module in readability.sources().modules}


def _imports(file: Path, *, types_too: bool) -> Iterator[Import]:
    waiting: list[tuple[ast.AST, bool]] = [(tree_of(file), True)]
    while waiting:
        node, at_top = waiting.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, (), at_top)
        elif isinstance(node, ast.ImportFrom):
            yield Import(file, node.lineno, node.module or "", tuple(a.name for a in node.names), at_top)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        children = node.orelse if isinstance(node, ast.If) and is_type_checking(node) else ast.iter_child_nodes(node)
        waiting += [(child, at_top and not inside) for child in (ast.iter_child_nodes(node) if types_too else children)]


def modules_named(each: Import) -> set[str]:
    """Return the modules that an import names: `from a import b` names `a.b` where that is a module, else `a`."""
    inner = {name: f"{each.module}.{name}" for name in each.names if is_module(f"{each.module}.{name}")}
    return set(inner.values()) | ({each.module} if len(inner) < max(len(each.names), 1) else set())


@cache
def is_module(name: str) -> bool:
    """Return whether a dotted name is a module or a package of ours."""
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def module_of(file: Path) -> str:
    """Return the dotted name of a file of ours."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def owner(file: Path) -> str:
    """Return the key of MAY_IMPORT that a file falls under."""
    parts = file.relative_to(ROOT).parts
    room = {"cli": "cli", "__main__.py": "cli", "app": "app"}.get(parts[1]) if parts[0] == "flowgraph" else None
    return parts[0] if room is None else f"flowgraph.{room}"


def room_of(module: str) -> str:
    """Return the room of a module: `flowgraph.passes.name_nodes` is in `passes`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_packages_import_in_one_direction() -> None:
    breaches = [
        str(each)
        for file in sources(*PACKAGES)
        for each in imports(file, types_too=True)
        if (package := each.module.split(".")[0]) in PACKAGES and package not in MAY_IMPORT[owner(file)]
    ]
    assert breaches == []


def test_every_module_of_flowgraph_stands_in_a_room() -> None:
    outside = {room_of(module_of(file)) for file in sources("flowgraph")} - {*ROOMS, *FRONT}
    assert outside == set(), f"say in ROOMS ({Path(__file__).name}) where these stand, and who may import them"
    assert {path.name for path in (ROOT / "flowgraph").glob("*.py")} == {"__init__.py", "__main__.py"}


def test_rooms_import_no_room_above_them_inside_functions_either() -> None:
    breaches = [
        str(each)
        for file in sources("flowgraph")
        for each in imports(file)
        for module in modules_named(each)
        if module.split(".")[0] == "flowgraph" and room_of(module_of(file)) in ROOMS
        if module != "flowgraph" and ROOMS.index(room_of(module)) > ROOMS.index(room_of(module_of(file)))
    ]
    assert breaches == []


def test_plans_and_clusters_import_errors_and_pydantic_only() -> None:
    breaches = [
        str(each)
        for file in sources("flowgraph")
        if room_of(module_of(file)) == DATA
        for each in imports(file, types_too=True)
        if not each.module.startswith(DATA_MAY_IMPORT)
        and each.module.split(".")[0] not in {"pydantic", "psutil", *sys.stdlib_module_names}
    ]
    assert breaches == []


def test_nodes_and_placements_name_only_public_faces_of_flowgraph() -> None:
    breaches: list[str] = []
    for package, faces in FACES.items():
        allowed = {f"flowgraph.{face}".rstrip(".") for face in faces}
        for file in sources(package):
            ours = [each for each in imports(file, types_too=True) if each.module.split(".")[0] == "flowgraph"]
            breaches += [str(each) for each in ours if not modules_named(each) <= allowed]
    assert breaches == []


def test_examples_name_only_what_packages_export() -> None:
    breaches = [
        str(each)
        for file in sources("examples")
        for each in imports(file, types_too=True)
        if each.module.split(".")[0] in PACKAGES and "." in each.module
    ]
    assert breaches == []


def test_private_names_stay_in_their_package() -> None:
    breaches = [
        f"{each}: {name}"
        for file in sources(*PACKAGES)
        for each in imports(file, types_too=True)
        for name in (*each.names, *each.module.split("."))
        if name.startswith("_") and not name.startswith("__") and each.module.split(".")[0] in PACKAGES
        if not module_of(file).startswith(each.module.rpartition(".")[0] or each.module)
    ]
    assert breaches == []


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other."""
    found = strongly_connected_components(DiGraph([(one, other) for one, others in graph.items() for other in others]))
    return [sorted(each) for each in found if len(each) > 1]


def test_no_module_imports_itself_in_a_circle_inside_functions_either() -> None:
    ours = {module_of(file): file for file in sources("flowgraph", "nodes")}

    def needs(module: str) -> set[str]:
        return {name for each in imports(ours[module]) for name in modules_named(each)}

    assert circles({module: (needs(module) & ours.keys()) - {module} for module in ours}) == []


def test_few_imports_stand_inside_functions() -> None:
    late = [each for file in sources("flowgraph") for each in imports(file) if not each.at_top]
    ours = [each for each in late if each.module.split(".")[0] in PACKAGES]
    assert len(ours) <= OURS_LATE_AT_MOST
    assert len(late) <= LATE_AT_MOST


def test_heavy_libraries_are_imported_inside_functions() -> None:
    breaches = [
        str(each)
        for file in sources(*PACKAGES)
        for each in imports(file)
        if each.at_top and each.module.split(".")[0] in HEAVY
        if not f"{module_of(file)}.".startswith(LOADED_BY_RUNS)
    ]
    assert breaches == []


def test_every_library_imported_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for name, lines in project["optional-dependencies"].items() if name != "dev" for line in lines]
    declared = {line.split(">")[0].split("[")[0].replace("-", "_") for line in [*project["dependencies"], *extras]}
    through = {"huggingface_hub", "yaml"}  # comes with transformers, whose hub client it is; pyyaml's module
    there = ROOT / "flowgraph" / "engines"  # what runs in an engine's own environment, with the engine's packages
    known = {*declared, *through, *PACKAGES, *sys.stdlib_module_names}
    breaches = [
        str(each)
        for file in sources(*PACKAGES)
        for each in imports(file, types_too=True)
        if each.module.split(".")[0] not in known and not file.is_relative_to(there)
    ]
    assert breaches == []
