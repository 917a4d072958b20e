"""The search over a problem: the same each time, as good as trying everything, and true to what was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from placements.search.infeasibility import overflows
from placements.search.named_placements import VARIANTS, name_of, variant
from placements.search.plan_request import PlanRequest, pinned
from placements.search.pool_options import PoolOptions, pool_option_of
from placements.search.search import SearchResult, assignment_problem, find, solved, waiting_at_stages
from placements.solver.exact import solve_exact
from placements.solver.problem import Option, Solution, step_seconds
from placements.workload.planning_problem import PlanningProblem
from tests.examples.flows.two_agents import two_agents
from tests.flows.ppo_shaped import ppo_shaped
from tests.looped import looped
from tests.placement.search_oracles import partitions
from tests.unit.placements.small_problems import Of, called, cluster_of, found_of, lagging, problem_of, prompt

FLOWS: list[Of] = ["ppo", "grpo", lagging, two_agents, "gpg", "decoupled_ppo", ppo_shaped]
EVERY = looped("of", FLOWS[:4], slow=FLOWS[4:])


@EVERY
def test_the_same_setting_gives_the_same_plans(of: Of) -> None:
    first, again = found_of(of, "2x8xh100"), find(problem_of(of, "2x8xh100"))
    assert [each.plan().to_json() for each in first.ranked] == [each.plan().to_json() for each in again.ranked]
    assert [each and each.step_s for _, each in first.named] == [each and each.step_s for _, each in again.named]


@EVERY
def test_no_named_placement_is_better_than_the_best_by_the_searchs_own_figure(of: Of) -> None:
    found = found_of(of, "2x8xh100")
    assert found.solution.exact
    for _, ranked in found.named:
        assert ranked is None or ranked.bound >= found.solution.value * (1 - 1e-9)


@EVERY
def test_no_plan_that_was_played_beats_the_one_that_comes_first(of: Of) -> None:
    found = found_of(of, "2x8xh100")
    assert found.best.step_s == min(each.step_s for each in found.ranked)
    assert all(each.bound <= each.step_s * (1 + 1e-9) for each in found.ranked)
    assert found.bound is not None
    assert found.solution.value <= found.bound * (1 + 1e-9)
    assert found.bound <= found.best.step_s * (1 + 1e-9)
    assert found.best in found.ties()


@EVERY
def test_more_machines_never_make_the_searchs_figure_worse(of: Of) -> None:
    values = [found_of(of, cluster).solution.value for cluster in ("1x8xh100", "2x8xh100", "4x8xh100")]
    assert values == sorted(values, reverse=True)


def least_s(problem: PlanningProblem) -> float:
    """Try every cut into blocks, with every option of each block, that the devices have room for."""
    blocks, room = PoolOptions(problem), [of.count for of in problem.classes]
    best = float("inf")
    for cut in partitions(range(len(problem.roles))):
        for taken in product(*(blocks.options(block) for block in cut)):
            if _fit(taken, room):
                best = min(best, step_seconds(taken, problem.lag + 1))
    return best


def _fit(taken: Sequence[Option], room: Sequence[int]) -> bool:
    return all(sum(option.devices[place] for option in taken) <= count for place, count in enumerate(room))


@pytest.mark.slow(group="planner")
@looped("cluster", ["1x4xh100", "1x8xh100", "1x2xh100,1x4xa100"])
@looped("of", ["grpo", "gpg", lagging, "ppo"])
def test_the_best_is_the_best_of_all(of: Of, cluster: str) -> None:
    """Three roles, five cuts; four roles, fifteen: few enough to try each with all its options."""
    problem = problem_of(of, cluster)
    found = find(problem)
    assert found.solution.value == pytest.approx(least_s(problem), rel=1e-9)


@EVERY
def test_sizes_too_slow_for_any_plan_that_is_kept_change_no_plan(of: Of) -> None:
    """Left out are sizes at which a block alone is slower than all roles on one pool, and a tenth."""
    problem = problem_of(of, "4x8xh100")
    every, fewer = (
        assignment_problem(problem, PoolOptions(problem), asked)
        for asked in (PlanRequest(), PlanRequest(method="exact"))
    )
    every = replace(every, options=PoolOptions(problem).options)
    one, other = solve_exact(every), solve_exact(fewer)
    assert one is not None and other is not None
    assert _least_by_parts(one) == _least_by_parts(other)


def _least_by_parts(answer: Solution) -> dict[frozenset[frozenset[int]], float]:
    """Return the least value of each cut into pools: of other choices of the same cut nothing is promised."""
    least = dict[frozenset[frozenset[int]], float]()
    for each in (answer.best, *answer.runners_up):
        parts = frozenset(block for block, _ in each.blocks)
        least[parts] = min(each.value, least.get(parts, each.value))
    return least


@pytest.mark.slow(group="planner")
@EVERY
def test_greedy_is_never_better_than_exact_and_auto_is_exact(of: Of) -> None:
    problem = problem_of(of, "1x8xh100")
    exact, greedy, auto = (find(problem, PlanRequest(method=each)).solution for each in ("exact", "greedy", "auto"))
    assert greedy.value >= exact.value * (1 - 1e-9)
    assert auto.value == exact.value
    assert exact.exact


ROLES = ("policy.train", "policy.sample", "critic.train", "judge.infer", "ref.infer")
PINS: list[dict[str, str]] = [
    {"policy.train": "a", "policy.sample": "b"},
    {"policy.train": "a", "judge.infer": "a"},
    {"policy.train": "a", "policy.sample": "a", "critic.train": "b", "ref.infer": "b", "judge.infer": "c"},
    {"critic.train": "a"},
]


@pytest.mark.parametrize("pins", PINS, ids=str)
def test_roles_pinned_to_one_pool_share_it_and_others_do_not(pins: dict[str, str]) -> None:
    found = find(problem_of(ppo_shaped, "2x8xh100"), PlanRequest(pins=pins))
    for ranked in found.ranked:
        pool = {role: place for place, part in enumerate(ranked.parts()) for role in part}
        for one, other in product(pins, repeat=2):
            assert (pool[one] == pool[other]) == (pins[one] == pins[other])


@looped("each", VARIANTS)
def test_a_named_placement_that_is_asked_for_is_what_comes(each: object) -> None:
    name = str(getattr(each, "name", ""))
    problem = problem_of(ppo_shaped, "2x8xh100")
    found = find(problem, PlanRequest(placement=name))
    assert {frozenset(part) for part in found.best.parts()} == set(
        map(frozenset, variant(name).parts_of(problem.graph))
    )
    assert name_of(problem.graph, found.best.parts()) == name


def test_pins_make_pairs_of_roles_that_share_and_that_do_not() -> None:
    """Roles of GRPO are 0 policy.train, 1 policy.sample, 2 ref.infer."""
    together, apart = pinned(
        problem_of("grpo"), PlanRequest(pins={"policy.train": "a", "ref.infer": "a", "policy.sample": "b"})
    )
    assert (together, apart) == ((frozenset({0, 2}),), (frozenset({0, 1}),))


def test_a_pin_beside_a_placement_parts_no_roles_that_the_placement_puts_together() -> None:
    """Split puts policy.train and ref on one pool; naming the pool of one of them changes nothing."""
    problem = problem_of("grpo")
    asked = PlanRequest(placement="split:openrlhf", pins={"ref.infer": "a", "policy.sample": "b"})
    assert find(problem, asked).best.parts() == (("policy.train", "ref.infer"), ("policy.sample",))


def priced(of: Of, cluster: str) -> PlanningProblem:
    """Return a problem whose machines cost 80 an hour."""
    nodes = tuple(each.model_copy(update={"price_per_hour": 80.0}) for each in cluster_of(cluster).nodes)
    return replace(problem_of(of, cluster), cluster=cluster_of(cluster).model_copy(update={"nodes": nodes}))


@pytest.mark.slow(group="planner")
@EVERY
def test_the_fewest_devices_are_no_more_than_any_other_objective_takes(of: Of) -> None:
    problem = priced(of, "2x8xh100")
    found = {objective: find(problem, PlanRequest(objective=objective)) for objective in ("step", "cost", "devices")}
    assert found["devices"].best.devices == min(each.best.devices for each in found.values())
    assert found["devices"].solution.value == found["devices"].best.devices
    assert found["cost"].solution.value <= min(_cost(found["step"]), _cost(found["devices"])) * (1 + 1e-9)
    assert found["step"].solution.value <= min(each.solution.best.step_s for each in found.values()) * (1 + 1e-9)


def _cost(found: SearchResult) -> float:
    return found.solution.best.step_s * found.solution.best.cost


def test_of_equally_few_devices_the_fastest_comes_first() -> None:
    """A small model fits on one device with all its roles, in several ways."""
    found = find(problem_of("grpo"), PlanRequest(objective="devices"))
    assert found.best.devices == 1
    fewest = [each for each in found.ranked if each.devices == 1]
    assert found.best.step_s == min(each.step_s for each in fewest)


def test_more_pools_than_devices_fit_nowhere() -> None:
    """Five roles, each on a pool of its own, on four devices."""
    problem = problem_of(ppo_shaped, "1x4xh100")
    assert solved(problem, PoolOptions(problem), tuple((role.name,) for role in problem.roles)) is None
    found = {each.name: ranked for each, ranked in find(problem).named}
    assert found["standalone:each-role"] is None
    assert found["colocated:deepspeed-chat"] is not None


@pytest.mark.parametrize("of", [prompt, lagging], ids=called)
def test_a_staleness_that_is_asked_for_lets_two_steps_overlap_in_the_searchs_figure_too(of: Of) -> None:
    """Step after step the best shares one pool, even where the flow lets weights lag; overlapped it draws beside."""
    problem = problem_of(of, "2x8xh100", model="Qwen/Qwen3-8B", prompts=512, response="mean=2k,max=8k")
    overlapping = replace(problem, staleness=1)
    assert len(find(problem).best.parts()) == 1
    assert len(find(overlapping).best.parts()) > 1
    assert [assignment_problem(each, PoolOptions(each), PlanRequest()).tokens for each in (problem, overlapping)] == [
        1,
        2,
    ]


def test_what_a_role_leaves_in_its_process_is_counted_before_a_plan_is_the_best() -> None:
    problem = problem_of("gpg", "2xcpu-16GiB", model="tiny", prompt_tokens="16")
    best = find(problem).best
    counted = max(pool_option_of(option).peak_bytes for _, option in best.blocks)
    held = max(each.worst.memory_bytes for each in best.plan().forecast if each.worst is not None)
    assert held > counted
    nodes = [
        node.model_copy(
            update={"devices": tuple(each.model_copy(update={"memory_bytes": counted + 1}) for each in node.devices)}
        )
        for node in problem.cluster.nodes
    ]
    short = replace(problem, cluster=problem.cluster.model_copy(update={"nodes": tuple(nodes)}))
    assert list(overflows(best.plan(), short, ""))
    assert not list(overflows(find(short).best.plan(), short, ""))


def test_one_device_has_all_roles() -> None:
    found = find(problem_of("grpo", "1x1xh100"))
    assert found.best.parts() == (("policy.train", "policy.sample", "ref.infer"),)
    assert found.best.devices == 1


def test_machines_of_two_kinds_are_both_used_where_that_is_faster() -> None:
    """Eight H100 beside eight L40S: with a lag one kind draws and the other trains, rather than either doing both."""
    problem = problem_of(lagging, "1x8xh100,1x8xl40s")
    found = find(problem)
    alone = find(problem_of(lagging, "1x8xh100"))
    assert found.solution.value <= alone.solution.value * (1 + 1e-9)
    plan = found.best.plan()
    for pool in plan.pools:
        assert len({device.model for place in pool.devices if (device := plan.cluster.device(*place))}) == 1


@pytest.mark.parametrize("cluster", ["1x2xh100", "1x4xh100"])
def test_where_stages_share_a_span_plans_are_also_sought_as_if_all_waited_after_each_stage(cluster: str) -> None:
    """Bounds add up what a pool does in a span, and miss that one waits there for another."""
    blocks = PoolOptions(problem_of(two_agents, cluster))
    posed = assignment_problem(blocks.problem, blocks, PlanRequest()).remembering()

    def waiting_s(options: Sequence[Option]) -> float:
        sittings = [pool_option_of(option) for option in options]
        stages = zip(*(sitting.stages_s for sitting in sittings), strict=True)
        return sum(map(max, stages))

    every = [
        options
        for cut in partitions(range(len(blocks.problem.roles)))
        for options in product(*map(posed.options, cut))
        if sum(sum(option.devices) for option in options) <= posed.capacity[0]
    ]
    first, *_ = waiting_at_stages(posed, blocks)
    assert waiting_s([option for _, option in first.blocks]) == pytest.approx(min(map(waiting_s, every)))
    assert all(any(option is each for each in posed.options(block)) for block, option in first.blocks)


def test_where_barriers_part_all_stages_bounds_tell_plans_apart() -> None:
    blocks = PoolOptions(problem_of("grpo"))
    assert waiting_at_stages(assignment_problem(blocks.problem, blocks, PlanRequest()).remembering(), blocks) == []


def test_sizes_that_are_too_slow_are_not_offered() -> None:
    problem = problem_of("ppo", "8x8xh100")
    everyone = [frozenset({place}) for place in range(len(problem.roles))]
    every, fewer = (
        PoolOptions(problem).options,
        assignment_problem(problem, PoolOptions(problem), PlanRequest()).options,
    )
    assert sum(len(fewer(block)) for block in everyone) < sum(len(every(block)) for block in everyone)


@pytest.mark.parametrize("cluster", ["4x6xh100", "2x7xh100", "3x3xh100", "2x5xh100,1x8xh100"])
def test_machines_with_an_odd_number_of_devices_are_planned(cluster: str) -> None:
    """Draw: machines of 6; tensor groups of 4 would leave two devices of each idle, so pools of several have none."""
    found = find(problem_of("grpo", cluster, model="Qwen/Qwen3-8B"))
    plan = found.best.plan()
    for placed in plan.placed:
        pool = next(pool for pool in plan.pools if pool.name == placed.pool)
        machines = {node for node, _ in pool.devices}
        shares = [sum(node == machine for node, _ in pool.devices) for machine in machines]
        assert placed.layout.devices == len(pool.devices)
        assert all(share % placed.layout.tensor == 0 for share in shares)


def test_a_second_machine_whose_network_nobody_knows_takes_no_plan_away() -> None:
    alone, two = (find(problem_of("grpo", cluster)).best for cluster in ("1x8xa40", "2x8xa40"))
    assert two.step_s <= alone.step_s
    assert all(len({node for node, _ in pool.devices}) == 1 for pool in two.plan().pools)


def test_an_engine_asked_for_by_name_is_given_stages_and_experts_and_the_default_is_not() -> None:
    """Megatron cuts layers into stages; FSDP, which runs here, has data and tensor ranks."""
    model, plain = "Qwen/Qwen3-30B-A3B", {"train": "fsdp", "sample": "sglang", "infer": "fsdp"}

    def layouts(train: str) -> set[tuple[int, int]]:
        problem = replace(problem_of("gpg", "2x8xh100", model=model), engines={**plain, "train": train})
        role = next(place for place, each in enumerate(problem.roles) if each.use == "train")
        blocks = PoolOptions(problem)
        return {
            (way.layout.pipeline, way.layout.expert)
            for _, group in blocks.groups
            for way in blocks.role_options(role, group).on_devices
        }

    assert layouts("fsdp") == {(1, 1)}
    assert {(2, 1), (1, 8), (2, 8)} <= layouts("megatron")
