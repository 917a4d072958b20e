"""A worker: nodes run on inputs that are lined up, beside models at the versions that the program says."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch

from flowgraph import Flow, Graph, Key, Kind, Metric, Parts, Value, flow, node
from flowgraph.engines.local.model import LocalModel
from flowgraph.errors import LawError, UserCodeError
from flowgraph.language.rows import take
from flowgraph.language.values import Measure
from flowgraph.lowering import insert_syncs, insert_transfers
from flowgraph.lowering.lower import lower
from flowgraph.lowering.program import Home, Program, Run
from flowgraph.passes import compile_graph
from flowgraph.runtime.row_identity import StoredValue
from flowgraph.runtime.worker import DeviceWorker, NodeResults
from nodes import Entropy, LogProbs, Policy, Reference, Rollout, Scores, entropy, logprobs

Tiny = Callable[..., LocalModel]
Make = Callable[..., Rollout]


@node(kind="score", metrics=(Metric("length", "tokens"),))
def lengths_of(rollout: Rollout) -> Scores:
    """Score each response by its length."""
    lengths = rollout.lengths.data
    return Scores(lengths.float(), [Measure("length", float(lengths.sum()), len(lengths))])


@node
def differences(scores: Scores, rollout: Rollout) -> Scores:
    """Give what is left of each score when the row's length is taken off."""
    return Scores(scores.data - rollout.lengths.data)


class Tens(Value):
    """A number for each row."""

    kind = Kind.ROW


@node
def halves(rollout: Rollout) -> tuple[Scores, Tens]:
    """Give two results."""
    return Scores(rollout.lengths.data / 2), Tens(rollout.sample.data + 10)


@node
def read_half(tens: Tens, *, of: Scores) -> Scores:
    """Read both."""
    return Scores(tens.data + of.data)


@node(carries="policy", kind="update")
def moved_on(policy: Policy, rollout: Rollout, *, by: int = 1, other: Reference | None = None) -> Policy:
    """Give the policy so many versions further."""
    for _ in range(by):
        policy = policy.advanced()
    return policy


@node
def failing(rollout: Rollout) -> Scores:
    """Fail."""
    raise ZeroDivisionError("no such luck")


@flow
def reading(rollout: Rollout, ref: Reference) -> tuple[LogProbs, Entropy, Scores]:
    scores = lengths_of(rollout)
    return logprobs(ref, rollout), entropy(ref, rollout), differences(scores, rollout)


@flow
def halving(rollout: Rollout) -> Scores:
    scores, tens = halves(rollout)
    return read_half(tens, of=scores)


@flow
def moving(rollout: Rollout, policy: Policy, ref: Reference, *, by: int = 1) -> Policy:
    return moved_on(policy, rollout, by=by, other=ref)


@flow
def broken(rollout: Rollout) -> Scores:
    return failing(rollout)


class Made:
    """A worker on one device, and the tasks that run each node."""

    def __init__(self, program: Program, handles: Mapping[str, LocalModel]) -> None:
        self.graph: Graph = program.graph
        homes: dict[Home, Any] = {home: handles[home.param] for home in program.homes}
        self.worker = DeviceWorker(program.graph, homes)
        self.tasks = {name: task for task in program.tasks if isinstance(task, Run) for name in task.nodes}

    def run(self, name: str, versions: Mapping[str, int] | None = None, **inputs: StoredValue) -> NodeResults:
        task = self.tasks[name]
        assert set(inputs) == {each.replace(".", "_") for each in task.reads}
        given = {each: inputs[each.replace(".", "_")] for each in task.reads}
        return self.worker.run(task, given, versions or {}, Key(0, 0))


@pytest.fixture
def make(one_device: Callable[[Graph], Any]) -> Callable[..., Made]:
    """Give `make(flow, settings, **handles)`."""

    def made(of: Flow[..., object], settings: Mapping[str, object] | None = None, **handles: LocalModel) -> Made:
        graph = compile_graph(of.graph(settings))
        return Made(lower(graph, one_device(graph), passes=(insert_syncs, insert_transfers)), handles)

    return made


def turned(held: StoredValue) -> StoredValue:
    """Give the rows from last to first."""
    index = torch.arange(len(held) - 1, -1, -1)
    return StoredValue(take(held.value, index), {name: column[index.numpy()] for name, column in held.ids.items()})


def test_results_are_held_with_the_identity_of_their_rows(make: Callable[..., Made], make_rollout: Make) -> None:
    rollout = StoredValue.of(make_rollout([3, 1, 2], group=[4, 4, 9]))
    done = make(broken_free).run("lengths_of", rollout=rollout)
    assert list(done.values) == ["lengths_of"]
    held = done.values["lengths_of"]
    assert held.value.data.tolist() == [3.0, 1.0, 2.0]
    assert {name: column.tolist() for name, column in held.ids.items()} == {
        "#group": [4, 4, 9],
        "#sample": [0, 1, 2],
        "#trajectory": [0, 0, 0],
    }


@flow
def broken_free(rollout: Rollout) -> Scores:
    return lengths_of(rollout)


def test_what_is_observed_is_told_with_the_results(make: Callable[..., Made], make_rollout: Make) -> None:
    done = make(broken_free).run("lengths_of", rollout=StoredValue.of(make_rollout([3, 1])))
    assert done.observed.sums == {("lengths_of", "length"): (4.0, 2)}
    assert list(done.observed.seconds) == ["lengths_of"]


