"""Write what is generated in these pages: the reference, the algorithms, every output block, and the pictures.

Run it from anywhere: `python docs/generate.py`. A test runs the same and compares. Not here: how a page is run
(`pages.py`); what is known of each shipped flow (`flows.py`); what the pages say (`templates/`).
"""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import re
import sys
import tempfile
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS)]

import flows  # noqa: E402 - the checkout is what is written about, installed or not
import jinja2  # noqa: E402
import staleness  # noqa: E402
from pages import Page  # noqa: E402

from benchmarks.curves import EVERY, HELD_OUT  # noqa: E402
from flowgraph import errors  # noqa: E402
from flowgraph.checks.table import LAWS  # noqa: E402
from flowgraph.errors.exit_codes import MEANINGS  # noqa: E402
from flowgraph.language import op_of  # noqa: E402
from flowgraph.language.graph import Op, Port  # noqa: E402
from flowgraph.language.values import Kind, Linear, Model, Record, State, Value, fields  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "errors"
FLOW_IMPORTS = "from __future__ import annotations\nfrom flowgraph import *\nfrom nodes import *\n"
KINDS = {
    "generate": "Generate",
    "score": "Score",
    "logprob": "Log-prob",
    "advantage": "Advantage",
    "update": "Update",
    "host": "Host: losses, arithmetic, and the rest",
}
EXAMPLES_AT_MOST = 4
LONG = 200  # characters of a text's first line, beyond which another example is preferred


def pages() -> list[Page]:
    """Return the pages whose blocks run; the README and those of algorithms show flows without their imports."""
    written = [path for path in sorted(DOCS.rglob("*.md")) if DOCS / "reference" not in path.parents]
    bare = [Page(path, FLOW_IMPORTS if DOCS / "algorithms" in path.parents else "") for path in written]
    return [Page(ROOT / "README.md", FLOW_IMPORTS), *bare]


def generated() -> dict[str, str]:
    """Return the text of every generated file, by its path under `docs`."""
    told = {f"reference/{name}": text for name, text in reference().items()}
    return told | {f"algorithms/{name}": text for name, text in algorithms().items()}


def reference() -> dict[str, str]:
    """Return the text of every generated page, by its path under `docs/reference`."""
    told = {"nodes.md": nodes_page(), "values.md": values_page(), "laws.md": laws_page()}
    return told | {f"errors/{name}": text for name, text in error_pages().items()}


def algorithms() -> dict[str, str]:
    """Return a page and the curves of each shipped flow, and their index, by path under `docs/algorithms`."""
    told = flows.pages_told()
    index = rendered(
        "algorithms.md.j2",
        flows=told,
        degenerate=flows.degenerate(sorted(flows.words()["node"])),
    )
    pages = {f"{each['name']}.md": rendered("algorithm.md.j2", **each) for each in told}
    rows = staleness.staleness_rows()
    aged = {
        "staleness.md": rendered("staleness.md.j2", rows=rows, every=EVERY, held_out=HELD_OUT),
        "curves/staleness.svg": staleness.staleness_svg(rows),
    }
    curves = {f"curves/{name}": svg for name, svg in flows.curve_pictures().items()}
    return {"README.md": index} | pages | curves | aged


def rendered(template: str, **told: Any) -> str:
    """Fill a template of `docs/templates`."""
    loader = jinja2.FileSystemLoader(DOCS / "templates")
    environment = jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"first": first_line, "type": type_text, "plain": plain}
    text = environment.get_template(template).render(**told)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def modules(package: str) -> Iterator[types.ModuleType]:
    """Import every module of a package of ours, in order of name."""
    top = importlib.import_module(package)
    yield top
    for found in sorted(pkgutil.walk_packages(top.__path__, f"{package}."), key=lambda each: each.name):
        yield importlib.import_module(found.name)


# ------------------------------------------------------------------------------------------------------------- nodes


def nodes_page() -> str:
    """List every shipped node by kind: ports, settings, result, traits, metrics, docstring, source."""
    ops = dict.fromkeys(
        op for module in (*modules("nodes"), _module("flowgraph.language.arithmetic")) for op in ops_of(module)
    )
    kinds = {title: [node_told(op) for op in ops if op.kind == kind] for kind, title in KINDS.items()}
    return rendered("nodes.md.j2", kinds={title: told for title, told in kinds.items() if told})


