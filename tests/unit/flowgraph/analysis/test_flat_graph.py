"""Graphs as flat JSON and back, and the two hashes."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.gpg import gpg
from examples.grpo import grpo
from flowgraph import Flow, Loss, State, flow, node, stale
from flowgraph.analysis.flat_graph import flat, full_hash, structure_hash, to_json
from flowgraph.errors import FlowError, LawError, SettingError
from flowgraph.flows.settings import resolve_settings
from flowgraph.language import Aggregation
from flowgraph.language.graph import Graph
from flowgraph.passes import compile_graph
from flowgraph.serialize.graph import from_json
from flowgraph.serialize.graph_text import graph_text
from nodes import (
    Policy,
    Prompts,
    Reference,
    Scores,
    clipped,
    generate,
    group_normalize,
    kl_k3,
    logprobs,
    policy_gradient,
    score,
    update,
)
from tests.compact_json import compact_json
from tests.looped import looped

Golden = Callable[[str, str], None]


def rule(response: str) -> float:
    return 1.0


class Way(enum.Enum):
    UP = "up"
    FAR = float("inf")


@node
def turned(scores: Scores, *, way: Way = Way.UP, anything: Any = 1.0) -> Scores:
    raise NotImplementedError


@node
def split(scores: Scores) -> tuple[Scores, Scores]:
    raise NotImplementedError


@flow
def everything(prompts: Prompts, policy: Policy, *, n: int = 2) -> tuple[Scores, Policy]:
    rollout = generate(stale(policy, at_most=3), prompts, n=n)
    first, second = split(score(rollout, by=rule))
    advantages = group_normalize(first, rollout.group)

    def loss(pi: Policy) -> Loss:
        return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

    return second, update(policy, loss)


def compiled(fn: Flow[..., Any]) -> Graph:
    return compile_graph(fn.graph())


GRPO = compiled(grpo)


@pytest.mark.parametrize("fn", [grpo, gpg, everything])
def test_a_graph_comes_back_from_json_as_it_was(fn: Flow[..., Any]) -> None:
    graph = compiled(fn)
    back = from_json(to_json(graph))
    assert to_json(back) == to_json(graph)
    assert graph_text(back) == graph_text(graph)
    assert (structure_hash(back), full_hash(back)) == (structure_hash(graph), full_hash(graph))
    assert [each.op for each in back.all_nodes] == [each.op for each in graph.all_nodes]
    assert [each.settings for each in back.all_nodes] == [each.settings for each in graph.all_nodes]
    assert back.carries() == graph.carries()


@pytest.mark.parametrize("fn", [grpo, gpg])
def test_the_stored_form_of_a_shipped_flow_is_its_golden(fn: Flow[..., Any], golden: Golden) -> None:
    data = json.loads(to_json(compiled(fn)))

    def named(thing: Any) -> Any:
        """Leave out this machine's folders and the settings, which have a golden of their own kind: the text."""
        if isinstance(thing, dict):
            kept = {key: named(value) for key, value in thing.items() if key not in ("settings", "functions")}
            return kept | ({"at": f"{Path(thing['at'][0]).name}:{thing['at'][1]}"} if "at" in thing else {})
        return [named(each) for each in thing] if isinstance(thing, list) else thing

    golden(compact_json(json.dumps(named(data))), f"graphs/{fn.name}.json")


def test_the_stored_form_is_flat() -> None:
    """A chain of nodes must not become a nest of objects, or reading it back recurses."""

    def depth(thing: Any) -> int:
        inside = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list) else ()
        return 1 + max((depth(each) for each in inside), default=0)

    chain = resolve_settings(GRPO, [], {})[0]
    assert depth(json.loads(to_json(chain))) <= 6
    assert [each["id"] for each in flat(chain)["nodes"]] == [f"n{i}" for i in range(len(chain.all_nodes))]


def test_a_setting_that_is_text_stays_text_even_if_it_names_a_function() -> None:
    graph = resolve_settings(GRPO, [], {"score.by": "json:dumps"})[0]
    back = from_json(to_json(graph))
    assert [each.settings.by for each in back.nodes if each.op.name == "score"] == ["json:dumps"]  # type: ignore[attr-defined]


