"""Modelled times against arithmetic by hand, and what must rise when work does."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.record.operator_counts import OUT, Operator, TracedStep, operator_of
from suite.topics.modelled_time.devices import by_any_name, devices, parsed
from suite.topics.modelled_time.modelled import KERNELS, PRECISION, RUNS, SHAPES, Believed
from suite.topics.modelled_time.roofline import (
    ATTENTION,
    PER_CYCLE,
    SHARES,
    Software,
    attention_s,
    change_between,
    host_s,
    modelled,
    operator_cost,
    timeline,
)

A100, H100, V100 = (by_any_name()[name] for name in ("A100-80", "H100", "V100"))
PRODUCT = Operator(
    "mm",
    "product",
    dtype="bfloat16",
    flops=2 * 4096**3,
    read_bytes=4 * 4096**2,
    written_bytes=2 * 4096**2,
    product=(1, 4096, 4096, 4096),
)
COPY = Operator("add", "pointwise", dtype="bfloat16", read_bytes=2**30, written_bytes=2**30)


def test_a_large_product_takes_its_flops_at_the_rate_that_is_reached() -> None:
    cost = operator_cost(A100, PRODUCT)
    assert cost.bound == "compute"
    assert cost.seconds == pytest.approx(2 * 4096**3 / (312e12 * A100.reached.half) + 3e-6)


def test_a_pointwise_operator_takes_its_bytes_at_the_bandwidth_that_is_reached() -> None:
    cost = operator_cost(H100, COPY)
    assert cost.bound == "memory"
    assert cost.seconds == pytest.approx(2**31 / (3350e9 * H100.reached.copy * SHARES["pointwise"]) + 2.5e-6)


def test_what_computes_as_it_moves_is_bound_by_the_multiprocessors_where_memory_outruns_them() -> None:
    """132 of an H200's, at 1.98 GHz; an A100's memory is slower, and its 108 are at 1.41 GHz."""
    norm = replace(COPY, name="native_layer_norm", kind="norm")
    h200, rtx = devices()["H200"], devices()["RTX-3090"]
    assert h200.cycles_per_s == pytest.approx(132 * 1.98e9, rel=0.01)
    assert A100.cycles_per_s == pytest.approx(108 * 1.41e9, rel=0.01)
    for gpu in (h200, A100):
        assert operator_cost(gpu, norm).seconds == pytest.approx(2**31 / (6.85 * gpu.cycles_per_s), rel=0.01)
    assert operator_cost(rtx, norm).seconds == pytest.approx(2**31 / (0.80 * rtx.copy_bytes_per_s), rel=0.01)
    assert operator_cost(h200, COPY).seconds == pytest.approx(2**31 / (0.95 * h200.copy_bytes_per_s), rel=0.01)
    assert devices()["MI300X"].cycles_per_s == math.inf


def test_bytes_a_cycle_are_those_of_an_h200() -> None:
    measured: dict[str, list[float]] = defaultdict(list)
    h200 = devices()["H200"]
    (survey,) = (Path(__file__).parents[3] / "results").glob("nvidia-h200-*/operators.json")
    for sample in json.loads(survey.read_text("utf-8"))["samples"]:
        operator = operator_of(json.loads(sample["said"]))
        if operator.moved_bytes >= 64e6 and operator.kind in SHARES and not operator.flops:
            measured[operator.kind].append(operator.moved_bytes / sample["seconds"])
    rates = {kind: median(of_kind) for kind, of_kind in measured.items()}
    short = {kind: rate for kind, rate in rates.items() if rate < SHARES[kind] * h200.copy_bytes_per_s}
    assert {kind: round(rate / h200.cycles_per_s, 2) for kind, rate in short.items()} == PER_CYCLE


def test_a_tiny_one_takes_a_launch() -> None:
    cost = operator_cost(A100, Operator("add", "pointwise", read_bytes=4, written_bytes=4))
    assert cost.bound == "launch" and cost.seconds == pytest.approx(3e-6, rel=1e-3)


def test_unaligned_rows_cost_only_where_no_compiler_pads_them() -> None:
    odd = replace(PRODUCT, aligned=False)
    assert operator_cost(A100, odd).seconds > 1.5 * operator_cost(A100, PRODUCT).seconds
    assert operator_cost(A100, replace(odd, compiled=True)).seconds == operator_cost(A100, PRODUCT).seconds


def test_a_causal_attention_skips_half_and_pays_for_short_rows_twice() -> None:
    shapes = ((1, 16, 4096, 64),) * 3
    plain = Operator("_scaled_dot_product_flash_attention", "attention", dtype="bfloat16", flops=10**12, shapes=shapes)
    share = ATTENTION["flash 2"][""][0]
    assert attention_s(A100, plain) == pytest.approx(1e12 * (1 + 150 / 4096) / (312e12 * share))
    causal = attention_s(A100, replace(plain, causal=True))
    assert causal == pytest.approx(0.5e12 * (1 + 300 / 4096) / (312e12 * share))
    backward = replace(plain, name=plain.name + "_backward", shapes=((1, 16, 8, 64), *shapes))
    assert attention_s(A100, backward) == pytest.approx(attention_s(A100, plain) * share / ATTENTION["flash 2"][""][1])


def test_the_longest_way_through_both_timelines() -> None:
    host = {"forward": 4.0, "backward": 1.0, "optimizer": 1.0}
    device = {"forward": 1.0, "backward": 6.0, "optimizer": 2.0}
    assert timeline(host, device, synchronised=False) == 9.0
    assert (
        timeline(host, device, synchronised=True) == 12.0
    )  # forward dispatched, then the device's backward and update
    assert timeline(device, host, synchronised=False) == 9.0


def test_a_step_by_hand() -> None:
    many = TracedStep(Counter({PRODUCT: 3, COPY: 2}))
    found = modelled(many, A100, Software(step_s=0.5))
    costs = 3 * operator_cost(A100, PRODUCT).seconds, 2 * operator_cost(A100, COPY).seconds
    assert found.device_s == pytest.approx(sum(costs)) and found.step_s == pytest.approx(0.5 + sum(costs))
    assert found.host_s == pytest.approx(5 * host_s(A100, PRODUCT))
    assert found.by_kind == pytest.approx({"product": costs[0], "pointwise": costs[1]})
    assert found.bound_by == {"product": "compute", "pointwise": "memory"}
    assert found.mfu == pytest.approx(3 * PRODUCT.flops / found.step_s / 312e12)
    busy_w = found.energy_j / found.step_s
    assert A100.idle_w < busy_w < A100.power_w


def test_a_transfer_hides_behind_the_kernels_or_hides_them() -> None:
    moved = Operator("to the host", OUT, kernels=0, read_bytes=int(24e9))
    found = modelled(TracedStep(Counter({PRODUCT: 1, moved: 1})), A100)
    assert found.link_s == pytest.approx(1.0) and found.step_s == pytest.approx(1.0) and found.limit == "link"


def test_what_nobody_declared_has_no_time() -> None:
    with pytest.raises(ValueError, match="no declared cost"):
        modelled(TracedStep(Counter({PRODUCT: 1}), undeclared=("its kernel has no declared cost",)), A100)


@given(st.sampled_from(sorted(devices())), st.integers(0, 10**13), st.integers(0, 10**11), st.integers(1, 9))
def test_more_work_is_never_faster_and_a_better_gpu_never_slower(name: str, flops: int, size: int, times: int) -> None:
    device = devices()[name]
    less = replace(PRODUCT, flops=flops, read_bytes=size)
    for more in (replace(less, flops=2 * flops + 1), replace(less, read_bytes=2 * size + 1), replace(less, kernels=2)):
        assert operator_cost(device, more).seconds >= operator_cost(device, less).seconds
    one, several = (modelled(TracedStep(Counter({less: count})), device) for count in (1, times))
    assert several.step_s == pytest.approx(times * one.step_s)
    faster = replace(device, bandwidth_gb_s=2 * device.bandwidth_gb_s, half_tflops=2 * device.half_tflops)
    assert modelled(TracedStep(Counter({less: 1})), faster).step_s <= one.step_s


def test_what_a_ratio_is_believed_by() -> None:
    plain = TracedStep(Counter({PRODUCT: 3}))
    assert change_between(plain, TracedStep(Counter({PRODUCT: 5}))) == RUNS
    assert change_between(plain, TracedStep(Counter({replace(PRODUCT, product=(1, 1, 2, 3)): 3}))) == SHAPES
    assert change_between(plain, TracedStep(Counter({replace(PRODUCT, dtype="float32"): 3}))) == PRECISION
    norms = [TracedStep(Counter({PRODUCT: 3, Operator(name, "norm"): 1})) for name in ("native_layer_norm", "rms_norm")]
    assert change_between(*norms) == KERNELS


def test_the_table_of_gpus() -> None:
    wanted = {"V100", "A100-40", "A100-80", "H100-SXM", "H100-PCIE", "H200", "B200", "L4", "L40S", "A30", "T4"}
    wanted |= {"RTX-3090", "RTX-4090", "RTX-5090", "MI300X"}
    assert wanted <= set(devices())
    names = [name for each in devices().values() for name in (each.name, *each.aliases)]
    assert len(names) == len(set(names))
    for each in devices().values():
        assert each.source and each.reached.source and {each.kind, each.reached.kind} <= {"prior", "calibrated"}
        assert each.idle_w < each.power_w
        # no operator is modelled faster than the datasheet allows
        assert each.product_flops_per_s("bfloat16") <= 1e12 * each.half_tflops
        assert each.product_flops_per_s("float32") <= 1e12 * each.float32_tflops
    assert A100.product_flops_per_s("float32", tf32=True) > 4 * A100.product_flops_per_s("float32")
    assert V100.product_flops_per_s("float32", tf32=True) == V100.product_flops_per_s("float32")
    with pytest.raises(ValueError, match="not a table of GPUs"):
        parsed('[[device]]\nname = "X"')


def test_multipliers_never_lift_a_rate_above_its_peak() -> None:
    lifted = Believed(multipliers={"product ampere half": 9.0, "product ampere half A100-80": 0.1}).calibrated(A100)
    assert lifted.reached.half == 1.0 and lifted.reached.kind == "calibrated"
    assert Believed().calibrated(A100) == A100


def test_it_loads_no_torch() -> None:
    modules = "suite.topics.by_others.by_others, suite.topics.modelled_time.modelled, research.published_steps.ratios"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
