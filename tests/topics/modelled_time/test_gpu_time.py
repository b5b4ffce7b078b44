"""What a stack's traced step holds that its operators do not show, and what `count --gpu` says of it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from suite.cli import app
from suite.measure.at_scale.full_size import Scale, SideBySide, side_by_side
from suite.process.child import ContenderFailed
from suite.record.job import Setting
from suite.record.operator_counts import COLLECTIVE, IN, OUT, TracedStep
from suite.topics.modelled_time import gpu_time_in_words as shown
from suite.topics.modelled_time import step_traces
from suite.topics.modelled_time import traced as at_scale
from suite.topics.modelled_time.aside import aside
from suite.topics.modelled_time.devices import by_any_name
from suite.topics.modelled_time.modelled import (
    IN_FP8,
    RANKS,
    TIME,
    TIME_ACROSS_NODES,
    TIME_IN_A_NODE,
    UNSEEN,
    believed,
)
from suite.topics.modelled_time.roofline import modelled
from suite.topics.modelled_time.traced import OWN_UPDATE, TimesBeside, step_time, survey_times, times_beside, traced

AT = Scale(Setting(baseline="gpt", size="pico", recipe="modern", device="cuda"))
A100 = by_any_name()["A100-80"]


def test_an_optimizer_s_own_kernel_moves_what_its_bench_declares() -> None:
    step = traced("lion", AT)
    updates = [each for each, _ in step if each.phase == "optimizer"]
    assert [each.name for each in updates] == [OWN_UPDATE]
    elements = sum(each.numel() for each in _parameters())
    assert updates[0].moved_bytes == 20 * elements and not step.undeclared
    assert step.reserved_bytes > 16 * elements and step.reserved_bytes % (2 << 20) == 0  # whole segments


def _parameters() -> list[torch.Tensor]:
    from suite.measure.at_scale.full_size import trained_at

    with trained_at("baseline", AT) as run:
        return [torch.empty(each.shape, device="meta") for each in run.model.parameters()]


def test_a_kernel_that_nobody_declared_leaves_no_time_and_says_so() -> None:
    time = step_time("sam", AT, A100)
    assert time.step is None and "/shared/ascent takes a kernel of its own" in time.unavailable


def test_casts_to_eight_bits_and_their_products_are_those_of_a_gpu() -> None:
    """By hand: a weight [out, in] in float32 is read, written in eight bits by rows, read again and turned."""
    step = traced("fp8_hybrid", AT)
    casts = [each for each, _ in step if each.name == "cast_to_eight_bits"]
    products = [each for each, _ in step if each.name == "_scaled_mm"]
    assert not step.undeclared and {each.kind for each in casts} == {"cast"}
    assert {each.dtype for each in products} == {"float8_e4m3fn", "float8_e5m2"}
    weight, elements = next(each for each in casts if each.shapes[0] == (96, 32)), 96 * 32
    assert (weight.kernels, weight.read_bytes, weight.written_bytes) == (3, 5 * elements + 8, 2 * elements + 8)
    others = [each for each, _ in traced("fp8_hybrid:scaling=dynamic", AT) if each.name == weight.name]
    own = next(each for each in others if each.shapes[0] == (96, 32))
    assert own.read_bytes == 9 * elements + 4  # its magnitude is looked for by a pass before
    hopper, ampere = (step_time("fp8_hybrid", AT, device) for device in (by_any_name()["H100"], A100))
    assert hopper.step is not None and hopper.band == believed().band(TIME + IN_FP8 + UNSEEN)
    assert ampere.step is None and "has no units for products in FP8" in ampere.unavailable
    assert step_time("int8_mixed", AT, A100).step is not None


def test_transfers_are_seen() -> None:
    kinds = {each.kind for each, _ in traced("offload_dp", AT)}
    assert {OUT, IN} <= kinds
    assert "is_cuda" not in vars(torch._subclasses.FakeTensor)  # nor is anything left behind


def beside(stack: str) -> TimesBeside:
    return times_beside(side_by_side([stack], AT)[0], A100)


def test_equal_operators_have_a_ratio_of_one_and_no_band() -> None:
    times = beside("amp_bf16")
    assert times.ratio == 1 and times.change is None and times.ratio_band is None
    assert any(each.startswith("the ratio: 1, from 1 to 1, as both run equal operators") for each in shown.notes(times))
    assert times.as_dict()["ratio_band"]["half_width"] == 0


def test_a_step_of_more_examples_says_so() -> None:
    times, pair = both_of("linear_scaling_warmup")
    assert pair.reference is not None and times.reference is not None
    ours, theirs = (next(iter(side.batch.values()))[0] for side in (pair.stack, pair.reference))
    assert ours > theirs
    assert ("examples a step", str(theirs), str(ours), f"{ours / theirs:.3g}") in shown.lines(times, pair)
    assert not any(line[0] == "examples a step" for line in shown.lines(*both_of("lora")))


def both_of(stack: str) -> tuple[TimesBeside, SideBySide]:
    pair = side_by_side([stack], AT)[0]
    return times_beside(pair, A100), pair


@cache
def on_8(stack: str) -> TracedStep:
    return traced(f"{stack}:ranks=8", replace(AT, ranks=8))


def beside_8(stack: str, ranks: int = 8) -> TimesBeside:
    """Puts the stack beside data parallelism, on as many ranks."""
    both = []
    for name in ("dp_ddp", stack):
        counts = Counter({replace(o, ranks=ranks if o.ranks > 1 else 1): count for o, count in on_8(name)})
        step = replace(on_8(name), counts=counts, ranks=ranks)
        both.append((f"{name}:ranks={ranks}", step_traces.KeptTrace("", step)))
    return at_scale.beside(both[0], both[1], by_any_name()["H100"])


def test_a_node_s_ranks_have_the_node_s_band_and_their_collectives_in_the_time() -> None:
    times = beside_8("zero3_fsdp")
    assert times.reference is not None and times.stack.step is not None and times.stack.trace is not None
    assert times.stack.ranks == 8 and times.change == RANKS and times.ratio is not None
    assert times.stack.band == believed().band(TIME_IN_A_NODE)
    sent = [each for each, _ in times.stack.trace if each.kind == COLLECTIVE]
    assert {each.name for each in sent} == {"all-gather", "reduce-scatter", "all-reduce"}
    assert {each.ranks for each in sent} == {8} and {each.hidden for each in sent} == {True, False}
    own = modelled(replace(times.stack.trace, ranks=1), times.device, times.software)
    assert times.stack.step.device_s > own.device_s and times.stack.step.host_s > own.host_s
    assert times.stack.step.waited_s > 0 and times.stack.step.beside_s > 0
    assert any("zero3_fsdp:ranks=8: 8 GPUs, one node (450 GB/s a GPU inside" in each for each in shown.notes(times))


def test_several_nodes_have_their_own_band_and_wait_longer() -> None:
    node, nodes = beside_8("zero3_fsdp").stack, beside_8("zero3_fsdp", 64)
    assert node.step is not None and nodes.stack.step is not None
    assert nodes.stack.band == believed().band(TIME_ACROSS_NODES) != node.band
    assert nodes.stack.step.waited_s > node.step.waited_s
    assert any("64 GPUs, 8 nodes of 8" in each for each in shown.notes(nodes))


def test_more_nodes_than_any_evidence_has_leave_no_time() -> None:
    times = beside_8("zero3_fsdp", 512)
    assert times.step_s is None and "512 GPUs are more than 32 nodes" in times.stack.unavailable


def test_ranks_that_hand_messages_on_in_turn_have_no_time() -> None:
    assert "hand one another messages in turn" in step_time("mp_naive", AT, A100).unavailable


def test_a_step_of_several_ranks_is_never_answered_as_one_process_s() -> None:
    step = on_8("dp_ddp")
    assert step.ranks == 8 and TracedStep.from_json(step.as_json()) == step
    with pytest.raises(ValueError, match="8 ranks, and what they send"):
        modelled(step, A100)
    kept = step_traces.KeptTrace("", replace(step, ranks=1))
    time = at_scale.beside(None, ("dp_ddp", kept), A100).stack
    assert time.step is None and "trace it again" in time.unavailable


def test_the_run_that_is_counted_is_traced_as_one_alone_is() -> None:
    with aside(traces_too=True) as apart:
        assert apart.counted("lora", AT).counters is not None
        together = apart.traced("lora", AT)
    assert together.counts == traced("lora", AT).counts


def test_lora_s_kernel_moves_as_much_as_torch_s_operators() -> None:
    times = beside("lora")
    assert times.ratio is not None and times.ratio < 1.2 and times.ratio_band is not None
    assert shown.title(times).startswith("modelled, not measured: NVIDIA A100")
    assert any("from" in each and "to" in each for each in shown.notes(times))


def test_the_command_s_json_names_the_gpu_the_software_and_the_band() -> None:
    call = "count -t lora -b gpt --size pico --gpu H100 --length 16 --batch 2 --json"
    done = CliRunner().invoke(app, call.split())
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)[0]["modelled"]
    assert found["provenance"] == "modelled" and found["gpu"]["name"] == "H100-SXM" and found["software"]
    assert found["stack"]["step_s"] > 0 and found["reference"]["mfu"] > 0
    assert sum(found["stack"]["by_kind"].values()) == pytest.approx(found["stack"]["device_s"])
    assert set(found["stack"]["bound_by"].values()) <= {"compute", "memory", "launch"}
    assert found["ratio_band"]["half_width"] > 0


def test_a_kept_trace_is_modelled_again_without_tracing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = survey_times(["lora"], AT, A100, tmp_path)
    assert {(each.stack, each.gpu) for each in first.times} == {("lora", "A100-80")}
    assert {stack for _, stack in step_traces.read(tmp_path)} == {"lora", "baseline"}

    def never(*_: object) -> None:
        raise AssertionError("what is kept is not traced again")

    monkeypatch.setattr(at_scale, "trace_of", never)
    both = survey_times(["lora"], AT, by_any_name()["H100"], tmp_path)
    a, h = sorted(both.times, key=lambda each: each.gpu)
    assert h.gpu == "H100-SXM" and a == first.times[0] and a.step_s != h.step_s
    (tmp_path / step_traces.NAME).write_bytes(b"x")
    with pytest.raises(ValueError, match="trace again"):
        step_traces.read(tmp_path)


def test_what_failed_is_no_word_on_a_stack_and_is_tried_again(tmp_path: Path) -> None:
    def hung(stack: str, scale: Scale) -> TracedStep:
        raise ContenderFailed("hung", "no answer within 600 s")

    said: list[tuple[str, str]] = []
    times = survey_times(["lora"], AT, A100, tmp_path, trace=hung, failed=lambda *each: said.append(each))
    assert not times.times and said == [("lora", "no answer within 600 s")] and not step_traces.read(tmp_path)
    assert survey_times(["lora"], AT, A100, tmp_path).times


def test_a_step_that_reads_values_says_which_and_is_known(tmp_path: Path) -> None:
    def reading(stack: str, scale: Scale) -> TracedStep:
        torch.empty(2, device="meta").tolist()
        raise AssertionError

    (time,) = survey_times(["lora"], AT, A100, tmp_path, trace=reading).times
    assert time.step_s is None and "on tensors without values" in time.unavailable and ", line " in time.unavailable