def _module(name: str) -> types.ModuleType:
    return importlib.import_module(name)


def ops_of(module: types.ModuleType) -> list[Op]:
    """Return the ops of the nodes that a module defines, in its order."""
    found = [op for name, each in vars(module).items() if callable(each) and not name.startswith("_")
             if (op := op_of(each)) is not None]  # fmt: skip
    return [op for op in found if op.module == module.__name__]


def node_told(op: Op) -> dict[str, Any]:
    """Return what the page says of one node."""
    positional = [
        name for name, each in inspect.signature(op.body).parameters.items() if each.kind is not each.KEYWORD_ONLY
    ]
    return {
        "op": op,
        "call": call_text(op, positional),
        "ports": [{"port": port, "by": port.name in positional, "type": port_type(port), "says": list(port_says(port))}
                  for port in op.ports],
        "settings": [setting_told(name, each) for name, each in op.settings.model_fields.items()],
        "traits": list(traits_of(op)),
        "doc": inspect.getdoc(op.body) or "",
        "source": Path(str(_module(op.module).__file__)).relative_to(ROOT).as_posix(),
    }  # fmt: skip


def call_text(op: Op, positional: list[str]) -> str:
    """Write the call as an editor shows it, the key left out.

    >>> from nodes import kl_k2
    >>> call_text(op_of(kl_k2), ["new", "mask"])
    "kl_k2(new: LogProbs, mask: Mask, *, ref: LogProbs, aggregation: Aggregation | float = 'token-mean') -> Loss"
    """
    first = [f"{port.name}: {port_type(port)}" for port in op.ports if port.name in positional]
    rest = [f"{port.name}: {port_type(port)}{' = None' if port.optional else ''}"
            for port in op.ports if port.name not in positional]  # fmt: skip
    for name, each in op.settings.model_fields.items():
        rest.append(
            f"{name}: {type_text(each.annotation)}{'' if each.is_required() else f' = {default(each.default)}'}"
        )
    inside = [*first, *(["*", *rest] if rest else [])]
    gives = ", ".join(type_text(each) for each in op.returns)
    gives = f"tuple[{gives}]" if len(op.returns) > 1 else gives
    line = f"{op.name}({', '.join(inside)}) -> {gives}"
    return (
        line if len(line) <= 120 else "\n".join([f"{op.name}(", *(f"    {each}," for each in inside), f") -> {gives}"])
    )


def port_type(port: Port) -> str:
    """Name what a port takes."""
    name = type_text(port.type)
    if port.region and port.region_returns is not None:
        return f"Callable[[{name}], {port.region_returns.__name__}]"
    return f"{name} | None" if port.optional else name


def port_says(port: Port) -> Iterator[str]:
    """Yield what an annotation says of a port beyond its type."""
    if port.region:
        yield "a region: runs again for each micro-batch"
    if port.parts:
        yield f"reads {', '.join(port.parts)}"
    if port.by is not None:
        yield f"computed by the {port.by.value} model"
    if port.other_rows:
        yield "may have other rows"
    if port.corrects is not None:
        yield "corrects for the weights that sampled the rows" + (f", on `{port.corrects}`" if port.corrects else "")


def traits_of(op: Op) -> Iterator[str]:
    """Yield in words what passes and laws read of an op."""
    if op.key is not None:
        yield "uses random numbers: two equal calls are two samples"
    elif not op.pure and op.carries is None:
        yield "has side effects: it is never merged with an equal call"
    if op.carries is not None:
        yield f"returns the next version of `{op.carries}`"
    if op.stat is not None:
        yield f"reads `{op.stat}` from a forward pass, which it shares with other nodes on the same model and rows"
    if op.rows != "kept":
        words = {"new": "returns its own rows, with their ids", "reordered": "returns its rows in another order"}
        yield words[op.rows]
    if not op.separable:
        yield "reads all rows of the batch together, so it is not split over ranks"
    if op.on_policy:
        yield "needs rows that the newest weights sampled"
    if op.hands_out:
        yield "hands out groups as they finish, if the plan says so"


