"""What installed packages bring: found by name, named when something is wrong, never registered twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from flowgraph.analysis.flat_graph import to_json
from flowgraph.errors import FlowError, FlowTypeError, UnknownNameError, UserCodeError
from flowgraph.flows.entry_points import find, load, named, package_of
from flowgraph.flows.flow_files import find_flow, known_flows, shipped_files
from flowgraph.passes import compile_graph
from flowgraph.serialize.graph import from_json
from nodes.scoring.rules import RuleRef, resolve

SHIPPED = sorted(path.stem for path in shipped_files())

Install = Callable[..., Path]
Points = Mapping[str, Mapping[str, str]]

FLOW = '''\
"""A flow of a package, with a value and a node of its own, and what it imports from beside."""

from __future__ import annotations

from flowgraph import Loss, flow
from nodes import Policy, Prompts, generate, logprobs, policy_gradient, score, update

from .brevity import brevity, weigh


@flow
def brief(prompts: Prompts, policy: Policy, *, n: int = 2) -> Policy:
    """Train for short responses."""
    rollout = generate(policy, prompts, n=n)
    advantages = weigh(score(rollout, by="short"), brevity(rollout))

    def loss(pi: Policy) -> Loss:
        return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask)

    return update(policy, loss)
'''
BREVITY = '''\
from flowgraph import Value, node
from flowgraph.language import Kind
from nodes import Advantages, Rollout, Scores


class Brevity(Value):
    """How short each response is: [B]."""

    kind = Kind.ROW


@node
def brevity(rollout: Rollout) -> Brevity:
    return Brevity(1.0 / rollout.lengths.data.clamp(min=1))


@node(kind="advantage")
def weigh(scores: Scores, brevity: Brevity) -> Advantages:
    return Advantages(scores.data * brevity.data)
'''
FILES = {
    "__init__.py": "",
    "flows.py": FLOW,
    "brevity.py": BREVITY,
    "rules.py": "def short(response):\n    return 1 / (1 + len(response))\n",
}
POINTS = {
    "flowgraph.flows": {"brief": "acme.flows:brief"},
    "flowgraph.rules": {"short": "acme.rules:short"},
    "flowgraph.passes": {"tidy": "acme.rules:short"},
}


def write_package(folder: Path, name: str = "acme", points: Points = POINTS, files: Mapping[str, str] = FILES) -> Path:
    """Lay out a package as an installer leaves it: its modules, and its metadata beside."""
    for file, text in files.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / file).write_text(text, encoding="utf-8")
    told = folder / f"{name}-1.2.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    groups = [[f"[{group}]", *(f"{key} = {value}" for key, value in each.items())] for group, each in points.items()]
    (told / "entry_points.txt").write_text("\n".join(line for lines in groups for line in lines) + "\n")
    return folder


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Yield `install(name, points, files)`: lay out a package and put its folder on the import path."""
    before = set(sys.modules)

    def lay_out(name: str = "acme", points: Points = POINTS, files: Mapping[str, str] = FILES) -> Path:
        folder = write_package(tmp_path / f"has {name}", name, points, files)
        monkeypatch.syspath_prepend(folder)
        return folder

    yield lay_out
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refused(error: type[FlowError], call: Callable[..., object], *args: object) -> str:
    with pytest.raises(error) as raised:
        call(*args)
    return str(raised.value)


# ------------------------------------------------------------------------------------------- found by name


def test_what_a_package_names_is_found_without_importing_it(install: Install) -> None:
    assert find("flowgraph.flows", "brief") is None
    install()
    assert list(named("flowgraph.flows")) == ["brief"]
    entry = find("flowgraph.flows", "brief")
    assert entry is not None and package_of(entry) == "acme 1.2"
    assert resolve("short") == RuleRef("short", "acme.rules", "short")
    assert "acme" not in sys.modules
    assert load("flowgraph.passes", "tidy") is sys.modules["acme.rules"].short


def test_a_flow_of_a_package_is_found_and_its_types_are_those_of_its_module(install: Install) -> None:
    folder = install()
    found = find_flow("brief")
    assert (found.flow.name, found.package) == ("brief", "acme 1.2")
    assert found.path == folder / "acme" / "flows.py" and found.source == FLOW
    graph = compile_graph(found.flow.graph())
    assert from_json(to_json(graph)).nodes[2].returns == (sys.modules["acme.brevity"].Brevity,)
    assert find_flow("grpo").package == "flowgraph"


def test_flows_of_packages_are_listed_behind_the_shipped_ones(install: Install) -> None:
    assert list(known_flows()) == SHIPPED
    install()
    assert [(name, each.package) for name, each in known_flows().items()] == [
        *((name, "flowgraph") for name in SHIPPED),
        ("brief", "acme 1.2"),
    ]


def test_a_package_that_is_there_twice_counts_once_as_it_does_for_python(install: Install, tmp_path: Path) -> None:
    install()
    write_package(tmp_path / "older")
    sys.path.append(str(tmp_path / "older"))
    try:
        assert find_flow("brief").path == tmp_path / "has acme" / "acme" / "flows.py"
    finally:
        sys.path.remove(str(tmp_path / "older"))


