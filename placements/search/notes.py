"""Notes to the user on the assumptions of a plan, and on requirements that models, devices or the flow do not meet."""

from __future__ import annotations

from placements.hardware.device_profiles import profile
from placements.time.kernels import COMPUTED_IN
from placements.workload.node_workload import taken
from placements.workload.planning_problem import DEFAULT_ENGINES, PlanningProblem


def planner_notes(problem: PlanningProblem) -> tuple[str, ...]:
    """Return sentences on what any plan of a problem assumes, then on requirements that the problem does not meet."""
    return (*taken(problem.running, problem.prompts), *cautions(problem))


def scale_notes(problem: PlanningProblem) -> list[str]:
    """Return a sentence for each device model on its calibration: source and factors, or that there is none for it.

    Returns [] if the problem has no calibration.
    """
    calibration, notes = problem.calibration, list[str]()
    if calibration is None:
        return notes
    for device in dict.fromkeys(of.model or of.kind for of in problem.classes):
        here = [scale for scale in calibration.scales if scale.device == device]
        measured = {scale.phase for scale in here if scale.role}
        printed = [scale for scale in here if scale.role or scale.phase not in measured]
        factors = ", ".join(f"{f'{scale.phase} {scale.role}'.strip()} ×{scale.factor:.2f}" for scale in printed)
        unscaled = f"the calibration by {calibration.source} has no scale for {device}, whose seconds are not scaled"
        notes.append(f"calibrated on {device} by {calibration.source}: {factors}" if printed else unscaled)
    return notes


def cautions(problem: PlanningProblem) -> tuple[str, ...]:
    """Return a sentence for each requirement of a problem that its models, devices or flow do not meet.

    These are models with fewer positions than the longest row has tokens, devices without arithmetic in the precision
    of the weights that generate responses, staleness for which the flow declares no bound, and default engines that are
    not considered, since they would sample another distribution than the flow asks for.
    """
    notes, models = list[str](), dict[tuple[str, int], tuple[int, list[str]]]()
    for role in problem.roles:
        shape = problem.shape(role)
        tokens = max((load.longest_tokens for load in problem.loads_of(role)), default=0)
        if shape.positions is not None and tokens > shape.positions:
            longest, params = models.get((shape.base, shape.positions), (0, []))
            models[shape.base, shape.positions] = max(longest, tokens), [*params, role.param]
    for (base, positions), (tokens, params) in models.items():
        notes.append(
            f"rows have up to {tokens:,} tokens, and {base} ({', '.join(dict.fromkeys(params))}) has {positions:,} "
            f"positions: scale its rotary embeddings in config.json, or make rows shorter (--prompt-tokens, "
            f"--response-tokens, max_tokens)"
        )
    precision = problem.sampling_precision
    narrow = precision in ("fp8", "fp4") and any(role.use == "sample" for role in problem.roles)
    for model in dict.fromkeys(devices.model for devices in problem.classes if devices.model):
        if narrow and precision not in (peaks := profile(model).peak_flops):
            wider = next(wider for wider in COMPUTED_IN[precision] if wider in peaks)
            notes.append(
                f"{model} has no {precision} arithmetic: weights of {precision} are converted to {wider} in each "
                f"product, which saves memory, not operations; not every engine does this"
            )
    if problem.staleness and not problem.staleness_bound and problem.synced:
        param = next(iter(problem.synced)).partition(".")[0]
        notes.append(
            f"{problem.graph.name} declares no staleness bound: its loss is not corrected for stale rollouts, and "
            f"`run` refuses a plan with them, until the flow has "
            f"`generate(stale({param}, at_most={problem.staleness}), …)`"
        )
    defaults, (engine, *_) = DEFAULT_ENGINES[problem.kind]["sample"], problem.engines_of("sample")
    if "sample" not in problem.engines and engine not in defaults:
        notes += [
            f"`{name}` is not considered, because it does not sample with {problem.misread_settings[name]} as the flow "
            f"asks for: responses are planned on `{engine}`"
            for name in defaults
        ]
    return tuple(notes)
