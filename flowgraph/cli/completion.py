"""Shell completion of options and arguments, without importing a flow or torch.

Only names of plain characters are offered, because the scripts of some shells evaluate their input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from glob import escape
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

FILES_AT_MOST = 200  # read or listed for one completion
READ_BYTES = 2**16  # of a file that may hold a flow
DATA_SETS = (
    *("digits", "digits:copy", "digits:max", "digits:sort", "digits:reverse", "addition", "rg/"),
    *("gsm8k", "math", "aime", "apps", "codecontests", "hh"),
)
PLACEMENTS = ("colocated", "hybrid", "split", "standalone")
VARIANTS = (
    "colocated:deepspeed-chat",
    "hybrid:verl",
    "split:openrlhf",
    "split:nemo-aligner",
    "standalone:each-role",
    "standalone:hybridflow",
)
CLUSTERS = ("laptop", "1xcpu", "2xcpu")

Completer = Callable[[str], list[str]]

_PLAIN = re.compile(r"[\w./:@%+,=-]+")
_DEVICES = re.compile(r"((?:\d+x){1,2})[a-z]?[\w.-]*")


def _offered(names: Iterator[str], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete) and _PLAIN.fullmatch(name)]


def _merged(*offers: list[str]) -> list[str]:
    names = dict.fromkeys(name for offer in offers for name in offer)
    return [name for name in names if not (name.endswith("/") and name[:-1] in names)]


def one_of(*names: str) -> Completer:
    """Return a completer: a function that returns those of `names` that begin with its argument, an incomplete text.

    >>> one_of("local", "ray")("l")
    ['local']
    """
    return lambda incomplete: _offered(iter(names), incomplete)


def _paths(incomplete: str, fits: Callable[[Path], bool]) -> Iterator[str]:
    """Yield the paths that begin with an incomplete one and fit, and the folders that may hold more of them."""
    folder, _, name = incomplete.rpartition("/")
    base = f"{folder}/" if incomplete.startswith("/") or folder else ""
    try:
        paths = sorted(Path(base or ".").glob(f"{escape(name)}*"))
    except (OSError, ValueError):
        return
    for path in islice(paths, FILES_AT_MOST):
        if path.name.startswith(".") and not name.startswith("."):
            continue
        if fits(path):
            yield f"{base}{path.name}"
        elif path.is_dir() and not path.name.startswith("_"):
            yield f"{base}{path.name}/"


def named_flows(incomplete: str) -> list[str]:
    """Return the names of shipped and installed flows that begin with `incomplete`."""
    from flowgraph.files.shipped import flows_folder
    from flowgraph.flows.entry_points import names

    shipped = sorted(path.stem for path in flows_folder().glob("[!_]*.py"))
    return _offered(iter([*shipped, *names("flowgraph.flows")]), incomplete)


def flows(incomplete: str) -> list[str]:
    """Return the names of flows, then the Python files with `@flow` in the first 64 KiB, that begin with `incomplete`.

    Folders, which may hold such files, are returned too, with a slash at their end.
    """

    def has_flow(path: Path) -> bool:
        if path.suffix != ".py" or not path.is_file():
            return False
        try:
            with path.open("rb") as file:
                return b"@flow" in file.read(READ_BYTES)
        except OSError:
            return False

    return [*named_flows(incomplete), *_offered(_paths(incomplete, has_flow), incomplete)]


def plans(incomplete: str) -> list[str]:
    """Return the JSON files and the folders that begin with `incomplete`; files are not read, and may not be plans."""
    return _offered(_paths(incomplete, lambda path: path.suffix == ".json"), incomplete)


def flows_and_plans(incomplete: str) -> list[str]:
    """Return the flows and plan files that begin with `incomplete`: arguments of `check`."""
    return _merged(flows(incomplete), plans(incomplete))


def runs(incomplete: str) -> list[str]:
    """Return the run folders and other folders that begin with `incomplete`; those in the folder `runs` come first."""

    def is_run(path: Path) -> bool:
        return (path / "run.json").is_file()

    inner = [] if "/" in incomplete else list(_paths("runs/", is_run))
    return _offered(iter([*inner, *_paths(incomplete, is_run)]), incomplete)


def models(incomplete: str) -> list[str]:
    """Return the built-in models, the models of the shipped table and the folders that begin with `incomplete`.

    In a text `PARAM=MODEL`, only the model is completed. Models of the table are offered only after the first letter.
    """
    from flowgraph.models.sources import BUILT_IN
    from flowgraph.models.table import table

    param, equals, text = incomplete.rpartition("=") if "+lora=" not in incomplete else ("", "", incomplete)
    hub = sorted((model.name for model in table().values()), key=str.casefold) if text else []
    folders = _paths(text, lambda path: (path / "config.json").is_file())
    return _offered((f"{param}{equals}{name}" for name in [*BUILT_IN, *hub, *folders]), incomplete)


def models_and_runs(incomplete: str) -> list[str]:
    """Return the runs and models that begin with `incomplete`: arguments of `eval` and `generate`."""
    return _merged(runs(incomplete), models(incomplete))


def draw_targets(incomplete: str) -> list[str]:
    """Return the flows, plans and runs that begin with `incomplete`: arguments of `draw` and `diff`."""
    return _merged(flows_and_plans(incomplete), runs(incomplete))


def placements(incomplete: str) -> list[str]:
    """Return the named placements that begin with `incomplete`, or their variants if `incomplete` has a colon."""
    return _offered(iter(VARIANTS if ":" in incomplete else PLACEMENTS), incomplete)


def clusters(incomplete: str) -> list[str]:
    """Return the short forms of small clusters, the TOML files and the folders that begin with `incomplete`.

    After a number of devices, such as `8x`, device models are offered too.
    """
    counts = _DEVICES.fullmatch(incomplete)
    spec = find_spec("placements")
    folders = list(spec.submodule_search_locations or ()) if counts and spec is not None else []
    devices = sorted(path.stem for folder in folders for path in Path(folder, "hardware", "devices").glob("*.toml"))
    sized = [f"{counts[1]}{name}" for name in ("cpu", *devices)] if counts else []
    return _offered(iter([*CLUSTERS, *sized, *_paths(incomplete, lambda path: path.suffix == ".toml")]), incomplete)


def data(incomplete: str) -> list[str]:
    """Return the known data sets, the .parquet, .jsonl and .json files and the folders that begin with `incomplete`."""
    files = _paths(incomplete, lambda path: path.suffix in (".parquet", ".jsonl", ".json"))
    return _offered(iter([*DATA_SETS, *files]), incomplete)


def engines(incomplete: str) -> list[str]:
    """Return each pair of a use and an engine, such as `train=fsdp`, that begins with `incomplete`."""
    from flowgraph.engines.table import ENGINES, VERBS

    return _offered((f"{use}={name}" for use in VERBS for name in ENGINES), incomplete)


def environments(incomplete: str) -> list[str]:
    """Return the names of environments that `engines install` can install and that begin with `incomplete`."""
    from flowgraph.engines.table import ENGINES

    names = (engine.environment.name for engine in ENGINES.values() if engine.environment is not None)
    return _offered(names, incomplete)


def pictures(incomplete: str) -> list[str]:
    """Return the names of pictures that `draw` can draw and that begin with `incomplete`."""
    names = ("flow", "plan", "sequence", "timeline", "memory", "placements", "search", "run")
    return _offered(iter(names), incomplete)