def test_inputs_are_lined_up_before_a_node_reads_them(
    make: Callable[..., Made], make_rollout: Make, tiny: Tiny
) -> None:
    made, rollout = make(reading, ref=tiny()), StoredValue.of(make_rollout([3, 1, 2]))
    scores = made.run("lengths_of", rollout=rollout).values["lengths_of"]
    for given in (scores, turned(scores)):
        done = made.run("differences", lengths_of=given, rollout=rollout).values["differences"]
        assert done.value.data.tolist() == [0.0, 0.0, 0.0]
        assert done.ids["#sample"].tolist() == given.ids["#sample"].tolist(), "in the order of the first input"


def test_nodes_of_one_task_read_one_forward_pass(make: Callable[..., Made], make_rollout: Make, tiny: Tiny) -> None:
    handle = tiny()
    assert handle.packs, "which is tried once"
    made, calls = make(reading, ref=handle), list[int]()
    handle.model.register_forward_hook(lambda *args: calls.append(1))
    done = made.run("ref.logprobs", {"ref": 0}, rollout=StoredValue.of(make_rollout([3, 1])))
    assert set(done.values) == {"ref.logprobs", "ref.entropy"}
    assert len(calls) == 1


@node
def handed_on(rollout: Annotated[Rollout, Parts("tokens")]) -> Rollout:
    """Give what it was given, of which it declares a part."""
    return rollout


@flow
def handing(rollout: Rollout) -> Rollout:
    return handed_on(rollout)


def test_a_record_of_which_a_node_has_only_parts_is_no_result(make: Callable[..., Made], make_rollout: Make) -> None:
    made = make(handing)
    with pytest.raises(LawError) as caught:
        made.run("handed_on", rollout=StoredValue.of(make_rollout([1])))
    assert str(caught.value) == (
        f"{made.graph.nodes[0].at}: handed_on gives a Rollout of which it declares tokens\n"
        "  hint: leave out the Parts(…) of its port: it needs all"
    )


def test_no_gradient_is_kept_outside_an_update(make: Callable[..., Made], make_rollout: Make, tiny: Tiny) -> None:
    done = make(reading, ref=tiny(trainable=True)).run(
        "ref.logprobs", {"ref": 0}, rollout=StoredValue.of(make_rollout([3, 1]))
    )
    assert not done.values["ref.logprobs"].value.data.requires_grad


def test_several_results_have_names_of_their_own_and_are_read_by_them(
    make: Callable[..., Made], make_rollout: Make
) -> None:
    made = make(halving)
    done = made.run("halves", rollout=StoredValue.of(make_rollout([2, 4])))
    assert {name: held.value.data.tolist() for name, held in done.values.items()} == {
        "halves.0": [1.0, 2.0],
        "halves.1": [10, 11],
    }
    read = made.run("read_half", halves_0=done.values["halves.0"], halves_1=done.values["halves.1"])
    assert read.values["read_half"].value.data.tolist() == [11.0, 13.0]
    assert (made.worker.type_of("halves.0"), made.worker.type_of("halves.1")) == (Scores, Tens)


def test_a_model_stays_where_it_is_one_version_further(
    make: Callable[..., Made], make_rollout: Make, tiny: Tiny
) -> None:
    handle, rollout = tiny(trainable=True), StoredValue.of(make_rollout([1]))
    made = make(moving, policy=handle, ref=tiny())
    assert made.run("policy.moved_on", {"policy": 0, "ref": 0}, rollout=rollout).values == {}
    assert handle.version == 1
    made.run("policy.moved_on", {"policy": 1, "ref": 0}, rollout=rollout)
    assert handle.version == 2


def test_weights_at_another_version_than_the_program_says_are_refused(
    make: Callable[..., Made], make_rollout: Make, tiny: Tiny
) -> None:
    handle = tiny(trainable=True)
    made = make(moving, policy=handle, ref=tiny(version=2))  # the node's body does not look at the reference
    with pytest.raises(LawError) as caught:
        made.run("policy.moved_on", {"policy": 0, "ref": 1}, rollout=StoredValue.of(make_rollout([1])))
    assert str(caught.value) == (
        "version 1 of these weights was consumed by an update; they are at 2\n"
        "  hint: use the model that `update` returned"
    )
    assert handle.version == 0, "nothing has run"


@pytest.mark.parametrize("by", [0, 2])
@pytest.mark.parametrize("version", [0, 1])
def test_weights_that_a_node_moves_on_by_none_or_two_are_refused(
    by: int, version: int, make: Callable[..., Made], make_rollout: Make, tiny: Tiny
) -> None:
    made = make(moving, {"by": by}, policy=tiny(trainable=True, version=version), ref=tiny())
    with pytest.raises(LawError) as caught:
        made.run("policy.moved_on", {"policy": version, "ref": 0}, rollout=StoredValue.of(make_rollout([1])))
    assert str(caught.value) == (
        f"{made.graph.nodes[0].at}: moved_on must give the next version of the model that it carries\n"
        "  hint: return model.advanced(), once"
    )


def test_an_exception_of_a_body_says_its_node_and_line(make: Callable[..., Made], make_rollout: Make) -> None:
    made = make(broken)
    with pytest.raises(UserCodeError) as caught:
        made.run("failing", rollout=StoredValue.of(make_rollout([1])))
    lines = Path(__file__).read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if "no such luck" in text)
    assert str(caught.value) == (
        f"{made.graph.nodes[0].at}: failing raised ZeroDivisionError: no such luck\n"
        f"    at test_worker.py:{line} in failing"
    )
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
