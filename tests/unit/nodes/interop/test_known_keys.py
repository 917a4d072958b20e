"""Every key that is written is one that the system of that version reads: held against the lists from its source."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flowgraph.errors import UnknownNameError
from nodes.interop import SYSTEMS, export, exported_versions, versions
from nodes.interop.keys import FOLDERS, Keys, keys
from placements.search.named_placements import VARIANTS
from tests.looped import looped

FLOWS = sorted(path.stem for path in (Path(__file__).parents[4] / "examples").glob("[!_]*.py") if path.stem != "sft")
WITH_REWARD_MODEL = "benchmarks.flows.ppo_reward_model"
EXPORTED = [(system, version) for system in SYSTEMS for version in exported_versions(system)]


def unknown(known: Keys, told: list[str]) -> list[str]:
    """Return the keys that a version does not read; with a `+` only those that are not in its configuration.

    A whole group may be told, as None.
    """
    groups = {key[:place] for key in known.defaults for place, letter in enumerate(key) if letter == "."}
    plain = [key for key in told if key not in groups and not (known.knows(key) and key not in known.added)]
    return [key for key in plain if not (key.startswith("+") and key[1:] in known.added)]


@pytest.mark.slow(group="commands")
@looped("system, version", EXPORTED)
@looped("flow", FLOWS)
def test_no_flow_is_exported_with_a_key_that_is_not_in_the_list(
    system: Any, version: str, flow: str, graph: Any, plan: Any, argv: Any, told_keys: Any, dotted: Any
) -> None:
    described = graph(flow)
    placements = ("hybrid", "standalone") if flow != "ppo" else [variant.name for variant in VARIANTS]
    for placement in placements:
        files = export(plan(described, placement), system, version, graph=described).files
        if system == "nemo-rl":
            told = list(dotted(yaml.safe_load(files["nemo_rl.yaml"])))
            told.remove("defaults")
        else:
            told = told_keys(argv(files["run.sh"]))
        assert len(told) > 30
        assert unknown(keys(system, version), told) == []
        assert len(set(told)) == len(told), "a key is told twice"


@looped("system, version", EXPORTED)
@looped("engine", ["fsdp", "megatron"])
def test_no_engine_adapter_reward_model_or_lag_brings_an_unknown_key(
    system: Any, version: str, engine: str, graph: Any, plan: Any, argv: Any, told_keys: Any, dotted: Any
) -> None:
    described = graph("ppo_reward_model", {"policy.generate.n": 4}, WITH_REWARD_MODEL)
    models = {"policy": "org/a+lora=16", "critic": "org/b+lora=8,alpha=8"}

    def change(placed: Any) -> Any:
        return placed.model_copy(update={"engine": engine}) if placed.engine == "fsdp" else placed

    for lag in (0, 2):
        made = plan(described, "standalone:each-role", lag=lag, models=models, change=change)
        files = export(made, system, version, graph=described).files
        if system == "nemo-rl":
            told = list(dotted(yaml.safe_load(files["nemo_rl.yaml"])))
            told.remove("defaults")
        else:
            told = told_keys(argv(files["run.sh"]))
        assert unknown(keys(system, version), told) == []


def test_every_list_names_the_files_that_it_was_read_from() -> None:
    paths = [(system, path) for system, folder in FOLDERS.items() for path in folder.glob("keys/*.json")]
    assert len(paths) == sum(len(versions(system)) for system in SYSTEMS)
    for system, path in paths:
        listed = json.loads(path.read_text(encoding="utf-8"))
        assert (listed["system"], listed["version"]) == (system, path.stem)
        assert listed["read_from"]
        assert len(listed["keys"]) > 100
        assert list(listed["keys"]) == sorted(listed["keys"])


def test_versions_are_listed_oldest_first_and_the_newest_is_exported() -> None:
    assert versions("verl") == ("0.5.0", "0.7.1", "0.9.1")
    assert exported_versions("verl") == ("0.7.1", "0.9.1")
    assert versions("openrlhf") == ("0.8.11", "0.9.10", "0.11.2")
    assert exported_versions("openrlhf") == ("0.9.10", "0.11.2")
    assert exported_versions("nemo-rl") == ("0.7.0",)


def test_a_key_below_an_open_one_is_known_and_its_neighbour_is_not() -> None:
    known = keys("verl", "0.9.1")
    assert known.knows("actor_rollout_ref.rollout.engine_kwargs.vllm.anything")
    assert not known.knows("actor_rollout_ref.rollout.engine_kwarg.vllm")
    assert known.hint("actor_rollout_ref.actor.optim.lrr") == "did you mean `actor_rollout_ref.actor.optim.lr`?"


def test_the_hint_prefers_a_key_of_the_same_last_name() -> None:
    assert keys("verl", "0.9.1").hint("critic.model.fsdp_config.fsdp_size") == "did you mean `critic.fsdp.fsdp_size`?"


@pytest.mark.parametrize(
    ("system", "version", "text"),
    [
        ("verll", "", "no system `verll`\n  hint: did you mean `verl`?"),
        ("verl", "0.9.0", "no version of verl to export to `0.9.0`\n  hint: did you mean `0.9.1`?"),
        ("nemo-rl", "1", "no version of nemo-rl to export to `1`\n  hint: known: 0.7.0"),
    ],
)
def test_a_name_that_is_not_known_is_refused_with_the_nearest(
    system: str, version: str, text: str, graph: Callable[..., Any], plan: Callable[..., Any]
) -> None:
    described = graph("gpg")
    with pytest.raises(UnknownNameError) as caught:
        export(plan(described, "hybrid"), system, version, graph=described)
    assert str(caught.value) == text