CORRUPT = {
    "no JSON": ("", "this is not a stored graph: it is not JSON: Expecting value: line 1 column 1 (char 0)"),
    "no graph": ("{}", "this is not a stored graph: schema: Field required"),
    "a list": ("[]", "this is not a stored graph: Input should be an object"),
    "an older schema": ('{"schema": 1}', "this graph has schema 1, not 2"),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_what_is_no_stored_graph_is_refused(name: str) -> None:
    text, wanted = CORRUPT[name]
    with pytest.raises(LawError) as raised:
        from_json(text)
    assert str(raised.value) == wanted


def test_a_nest_too_deep_to_read_is_refused() -> None:
    with pytest.raises(LawError, match=r"^this is not a stored graph: it is not JSON: it is nested more than 100 deep"):
        from_json("[" * 100_000)


NO_GRAPH = "this is not a stored graph"
CHANGED = {
    "an op that is gone": (
        "nodes.sampling:generate",
        "nodes.sampling:produce",
        f"{NO_GRAPH}: nodes.sampling:produce: AttributeError: module 'nodes.sampling' has no attribute 'produce'",
    ),
    "a module that is gone": (
        "nodes.sampling:generate",
        "nodes_of_old:generate",
        f"{NO_GRAPH}: nodes_of_old:generate: the module `nodes_of_old` is neither imported nor a part of flowgraph",
    ),
    "an op that is none": (
        "nodes.sampling:generate",
        "os:getcwd",
        "this is not a stored graph: os:getcwd: is the name of something else",
    ),
    "a type that is none": ("nodes.values:Rollout", "os:stat_result", "`os:stat_result` is not a value"),
    "an edge from nowhere": (
        '"from": "p0"',
        '"from": "p9"',
        "this is not a stored graph: `p9` does not exist, or comes after its reader",
    ),
    "another port": (
        '"port": "prompts"',
        '"port": "questions"',
        "this is not a stored graph: generate takes policy, prompts; see `questions`",
    ),
    "another part": ('"part": "group"', '"part": "row"', "this is not a stored graph: n0 has no part `row`"),
    "a part of another type": (
        '"part": "group"',
        '"part": "mask"',
        "this is not a stored graph: `mask` of n0 is not a Group",
    ),
    "a setting that is gone": (
        '"n": 16',
        '"m": 16',
        "this is not a stored graph: generate lacks a setting that was given",
    ),
}


@looped("name", CHANGED)
def test_a_stored_graph_that_nodes_do_not_fit_any_more_is_refused(name: str) -> None:
    old, new, wanted = CHANGED[name]
    text = to_json(GRPO)
    assert old in text
    with pytest.raises(LawError) as raised:
        from_json(text.replace(old, new, 1) if "from" in old or "port" in old else text.replace(old, new))
    assert str(raised.value) == wanted


def test_a_stored_graph_that_breaks_a_law_is_refused() -> None:
    data = json.loads(to_json(GRPO))
    data["outputs"].append(dict(data["outputs"][0], **{"from": "p1"}))  # the policy as it was before the update
    with pytest.raises(LawError, match=r"flow grpo returns policy, which update at .* has replaced"):
        from_json(json.dumps(data))


def test_a_setting_out_of_range_is_refused_when_it_is_read_back() -> None:
    with pytest.raises(FlowError, match=r"generate.n=-1: should be greater than or equal to 1$"):
        from_json(to_json(GRPO).replace('"n": 16', '"n": -1'))


def test_a_function_without_a_name_is_no_setting_since_it_could_not_be_read_back() -> None:
    @flow
    def unnamed(prompts: Prompts, policy: Policy) -> Scores:
        return score(generate(policy, prompts), by=lambda response: 1.0)

    with pytest.raises(SettingError, match="a worker finds a function by its name, at the top level"):
        compiled(unnamed)


# ------------------------------------------------------------------------------------------- hashes


@flow
def original(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    rollout = generate(policy, prompts, n=4)
    advantages = group_normalize(score(rollout), rollout.group)
    ref_logprobs = logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        return clipped(new, advantages, rollout.mask, old=rollout.logprobs) + 0.1 * kl_k3(
            new, rollout.mask, ref=ref_logprobs
        )

    return update(policy, loss)


def variant(name: str, changed: str = "", to: str = "") -> Graph:
    """Return the graph of the same flow from a text in which something is changed."""
    lines = """\
@flow
def original(prompts: Prompts, policy: Policy, ref: Reference) -> Policy:
    rollout = generate(policy, prompts, n=4)
    advantages = group_normalize(score(rollout), rollout.group)
    ref_logprobs = logprobs(ref, rollout)

    def loss(pi: Policy) -> Loss:
        new = logprobs(pi, rollout)
        surrogate = clipped(new, advantages, rollout.mask, old=rollout.logprobs)
        return surrogate + 0.1 * kl_k3(new, rollout.mask, ref=ref_logprobs)

    return update(policy, loss)
"""
    assert changed in lines
    space: dict[str, Any] = dict(globals())
    exec(compile(lines.replace(changed, to) if changed else lines, name, "exec"), space)
    return compiled(space["original"])


BASE = compiled(original)


@looped(
    "changed, to",
    [
        ("", ""),
        ("rollout", "sampled"),
        ("advantages", "a"),
        ("pi", "current"),
        ("loss(", "objective("),
        ("    ref_logprobs", "\n\n\n    ref_logprobs"),
    ],
)
def test_names_of_variables_lines_and_files_are_in_neither_hash(changed: str, to: str) -> None:
    graph = variant("other.py", changed, to) if changed != "loss(" else variant_of_loss_name()
    assert (structure_hash(graph), full_hash(graph)) == (structure_hash(BASE), full_hash(BASE))


def variant_of_loss_name() -> Graph:
    space: dict[str, Any] = dict(globals())
    text = Path(__file__).read_text(encoding="utf-8").partition("@flow\ndef original")[2].partition("def variant")[0]
    text = text.replace("def loss(", "def objective(").replace("update(policy, loss)", "update(policy, objective)")
    exec(compile(f"from __future__ import annotations\n@flow\ndef original{text}", "other.py", "exec"), space)
    graph = compiled(space["original"])
    assert graph.nodes[-1].regions[0][1].name == "objective"
    return graph


@pytest.mark.parametrize(
    ("changed", "to"), [("n=4", "n=8"), ("0.1 *", "0.2 *"), ("policy, loss)", "policy, loss, lr=1e-3)")]
)
def test_a_setting_is_in_the_full_hash_only(changed: str, to: str) -> None:
    graph = variant("other.py", changed, to)
    assert structure_hash(graph) == structure_hash(BASE)
    assert full_hash(graph) != full_hash(BASE)


def test_a_setting_from_the_command_line_is_in_the_full_hash_only() -> None:
    graph = resolve_settings(BASE, [], {"policy.update.epochs": 2})[0]
    assert structure_hash(graph) == structure_hash(BASE)
    assert full_hash(graph) != full_hash(BASE)
    default = resolve_settings(BASE, [], {"policy.update.epochs": 1})[0]
    assert full_hash(default) == full_hash(BASE)  # the same value, said


@looped(
    "changed, to",
    [
        ("generate(policy,", "generate(stale(policy, at_most=1),"),
        ("ref=ref_logprobs", "ref=rollout.logprobs"),
        ("surrogate + 0.1 * kl_k3(new, rollout.mask, ref=ref_logprobs)", "surrogate"),
        ("return update(policy, loss)", "return update(update(policy, loss), loss)"),
        ("ref: Reference", "ref: Policy"),
        ("policy: Policy, ref", "policy: Policy, extra: Prompts, ref"),
    ],
)
def test_another_structure_is_in_both_hashes(changed: str, to: str) -> None:
    graph = variant("other.py", changed, to)
    assert structure_hash(graph) != structure_hash(BASE)
    assert full_hash(graph) != full_hash(BASE)


# ------------------------------------------------------------------------------------- state with a default


class Level(State):
    """Carried data of any sort."""


@node(carries="level")
def raised(level: Level, *, scores: Scores, at: int = 0, owner: str = "", notes: dict[str, int] | None = None) -> Level:
    raise NotImplementedError


def levelled(start: Level, **settings: Any) -> Graph:
    """Return the graph of a flow whose state starts from this."""

    def fn(prompts: Prompts, policy: Policy, level: Level = start) -> tuple[Policy, Level]:
        rollout = generate(policy, prompts)
        scores = score(rollout)
        advantages = group_normalize(scores, rollout.group)

        def loss(pi: Policy) -> Loss:
            return clipped(logprobs(pi, rollout), advantages, rollout.mask, old=rollout.logprobs)

        return update(policy, loss), raised(level, scores=scores, **settings)

    return compiled(flow(fn))


def start_of(graph: Graph) -> Any:
    """Return what the state of `levelled` starts from."""
    param = graph.param("level")
    assert param is not None
    return param.initial


def typed(data: Any) -> Any:
    """Return plain data with the types in it, so that 1 is not 1.0 and not true."""
    if isinstance(data, dict):
        return {name: typed(each) for name, each in data.items()}
    return [typed(each) for each in data] if isinstance(data, list) else (type(data), repr(data))


LEVEL = levelled(Level(0.05))
TEXTS = st.text(st.characters(exclude_categories=("Cs",)))
ENTRIES = st.booleans() | st.integers(1 - 2**63, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
PLAIN = st.recursive(
    ENTRIES, lambda inside: st.lists(inside | st.none()) | st.dictionaries(TEXTS, inside), max_leaves=8
)


@given(PLAIN)
def test_what_state_starts_from_comes_back_from_json_as_it_was(start: Any) -> None:
    graph = levelled(Level(start))
    back = from_json(to_json(graph))
    assert typed(start_of(back)) == typed(start)
    assert (structure_hash(back), full_hash(back)) == (structure_hash(graph), full_hash(graph))
    assert to_json(back) == to_json(graph)


@looped("start", [0.0, 0, False, "", [], {}])
def test_state_may_start_from_what_python_calls_false(start: Any) -> None:
    graph = levelled(Level(start))
    assert typed(start_of(graph)) == typed(start_of(from_json(to_json(graph)))) == typed(start)


def test_what_state_starts_from_is_in_the_full_hash_only() -> None:
    other = levelled(Level(0.1))
    assert structure_hash(other) == structure_hash(LEVEL)
    assert full_hash(other) != full_hash(LEVEL)
    assert full_hash(levelled(Level(0.05))) == full_hash(LEVEL)


@looped("name", ["at", "given", "owner", "pruned", "captures", "settings", "initial", "name"])
def test_state_and_settings_are_hashed_whole_whatever_their_own_names(name: str) -> None:
    """The hashes leave out lines and owners of ours, not a user's data that has such a name."""
    assert full_hash(levelled(Level({name: 1}))) != full_hash(levelled(Level({name: 2})))
    noted = [levelled(Level(1), notes={name: number}) for number in (1, 2)]
    assert full_hash(noted[0]) != full_hash(noted[1])
    assert structure_hash(noted[0]) == structure_hash(noted[1])


def test_settings_named_as_something_that_hashes_leave_out_are_in_the_full_hash() -> None:
    for changed in ({"at": 1}, {"owner": "me"}):
        graph = levelled(Level(0.05), **changed)
        assert full_hash(graph) != full_hash(LEVEL)
        assert structure_hash(graph) == structure_hash(LEVEL)


def test_passes_and_settings_leave_what_state_starts_from() -> None:
    graph, resolved = resolve_settings(LEVEL, [], {"policy.update.lr": 0.5})
    assert start_of(graph) == 0.05
    assert not any("level" in each.name for each in resolved)


STARTS = {
    "nothing that is finite": ("level", float("inf"), "Infinity is not a JSON number"),
    "a number without a bound": ("level", 2**64, "a whole number has at most 64 bits"),
    "a model": ("policy", 0.05, "`policy` starts from 0.05: it is not plain state"),
    "data": ("prompts", [1], "`prompts` starts from [1]: it is not plain state"),
    "a loss's own model": ("pi", 0.05, "`pi` starts from 0.05: it is not plain state"),
}


@looped("name", STARTS)
def test_a_stored_graph_with_a_start_for_what_cannot_have_one_is_refused(name: str) -> None:
    param, start, wanted = STARTS[name]
    data = json.loads(to_json(LEVEL))
    for each in data["params"]:
        if each["name"] == param:
            each["initial"] = start
    with pytest.raises(LawError) as raised_:
        from_json(json.dumps(data))
    assert str(raised_.value).startswith("this is not a stored graph: ") and wanted in str(raised_.value)


def test_a_stored_graph_without_the_start_is_another_one() -> None:
    data = json.loads(to_json(LEVEL))
    for each in data["params"]:
        each.pop("initial", None)
    back = from_json(json.dumps(data))
    assert start_of(back) is None
    assert structure_hash(back) == structure_hash(LEVEL)
    assert full_hash(back) != full_hash(LEVEL)


# --------------------------------------------------------------------------------------------- aggregations


def aggregated(how: Aggregation | float) -> Graph:
    """Return the graph of a flow whose loss is aggregated so."""

    @flow
    def fn(prompts: Prompts, policy: Policy) -> Policy:
        rollout = generate(policy, prompts)
        advantages = group_normalize(score(rollout), rollout.group)

        def loss(pi: Policy) -> Loss:
            return policy_gradient(logprobs(pi, rollout), advantages, rollout.mask, aggregation=how)

        return update(policy, loss)

    return compiled(fn)


def how_of(graph: Graph) -> Any:
    """Return the aggregation of the loss of `aggregated`."""
    return next(vars(each.settings)["aggregation"] for each in graph.all_nodes if each.op.name == "policy_gradient")


@looped("how", [*Aggregation, 16, 0.5, 1e300, 5e-324])
def test_an_aggregation_comes_back_from_json_as_it_was(how: Aggregation | float) -> None:
    graph = aggregated(how)
    back = from_json(to_json(graph))
    wanted = how if isinstance(how, Aggregation) else float(how)
    assert typed([how_of(back), how_of(graph)]) == typed([wanted, wanted])
    assert full_hash(back) == full_hash(graph)


def test_another_aggregation_is_in_the_full_hash_only() -> None:
    kinds = [aggregated(how) for how in (*Aggregation, 16.0, 17.0)]
    assert len({full_hash(each) for each in kinds}) == len(kinds)
    assert len({structure_hash(each) for each in kinds}) == 1
    assert full_hash(aggregated(16)) == full_hash(aggregated(16.0))  # one length, written in two ways


@looped("how", [0, -1.5, True, "mean", None, [], {"a": 1}])
def test_a_stored_aggregation_that_is_none_is_refused(how: Any) -> None:
    data = json.loads(to_json(aggregated(16)))
    for each in data["nodes"]:
        if "aggregation" in each["settings"]:
            each["settings"]["aggregation"] = how
    with pytest.raises(FlowError, match=r"policy_gradient\.aggregation="):
        from_json(json.dumps(data))


def test_a_setting_of_an_enum_is_read_back_as_it_was() -> None:
    @flow
    def own(scores: Scores) -> Scores:
        return turned(scores, way=Way.UP)

    graph = compile_graph(own.graph())
    assert json.loads(to_json(graph))["nodes"][0]["settings"]["way"] == "up"
    assert from_json(to_json(graph)).nodes[0].settings == graph.nodes[0].settings


@pytest.mark.parametrize(
    "setting", [{"anything": float("inf")}, {"anything": [{"a": float("nan")}]}, {"way": Way.FAR}], ids=str
)
def test_a_number_that_no_file_holds_is_refused_whatever_type_the_setting_has(setting: dict[str, Any]) -> None:
    @flow
    def own(scores: Scores) -> Scores:
        return turned(scores, **setting)

    with pytest.raises(SettingError, match="should be a finite number"):
        own.graph()


def test_a_default_that_no_file_holds_is_refused_too() -> None:
    with pytest.raises(FlowError, match="the default anything=inf: should be a finite number"):

        @node
        def endless(scores: Scores, *, anything: Any = float("inf")) -> Scores:
            raise NotImplementedError
