"""What users of neighbours reported in public: each thread that has a counterpart here, named by repository and number,
with the right value. The reports are told in own words; none of their text or code is here."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from suite.entries.catalogue import catalogue
from suite.measure.contenders.lockstep import in_rounds
from suite.meters.counters import count_step
from suite.meters.energy import EnergyMeter
from suite.meters.flops import FlopCounter
from suite.meters.process import ProcessMemory
from suite.record.machine import fingerprint
from tests.plugin import called


def test_pytorch_195460_fused_attention_on_a_cpu_counts() -> None:
    """The counter of FLOPs had no formula for the CPU's fused kernel: it seemed to take none."""
    q, k, v = (torch.ones(2, 4, length, 8) for length in (16, 32, 32))
    with FlopCounter() as counter:
        torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert counter.total == 2 * 2 * 4 * 16 * 32 * (8 + 8)


def test_pytorch_178064_a_kernel_with_its_heads_last_is_read_so() -> None:
    """Operands of [batch, length, heads, width] were read as [batch, heads, length, width]."""
    q = torch.empty(2, 128, 4, 16, device="meta")
    forward = FlopCounter().flop_registry[torch.ops.aten._flash_attention_forward]
    flops = forward(q, q, q, None, None, 128, 128, 0.0, False, out_val=None)
    assert flops == 2 * 2 * 4 * 128 * 128 * (16 + 16)


def test_nanochat_838_a_peak_on_a_cpu_is_no_zero() -> None:
    """A CPU's peak was printed as 0.00 MiB, since the GPU's allocator was asked."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()

    assert count_step(step, model, optimizer, torch.ones(4, 8)).peak_tensor_bytes > 8 * 9 * 4
    with ProcessMemory() as memory:
        pass
    assert memory.peak_bytes is None or memory.peak_bytes > 1 << 20


def test_codecarbon_111_no_counter_of_energy_is_no_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine without RAPL got a constant power as if it were measured."""
    monkeypatch.setattr("suite.meters.energy.POWERCAP", Path("/nowhere"))
    with EnergyMeter("cpu") as meter:
        pass
    assert (meter.reading.joules, meter.reading.kind) == (None, "unavailable") and meter.reading.reason


def test_pytest_benchmark_276_a_clock_that_jitters_is_no_other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine was another one as soon as its clock was read anew."""
    here = fingerprint("cpu", 1)
    assert not {"cpu_mhz", "load_1m"} & here.facts.keys()
    assert fingerprint("cpu", 1).key == here.key


def test_pybroker_287_nothing_measured_is_not_regressed(tmp_path: Path) -> None:
    """A benchmark runner ended with one code for a regression and for an empty selection."""
    code, _, said = called("history", "--results", tmp_path)
    assert code == 6 and "measure some" in said


def test_php_judy_91_a_drift_of_the_machine_is_no_difference() -> None:
    """Two equal sides, timed A then B while the machine slows down, seemed to differ."""
    clock = iter(range(1000))

    def block(side: str, number: int) -> float:
        return 1 + 1e-3 * next(clock)

    rounds = in_rounds(["a", "b"], 12, random.Random(0), block)
    differences: list[float] = [sum(each.block_s["a"]) - sum(each.block_s["b"]) for each in rounds]
    assert differences == pytest.approx([0.0] * 12, abs=1e-12)


def test_vision_transformer_153_the_radius_is_what_users_reproduced_with() -> None:
    """Which radius the published ViT-B/16 with SAM had was asked: 0.2, on each device's own share of the batch."""
    assert catalogue()["vit_sam"].technique().rho == 0.2  # type: ignore[attr-defined]
