"""What a linear layer with operands of eight bits runs, by hand, and which published rows are such."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from research.published_steps.eight_bits import EightBitLinear
from research.published_steps.published_fit import Predictable, known_rows
from research.published_steps.published_rows import EightBits, rows
from suite.measure.at_scale.weightless import weightless
from suite.meters.operators import OperatorTrace
from suite.record.operator_counts import HOST_ONLY, Operator
from suite.topics.modelled_time.devices import devices
from suite.topics.modelled_time.modelled import IN_FP8, TIME_FAR, TIME_IN_A_NODE, UNSEEN, believed, time_on
from suite.topics.modelled_time.roofline import widest

TOKENS, INPUTS, OUTPUTS = 64, 32, 96


def run(how: EightBits) -> list[tuple[Operator, int]]:
    with weightless("cuda"):
        weight = torch.nn.Parameter(torch.empty(OUTPUTS, INPUTS, dtype=torch.bfloat16))
        layer, x = EightBitLinear(weight, None, how), torch.empty(TOKENS, INPUTS, dtype=torch.bfloat16)
        x.requires_grad_()
        with OperatorTrace() as trace:
            layer(x).backward(torch.empty(TOKENS, OUTPUTS, dtype=torch.bfloat16))
    return [each for each in trace.step() if each[0].kind != HOST_ONLY]


def passes(of: Iterable[tuple[Operator, int]]) -> list[tuple[int, int]]:
    """The bytes that each pass over an operand reads and writes."""
    kinds = ("cast", "copy", "reduction")
    moved = ((each.read_bytes, each.written_bytes) for each, _ in of if each.kind in kinds)
    return sorted(both for both in moved if both[0])  # a scale alone is written


X, G, W = TOKENS * INPUTS, TOKENS * OUTPUTS, OUTPUTS * INPUTS


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (EightBits("mx", True, True), [(2 * X, 2 * X), (2 * G, 2 * G)]),
        (EightBits("delayed", True, False), [(2 * X, 2 * X), (2 * W, 2 * W), (2 * G, 2 * G)]),
        (EightBits("tensor", False, True), [(2 * X, 2), (2 * X, X), (2 * G, 2), (2 * G, G)]),
    ],
)
def test_each_operand_is_cast_by_the_passes_of_its_scaling(how: EightBits, expected: list[tuple[int, int]]) -> None:
    known = run(how)
    assert passes(known) == sorted(expected)
    products = [each for each, _ in known if each.kind == "product"]
    assert {each.product for each in products} == {
        (1, TOKENS, OUTPUTS, INPUTS),
        (1, TOKENS, INPUTS, OUTPUTS),
        (1, OUTPUTS, INPUTS, TOKENS),
    }
    assert {each.dtype for each in products} == {"float8_e4m3fn", "float8_e5m2"}
    assert sum(each.flops for each in products) == 6 * TOKENS * INPUTS * OUTPUTS


def in_eight_bits() -> list[Predictable]:
    return [each for each in known_rows() if each.row.case is not None and each.row.case.eight_bits is not None]


def test_rows_in_eight_bits_are_judged_as_a_kind_of_their_own() -> None:
    by_source = {name: [each.row for each in in_eight_bits() if each.row.table == name] for name in SOURCES}
    assert {name: len(own) for name, own in by_source.items()} == SOURCES
    stated = [each for each in rows() if each.table == "megatron_bridge" and each.precision.startswith("fp8")]
    assert len(stated) == 71 + 10 and all(
        "packed" in each.why_not or "adapters" in each.why_not for each in stated if not each.case
    )
    for each in in_eight_bits():
        kind = time_on(each.row.gpus, each.row.node, widest(each.step, products_alone=True))
        assert kind.endswith(IN_FP8) or kind == TIME_FAR
    band = believed().bands[TIME_IN_A_NODE + IN_FP8]
    assert band.sources == 3 and band.residuals > 25
    assert believed().has_rows(devices()["GB300"], "float8_e5m2") and not believed().has_rows(
        devices()["L4"], "float8_e4m3fn"
    )
    assert TIME_IN_A_NODE + IN_FP8 + UNSEEN in believed().bands


SOURCES = {"megatron_bridge": 71, "mlperf_llama31_8b": 13, "llm_foundry_mpt": 5}


def test_interleaved_stages_leave_a_part_of_the_pipeline_s_ends() -> None:
    """Of 405 billion parameters over 8 stages in 4 chunks each: 16 places of which embedding and head take two."""
    row = next(
        each for each in rows() if (each.table, each.kind, each.stages) == ("megatron_bridge", "llama 3.1 405b", 8)
    )
    assert row.case is not None and row.case.layers == 15 and row.deeper is not None and row.deeper.layers == 16
    assert row.layer_runs == 15 * row.accumulated + round(7 * 16 / 4) and row.head_runs == row.accumulated


def test_a_rate_in_eight_bits_is_what_was_measured_there_or_what_it_is_elsewhere() -> None:
    h100, l4, a100 = (devices()[name] for name in ("H100-SXM", "L4", "A100-80"))
    assert h100.product_flops_per_s("float8_e4m3fn") == 1979e12 * h100.reached.float8
    assert l4.product_flops_per_s("float8_e5m2") == pytest.approx(242e12 * 0.9 * l4.reached.half)
    assert a100.product_flops_per_s("float8_e5m2") == a100.product_flops_per_s("bfloat16")
    assert (h100.peak_flops_per_s("float8_e5m2"), h100.peak_flops_per_s("bfloat16")) == (1979e12, 989e12)