@pytest.mark.slow(group="wheel")
def test_a_run_on_the_command_line_needs_nothing_but_the_name(tmp_path: Path) -> None:
    site = write_package(tmp_path / "site")

    def say(*arguments: str) -> str:
        command = [sys.executable, "-m", "flowgraph", *arguments]
        told = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), *sys.path])}
        done = subprocess.run(command, cwd=tmp_path, env=told, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    packages = [each["package"] for each in json.loads(say("flows", "--json"))]
    assert packages == ["flowgraph"] * len(SHIPPED) + ["acme 1.2"]
    assert any(line.split()[:3] == ["brief", "acme", "1.2"] for line in say("flows").splitlines())
    few = ("--cluster", "1xcpu", "--steps", "2", "--batch", "2", "--eval-every", "0", "--set", "n=3")
    assert say("run", "brief", *few) == "runs/brief-1\n"
    run = tmp_path / "runs" / "brief-1"
    assert (run / "flow.py").read_text() == FLOW
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and all(0 < line["score.reward"] < 1 for line in lines)


# ------------------------------------------------------------------------------------------- what is refused


def test_a_name_that_nobody_brings_is_told_with_the_nearest(install: Install) -> None:
    assert refused(UnknownNameError, find_flow, "brif").startswith(
        "no shipped flow `brif`\n  hint: known: cispo, dapo, "
    )
    install()
    told = refused(UnknownNameError, find_flow, "brif")
    assert told == "no shipped or installed flow `brif`\n  hint: did you mean `brief`?"
    assert refused(UnknownNameError, load, "flowgraph.passes", "tiddy") == (
        "no pass `tiddy`\n  hint: did you mean `tidy`?"
    )
    assert "did you mean `short`?" in refused(FlowError, resolve, "shorter")


def test_two_packages_that_bring_one_name_are_both_named(install: Install) -> None:
    install()
    install("beta", POINTS)
    told = "two packages provide a {} `{}`: beta 1.2 and acme 1.2\n  hint: uninstall one of them"
    assert refused(UnknownNameError, find_flow, "brief") == told.format("flow", "brief")
    assert refused(UnknownNameError, known_flows) == told.format("flow", "brief")
    assert refused(UnknownNameError, resolve, "short") == told.format("rule", "short")
    assert refused(UnknownNameError, load, "flowgraph.passes", "tidy") == told.format("pass", "tidy")
    assert find_flow("grpo").flow.name == "grpo"


def test_a_package_cannot_bring_the_name_of_what_is_shipped(install: Install) -> None:
    install("acme", {"flowgraph.flows": {"grpo": "acme.flows:brief"}, "flowgraph.rules": {"gsm8k": "acme.rules:short"}})
    told = "the {} is shipped with flowgraph, but acme 1.2 has one with that name\n"
    told += "  hint: rename it there, or uninstall it"
    assert refused(UnknownNameError, find_flow, "grpo") == told.format("flow `grpo`")
    assert refused(UnknownNameError, known_flows) == told.format("flow `grpo`")
    assert refused(UnknownNameError, resolve, "gsm8k") == told.format("rule `gsm8k`")
    assert find_flow("gpg").flow.name == "gpg" and resolve("exact").source == "nodes.scoring.rules"


@pytest.mark.parametrize(
    ("value", "flows", "text"),
    [
        (
            "acme.flows:brief",
            "\n1 / 0\n",
            "acme 1.2: importing acme.flows raised ZeroDivisionError: division by zero\n    at flows.py:2 in <module>",
        ),
        (
            "acme.nowhere:brief",
            "",
            "acme 1.2: importing acme.nowhere raised ModuleNotFoundError: No module named 'acme.nowhere'",
        ),
        ("acme.flows:brief", "raise SystemExit(3)\n", "acme 1.2: importing acme.flows raised SystemExit: 3"),
        (
            "acme.flows:brief",
            "",
            "acme 1.2: its entry point `brief` names `acme.flows:brief`, which does not exist",
        ),
        ("acme.flows", "", "acme 1.2: its entry point `brief` names `acme.flows`, which is not package.module:name"),
        (
            "acme flows:b",
            "",
            "acme 1.2: its entry point `brief` names `acme flows:b`, which is not package.module:name",
        ),
        (
            "acme.flows:brief",
            "def brief():\n    pass\n",
            "acme 1.2: its entry point `brief` names `acme.flows:brief`, which is not a flow",
        ),
    ],
)
def test_a_package_whose_flow_cannot_be_had_is_named(install: Install, value: str, flows: str, text: str) -> None:
    install("acme", {"flowgraph.flows": {"brief": value}}, {"__init__.py": "", "flows.py": flows})
    assert refused(UserCodeError, find_flow, "brief").startswith(text)


def test_an_error_of_ours_in_a_package_is_told_as_it_is(install: Install) -> None:
    wrong = FLOW.replace("*, n: int = 2", "n: int")
    install("acme", POINTS, FILES | {"flows.py": wrong})
    assert refused(FlowTypeError, find_flow, "brief").startswith("flows.py:11: @flow brief: `n` takes int")


def test_a_rule_whose_package_does_not_import_fails_on_the_first_response(install: Install) -> None:
    from nodes.scoring.graders import Graders

    install("acme", POINTS, FILES | {"rules.py": "\nimport a_package_that_nobody_has\n"})
    with Graders() as graders:
        told = refused(FlowError, graders.grade, resolve("short"), [{"response": "1"}])
    assert "rule `short` cannot be loaded: ModuleNotFoundError: No module named 'a_package_that_nobody_has'" in told
