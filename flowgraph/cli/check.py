"""`check`: every fault of a flow, its settings, its passes and its plan that can be found; no torch is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from flowgraph.cli.inputs import Asked, read_inputs
from flowgraph.cli.show import compiled_flow, described_flow
from flowgraph.errors import FlowError
from flowgraph.files import find_flow
from flowgraph.passes import named
from flowgraph.passes.verify import verified
from flowgraph.settings import setting_faults, split_assignments

if TYPE_CHECKING:
    from flowgraph.cli.plan import Where


def check_flow(asked: Asked, where: Where, as_json: bool) -> int:
    """Print every fault, and give the exit code: 0 if there is none.

    A stage is looked at when the one before it has no fault: the flow's text; the settings; the passes, the models,
    the data and the plan.
    """
    with verified():
        found = list(dict.fromkeys(map(str, _faults(asked, where))))
    if as_json:
        print(json.dumps({"flow": asked.flow, "faults": found}, indent=1))
    else:
        for text in found:
            print(text)
        for line in compiled_flow(asked).pruned if not found else ():
            print(f"left out: {line}", file=sys.stderr)
        print(_count(len(found), asked.flow), file=sys.stderr)
    return 1 if found else 0


def _count(faults: int, flow: str) -> str:
    if not faults:
        return f"{flow}: no fault"
    return f"{flow}: {faults} fault{'s' if faults > 1 else ''}"


def _faults(asked: Asked, where: Where) -> Iterator[FlowError]:
    """Give the faults of the first stage that has any."""
    for stage in (_in_text, _in_settings):
        found = list(stage(asked))
        if found:
            yield from found
            return
    yield from _in_plan(asked, where)


def _in_text(asked: Asked) -> Iterator[FlowError]:
    file = find_flow(asked.flow)
    own, _ = split_assignments(list(file.flow.signature.settings.model_fields), asked.sets)
    yield from file.flow.faults(own)


def _in_settings(asked: Asked) -> Iterator[FlowError]:
    _, graph, chosen = described_flow(asked.flow, asked.sets)
    yield from setting_faults(named(graph), chosen)


def _in_plan(asked: Asked, where: Where) -> Iterator[FlowError]:
    from flowgraph.cli.plan import batch_sizes, planned, refuse_what_does_not_fit
    from flowgraph.cli.run import refuse_what_cannot_run
    from flowgraph.lowering.lower import lower
    from nodes.mismatch import watch_engines

    try:
        inputs = read_inputs(asked)
        yield from _raised(lambda: refuse_what_cannot_run(inputs))
        found = planned(inputs, where, fits=False)
    except FlowError as error:
        yield error
        return
    yield from _raised(lambda: batch_sizes(inputs, found.plan, found.work))
    yield from _raised(lambda: refuse_what_does_not_fit(found, where))
    yield from _raised(lambda: lower(inputs.graph, found.plan, where=str(where), watch=watch_engines))


def _raised(doing: Callable[[], object]) -> Iterator[FlowError]:
    try:
        doing()
    except FlowError as error:
        yield error
