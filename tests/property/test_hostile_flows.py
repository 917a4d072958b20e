"""Small flows that once gave an exception of another's, took seconds, or were misjudged; the fuzzes found them."""

from __future__ import annotations

import textwrap
import time

import pytest

from flowgraph import Flow
from flowgraph.analysis.flat_graph import full_hash, to_json
from flowgraph.errors import FlowError
from flowgraph.passes import compile_graph
from flowgraph.serialize.graph import from_json
from flowgraph.serialize.graph_text import graph_text
from tests.property.random_flows import HEAD, load

START = len(HEAD) + 1  # the line on which a text of these begins
FLOW = "@flow\ndef f(prompts: Prompts, policy: Policy) -> {back}:\n    r = generate(policy, prompts)\n"
NUMBER = "@node\ndef number(a: Scores, *, k: {kind}) -> Scores: ...\n"
ODD = "class Odd(Record):\n    {part}\n    scores: Scores\n@node\ndef odd(r: Rollout) -> Odd: ...\n"


def written(body: str, back: str = "Scores", before: str = "") -> str:
    """Write a flow of a rollout `r` and these lines."""
    return before + FLOW.format(back=back) + textwrap.indent(textwrap.dedent(body), "    ") + "\n"


LATER = """\
def loss(pi): return likely(logprobs(pi, r), mask)
new = update(policy, loss)
mask = r.mask
return new"""

EXIT = """\
def loss(pi): raise SystemExit(2)
return update(policy, loss)"""

NOT_CORRECTED = """\
late = generate(stale(policy, at_most=2), prompts)
advantages = group_normalize(length_score(late), late.group)
def loss(pi):
    new = logprobs(pi, late)
    return likely(new, late.mask) + 0.0 * clipped(new, advantages, late.mask, old=late.logprobs)
return update(policy, loss)"""

PAIRS = written(
    "return number(length_score(r), k={(1, 2): 3})", before=NUMBER.format(kind="dict[tuple[int, int], int]")
)
MISSPELT = written("return odd(r).scores", before="import nodes.values as nv\n" + ODD.format(part="more: nv.Scoress"))
HUGE = written("return number(length_score(r), k=10**5000)", before=NUMBER.format(kind="int"))
PARTIAL = written("import functools; return score(r, by=functools.partial(print, sep=''))")

REFUSED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "a_whole_number_of_5000_digits": (HUGE, "number(", ("number.k",)),
    "a_negative_one": (written("return length_score(generate(policy, prompts, n=-10**5000))"), "n=-", ("generate.n",)),
    "a_table_by_pairs": (PAIRS, "number(", ("number.k",)),
    "a_rule_without_a_name": (PARTIAL, "score(", ("score.by",)),
    "a_record_with_a_misspelt_type": (MISSPELT, "odd(r)", ("Odd", "Scoress")),
    "a_record_that_holds_itself": (
        written("return odd(r).scores", before=ODD.format(part="inside: Odd")),
        "odd(r)",
        ("Odd", "inside"),
    ),
    "a_loss_that_reads_what_comes_later": (written(LATER, "Policy"), "return likely", ("mask", "NameError")),
    "an_exit_in_a_flow": (written("import sys; sys.exit(3)"), "sys.exit", ("SystemExit",)),
    "an_exit_in_a_loss": (written(EXIT, "Policy"), "raise SystemExit", ("SystemExit",)),
    "only_a_term_of_factor_0_corrects": (written(NOT_CORRECTED, "Policy"), "def loss", ("`loss` corrects nothing",)),
}


def line_of(text: str, words: str) -> int:
    return START + next(i for i, line in enumerate(text.split("\n")) if words in line and "def " + words not in line)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_names_its_line(name: str) -> None:
    text, at, words = REFUSED[name]
    start = time.process_time()
    flow = load("\n".join([*HEAD, text]))["f"]
    assert isinstance(flow, Flow)
    with pytest.raises(FlowError) as caught:
        to_json(compile_graph(flow.graph()))
    assert caught.value.where == f"fuzz_flow.py:{line_of(text, at)}", str(caught.value)
    assert all(each in str(caught.value) for each in words), str(caught.value)
    assert len(str(caught.value)) < 1_000
    assert time.process_time() - start < 2.0


def numbers(one: str, other: str, kind: str) -> str:
    """Write a sum of two nodes that differ in a setting."""
    body = f"s = length_score(r)\nreturn number(s, k={one}) + number(s, k={other})"
    return written(body, before=NUMBER.format(kind=kind))


TWINS_IN_A_LOSS = """\
def loss(pi):
    t = likely(logprobs(pi, r), r.mask)
    return 0.5 * (t + 0.0 * entropy_bonus(entropy(pi, r), r.mask)) + 0.5 * t
return update(policy, loss)"""

RECORDS = (
    "class R0(Record):\n    temperature: Temperature\n"
    + "".join(f"class R{i + 1}(Record):\n    a: R{i}\n    b: R{i}\n" for i in range(24))
    + "class Deep(Record):\n    within: R24\n    temperature: Temperature\n"
    + "@node\ndef deep(r: Rollout) -> Deep: ...\n"
)

RIGHT = {
    "settings_that_do_not_show_are_still_two": (numbers("1.0", "2.0", "Annotated[float, Field(repr=False)]"), 5),
    "zero_is_not_minus_zero": (numbers("0.0", "-0.0", "float"), 5),
    "one_is_not_true": (numbers("1", "True", "int | bool"), 5),
    "pruning_makes_twins": (written("s = length_score(r)\nreturn rank(s + 0.0 * s) + rank(s)"), 4),
    "pruning_makes_twins_in_a_loss": (written(TWINS_IN_A_LOSS, "Policy"), 6),
    "records_in_records": (written("return deep(r).temperature", "Temperature", RECORDS), 2),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_compiles_and_comes_back(name: str) -> None:
    text, nodes = RIGHT[name]
    start = time.process_time()
    flow = load("\n".join([*HEAD, text]))["f"]
    assert isinstance(flow, Flow)
    graph = compile_graph(flow.graph())
    assert len(graph.all_nodes) == nodes, graph_text(graph)
    assert full_hash(from_json(to_json(graph))) == full_hash(graph)
    assert flow.faults() == []
    assert time.process_time() - start < 2.0


def test_a_fault_in_an_updates_model_does_not_hide_those_in_its_loss() -> None:
    body = "def loss(pi: Policy) -> Loss: return likely(logprobs(pi, r), r.tokens)\nreturn update(r.text, loss)"
    found = [str(each) for each in load("\n".join([*HEAD, written(body, "Policy")]))["f"].faults()]
    assert any("update(model=) takes Trainable, but got Text" in each for each in found), found
    assert any("likely(mask=) takes Mask, but got Tokens" in each for each in found), found
    assert len(found) == 2, found


def test_hundreds_of_faults_in_a_flow_of_thousands_of_nodes_are_found_in_time() -> None:
    body = "s = length_score(r)\nfor i in range(2_000): s = rank(s)\n"
    body += "".join(f"x{i} = group_normalize(s, r.mask)\n" for i in range(300)) + "return s"
    flow = load("\n".join([*HEAD, written(body)]))["f"]
    start = time.process_time()
    assert len(flow.faults()) == 300
    assert time.process_time() - start < 2.0
