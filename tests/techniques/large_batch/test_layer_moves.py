"""How layers' moves are measured where gradients are so small that their squares underflow, as rounding alone makes
those of a bias that nothing depends on."""

from dataclasses import replace

import torch

from suite.reading.recording import Recording
from techniques.shared.layer_moves import FAR, moved_by_scale, roundings
from tests.runs import new_recording

POWERS = {"first_moment": 1, "second_moment": 2}
TINY = 2.0**-40


def with_tiny_gradients(recording: Recording) -> Recording:
    """Every other gradient of each layer, and what the optimizer keeps of it, becomes TINY of what it was; but where
    nothing would be left of the square that it keeps: of that no step can be asked for the scale."""
    before = recording.trace.update.before
    factors = {}
    for name, own in before.state.items():
        kept = own["second_moment"].flatten()
        smaller = (kept * TINY**2 > 0) & (torch.arange(kept.numel()) % 2 == 0)
        factors[name] = torch.where(smaller, TINY, 1.0).view_as(own["second_moment"])

    gradients = {name: each * factors[name] for name, each in before.gradients.items()}
    state = {
        name: {key: each * factors[name] ** POWERS[key] if key in POWERS else each for key, each in own.items()}
        for name, own in before.state.items()
    }
    update = replace(recording.trace.update, before=replace(before, gradients=gradients, state=state))
    recording.traces[-1] = replace(recording.trace, updates=[update])
    return recording


def test_a_step_that_knows_no_scale_has_none_where_squares_underflow() -> None:
    recording = new_recording("vit", "lamb", size="pico", recipe="classic", steps=4)
    recording.train(4)
    with_tiny_gradients(recording)
    kept = [own["second_moment"] for own in recording.trace.update.before.state.values()]
    assert any((each > 0).logical_and(each < torch.finfo(torch.float32).smallest_normal).any() for each in kept)
    assert moved_by_scale(recording, POWERS, eps=1e-100) == 0
    assert moved_by_scale(recording, {"first_moment": 1}, eps=1e-100) > 0, "its state does not grow with the gradients"
    assert moved_by_scale(recording, POWERS, eps=1e-3) > 0


def test_below_the_smallest_normal_number_floats_are_as_coarse_as_there() -> None:
    gradient = torch.tensor([2e-21, 3e-20, 1e-3])
    moment, exact = 1e-3 * gradient.square(), 1e-3 * gradient.double().square()
    assert 0 < moment[1] < torch.finfo(torch.float32).smallest_normal
    assert roundings(moment, exact, exact) <= 4
    assert roundings(2 * moment, exact, exact) > 1e6, "the last is no small number"
    assert roundings(moment * torch.nan, exact, exact) == FAR
