"""Check and measure the versions that drew the tokens of a step, if newer weights may come while they are drawn.

A worker counts tokens by their age, so that sums over ranks are exact; `staleness_of` makes metrics of them when the
step ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from flowgraph.errors import LawError
from flowgraph.language.region import Observations
from flowgraph.language.values import Mask, Measure, Record, Value, VersionRange, Versions

AGED = "drawn by weights of this age: "
"""The name of a count of tokens, before the age in updates; it is in the observations of a worker alone."""


def check_token_versions(node: str, value: Value, allowed: VersionRange, step: int) -> Iterator[Measure]:
    """Check which weight versions sampled the tokens of a node's result, and yield measures of them.

    The measures are the number of tokens of each age (named `AGED` and the age), where age is the number of updates
    before `allowed.newest`; `spans`, the mean number of stretches of tokens of one version in a row; and `mixed`, the
    share of rows with more than one version. Tokens that the record's mask leaves out are ignored, and so are rows
    without other tokens. A value that is not a record, or lacks versions or a mask, has no measures.

    `allowed` are the versions that may sample the rows of step `step`. Raises LawError for a token of another version,
    possibly after some measures have been yielded.
    """
    parts = value.parts if isinstance(value, Record) else {}
    column = next((part for part in parts.values() if isinstance(part, Versions)), None)
    mask = next((part for part in parts.values() if isinstance(part, Mask)), None)
    if column is None or mask is None:
        return
    counts, spans_B = defaultdict[int, int](int), list[int]()
    for versions, counted in zip(column.data.tolist(), mask.data.tolist(), strict=True):
        in_order = [version for version, is_token in zip(versions, counted, strict=True) if is_token]
        for version in in_order:
            counts[version] += 1
        spans_B += [sum(a != b for a, b in zip(in_order, [None, *in_order], strict=False))] if in_order else []
    for version, tokens in sorted(counts.items()):
        if version not in allowed:
            raise LawError.drawn_by_other(node, step, version, str(allowed))
        yield Measure(name=f"{AGED}{allowed.newest - version}", total=tokens, count=1)
    yield Measure(name="spans", total=sum(spans_B), count=len(spans_B))
    yield Measure(name="mixed", total=sum(spans > 1 for spans in spans_B), count=len(spans_B))


def staleness_of(observed: Observations) -> Mapping[str, tuple[Measure, Measure]]:
    """Return, by node, how many updates old the weights were that drew its tokens: the mean over tokens, and the most.

    They are the metrics `staleness` and `staleness_worst`. The counts of tokens by age are removed from `observed`;
    nodes without such counts are left out.
    """
    tokens_by_age = defaultdict[str, dict[int, float]](dict)
    for node, name in [*observed.sums]:
        if name.startswith(AGED):
            tokens_by_age[node][int(name.removeprefix(AGED))] = observed.sums.pop((node, name))[0]
    return {
        node: (
            Measure(
                name="staleness", total=sum(age * tokens for age, tokens in ages.items()), count=sum(ages.values())
            ),
            Measure(name="staleness_worst", total=max(ages), count=1),
        )
        for node, ages in tokens_by_age.items()
    }
