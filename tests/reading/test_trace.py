"""A recorded step shows every pass and update as it was, and changes nothing."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from suite.loop.run import Run
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from suite.record.job import Job, Setting
from tests.runs import Planted, new_recording, new_run

STEPS = 4
MIDDLE = 2


def trained(stack: str, baseline: str = "gpt") -> Recording:
    recording = new_recording(baseline, stack, size="pico", steps=STEPS)
    recording.train(STEPS)
    return recording


def flat(values: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([values[name].double().flatten() for name in sorted(values)])


def distance(trace: Trace, number: int) -> float:
    """How far from the weights before the step a pass was."""
    before = trace.before.parameters
    return (flat(dict(trace.passes[number].parameters)) - flat(dict(before))).norm().item()


@pytest.mark.parametrize("baseline", ["gpt", "vit"])
def test_recording_changes_no_bit(baseline: str) -> None:
    plain, recorded = new_run(baseline, size="pico", steps=STEPS), trained("baseline", baseline)
    plain.train(STEPS)
    assert recorded.trace.step == MIDDLE
    ours = dict(recorded.run.model.named_parameters())
    assert all(torch.equal(parameter, ours[name]) for name, parameter in plain.model.named_parameters())


def test_a_plain_step_is_one_forward_one_backward_one_update() -> None:
    recording = trained("baseline")
    run, trace = recording.run, recording.trace
    assert [each.kind for each in trace.passes] == ["forward", "backward"]
    assert distance(trace, 0) == distance(trace, 1) == 0.0
    update = trace.update
    for name, _ in run.model.named_parameters():
        assert torch.equal(update.after.parameters[name], trace.after.parameters[name])
        gradient = trace.passes[1].gradients[name]
        clipped = update.before.gradients[name]
        assert torch.allclose(clipped / clipped.norm(), gradient / gradient.norm(), atol=1e-5)
        step, state = update.after.state[name]["step"], update.before.state[name]
        assert int(step) == MIDDLE + 1 and int(state["step"]) == MIDDLE
        assert update.moved(name).abs().max() > 0
        assert update.before.hyper[name]["lr"] == run.recipe.learning_rate_at(MIDDLE)


def test_modules_are_seen_to_run_in_their_order_and_again_for_the_backward_pass() -> None:
    plain, again = (trained(stack) for stack in ("baseline", "ckpt_chen_sqrt:count=2"))
    first, second = (block.mlp_linears[0].path for block in plain.run.anatomy.blocks)
    for recording, order in ((plain, [first, second]), (again, [first, second, second, first])):
        assert [name for name in recording.trace.ran if name in (first, second)] == order


def test_gradients_are_those_of_one_pass_and_the_point_is_where_it_was_taken() -> None:
    trace = trained("sam:rho=0.05").trace
    assert [each.kind for each in trace.passes] == ["forward", "backward", "forward", "backward"]
    assert [distance(trace, number) == 0.0 for number in range(4)] == [True, True, False, False]
    assert distance(trace, 3) == pytest.approx(0.05, rel=1e-4)
    first, second = (flat(dict(each.gradients)) for each in trace.of("backward"))
    assert not torch.equal(first, second)
    assert torch.equal(flat(dict(trace.update.before.parameters)), flat(dict(trace.before.parameters)))


def test_a_recorded_batch_repeats_its_loss() -> None:
    recording = new_recording("bert", "baseline", size="pico", steps=STEPS)
    losses = recording.train(STEPS)
    assert recording.loss_at(recording.trace.before.parameters) == losses[MIDDLE]


def test_a_recorded_batch_repeats_its_gradient() -> None:
    recording = trained("baseline", "bert")
    trace = recording.trace
    now = {name: each.detach().clone() for name, each in recording.run.model.named_parameters()}
    again = recording.gradients_at(trace.before.parameters)
    for name, gradient in trace.of("backward")[0].gradients.items():
        assert torch.equal(again[name], gradient), name
    assert all(torch.equal(each, now[name]) for name, each in recording.run.model.named_parameters())


@pytest.mark.parametrize("stack", ["baseline", "lion", "lamb"])
def test_a_recorded_update_repeats_to_the_bit_and_without_a_trace(stack: str) -> None:
    recording = trained(stack)
    update = recording.trace.update
    state = copy.deepcopy(recording.run.optimizer.state_dict()["state"])
    after = recording.replayed(update.before)
    assert all(torch.equal(after[name], each) for name, each in update.after.parameters.items())
    torch.testing.assert_close(recording.run.optimizer.state_dict()["state"], state, rtol=0, atol=0)


def test_a_recorded_run_sees_its_examples_several_times() -> None:
    recording = Recording.of(Job(setting=Setting(baseline="vit", size="pico", steps=8)))
    few = recording.run.data.train
    assert len(few) == 4 * recording.run.recipe.batch_size


def test_a_growth_step_is_recorded_with_both_models() -> None:
    class Renamed(Planted):
        """Grows by nothing: the same function under other names."""

        def after_step(self, run: Run) -> None:
            if run.step == MIDDLE + 1:
                run.adopt(torch.nn.Sequential(run.model))

    recording = new_recording("vit", Renamed(), size="pico", steps=STEPS)
    with pytest.raises(ValueError, match="no step of baseline was recorded"):
        _ = recording.trace
    recording.train(MIDDLE + 1)
    trace = recording.trace
    assert {f"0.{name}" for name in trace.before.parameters} == set(trace.after.parameters)


def test_a_moment_has_the_models_buffers_as_they_were() -> None:
    class Counting(Planted):
        """Counts steps in a buffer."""

        def model(self, model: torch.nn.Module, run: Run) -> torch.nn.Module:
            model.register_buffer("steps_done", torch.zeros(()))
            return model

        def after_step(self, run: Run) -> None:
            run.model.get_buffer("steps_done").add_(1)

    recording = new_recording("vit", Counting(), size="pico", steps=STEPS)
    recording.train(STEPS)
    before, after = (moment.buffers["steps_done"] for moment in (recording.trace.before, recording.trace.after))
    assert (before, after) == (MIDDLE, MIDDLE + 1)


def test_gradients_of_a_loss_with_an_added_term_are_the_sum_of_both() -> None:
    recording = new_recording("gpt", size="pico", steps=STEPS)
    losses = recording.train(STEPS)
    weights = recording.trace.before.parameters
    plain = recording.gradients_at(weights)
    term = recording.gradients_at(weights, added=lambda outputs: outputs.logits.square().mean())
    zero = recording.gradients_at(weights, added=lambda outputs: 0 * outputs.logits.sum())
    assert all(torch.equal(zero[name], each) for name, each in plain.items())
    assert (flat(term) - flat(plain)).norm() > 0.01 * flat(plain).norm()
    outputs = recording.outputs_at(weights)
    assert not outputs.logits.requires_grad
    each = recording.run.baseline.losses(outputs, recording.trace.batch)
    assert each.mean().item() == losses[recording.trace.step]


def test_a_twin_is_the_same_run_of_another_length_and_stack_from_its_start() -> None:
    recording = trained("sam")
    same = recording.twin()
    same.train(STEPS)
    first, second = recording.trace.before.parameters, same.trace.before.parameters
    assert all(torch.equal(first[name], each) for name, each in second.items())
    other = recording.twin("baseline", steps=2 * STEPS)
    assert (other.run.job.stack, other.run.recipe.steps, other.run.step) == ("baseline", 2 * STEPS, 0)
    assert other.run.baseline is recording.run.baseline


def test_what_probes_draw_does_not_change_the_run() -> None:
    recording = trained("sam")
    before = torch.get_rng_state()
    assert recording.probes()
    assert torch.equal(torch.get_rng_state(), before)


class Copying(Planted):
    """Keeps a copy of the model that it makes in a step, as averages and growth do."""

    kept: nn.Module

    def after_backward(self, run: Run) -> None:
        self.kept = copy.deepcopy(run.model)


def test_what_a_step_copies_keeps_nothing_of_the_recording() -> None:
    recording = new_recording("gpt", copying := Copying(), size="pico", steps=STEPS)
    recording.train(MIDDLE + 1)
    batch, _ = recording.run.next_batch()
    trace = weakref.ref(recording.trace)
    passes = len(recording.trace.passes)
    recording.run.baseline.forward(copying.kept, batch)
    assert len(recording.trace.passes) == passes
    del recording
    gc.collect()
    assert trace() is None
