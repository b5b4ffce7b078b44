"""What a linear layer with operands of eight bits runs, by hand."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from research.published_steps.eight_bits import EightBitLinear
from research.published_steps.published_rows import EightBits
from suite.measure.at_scale.weightless import weightless
from suite.meters.operators import OperatorTrace
from suite.record.operator_counts import HOST_ONLY, Operator
from suite.topics.modelled_time.devices import devices

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


def test_a_rate_in_eight_bits_is_what_was_measured_there_or_what_it_is_elsewhere() -> None:
    h100, l4, a100 = (devices()[name] for name in ("H100-SXM", "L4", "A100-80"))
    assert h100.product_flops_per_s("float8_e4m3fn") == 1979e12 * h100.reached.float8
    assert l4.product_flops_per_s("float8_e5m2") == pytest.approx(242e12 * 0.9 * l4.reached.half)
    assert a100.product_flops_per_s("float8_e5m2") == a100.product_flops_per_s("bfloat16")
    assert (h100.peak_flops_per_s("float8_e5m2"), h100.peak_flops_per_s("bfloat16")) == (1979e12, 989e12)
