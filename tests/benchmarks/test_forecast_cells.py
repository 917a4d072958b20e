"""Files of the forecast benchmark with cells that say nothing: what can be read is, and every other row is named."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.forecast.__main__ import MEASURED, file_text, tables
from benchmarks.forecast.cells import AMOUNT, COUNT, Number
from tests.looped import looped

KNOWN = tables()


def first_rows(name: str, count: int) -> list[dict[str, str]]:
    with (MEASURED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))[:count]


def written(folder: Path, rows: list[dict[str, str]]) -> Path:
    path = folder / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return path


def text_with(folder: Path, name: str, changes: Mapping[str, str], count: int = 3) -> str:
    rows = first_rows(name, count)
    rows[1].update(changes)
    return file_text(written(folder, rows), KNOWN)


@looped(
    "name, changes, why",
    [
        ("train_megatron_bridge.csv", {"ep": "0"}, "row 2: ep is `0`, less than 1"),
        ("train_megatron_bridge.csv", {"ep": "eE"}, "row 2: ep is `eE`"),
        ("train_megatron_bridge.csv", {"tokens_per_sec_per_gpu": ""}, "row 2: tokens_per_sec_per_gpu is empty"),
        ("train_fsdp2_prime_rl.csv", {"peak_mem_gib": "OOM"}, "row 2: peak_mem_gib is `OOM`"),
        ("train_fsdp2_prime_rl.csv", {"microbatch_time_s": "OOM"}, "row 2: microbatch_time_s is `OOM`"),
        ("train_fsdp2_prime_rl.csv", {"ep": "0"}, "row 2: ep is `0`, less than 1"),
        ("train_fsdp_llmfoundry.csv", {"throughput_t_s": "0"}, "row 2: throughput_t_s is `0`, not above 0"),
        ("train_vtrain_groundtruth.csv", {"tp": "0"}, "row 2: tp is `0`, less than 1"),
        ("train_vtrain_groundtruth.csv", {"iter_time_ms": "nan"}, "row 2: iter_time_ms is `nan`"),
        ("train_measured_misc.csv", {"seq_len": "8k"}, "row 2: seq_len is `8k`"),
        ("serving_silicon_measured.csv", {"silicon_ttft_ms": "1e999"}, "row 2: silicon_ttft_ms is `1e999`"),
        ("serving_silicon_measured.csv", {"moe_ep_size": "0"}, "row 2: moe_ep_size is `0`, less than 1"),
        ("serving_splitwise_measured.csv", {"batch": "eE"}, "row 2: batch is `eE`"),
        ("serving_trtllm_throughput.csv", {"isl": "2.5"}, "row 2: isl is `2.5`, no whole number"),
        ("rl_nemo_rl.csv", {"step_time_s": "OOM"}, "row 2: step_time_s is `OOM`"),
        ("rl_end2end.csv", {"value": "n/a"}, "row 2: value is `n/a`"),
        ("rl_end2end.csv", {"n_gpus": "8-128"}, "row 2: n_gpus is `8-128`"),
        ("weight_sync.csv", {"bytes_gb": "?"}, "row 2: bytes_gb is `?`"),
        ("gemm_bf16_measured.csv", {"m": "-1"}, "row 2: m is `-1`, less than 1"),
        ("attn_decode_measured.csv", {"head_dim": ""}, "row 2: head_dim is empty"),
        ("nccl_measured.csv", {"num_gpus": "eE"}, "row 2: num_gpus is `eE`"),
        ("models.csv", {"hidden": "eE"}, "row 2: hidden is `eE`"),
    ],
)
def test_a_row_with_a_cell_that_cannot_be_read_is_counted_and_named(
    tmp_path: Path, name: str, changes: Mapping[str, str], why: str
) -> None:
    text = text_with(tmp_path, name, changes)
    assert "1 row not read:\n" in text
    assert why in text


@looped(
    "name, column",
    [
        ("train_megatron_bridge.csv", "model"),
        ("train_fsdp2_prime_rl.csv", "model"),
        ("train_fsdp_llmfoundry.csv", "model"),
        ("train_measured_misc.csv", "model"),
        ("serving_silicon_measured.csv", "model_path"),
        ("serving_trtllm_throughput.csv", "gpu"),
        ("rl_nemo_rl.csv", "model"),
        ("rl_end2end.csv", "model"),
        ("weight_sync.csv", "model"),
    ],
)
def test_a_row_of_an_unknown_model_or_device_is_a_row_without_a_forecast(
    tmp_path: Path, name: str, column: str
) -> None:
    text = text_with(tmp_path, name, {column: "eE"})
    assert "without a forecast: " in text
    assert "not read" not in text


def test_degrees_of_zero_in_a_list_are_no_layout(tmp_path: Path) -> None:
    text = text_with(tmp_path, "rl_nemo_rl.csv", {"train_tp_cp_ep_pp_vpp": "[1,1,0,1,n/a]"})
    assert "without a forecast: 1 (no layout)" in text


def test_a_row_that_a_view_raises_for_is_named_by_what_it_raises(tmp_path: Path) -> None:
    text = text_with(tmp_path, "rl_end2end.csv", {"mean_resp_len": "1.2.3"})
    assert "1 row not read:\n" in text
    assert "row 2: could not convert string to float: '1.2.3'" in text


def test_rows_with_too_many_cells_are_named_and_short_ones_have_empty_cells(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    lines = (MEASURED / "nccl_measured.csv").read_text("utf-8").splitlines()[:4]
    path.write_text("\n".join([*lines, lines[-1] + ",more", "a100_sxm,2.27.3"]) + "\n", "utf-8")
    text = file_text(path, KNOWN)
    assert "rows.csv: 5 rows" in text
    assert "row 4: it has more cells than the header" in text
    assert "row 5: num_gpus is empty" in text


def test_a_file_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"model,gpu\n\xff\xfe\n")
    assert file_text(path, KNOWN) == "rows.csv: not read: it is no text in UTF-8"
    assert file_text(tmp_path / "none.csv", KNOWN).startswith("none.csv: not read: ")


def test_numbers_are_ascii_finite_and_within_their_bounds() -> None:
    assert [AMOUNT.problem(each) for each in ("1e3", " 2.5 ", "inf", "²", "0")] == [
        "",
        "",
        "no number",
        "no number",
        "not above 0",
    ]
    assert COUNT.plain("32.0") == "32"
    assert Number(words="n/a").problem("N/A") == ""


# --------------------------------------------------------------------------------- bounds in place of a figure


def bounded(folder: Path, name: str, column: str, bounds: Mapping[str, Sequence[str]]) -> str:
    """Write the first rows of a table with a column replaced by two, named by `bounds`, and forecast them."""
    rows = first_rows(name, 3)
    low, high = bounds
    for place, row in enumerate(rows):
        del row[column]
        row.update({low: bounds[low][place], high: bounds[high][place]})
    return file_text(written(folder, rows), KNOWN)


def test_a_forecast_between_the_bounds_of_an_interval_has_no_error(tmp_path: Path) -> None:
    text = bounded(
        tmp_path,
        "rl_nemo_rl.csv",
        "step_time_s",
        {"step_time_s_ci_low": ("1", "1", "1"), "step_time_s_ci_high": ("9999", "9999", "9999")},
    )
    assert "3 rows, signed median +0.0%, median 0.0%" in text
    assert "between the bounds: 3 of 3" in text


def test_a_suite_that_only_bounds_a_metric_from_above_is_held_against_that_bound(tmp_path: Path) -> None:
    text = bounded(
        tmp_path,
        "rl_nemo_rl.csv",
        "step_time_s",
        {"step_time_s_lower": ("", "", ""), "step_time_s_upper": ("1", "9999", "")},
    )
    assert "row 3: step_time_s_lower and step_time_s_upper are empty" in text
    assert "between the bounds: 1 of 2" in text


def test_bounds_of_a_throughput_bound_the_seconds_the_other_way_round(tmp_path: Path) -> None:
    text = bounded(
        tmp_path,
        "train_fsdp_llmfoundry.csv",
        "throughput_t_s",
        {"throughput_t_s_lower": ("1", "1", "1e12"), "throughput_t_s_upper": ("", "", "")},
    )
    assert "between the bounds: 2 of 3" in text


def test_metrics_have_bounds_named_lower_and_upper(tmp_path: Path) -> None:
    text = bounded(tmp_path, "rl_end2end.csv", "value", {"lower": ("1", "5", "OOM"), "upper": ("99", "4", "9")})
    assert "row 2: lower is above upper" in text
    assert "row 3: lower is `OOM`" in text