def setting_told(name: str, each: Any) -> dict[str, str]:
    """Return a setting's name, type, range and default."""
    return {
        "name": name,
        "type": type_text(each.annotation),
        "range": range_text(each.annotation, each.metadata),
        "default": "required" if each.is_required() else f"`{default(each.default)}`",
    }


def default(value: object) -> str:
    """Write a default as in Python, an enum's member as its value."""
    return repr(value.value) if isinstance(value, enum.Enum) else repr(value)


def range_text(annotation: Any, metadata: list[Any]) -> str:
    """Return what values a setting may have.

    >>> from annotated_types import Ge, Lt
    >>> range_text(float, [Ge(0), Lt(1)]), range_text(bool, [])
    ('≥ 0, < 1', '')
    """
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    said = [f"{sign} {getattr(each, name)}" for each in metadata for name, sign in signs.items() if hasattr(each, name)]
    said += ["finite" for each in metadata if getattr(each, "allow_inf_nan", None) is False]
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        said.append(", ".join(f"`{each.value}`" for each in annotation))
    return ", ".join(said)


def type_text(hint: Any) -> str:
    """Write a type as a person does.

    >>> type_text(float | None), type_text(typing.Literal["a", "b"] | int), type_text(list[Value])
    ('float | None', '"a" | "b" | int', 'list[Value]')
    >>> type_text(tuple[typing.Annotated[float, "finite"], ...])
    'tuple[float, ...]'
    """
    bound = getattr(hint, "__bound__", None) if isinstance(hint, typing.TypeVar) else None
    inside = typing.get_args(hint)
    if bound is not None:
        return str(bound.__name__)
    if hint in (None, type(None)):
        return "None"
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(f'"{each}"' if isinstance(each, str) else repr(each) for each in inside)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " | ".join(type_text(each) for each in inside)
    if typing.get_origin(hint) is typing.Annotated:
        return type_text(inside[0])
    if typing.get_origin(hint) is tuple:
        return f"tuple[{', '.join('...' if each is ... else type_text(each) for each in inside)}]"
    if inside:
        return re.sub(r"[\w.]+\.(?=\w)", "", str(hint))
    return str(getattr(hint, "__name__", hint))


# ------------------------------------------------------------------------------------------------------------ values


def values_page() -> str:
    """List every shipped value type: kind, dtype, what it is, and the parts of records."""
    ours = (_module("flowgraph.language.values"), _module("flowgraph.language.loss"), *modules("nodes"))
    found = dict.fromkeys(each for module in ours for each in vars(module).values() if is_value(each, module))
    bases = (Value, Linear, Record, State, Model)
    told = [value_told(kind) for kind in found if kind not in bases]
    order = {kind.value: [each for each in told if each["kind"] == kind.value] for kind in Kind}
    return rendered("values.md.j2", kinds=order, bases=[value_told(kind) for kind in bases])


def is_value(kind: object, module: types.ModuleType) -> bool:
    """Return whether this is a public class of values that the module defines."""
    is_class = isinstance(kind, type) and issubclass(kind, Value)
    return is_class and kind.__module__ == module.__name__ and not kind.__name__.startswith("_")


def value_told(kind: type[Value]) -> dict[str, Any]:
    """Return what the page says of one type."""
    record = issubclass(kind, Record) and kind is not Record
    return {
        "name": kind.__name__,
        "kind": kind.kind.value,
        "dtype": kind.dtype,
        "bases": ", ".join(base.__name__ for base in kind.__bases__ if base is not object),
        "doc": (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " "),
        "parts": {name: part.__name__ for name, part in fields(kind).items()} if record else {},
        "module": imported_from(kind),
    }


def imported_from(kind: type[Value]) -> str:
    """Name the module to import a type from: the package that offers it, else where it is defined.

    >>> from nodes import Rollout
    >>> imported_from(Rollout), imported_from(Record), imported_from(fields(Rollout)["group"])
    ('nodes', 'flowgraph', 'flowgraph.language.values')
    """
    package, name = kind.__module__.partition(".")[0], kind.__name__
    return package if name in _module(package).__all__ else kind.__module__


# -------------------------------------------------------------------------------------------------------------- laws


