"""A recorded step shows every pass and update as it was, and changes nothing."""

from __future__ import annotations

import pytest
import torch

from suite.contract.run import Run
from suite.contract.technique import Technique
from suite.contract.trace import Trace
from tests.runs import Planted, new_run

STEPS = 4
MIDDLE = 2


class Unrecorded(Planted):
    """The reference, of which no step is recorded."""

    def records(self, run: Run) -> bool:
        return False


def trained(stack: str | Technique, baseline: str = "gpt") -> Run:
    run = new_run(baseline, stack, size="pico", steps=STEPS)
    run.train(STEPS)
    return run


def flat(values: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([values[name].double().flatten() for name in sorted(values)])


def distance(trace: Trace, number: int) -> float:
    """How far from the weights before the step a pass was."""
    before = trace.before.parameters
    return (flat(dict(trace.passes[number].parameters)) - flat(dict(before))).norm().item()


@pytest.mark.parametrize("baseline", ["gpt", "vit"])
def test_recording_changes_no_bit(baseline: str) -> None:
    plain, recorded = trained(Unrecorded(), baseline), trained("baseline", baseline)
    assert not plain.traces and recorded.trace.step == MIDDLE
    ours = dict(recorded.model.named_parameters())
    assert all(torch.equal(parameter, ours[name]) for name, parameter in plain.model.named_parameters())


def test_a_plain_step_is_one_forward_one_backward_one_update() -> None:
    run = trained("baseline")
    trace = run.trace
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


def test_gradients_are_those_of_one_pass_and_the_point_is_where_it_was_taken() -> None:
    run = trained("sam:rho=0.05")
    trace = run.trace
    assert [each.kind for each in trace.passes] == ["forward", "backward", "forward", "backward"]
    assert [distance(trace, number) == 0.0 for number in range(4)] == [True, True, False, False]
    assert distance(trace, 3) == pytest.approx(0.05, rel=1e-4)
    first, second = (flat(dict(each.gradients)) for each in trace.of("backward"))
    assert not torch.equal(first, second)
    assert torch.equal(flat(dict(trace.update.before.parameters)), flat(dict(trace.before.parameters)))


def test_a_recorded_batch_repeats_its_gradient() -> None:
    run = trained("baseline", "bert")
    trace = run.trace
    run.model.load_state_dict(dict(trace.before.parameters), strict=False)
    torch.set_rng_state(trace.random)
    run.optimizer.zero_grad(set_to_none=True)
    run.backward(run.forward(trace.batch))
    for name, parameter in run.model.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, trace.of("backward")[0].gradients[name]), name


def test_a_growth_step_is_recorded_with_both_models() -> None:
    class Renamed(Planted):
        """Grows by nothing: the same function under other names."""

        def after_step(self, run: Run) -> None:
            if run.step == MIDDLE + 1:
                run.adopt(torch.nn.Sequential(run.model))

    with pytest.raises(ValueError, match="no step of baseline was recorded"):
        _ = new_run("vit", Renamed(), size="pico", steps=STEPS).trace
    run = new_run("vit", Renamed(), size="pico", steps=STEPS)
    run.train(MIDDLE + 1)
    trace = run.trace
    assert {f"0.{name}" for name in trace.before.parameters} == set(trace.after.parameters)
