"""What a plan takes for granted and its models, devices or flow do not promise: notes for the user, not errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from placements.hardware.device_profiles import profile
from placements.time.kernels import WIDER

if TYPE_CHECKING:
    from placements.workload.planning_problem import PlanningProblem


def cautions(setting: PlanningProblem) -> tuple[str, ...]:
    """Return a note for each thing that a setting asks of its models, devices or flow beyond what they promise."""
    return (*_beyond_positions(setting), *_widened_weights(setting), *_uncorrected_staleness(setting))


def _beyond_positions(setting: PlanningProblem) -> Iterator[str]:
    """Yield a note for each model that reads or generates rows with more tokens than it has positions."""
    longest = dict[tuple[str, int], int]()
    params = dict[tuple[str, int], list[str]]()
    for role in setting.roles:
        shape = setting.shape(role)
        tokens = max((load.longest_tokens for load in setting.loads_of(role)), default=0)
        if shape.positions is not None and tokens > shape.positions:
            model = shape.base, shape.positions
            longest[model] = max(longest.get(model, 0), tokens)
            params.setdefault(model, []).append(role.param)
    for (base, positions), tokens in longest.items():
        names = ", ".join(dict.fromkeys(params[base, positions]))
        yield (
            f"rows have up to {tokens:,} tokens, and {base} ({names}) has {positions:,} positions: scale its rotary "
            f"embeddings in config.json, or make rows shorter (--prompt-tokens, --response-tokens, max_tokens)"
        )


def _widened_weights(setting: PlanningProblem) -> Iterator[str]:
    """Yield a note where devices have no arithmetic of the precision of the weights that generate responses."""
    precision = setting.sampling_precision
    if precision not in ("fp8", "fp4") or not any(role.use == "sample" for role in setting.roles):
        return
    for model in dict.fromkeys(of.model for of in setting.classes if of.model):
        known = profile(model).peak_flops
        if precision not in known:
            wider = next(each for each in WIDER[precision] if each in known)
            yield (
                f"{model} has no {precision} arithmetic: weights of {precision} are converted to {wider} in each "
                f"product, which saves memory, not operations; not every engine does this"
            )


def _uncorrected_staleness(setting: PlanningProblem) -> Iterator[str]:
    """Yield a note where a staleness was asked for, and the flow says no bound for it."""
    if setting.staleness and not setting.staleness_bound and setting.synced:
        param = next(iter(setting.synced)).partition(".")[0]
        yield (
            f"{setting.graph.name} says no bound of staleness: its loss corrects for none until the flow has "
            f"`generate(stale({param}, at_most={setting.staleness}), …)`"
        )
