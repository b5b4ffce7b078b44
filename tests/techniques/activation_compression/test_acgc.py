"""AC-GC's bit planes and its codes at their edges, norms that cannot be measured, and bits counted without values."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.loop.run import Run
from suite.measure.at_scale.full_size import Scale, counted
from suite.record.job import Setting
from techniques.activation_compression.acgc.bit_planes import packed, rows_of_planes, unpacked
from techniques.activation_compression.acgc.technique import ACGC, fixed_point, fraction_bits, restored
from tests.runs import new_run


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 70), st.data())
def test_planes_give_back_every_value_and_waste_no_bit(rows: int, columns: int, data: st.DataObject) -> None:
    widths = torch.tensor(data.draw(st.lists(st.integers(1, 16), min_size=rows, max_size=rows)))
    ends = 2.0 ** widths[:, None]
    values = (torch.rand(rows, columns, generator=torch.Generator().manual_seed(columns)) * ends).int()
    values[:, 0] = (ends[:, 0] - 1).int()  # all bits
    counts = rows_of_planes(widths)
    planes = packed(values, widths, counts)
    assert planes.dtype == torch.uint8 and planes.nbytes == int(widths.sum()) * math.ceil(columns / 8)
    assert torch.equal(unpacked(planes, widths, counts, columns), values)


def test_values_are_rounded_to_the_nearest_and_the_largest_to_the_last_code() -> None:
    x = torch.tensor([[-1.0, -0.6, 0.0, 0.3, 0.8, 1.0]])
    largest, bits = torch.tensor([1.0]), torch.tensor([2], dtype=torch.int32)
    codes = fixed_point(x, largest, bits)
    assert codes.tolist() == [[0, 2, 4, 5, 7, 7]]
    torch.testing.assert_close(restored(codes, largest, bits), torch.tensor([[-1.0, -0.5, 0.0, 0.25, 0.75, 0.75]]))


def test_a_channel_of_zeros_comes_back_to_the_bit() -> None:
    x = torch.zeros(1, 9)
    bits = fraction_bits(1e-3, x.abs().amax(1))
    assert torch.equal(restored(fixed_point(x, x.abs().amax(1), bits), x.abs().amax(1), bits), x)


def own(run: Run) -> ACGC:
    (technique,) = run.technique.techniques.values()  # type: ignore[attr-defined]
    assert isinstance(technique, ACGC)
    return technique


def test_a_gradient_that_is_not_finite_is_not_measured() -> None:
    run = new_run("vit", "acgc:interval=1", size="pico", recipe="classic", steps=8)
    run.train(1)
    technique = own(run)
    before = {path: list(each) for path, each in technique.norms.items()}
    technique.of_outputs = {path: torch.tensor(math.inf) for path in technique.norms}
    technique.after_backward(run)
    assert technique.norms == before


@pytest.mark.filterwarnings("error")
def test_a_layer_whose_weight_is_computed_from_other_parameters_goes_on_with_16_bits() -> None:
    run = new_run("vit", "intrinsic_dim:dimension=100+acgc:interval=1", size="pico", task="adapt", steps=4)
    run.train(3)
    technique = run.technique.techniques["acgc"]  # type: ignore[attr-defined]
    head = [part.path for part in run.anatomy.linears if part.module.weight.is_leaf]
    assert sorted(technique.norms) == sorted(head)
    assert run.probes()["acgc.bits"] > 8


def test_a_number_of_bits_is_counted_without_values_as_it_is_with_them() -> None:
    setting = Setting(baseline="vit", size="pico", recipe="classic", steps=1)
    bytes_kept = []
    for bits in (4, 8):
        run = new_run("vit", f"acgc:bits={bits}", size="pico", recipe="classic", steps=2)
        run.train(1)
        count = counted(f"acgc:bits={bits}", Scale(setting))
        assert count.counters is not None, count.unavailable
        assert count.counters.saved_activation_bytes == run.count_step().saved_activation_bytes
        assert not own(run).norms and run.probes()["acgc.bits"] == bits
        bytes_kept.append(count.counters.saved_activation_bytes)
    assert bytes_kept[0] < bytes_kept[1]