def laws_page() -> str:
    """List the laws by the stage that each is about, with what holds it and what that says of itself."""
    return rendered("laws.md.j2", stages=LAWS)


# ------------------------------------------------------------------------------------------------------------ errors


def error_pages() -> dict[str, str]:
    """Return a page for each class of errors, and their index, from the golden texts and `templates/errors.toml`."""
    made_by: dict[str, list[str]] = {}
    for line in (GOLDEN / "index.txt").read_text(encoding="utf-8").splitlines():
        path, _, name = line.partition(" ")
        made_by.setdefault(name, []).append(path)
    said = tomllib.loads((DOCS / "templates" / "errors.toml").read_text(encoding="utf-8"))
    kinds = [kind for name in errors.__all__ if is_error(kind := getattr(errors, name))]
    told = [error_told(kind, made_by, said.get(kind.__name__, {})) for kind in kinds]
    pages = {f"{each['name']}.md": rendered("error.md.j2", **each) for each in told}
    return pages | {"README.md": rendered("errors.md.j2", kinds=told, doc=inspect.getdoc(errors), codes=MEANINGS)}


def is_error(kind: object) -> bool:
    """Return whether this is a class of errors that a user can meet."""
    return isinstance(kind, type) and issubclass(kind, errors.FlowError) and kind is not errors.FlowError


def error_told(
    kind: type[errors.FlowError], made_by: Mapping[str, list[str]], said: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a page says of one class: each constructor, and last what is raised without one."""
    built = [name for name, each in vars(kind).items() if isinstance(each, classmethod)]
    cases = [case_told(name, made_by.get(f"{kind.__name__}.{name}", []), said[name]) for name in built]
    if kind.__name__ in made_by:
        cases.append(case_told("", made_by[kind.__name__], said))
    standard = [base.__name__ for base in kind.__mro__ if base.__module__ == "builtins"][:1]
    return {
        "name": kind.__name__,
        "doc": inspect.getdoc(kind) or "",
        "standard": standard[0],
        "exit_code": kind.exit_code,
        "cases": cases,
    }


def case_told(name: str, paths: list[str], said: Mapping[str, str]) -> dict[str, Any]:
    """Return what a page says of one constructor, or of what is raised without one; those with a hint come first."""
    texts = dict.fromkeys((GOLDEN / f"{path}.txt").read_text(encoding="utf-8").rstrip("\n") for path in paths)
    chosen = sorted(texts, key=lambda text: (len(text.partition("\n")[0]) > LONG, "\n" not in text))
    shown = chosen[: EXAMPLES_AT_MOST if name else None]
    told = {"name": name, "when": said["when"], "do": said["do"]}
    return told | {"examples": shown, "more": len(chosen) - len(shown)}


# ------------------------------------------------------------------------------------------------------------- words


def first_line(text: str) -> str:
    """Return the first line of a docstring."""
    return text.partition("\n")[0]


def plain(text: str) -> str:
    """Make a cell of a table of a text: no bar, no line break."""
    return text.replace("|", "\\|").replace("\n", " ")


def main() -> None:
    """Write what is generated, then run the pages and write what they print; say which files changed."""
    wanted = {DOCS / name: text for name, text in generated().items()}
    for path in there():
        if path not in wanted:
            path.unlink()
    _write(wanted)
    for page in pages():
        with tempfile.TemporaryDirectory() as folder:
            _write({page.path: page.rewritten(Path(folder))} | pictures_of(page, Path(folder)))


def there() -> list[Path]:
    """Return the generated files that are there now."""
    found = [path for name in ("reference", "algorithms") for path in (DOCS / name).rglob("*")]
    return sorted(path for path in found if path.suffix in (".md", ".svg"))


def pictures_of(page: Page, folder: Path) -> dict[Path, str]:
    """Return the pictures that the commands of `diagrams.md` have drawn in a folder, by where they are shown from."""
    drawn = folder.glob("*.svg") if page.path == DOCS / "diagrams.md" else ()
    return {DOCS / "pictures" / path.name: path.read_text(encoding="utf-8") for path in drawn}


def _write(wanted: Mapping[Path, str]) -> None:
    for path, text in wanted.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
