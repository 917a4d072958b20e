"""A plan as `flowgraph draw ppo --cluster 2x8xh100` searches it, to be driven in a browser."""

from __future__ import annotations

from functools import cache

from flowgraph.app import DrawTarget, find_target, make_request

CLUSTER = "2x8xh100"


@cache
def planned_on_two_machines() -> DrawTarget:
    """Search the plan; of several pools, so that there is something to filter."""
    lengths = {"prompt_tokens": 512, "response_tokens": "mean=1k,max=4k"}
    where = {"cluster": CLUSTER, "placement": "split:openrlhf"}
    return find_target(make_request(flow="ppo", model="Qwen/Qwen2.5-7B", **where, **lengths), print)
