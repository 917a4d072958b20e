"""A plan as `flowgraph draw ppo --cluster 2x8xh100` searches it, to be driven in a browser."""

from __future__ import annotations

from functools import cache

from flowgraph.cli.inputs import Asked
from flowgraph.cli.plan import Where
from flowgraph.cli.setting import Question
from flowgraph.cli.subject import Subject, subject_of

CLUSTER = "2x8xh100"


@cache
def planned_on_two_machines() -> Subject:
    """Search the plan; of several pools, so that there is something to filter."""
    question = Question(Asked("ppo", models=("Qwen/Qwen2.5-7B",)), CLUSTER, "512", "mean=1k,max=4k")
    return subject_of(question, Where(CLUSTER, placement="split:openrlhf"))
