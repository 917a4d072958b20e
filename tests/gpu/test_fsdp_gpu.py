"""One rank of a sharded model on a GPU, over NCCL: half precision, offload, sleep and state, without Ray or servers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from flowgraph.cluster.plan import RoleSettings
from flowgraph.engines.fsdp.model import FsdpModel
from flowgraph.engines.fsdp.ranks import ProcessRanks, join
from flowgraph.engines.local.model import LocalModel
from flowgraph.language.handle import Optimizer, ResponseRows

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]

ROOT, LIMIT_S = Path(__file__).parents[2], 300.0
RULE = Optimizer("adamw", 1e-3, 0.01, max_grad_norm=0.5)
EVERYTHING = ("parameters", "gradients", "optimizer")
SETTINGS = {
    "float32": RoleSettings(),
    "bfloat16": RoleSettings(precision="bfloat16"),
    "full": RoleSettings(precision="bfloat16", checkpointing="full"),
    "selective": RoleSettings(precision="bfloat16", checkpointing="selective"),
    "optimizer": RoleSettings(precision="bfloat16", offload=("optimizer",)),
    "everything": RoleSettings(precision="bfloat16", offload=EVERYTHING),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Give what one rank told, in a process of its own, so that this one leaves the device alone."""
    folder = tmp_path_factory.mktemp("gpu")
    call = [sys.executable, __file__, str(folder)]
    ran = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ran.returncode == 0, ran.stderr
    answer: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return answer


def test_half_precision_steps_near_one_process_in_float32_whatever_is_recomputed_or_offloaded(
    told: dict[str, Any],
) -> None:
    for name, steps in told["steps"].items():
        limit = 1e-4 if name == "float32" else 0.05
        assert all(mine == pytest.approx(its, rel=limit) for mine, its in zip(steps, told["wanted"], strict=True)), name


def test_master_weights_and_optimizer_stay_in_float32(told: dict[str, Any]) -> None:
    assert set(map(tuple, told["types"].values())) == {("torch.float32",)}


def test_optimizer_states_lie_where_the_plan_says(told: dict[str, Any]) -> None:
    where = {name: "cpu" if name in ("optimizer", "everything") else "cuda" for name in SETTINGS}
    assert told["devices"] == {name: [device] for name, device in where.items()}


@pytest.mark.parametrize("kind", ["fsdp", "local"])
def test_sleep_frees_the_device_and_a_model_that_woke_steps_as_one_that_did_not_sleep(
    told: dict[str, Any], kind: str
) -> None:
    awake, asleep, again = told["sleep"][kind]["bytes"]
    held = told["sleep"][kind]["held"]  # a workspace of cuBLAS stays, as large as all of this model
    assert awake - asleep == pytest.approx(held, rel=0.1)
    assert again - asleep == pytest.approx(held, rel=0.1)
    assert told["sleep"][kind]["apart"] == 0.0


def test_a_state_that_was_saved_is_loaded_to_the_last_bit(told: dict[str, Any]) -> None:
    assert told["state"] == {"weights": 0.0, "optimizer": 0.0}


# ------------------------------------------------------------------------------------------- what the rank does


def make_model() -> tuple[Any, Any]:
    from flowgraph.models import tiny

    model, tokenizer = tiny.build(0, tiny.TinySize(hidden=256, layers=4, heads=4, intermediate=512))
    return model.cuda(), tokenizer


def sharded(ranks: ProcessRanks, running: RoleSettings) -> FsdpModel:
    return FsdpModel(*make_model(), trainable=True, ranks=ranks, running=running)


def loss_of(handle: Any) -> Callable[[], torch.Tensor]:
    torch.manual_seed(1)
    heads = pa.array([torch.randint(3, 20, (size,)).tolist() for size in (2, 9, 1, 4)], pa.list_(pa.int32()))
    lengths = torch.tensor([3, 1, 7, 5])
    rows = ResponseRows(heads, torch.randint(3, 20, (4, 7)), lengths)

    def loss() -> torch.Tensor:
        stats = handle.token_stats(rows, ("logprobs", "entropy"))
        total: torch.Tensor = (torch.linspace(-1, 1, 4)[:, None] * stats.logprobs - 0.1 * stats.entropy).sum()
        return total / lengths.sum()

    return loss


def stepped(handle: Any, steps: int = 3) -> list[tuple[float, float]]:
    done = [handle.step([loss_of(handle)], RULE) for _ in range(steps)]
    return [(each.loss, each.grad_norm) for each in done]


def kept(handle: Any) -> list[torch.Tensor]:
    return [tensor for each in handle._optimizers.states()["adamw"] for tensor in each.values() if tensor.dim()]


def far(one: Any, other: Any) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def tell_sleep(handle: Any, other: Any) -> dict[str, Any]:
    """Give what torch has allocated awake, asleep and awake again, and the bytes of weights and of two moments."""
    held = 3 * 4 * sum(each.numel() for each in handle.weights().values())
    stepped(handle)
    stepped(other)
    other.sleep()  # out of the way of what is measured
    used = [torch.cuda.memory_allocated()]
    handle.sleep()
    used.append(torch.cuda.memory_allocated())
    handle.wake()
    used.append(torch.cuda.memory_allocated())
    other.wake()
    pairs = zip(stepped(handle), stepped(other), strict=True)
    return {"bytes": used, "held": held, "apart": max(abs(a - b) for pair in pairs for a, b in zip(*pair, strict=True))}


def tell_setting(told: dict[str, Any], name: str, handle: Any) -> None:
    told["steps"][name] = stepped(handle)
    told["types"][name] = sorted({str(each.dtype) for each in [*handle.weights().values(), *kept(handle)]})
    told["devices"][name] = sorted({each.device.type for each in kept(handle)})


def run(folder: Path) -> dict[str, Any]:
    ranks = join(0, 1, folder / "meeting", device="cuda", limit_s=100)
    told: dict[str, Any] = {"wanted": stepped(LocalModel(*make_model(), trainable=True)), "steps": {}}
    told |= {"types": {}, "devices": {}}
    for name, running in SETTINGS.items():
        tell_setting(told, name, sharded(ranks, running))
    half = SETTINGS["bfloat16"]
    told["sleep"] = {"fsdp": tell_sleep(sharded(ranks, half), sharded(ranks, half))}
    locals_ = (LocalModel(*make_model(), trainable=True) for _ in range(2))
    told["sleep"]["local"] = tell_sleep(*locals_)
    one, other = sharded(ranks, half), sharded(ranks, half)
    stepped(one)
    one.save_state(folder / "state")
    other.load_state(folder / "state")
    pairs = (one.weights().values(), other.weights().values())
    told["state"] = {"weights": far(*pairs), "optimizer": far(kept(one), kept(other))}
    ranks.leave()
    return told


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    place = Path(sys.argv[1])
    (place / "told.json").write_text(json.dumps(run(place)))
