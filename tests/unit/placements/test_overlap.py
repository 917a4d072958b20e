"""How generation and training are overlapped: the split, the staleness and the sync period that are chosen."""

from __future__ import annotations

import pytest

from placements.cycles import period
from placements.overlap import choose, overlapped, step_s
from placements.schedule import Task

# Seconds of a step on so many H20, DAPO on Qwen2.5-Math-7B. Source: verl, docs/advance/one_step_off.md.
GENERATE = {4: 458.0}
TRAIN = {12: 108.0 + 337.0}


def test_the_published_split_needs_one_update_of_staleness() -> None:
    found = choose(GENERATE, TRAIN, 16, at_most=4)
    assert (found.ratio, found.staleness, found.sync_every, found.period_s) == ((1, 3), 1, 1, 458)
    assert found.by_staleness == (903, 458, 458, 458, 458)
    assert str(found) == (
        "4 devices generate, 12 train; a sync after every update, weights at most 1 update old: 458.0 s a step, "
        "903.0 s on-policy"
    )


def test_a_slow_sync_is_shared_by_as_many_updates_as_staleness_allows() -> None:
    found = choose(GENERATE, TRAIN, 16, at_most=4, sync_s=100, within=0.0)
    assert (found.ahead, found.sync_every, found.staleness, found.period_s) == (1, 4, 4, 458 + 100 / 4)
    little = choose(GENERATE, TRAIN, 16, at_most=4, sync_s=100, within=0.1)
    assert (little.staleness, little.period_s) == (2, 458 + 100 / 2)


def test_a_sync_that_outlasts_training_is_rather_made_less_often_than_hidden() -> None:
    """One more update for each sync gains more than generating one batch ahead, if training is short."""
    found = choose({4: 100.0}, {4: 2.0}, 8, at_most=1, sync_s=50, within=0.0)
    assert (found.ahead, found.sync_every, found.period_s) == (0, 2, 100 + 52 / 2)
    assert str(found).startswith(
        "4 devices generate, 4 train; a sync after every 2 updates, weights at most 1 update old"
    )


def test_devices_go_where_they_balance_both_pools() -> None:
    found = choose(lambda n: 1832 / n, lambda n: 5340 / n, 16, at_most=1)
    assert (found.generate_devices, found.train_devices) == (4, 12)
    whole_nodes = choose(lambda n: 1832 / n, lambda n: 5340 / n, 64, at_most=1, sizes=range(8, 64, 8))
    assert (whole_nodes.generate_devices, whole_nodes.train_devices) == (16, 48)


def test_generation_that_gets_no_faster_leaves_its_devices_to_training() -> None:
    """The longest response sets a floor: more replicas do not shorten it."""
    found = choose(lambda n: max(200.0, 1600 / n), lambda n: 2400 / n, 32, at_most=1)
    assert (found.generate_devices, found.train_devices, found.period_s) == (8, 24, 200)


def test_devices_that_gain_nothing_stay_idle_and_are_counted() -> None:
    found = choose({2: 10.0}, {4: 9.0, 8: 9.0}, 16, at_most=1)
    assert str(found).startswith("2 devices generate, 4 train, 10 idle;")


def test_sizes_that_do_not_fit_or_are_not_known_are_left_out() -> None:
    found = choose(lambda n: None if n < 8 else 1000 / n, {4: None, 8: 50.0, 12: float("inf")}, 20, at_most=1)
    assert (found.generate_devices, found.train_devices) == (12, 8)


def test_no_split_says_which_seconds_are_known() -> None:
    with pytest.raises(ValueError) as error:
        choose({8: 1.0}, {4: None}, 8, at_most=1)
    told = "no split of 8 devices: seconds are known of generation on none and of training on none"
    assert str(error.value) == told
    with pytest.raises(ValueError, match="0 updates old or more, not -1"):
        choose(GENERATE, TRAIN, 16, at_most=-1)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("sync_every", [1, 2, 5])
def test_the_schedule_of_a_choice_takes_what_was_said(ahead: int, sync_every: int) -> None:
    generate = Task("generate", "generate", ("rollout",), 458)
    train = [Task("logprob", "logprob", ("train",), 108), Task("update", "update", ("train",), 337)]
    sync = Task("sync", "sync", ("rollout", "train"), 20)
    schedule = overlapped(generate, train, sync, ahead=ahead, sync_every=sync_every)
    found_s = step_s(458, 445, 20, ahead=ahead, sync_every=sync_every)
    assert (period(schedule).seconds or 0.0) / sync_every == pytest.approx(found_s)


def test_without_a_sync_both_pools_still_meet_for_the_next_weights() -> None:
    schedule = overlapped(Task("g", "generate", ("r",), 5.0), [Task("u", "update", ("t",), 3.0)])
    assert period(schedule).seconds == 5.0
