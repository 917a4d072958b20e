"""Random flows, right ones and broken in every way we know: right ones compile, others get an error of ours.

The error names the file, the line and the node; there is no other exception, and none takes seconds.
`python -m tests.property.test_fuzz 10000` runs any number of cases, and prints what each way to break a flow gave.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from flowgraph import Flow
from flowgraph.analysis.flat_graph import full_hash, structure_hash, to_json
from flowgraph.errors import FlowError
from flowgraph.passes import compile_graph
from flowgraph.passes.verify import verified
from flowgraph.serialize.graph import from_json
from flowgraph.serialize.graph_text import graph_text
from tests.property.flow_faults import Broken, break_type, op_named
from tests.property.law_faults import ALL_FAULTS as FAULTS
from tests.property.random_flows import Line, Program, flow_of, load, random_program

LIMIT_S = 2.0  # of this process's own time, so that a busy machine fails nothing
CASES, ALL_CASES = 2_000, 10_000


@dataclass
class Case:
    """One seed: a program, how it is broken if it is, and what came of it."""

    seed: int
    fault: str
    program: Program
    wanted: Broken | None
    error: FlowError | None = None
    found: list[FlowError] | None = None
    seconds: float = 0.0

    def __str__(self) -> str:
        numbered = "\n".join(f"{i:3} {line[:200]}" for i, line in enumerate(self.program.text().split("\n"), 1))
        return f"seed {self.seed}, {self.fault or 'right'}\n{numbered}\ngave: {self.error}\nfaults: {self.found}"

    @property
    def where(self) -> set[str]:
        """Give the lines that the error may name: a node's head may stand on one of a few."""
        assert self.wanted is not None
        at, program = self.wanted.at, self.program
        if at == "set":
            return {"--set"}
        first = program.flow_line if at == "flow" or isinstance(at, str) else at.line
        lines = first + at.text.count("\n") if isinstance(at, Line) else first
        return {f"fuzz_flow.py:{line}" for line in range(first, lines + 1)}


def case_of(seed: int) -> Case:
    """Give the case of a seed: one in four is right, the others are broken in one way each."""
    rng, program = random.Random(seed), random_program(seed)
    if seed % 4 == 0:
        return Case(seed, "", program, None)
    names = sorted(FAULTS)
    for name in [names[seed % len(names)], *rng.sample(names, len(names))]:
        wanted = FAULTS[name](rng, program)
        if wanted is not None:
            return Case(seed, name, program, wanted)
    raise AssertionError("no fault can be made in this program")


def tried(case: Case) -> Case:
    """Describe and compile a case with the laws checked after every pass, and look for all faults."""
    text, settings = case.program.text(), case.wanted.settings if case.wanted else None
    start = time.process_time()
    try:
        flow = load(text)[case.program.name]
        assert isinstance(flow, Flow)
        with verified():
            try:
                compile_graph(flow.graph(settings))
            except FlowError as error:
                case.error = error
        case.found = flow.faults(settings)
    except FlowError as error:
        case.error = error
    case.seconds = time.process_time() - start
    return case


def tried_fairly(make: Callable[[], Case]) -> Case:
    """Try a case, and once more if it exceeds the limit: caches and collected garbage of others are not its own."""
    case = tried(make())
    return case if case.seconds <= LIMIT_S else min(case, tried(make()), key=lambda each: each.seconds)


def judge(case: Case) -> None:
    """Compare what a case gave with what it must give."""
    assert case.seconds < LIMIT_S, f"{case.seconds:.1f} s of processor time: {case}"
    if case.wanted is None:
        assert case.error is None, str(case)
        assert case.found == [], str(case)
        return
    assert case.error is not None, f"no error: {case}"
    assert isinstance(case.error, case.wanted.kind), str(case)
    assert case.error.where in case.where, f"not at {sorted(case.where)}: {case}"
    for words in case.wanted.words:
        assert words in str(case.error), f"lacks {words!r}: {case}"
    if not case.wanted.imports:
        assert str(case.error) in [str(each) for each in case.found or ()], f"not among the faults: {case}"


def run_cases(seeds: range) -> Counter[str]:
    """Try and judge the cases of seeds; give how many there were of each way."""
    told = Counter[str]()
    load(random_program(0).text())  # what is imported on the way is not part of a case
    for seed in seeds:
        case = tried_fairly(partial(case_of, seed))
        judge(case)
        told[case.fault or "right"] += 1
    return told


def test_right_flows_compile_and_broken_ones_get_an_error_that_names_line_and_node() -> None:
    told = run_cases(range(CASES))
    assert told["right"] == CASES // 4
    assert set(told) == {"right", *FAULTS}


@pytest.mark.slow
def test_ten_thousand_flows_compile_or_get_an_error_that_names_line_and_node() -> None:
    assert run_cases(range(CASES, CASES + ALL_CASES)).total() == ALL_CASES


def test_right_flows_print_and_come_back_from_json_as_they_were() -> None:
    for seed in range(0, 600, 4):
        graph = compile_graph(flow_of(random_program(seed)).graph())
        text = to_json(graph)
        back = from_json(text)
        assert to_json(back) == text, f"seed {seed}"
        assert graph_text(back) == graph_text(graph), f"seed {seed}"
        assert (structure_hash(back), full_hash(back)) == (structure_hash(graph), full_hash(graph)), f"seed {seed}"


def test_each_of_several_wrong_calls_is_reported() -> None:
    for seed in range(300):
        rng, program = random.Random(seed), random_program(seed)
        calls = [call for call, _ in program.calls() if call.given and op_named(call.op)]
        broken = [each for call in rng.sample(calls, min(len(calls), 4)) if (each := break_type(rng, program, call))]
        found = [str(each) for each in flow_of(program).faults()]
        for each in broken:
            assert any(each.words[0] in fault for fault in found), (
                f"seed {seed}: {each.words}\n{program.text()}\n{found}"
            )
        assert len(found) >= len(broken), f"seed {seed}"


def several_faults(seed: int) -> Case:
    rng, program = random.Random(seed), random_program(seed)
    for name in rng.sample(sorted(set(FAULTS) - {"flow_setting"}), rng.randint(2, 5)):
        FAULTS[name](rng, program)
    return Case(seed, "several", program, None)


def test_several_faults_at_once_give_errors_of_ours_and_what_is_found_agrees() -> None:
    """One may undo another, so nothing is said of which; but `graph` and `faults` say the same."""
    for seed in range(600):
        case = tried_fairly(partial(several_faults, seed))
        assert case.seconds < LIMIT_S, str(case)
        if case.error is None:
            assert case.found == [], str(case)
        elif case.found is not None:
            assert str(case.error) in [str(each) for each in case.found], str(case)


def test_a_fault_is_reported_alike_however_often_it_is_asked_for() -> None:
    for seed in range(1, 200, 4):
        case = case_of(seed)
        if case.wanted is not None and not case.wanted.imports:
            flow = load(case.program.text())[case.program.name]
            assert [str(a) for a in flow.faults()] == [str(a) for a in flow.faults()], str(case)


if __name__ == "__main__":
    begun = time.process_time()
    counts = run_cases(range(int(sys.argv[1])))
    for name, count in sorted(counts.items()):
        print(f"{count:6} {name}")
    print(f"{counts.total()} cases in {time.process_time() - begun:.0f} s of processor time")
