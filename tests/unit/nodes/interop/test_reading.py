"""Commands as keys and values: Hydra's overrides, flags, YAML, and the values that they hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowgraph.errors import UsageError
from nodes.interop import read_command, read_yaml
from nodes.interop.commands import started
from nodes.interop.config import resolve_reference, scalar
from nodes.interop.read_runs import keys_of_yaml
from nodes.interop.rendering import flag, hydra, yaml
from tests.looped import looped

VERL = "python3 -m verl.trainer.main_ppo"
MODEL = "actor_rollout_ref.model.path=org/name"


def refusal(text: str) -> str:
    """Return what is said of a command."""
    with pytest.raises(UsageError) as caught:
        read_command(text)
    return str(caught.value)


def test_a_command_is_found_behind_ray_and_after_others() -> None:
    before = f"set -x\npython3 -m verl.model_merger merge --a b\necho {VERL} x=1\n"
    text = f"{before}ray job submit --no-wait -- env A=1 {VERL} a.b=1 +c=2 ++d=3 ~e f='x y'\n"
    found = started(text)
    assert (found.system, found.module, found.line) == ("verl", "verl.trainer.main_ppo", 4)
    assert [(each.key, each.text) for each in found.overrides] == [
        ("a.b", "1"),
        ("c", "2"),
        ("d", "3"),
        ("e", ""),
        ("f", "x y"),
    ]


@looped(
    "option", ["--config-name=x", "--config-name x", "--config-path=. --config-name='x'", "-cp . -cn x", "-m -cn=x"]
)
def test_options_of_hydra_are_no_keys(option: str) -> None:
    found = started(f"{VERL} {option} a=1")
    assert [each.key for each in found.overrides] == ["a"]
    assert found.options[-1].text == "x"


def test_the_first_command_that_trains_is_read_and_the_others_are_told() -> None:
    lines = [
        "python3 -m verl.trainer.fsdp_sft_trainer data.x=1",
        "python - <<EOF",
        "from verl.trainer.main_ppo import main",
        "EOF",
        f"{VERL} {MODEL} trainer.nnodes=2",
        f"{VERL} {MODEL} trainer.nnodes=4",
    ]
    found = read_command("\n".join(lines))
    assert found.devices == 16
    assert "the command of line 5 is read; further ones start a training on lines 6" in found.notes


def test_what_may_hold_further_keys_is_told() -> None:
    found = read_command(f'{VERL} {MODEL} ${{EXTRA}} $(cat more) "$@"')
    assert [note for note in found.notes if "further keys" in note] == [
        "`EXTRA` may hold further keys; only a running shell knows them",
        "`a command's output` may hold further keys; only a running shell knows them",
    ]
    flags = "python -m openrlhf.cli.train_ppo_ray --pretrain $M --vllm_num_engines 8 --colocate_all_models $EXTRA"
    with pytest.raises(UsageError, match="names no model"):
        read_command(flags)
    assert any("`EXTRA` may hold" in note for note in read_command(flags.replace("$M", "x")).notes)


def test_a_key_that_is_told_twice_has_its_last_value_and_that_is_said() -> None:
    found = read_command(f"{VERL} {MODEL} trainer.nnodes=2 trainer.nnodes=4 data.seed=1 data.seed=1")
    assert found.devices == 32
    assert [note for note in found.notes if "more than once" in note] == [
        "`trainer.nnodes` is set more than once: the last value is used, 4"
    ]


def test_a_key_that_is_told_to_be_none_has_no_default() -> None:
    base = f"{VERL} {MODEL} algorithm.adv_estimator=gae"
    clip = "critic.update.value_loss.clip=0.5"
    assert clip in read_command(base).settings
    assert clip not in read_command(f"{base} critic.cliprange_value=null").settings
    assert clip in read_command(f"{base} critic.cliprange_value=???").settings
    with pytest.raises(UsageError, match="must be a whole number, not empty"):
        read_command(f"{base} ~data.max_response_length")


def test_keys_of_what_starts_a_run_are_no_unknown_ones() -> None:
    told = dict(read_command(f"{VERL} {MODEL} hydra.run.dir=x +ray_kwargs.ray_init.num_cpus=4 hydr.run=x").ignored)
    assert told["hydra.run.dir"] == told["ray_kwargs.ray_init.num_cpus"] == "no plan depends on it"
    assert "has no such key" in told["hydr.run"]


def test_a_configuration_of_the_users_own_is_told_to_be_unread() -> None:
    for name, unread in (("ppo_megatron_trainer.yaml", False), ("fully_async_ppo_trainer", False), ("mine", True)):
        notes = read_command(f"{VERL} --config-name={name} {MODEL}").notes
        assert any("the configuration `" in note for note in notes) == unread


def test_flags_have_as_many_values_as_they_take() -> None:
    text = (
        "python -m openrlhf.cli.train_ppo_ray --pretrain x --colocate_all_models --eps_clip_low_high 0.2 0.28 "
        "--save_steps -1 --max_len=4096 --new_flag 3 --other_new_flag"
    )
    assert [(each.key, each.text) for each in started(text).overrides] == [
        ("pretrain", "x"),
        ("colocate_all_models", "True"),
        ("eps_clip_low_high", "0.2 0.28"),
        ("save_steps", "-1"),
        ("max_len", "4096"),
        ("new_flag", "3"),
        ("other_new_flag", "True"),
    ]


@looped(
    "text, said",
    [
        ("echo hi", "the command: this text has no command of verl or OpenRLHF"),
        (f"{VERL} \\\n  a=1 \\\n  b", "line 3: `b`: is not an override, which is written key=value"),
        (f"{VERL} a=1 =2", "line 1: `=2`: is not an override, which is written key=value"),
        (f"{VERL} {MODEL} data.train_batch_size=many", "line 1: `data.train_batch_size`: must be a whole number"),
        (f"{VERL} {MODEL} trainer.nnodes=0", "line 1: `trainer.nnodes`: must be a whole number above 0, not 0"),
        (f"{VERL} a=1", "actor_rollout_ref.model.path: names no model"),
        (f"{VERL} actor_rollout_ref.model.path=$M", "line 1: `actor_rollout_ref.model.path`: names no model: only a"),
        (
            f"{VERL} {MODEL} \\\nactor_rollout_ref.rollout.tensor_model_parallel_size=3",
            "line 2: `actor_rollout_ref.rollout.tensor_model_parallel_size`: 3 does not divide 8 devices",
        ),
        (
            f"{VERL} {MODEL} actor_rollout_ref.rollout.gpu_memory_utilization=60",
            "line 1: `actor_rollout_ref.rollout.gpu_memory_utilization`: must be above 0",
        ),
        (
            f"{VERL} {MODEL} data.train_batch_size=-8",
            "line 1: `data.train_batch_size`: must be a whole number above 0",
        ),
        (
            f"{VERL} {MODEL} data.max_response_length=99999999999999",
            "line 1: `data.max_response_length`: must be at most 2,147,483,647, not 99999999999999",
        ),
        (
            f"{VERL} {MODEL} actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=-1",
            "line 1: `actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu`: must be a whole number above 0, not -1",
        ),
        (
            f"{VERL} {MODEL} actor_rollout_ref.actor.optim.lr=1e400",
            "line 1: `actor_rollout_ref.actor.optim.lr`: must",
        ),
        (f"{VERL} {MODEL} actor_rollout_ref.actor.optim.lr=nan", "line 1: `actor_rollout_ref.actor.optim.lr`: must"),
        (
            "python -m openrlhf.cli.train_ppo_ray --pretrain x --vllm_num_engines -1",
            "line 1: `vllm_num_engines`: must",
        ),
        (
            f"{VERL} {MODEL} algorithm.use_kl_in_reward=perhaps",
            "line 1: `algorithm.use_kl_in_reward`: must be True or False, not perhaps",
        ),
        ("python3 -m verl.trainer.fsdp_sft_trainer a=1", "line 1: `verl.trainer.fsdp_sft_trainer`: does not train on"),
        ("deepspeed --module openrlhf.cli.train_dpo --a 1", "line 1: `openrlhf.cli.train_dpo`: does not train on"),
        ("uv run examples/run_grpo.py --config x.yaml", "line 1: `examples/run_grpo.py`: NeMo RL starts from"),
        ("python -m openrlhf.cli.train_ppo_ray --pretrain", "line 1: `--pretrain`: has no value"),
        ("python -m openrlhf.cli.train_ppo_ray --eps_clip_low_high 1", "line 1: `--eps_clip_low_high`: has no value"),
        ("python -m openrlhf.cli.train_ppo_ray --perf stray", "line 1: `stray`: does not belong to a flag"),
        ("python -m openrlhf.cli.train_ppo_ray --vllm_num_engines 1", "--pretrain: names no model"),
        ("python -m openrlhf.cli.train_ppo_ray --pretrain x", "--vllm.num_engines: samples without vLLM"),
    ],
)
def test_a_command_that_is_broken_is_told_by_line_and_word(text: str, said: str) -> None:
    assert refusal(text).startswith(said)


@looped(
    "text, said",
    [
        ("a: 1\na: 2", "line 2: `a` is repeated; it is first on line 1"),
        ("a:\n  b: 1\n  b: 2", "line 3: `a.b` is repeated; it is first on line 2"),
        ("- a", "line 1: has no keys"),
        ("", "line 1: has no keys"),
        ("a: &x 1\nb: *x", "line 2: an alias stands for another part; write it out"),
        ("a: 1\nb: [1", "line 2: is not YAML: expected ',' or ']', but got '<stream end>'"),
        ("? [a]\n: 3", "line 1: is not a key of a configuration"),
        ("a:\n  " + "[" * 5000, "line 2: nests too deep"),
        ("x" * 200_001, "line 1: more than 200,000 characters are not a configuration"),
    ],
)
def test_a_configuration_that_is_broken_is_told_by_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_yaml(text)
    assert str(caught.value).startswith(said)


def test_a_configuration_is_dotted_keys_with_lines() -> None:
    told = keys_of_yaml("a:\n  b: 1\n  c: [x, 'y']\n  d: {}\ne: '5'\nf: ${a.b}\ng: !!python/object:os.system x\n")
    assert [(each.key, each.text, each.line) for each in told] == [
        ("a.b", "1", 2),
        ("a.c", "[x,'y']", 3),
        ("a.d", "{}", 4),
        ("e", "'5'", 5),
        ("f", "${a.b}", 6),
        ("g", "x", 7),
    ]


@looped(
    "text, value",
    [
        ("True", True),
        ("1e-6", 1e-6),
        ("1_000", 1000),
        ("-1", -1),
        ("0.", 0.0),
        ("'8'", "8"),
        ("null", None),
        ("a b", "a b"),
    ],
)
def test_a_value_is_read_as_hydra_reads_it(text: str, value: object) -> None:
    assert scalar(text) == value


def test_a_reference_is_put_in_and_a_circle_is_not() -> None:
    values = {"a": 1, "b": "${a}", "c": "${d}", "d": "${c}"}
    assert resolve_reference("${b}", values.get) == 1
    assert resolve_reference("${oc.select:none,7}", values.get) == 7
    with pytest.raises(LookupError):
        resolve_reference("${c}", values.get)
    with pytest.raises(LookupError):
        resolve_reference("a ${b}", values.get)


def test_a_configuration_whose_keys_refer_to_each_other_is_read() -> None:
    found = read_yaml(
        "actor_rollout_ref:\n  model: {path: org/name}\n  actor: {ppo_mini_batch_size: '${data.train_batch_size}'}\n"
        "data: {train_batch_size: 64}\nalgorithm: {adv_estimator: gpg}\n"
    )
    assert (found.batch, found.flow) == (64, "gpg")
    assert "policy.update.minibatch=0" in found.settings


@looped(
    "value, written",
    [
        # Source: read back with Hydra 1.3.2 and OmegaConf 2.3.0; 6,000 random texts came back as they were.
        ("org/name", "org/name"),
        (True, "True"),
        (None, "null"),
        (1e-6, "1.0e-06"),
        ("null", "''\"'\"'null'\"'\"''"),
    ],
)
def test_a_value_is_written_for_hydra_and_the_shell(value: object, written: str) -> None:
    assert hydra(value) in (written, written.replace("''\"'\"'", "\"'").replace("'\"'\"''", "'\""))


@given(st.one_of(st.integers(-(2**60), 2**60), st.floats(1e-300, 1e300), st.booleans()))
def test_a_number_is_read_back_from_each_form(value: object) -> None:
    for written in (hydra(value), flag(value), yaml(value)):
        found = scalar(written.strip("'"))
        assert found == value
        assert isinstance(found, type(value))
