"""Small problems, each drawn in its docstring, the placement wanted, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from placements.solver.problem import AssignmentProblem, Block, Option, Solution
from placements.solver.solve import solve

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
GENERATION, PREPARATION, TRAINING = range(3)
Seconds = Mapping[str, Sequence[tuple[int, float, float]]]


def flow(roles: Seconds, devices: int, *, least: Mapping[str, int] | None = None, **settings: Any) -> AssignmentProblem:
    """Make roles that take seconds of work and seconds that do not shrink, (span, work, fixed), in a pool by turns."""
    names = tuple(roles)

    def spans(block: Block, size: int) -> tuple[float, ...]:
        parts = [part for role in sorted(block) for part in roles[names[role]]]
        return tuple(sum(w / size + f for span, w, f in parts if span == at) for at in range(3))

    def options(block: Block) -> list[Option]:
        smallest = sum((least or {}).get(names[role], 1) for role in block)
        return [Option((n,), spans(block, n), cost=2.0 * n) for n in SIZES if smallest <= n <= devices]

    return AssignmentProblem(names, (devices,), options, **settings)


def pools(problem: AssignmentProblem, method: Any = "auto") -> dict[str, int]:
    """Return the devices of each pool, by the roles on it."""
    answer = found(problem, method)
    return {
        " ".join(problem.roles[role] for role in sorted(block)): option.devices[0] for block, option in answer.blocks
    }


def found(problem: AssignmentProblem, method: Any = "auto") -> Solution:
    answer = solve(problem, method)
    assert answer is not None
    return answer


GRPO: Seconds = {
    "policy.train": [(TRAINING, 640.0, 1.0)],
    "policy.sample": [(GENERATION, 480.0, 9.0)],
    "ref.infer": [(PREPARATION, 160.0, 0.5)],
}


def test_on_policy_and_few_devices_all_share_a_pool() -> None:
    """Stages wait for each other, so that devices of one pool would idle while another works.

    sample ─► ref ─► train, one after the other on all 16
    """
    assert pools(flow(GRPO, 16)) == {"policy.train policy.sample ref.infer": 16}


def test_where_sampling_may_lag_it_gets_a_pool_of_its_own() -> None:
    """Two steps overlap: the pools work at once, and a step takes as long as the busier one.

    sample           on 64: 480/64 + 9   = 16.5
    ref ─► train     on 48: 800/48 + 1.5 = 18.2, and with the sizes the other way round 19 and 14
    """
    assert pools(flow(GRPO, 112, tokens=2)) == {"policy.train ref.infer": 48, "policy.sample": 64}
    assert found(flow(GRPO, 112, tokens=2)).value == pytest.approx(800 / 48 + 1.5)


def test_roles_of_one_stage_part_where_their_seconds_do_not_shrink() -> None:
    """Four judges of fixed seconds wait for each other in one pool, and not in four.

    one pool: 4 × 5 s      four pools: 5 s
    """
    judges: Seconds = {f"judge{at}": [(PREPARATION, 1.0, 5.0)] for at in range(4)}
    assert pools(flow(judges, 8)) == {f"judge{at}": 1 for at in range(4)} or len(pools(flow(judges, 8))) == 4
    assert found(flow(judges, 8)).value == pytest.approx(5.0 + 1 / 2)


def test_memory_that_does_not_fit_together_parts_roles() -> None:
    """Both together need 36 devices, and the next size is 48; apart they need 20 and 16, whose sizes are 24 and 16."""
    roles = {name: GRPO[name] for name in ("policy.train", "policy.sample")}
    least = {"policy.train": 20, "policy.sample": 16}
    assert pools(flow(roles, 40, least=least)) == {"policy.train": 24, "policy.sample": 16}
    assert len(pools(flow(roles, 48, least=least))) == 1
    assert solve(flow(roles, 39, least=least)) is None


def test_the_fewest_devices_are_those_of_memory_and_of_these_the_fastest_are_taken() -> None:
    """Together they need 3 + 2 + 1 = 6 devices, a pool of 8 then; apart 4 + 2 + 1 = 7; and by pairs 4 + 2 = 6."""
    least = {"policy.train": 3, "policy.sample": 2, "ref.infer": 1}
    answer = found(flow(GRPO, 64, least=least, objective="devices"))
    assert (answer.value, answer.best.devices, len(answer.blocks)) == (6.0, 6, 2)


def test_the_cheapest_step_takes_few_devices_where_seconds_do_not_shrink_in_proportion() -> None:
    """Money is seconds times devices, and fixed seconds cost more on more; three roles need 3, and so take 4."""
    cheapest = found(flow(GRPO, 64, objective="cost"))
    fastest = found(flow(GRPO, 64))
    assert (cheapest.best.devices, fastest.best.devices) == (4, 64)
    assert cheapest.best.step_s * cheapest.best.cost < fastest.best.step_s * fastest.best.cost


def test_of_two_classes_each_pool_takes_the_one_that_it_gains_from() -> None:
    """Sampling is as fast on the cheap class, training is not, and two pools of one class would share its devices."""
    seconds = {
        (0, 0): 8.0, (0, 1): 40.0,  # training: of class 0 and 1
        (1, 0): 8.0, (1, 1): 8.0,  # sampling
    }  # fmt: skip

    def options(block: Block) -> list[Option]:
        (role,) = block if len(block) == 1 else (None,)
        if role is None:
            return []
        taken = ((4, 0), (0, 4))
        return [Option(taken[of], (seconds[role, of] * (role == 0), seconds[role, of] * (role == 1))) for of in (0, 1)]

    answer = found(AssignmentProblem(("policy.train", "policy.sample"), (4, 4), options, tokens=2))
    assert [option.devices for _, option in answer.blocks] == [(4, 0), (0, 4)]


def test_pins_are_kept_and_cost_what_they_cost() -> None:
    """Sampling kept apart from training on policy: 16 devices that take turns, and idle meanwhile."""
    free, pinned = flow(GRPO, 16), flow(GRPO, 16, apart=(Block({0, 1}),))
    assert len(found(pinned).blocks) == 2
    assert found(pinned).value > found(free).value


def test_the_runners_up_are_other_placements_and_not_only_other_sizes() -> None:
    """Judges that are as fast on two pools as on four: which of them share is all the same."""
    judges: Seconds = {f"judge{at}": [(PREPARATION, 8.0, 0.0)] for at in range(4)}
    answer = found(flow(judges, 16))
    best = [each for each in (answer.best, *answer.runners_up) if each.value == answer.value]
    assert len(answer.blocks) == 1
    assert len({frozenset(block for block, _ in each.blocks) for each in best}) > 3
