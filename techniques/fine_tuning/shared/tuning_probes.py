"""Tells what recorded steps show of parameter-efficient tuning: what trains, what stays frozen, and what the optimizer
keeps.

For the probes of the techniques that freeze a model with :mod:`techniques.fine_tuning.shared.frozen`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.technique import Technique
from suite.model.anatomy import anatomy, out_features
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.shared.moves import rate_over_the_baselines
from techniques.shared.plain import names_in, outputs_of


def at_the_start_and_in_the_middle(run: Run, own: Technique) -> bool:
    """Serves as ``records`` of such probes: the start, where what is new does nothing yet, and the middle."""
    return run.step in (0, run.recipe.steps // 2)


def heads_in(plain: nn.Module) -> set[str]:
    """Returns the parameters of a plain model's output layers, by name, unless it predicts tokens: then there are
    none."""
    tables = {module.num_embeddings for module in plain.modules() if isinstance(module, nn.Embedding)}
    paths = [part.path for part in anatomy(plain).head if out_features(part.module) not in tables]
    return {name for name, _ in plain.named_parameters() if name.rpartition(".")[0] in paths}


def tuning_probes(
    recording: Recording, plain: nn.Module, expected: Collection[str], names: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Returns what the last recorded step shows where the parameters ``expected``, by their names in the run's model,
    and no others are to be trained. ``plain`` is as pre-trained; ``names`` says what its parameters are called in the
    run's model, where that has more than wrappers around layers.

    ``elsewhere``: parameters with a gradient that should have none, or the other way round; ``frozen_moved``: numbers
    of the other pre-trained parameters that have changed since the start; ``at_rest``: tensors to be trained that the
    step left alone; ``state_bytes``: what the optimizer keeps for each number to be trained (of Adam's two moments in
    float32, 8); ``rate``: the learning rate over full fine-tuning's.
    """
    trace = recording.trace
    before, after = trace.before.parameters, trace.after.parameters
    names = names_in(plain, after) if names is None else names
    moved = sum(
        int((after[names[name]] != parameter).sum()) if name in names else parameter.numel()
        for name, parameter in plain.named_parameters()
        if names.get(name) not in expected
    )
    return {
        "elsewhere": len(with_gradient(trace) ^ set(expected)),
        "frozen_moved": moved,
        "at_rest": sum(name not in after or not (after[name] != before[name]).any() for name in expected),
        "state_bytes": _state_bytes(trace) / max(1, sum(after[name].numel() for name in expected if name in after)),
        **rate_over_the_baselines(recording),
    }


def with_gradient(trace: Trace) -> set[str]:
    """Returns the parameters that got a gradient in a recorded step, or hold one after it."""
    return {name for pass_ in trace.of("backward") for name in pass_.gradients} | set(trace.after.gradients)


def trained_numbers(trace: Trace, names: Collection[str]) -> int:
    """Counts the numbers of those of the parameters ``names`` that got a gradient."""
    return sum(trace.after.parameters[name].numel() for name in with_gradient(trace) & set(names))


def different_at_start(recording: Recording, plain: nn.Module) -> int:
    """Counts the outputs for the first recorded batch that differ, at the parameters before it, from the pre-trained
    model's."""
    first = recording.traces[0]
    with recording.at(first.before.parameters):
        ours = outputs_of(recording, first, recording.run.model)
    return int((ours != outputs_of(recording, first, plain)).sum())


def _state_bytes(trace: Trace) -> int:
    """Counts the bytes of the tensors in a parameter's shape that the optimizer keeps for it."""
    shapes = {name: parameter.shape for name, parameter in trace.after.parameters.items()}
    return sum(
        value.numel() * value.itemsize
        for name, state in trace.update.after.state.items()
        for value in state.values()
        if isinstance(value, Tensor) and value.shape == shapes[name]
    )
