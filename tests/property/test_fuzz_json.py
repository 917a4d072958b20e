"""Stored graphs, plans and programs, changed at random: refused by an error of ours, or right and can be stored.

Reading a graph imports nothing but what has been imported or ships with us, whatever module its text names.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowgraph import Graph
from flowgraph.analysis.flat_graph import flat, full_hash, structure_hash, to_json
from flowgraph.cluster.plan import Plan
from flowgraph.errors import FlowError
from flowgraph.language import laws
from flowgraph.lowering.lower import lower
from flowgraph.passes import compile_graph
from flowgraph.serialize.graph import from_json
from flowgraph.serialize.graph_text import graph_text
from flowgraph.serialize.program import program_from_json, program_to_json
from tests.property.json_faults import ODD, Data, changed, spoiled
from tests.property.random_flows import flow_of, random_program

LIMIT_S = 2.0
GRAPHS, CASES = 40, 2_000


def hold_to_laws(graph: Graph) -> None:
    """Ask of a graph that was read all that later stages ask of one."""
    assert not list(laws.faults("described", graph))
    text = to_json(graph)
    assert to_json(from_json(text)) == text
    assert graph_text(graph)
    assert structure_hash(graph)
    assert full_hash(graph)
    for node in graph.all_nodes:
        ports = {port.name: port for port in node.op.ports}
        given = [*(name for name, _ in node.inputs), *(name for name, _ in node.regions)]
        assert len(given) == len(set(given)), f"{node} is given a port twice"
        for name, edge in node.inputs:
            assert issubclass(edge.type, ports[name].value_type), f"{node}({name}=) takes no {edge.type.__name__}"
            assert not ports[name].region
            assert type(edge.at_most) is int
            assert edge.at_most >= 0
            assert not edge.at_most or node.op.kind == "generate"
        for name, region in node.regions:
            again = type(region).of(region.name, region.params, region.output, region.at)
            assert ports[name].region
            assert (again.inner, set(again.captures)) == (region.inner, set(region.captures)), (
                f"{region.name} is not closed"
            )
            assert issubclass(region.output.type, ports[name].region_returns or object)


def stored_graphs() -> list[Data]:
    """Give graphs of random flows as data."""
    return [json.loads(to_json(compile_graph(flow_of(random_program(4 * seed)).graph()))) for seed in range(GRAPHS)]


def test_a_changed_graph_is_refused_or_passes_every_law() -> None:
    flow_of(random_program(0))
    graphs, read = stored_graphs(), 0
    for seed in range(CASES):
        rng = random.Random(seed)
        data = changed(rng, graphs[seed % len(graphs)])
        text = json.dumps(data)
        start = time.process_time()
        try:
            graph = from_json(text if rng.random() < 0.9 else spoiled(rng, text))
        except FlowError:
            continue
        finally:
            assert time.process_time() - start < LIMIT_S, f"seed {seed}"
        read += 1
        try:
            hold_to_laws(graph)
        except Exception as error:  # noqa: BLE001 - any other exception is what is looked for
            pytest.fail(
                f"seed {seed}: {type(error).__name__}: {error}\n{_difference(graphs[seed % len(graphs)], data)}"
            )
    assert 0 < read < CASES


def _difference(before: Data, after: Data) -> str:
    import difflib

    one, two = (json.dumps(each, indent=1).splitlines() for each in (before, after))
    return "\n".join(list(difflib.unified_diff(one, two, n=4))[:60])


TEXTS = (
    "", "null", "[]", "{}", "0", '"x"', "{", "[" * 100_000, '{"schema": ' * 3_000, "9" * 5_000, '{"schema": 2}', "NaN",
    "\ufeff{}",
    '{"schema": NaN}', '{"schema": [2]}', '{"schema": 2, "schema": 2}', '{"schema": 1}', "\x00", '{"schema": {}}',
    "\ud800",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize("reader", [from_json, Plan.from_json, program_from_json])
def test_a_text_that_is_none_of_ours_is_refused(reader: Callable[[str], Any], text: str) -> None:
    with pytest.raises(FlowError):
        reader(text)


@pytest.mark.parametrize("how", ["op", "type", "setting"])
def test_reading_a_graph_runs_no_module_that_it_names(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "trap_module.py").write_text(f"open({str(ran)!r}, 'w').close()\ndef rule(response): return 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    program = random_program(0)
    data = flat(compile_graph(flow_of(program).graph()))
    node = next(each for each in data["nodes"] if each["op"].endswith(":generate"))
    if how == "op":
        node["op"] = "trap_module:rule"
    elif how == "type":
        data["params"][0]["type"] = "trap_module:rule"
    else:
        node |= {
            "op": "nodes.scoring:score",
            "settings": {"by": "trap_module:rule"},
            "given": ["by"],
            "functions": ["by"],
        }
        node["inputs"] = []
    with pytest.raises(FlowError):
        from_json(json.dumps(data))
    assert not ran.exists()
    assert "trap_module" not in sys.modules


# ------------------------------------------------------------------------------------------- plans and programs


@pytest.fixture(scope="module")
def stored_programs(one_device: Callable[[Graph], Plan]) -> list[Data]:
    """Give programs of random flows on one device as data."""
    graphs = [compile_graph(flow_of(random_program(4 * seed)).graph()) for seed in range(12)]
    return [json.loads(program_to_json(lower(graph, one_device(graph)))) for graph in graphs]


def test_a_changed_plan_is_refused_or_comes_back_as_it_was_read(stored_programs: list[Data]) -> None:
    for seed in range(1_000):
        rng = random.Random(seed)
        text = json.dumps(changed(rng, stored_programs[seed % len(stored_programs)]["plan"]))
        try:
            plan = Plan.from_json(text if rng.random() < 0.9 else spoiled(rng, text))
        except FlowError:
            continue
        assert Plan.from_json(plan.to_json()) == plan, f"seed {seed}"


def test_a_changed_program_is_refused_or_comes_back_as_it_was_read(stored_programs: list[Data]) -> None:
    flow_of(random_program(0))
    for seed in range(800):
        rng, data = random.Random(seed), stored_programs[seed % len(stored_programs)]
        part = rng.choice(["tasks", "tasks", "homes", "origins", "frozen", "schema", "graph", "plan"])
        other = {**data, part: changed(rng, data[part]) if not isinstance(data[part], int) else rng.choice(ODD)}
        if rng.random() < 0.1:
            other = changed(rng, data)
        start = time.process_time()
        try:
            program = program_from_json(json.dumps(other))
        except FlowError:
            continue
        except Exception as error:  # noqa: BLE001 - any other exception is what is looked for
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}\n{_difference(data, other)}")
        finally:
            assert time.process_time() - start < LIMIT_S, f"seed {seed}"
        text = program_to_json(program)
        assert program_to_json(program_from_json(text)) == text, f"seed {seed}"
