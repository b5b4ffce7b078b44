"""Tells what the steps of a short run show of bert2BERT: how large the model was, and what each of its numbers began
as.

Where a number of the large model comes from is said here by laying copies of the small model's tensors side by side.
Function and symmetry are measured of the model that FPI makes of the recorded small one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.model.anatomy import Anatomy, anatomy, is_linear, is_transposed
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.incremental.bert2bert.technique import Bert2Bert
from techniques.incremental.shared.growth import grown, narrowed
from techniques.incremental.shared.growth_moves import off_state, off_values
from techniques.shared.plain import filled, gradients_of, outputs_of, plain_model

OF_ITS_BASELINES = True  # whose queries, keys and values are one layer or three, and whose last norm comes last


class Kind(NamedTuple):
    """Says how a parameter has grown: the dimension of units that it writes, in how many lists of them, and the
    dimension of those that it sums over; None where there is none."""

    written: int | None
    lists: int
    read: int | None


def records(run: Run, own: Bert2Bert) -> bool:
    """Records all steps: how large the model was in each, and how it grew."""
    return bool(own.share)


@judged(
    "changed_function",
    "The model that FPI makes computes what the small one did",
    "Section 3.3, function preserving initialization",
    id="function_preserved",
    at_most=1e-9,  # of the outputs' norm, in float64
    note="each unit copied as often as every other; in width",
)
@judged(
    "fpi_apart",
    "Copies of a unit that FPI makes get equal gradients",
    "Section 3.3, motivation of advanced knowledge initialization",
    id="fpi_is_symmetric",
    at_most=1e-4,  # of a gradient's norm, in float32
    note="no dropout",
)
@judged(
    "aki_apart",
    "With weights of the layer above in the new units, copies get gradients of their own",
    "Section 3.3, advanced knowledge initialization",
    id="aki_breaks_symmetry",
    at_least=0.001,  # of a gradient's norm; copies by FPI are apart by roundings
    note="method=aki; all blocks but the last, which has none above it",
)
@judged(
    "off_values",
    "Units that were there keep their weights, new ones have those of the layer above, and what reads n copies of a "
    "unit reads 1/n of each",
    "Section 3.3",
    id="values",
)
@judged(
    "off_schedule",
    "The small model trains for its share of the steps, and the whole one for the others",
    "Section 4.1, here inside one run",
    id="schedule",
)
@judged(
    "off_state",
    "The optimizer starts anew with the large model",
    "Section 4.1: the small model is only the initialisation of another training",
    id="fresh_optimizer",
    note="carry_optimizer=false",
)
@judged(
    "untrained", "The whole model is trained after the growth, old units and new ones", "Section 3.3", id="all_train"
)
@judged(
    "relative_block_flops",
    "With a quarter of the steps at half the width, the blocks' matrices do 0.25 / 4 + 0.75 = 0.8125 of the "
    "baseline's work",
    "follows from the schedule; the paper does not count the small model",
    id="small_model_is_counted",
    equals=0.8125,
    tolerance=0.01,
    kind="counted",
    scope="end_to_end",
    note="weights that each step of a short run used; share=0.25, width=2; steps divisible by 4",
)
def probes(recording: Recording, own: Bert2Bert) -> Mapping[str, float]:
    """``changed_function`` is relative to the outputs' norm, in float64; copies are apart relative to their norm, where
    they are most (``fpi_apart``) or least (``aki_apart``)."""
    if not own.share:
        return {}
    run, traces = recording.run, recording.traces
    parts = anatomy(plain_model(recording))
    matrices = [f"{part.path}.weight" for part in parts.linears]
    whole = sum(parts.model.get_parameter(name).numel() for name in matrices)
    used = [
        sum(trace.before.parameters[name].numel() for name in matrices if name in trace.before.parameters)
        for trace in traces
    ]
    first = max(1, round(own.share * run.recipe.steps))
    planned = [whole // (own.width**2 * own.depth) if trace.step < first else whole for trace in traces]
    trace, following = traces[first - 1], traces[first]
    expected = partial(_expected, parts, own)
    update, gradients = following.update, following.of("backward")[0].gradients
    return {
        "relative_block_flops": sum(used) / (whole * len(used)),
        "off_schedule": sum(names != plan for names, plan in zip(used, planned, strict=True)),
        "off_values": off_values(trace, expected),
        "off_state": off_state(trace, expected, carried=own.carry_optimizer),
        "untrained": sum(not (name in update.before.hyper and update.moved(name).any()) for name in gradients),
        **_function(recording, trace, following, parts, own),
    }


def _expected(
    parts: Anatomy, own: Bert2Bert, name: str, small: Mapping[str, Tensor], like: Tensor, degree: int
) -> Tensor | None:
    own_name, upper_name = _source(name, parts, own, 0), _source(name, parts, own, 1)
    if own_name not in small:
        return None
    inside_a_layer = any(name.startswith(f"{part.path}.") for part in parts.linears)
    values = small[own_name]
    upper = small[upper_name] if own.method == "aki" and inside_a_layer and upper_name in small else values
    kind = _kind(name, values, like, parts)
    if kind.read is not None:
        values, upper = (
            torch.cat([tensor] * own.width, kind.read) / (1 if degree else own.width) for tensor in (values, upper)
        )
    if kind.written is None:
        return values
    lists = zip(*(tensor.chunk(kind.lists, kind.written) for tensor in (values, upper)), strict=True)
    units = [torch.cat([there, *[new] * (own.width - 1)], kind.written) for there, new in lists]
    return torch.cat(units, kind.written) / own.width**degree


def _source(name: str, parts: Anatomy, own: Bert2Bert, up: int) -> str:
    """Returns the small model's parameter that one of the large model comes from, or the same one ``up`` blocks above
    it."""
    path = f"{parts.main.path}."
    if not name.startswith(path):
        return name
    number, _, rest = name.removeprefix(path).partition(".")
    return f"{path}{int(number) % (parts.depth // own.depth) + up}.{rest}"


def _kind(name: str, small: Tensor, large: Tensor, parts: Anatomy) -> Kind:
    grew = [dimension for dimension, size in enumerate(small.shape) if size != large.shape[dimension]]
    path, _, last = name.rpartition(".")
    module = parts.model.get_submodule(path)
    tables = {id(part.module.weight) for part in parts.embeddings}
    outside = [
        norm
        for norm_path, norm in parts.model.named_modules()
        if "norm" in type(norm).__name__.lower() and not norm_path.startswith(f"{parts.main.path}.")
    ]
    tied = any(id(part.module.weight) in tables for part in parts.head)
    if tied and module is outside[-1]:
        return Kind(None, 1, 0)
    if is_linear(module) and last == "weight" and id(module.weight) not in tables:
        rows = 1 if is_transposed(module) else 0
        fused = any(block.projections.get("qkv", (None,))[0] == path for block in parts.blocks)
        return Kind(rows if rows in grew else None, 3 if fused else 1, 1 - rows if 1 - rows in grew else None)
    fused = last == "bias" and any(block.projections.get("qkv", (None,))[0] == path for block in parts.blocks)
    return Kind(grew[0] if grew else None, 3 if fused else 1, None)


def _function(
    recording: Recording, trace: Trace, following: Trace, parts: Anatomy, own: Bert2Bert
) -> Mapping[str, float]:
    """Compares the functions of the small model as it was, and of the one that FPI makes of it, as deep."""
    model = plain_model(recording)
    shallow = anatomy(model)
    shallow.set_blocks([block.module for block in shallow.blocks[: shallow.depth // own.depth]])
    small = narrowed(model, dict.fromkeys(("residual", "heads", "units"), own.width), recording.run.trial)
    filled(model, trace.update.after.parameters)
    before = outputs_of(recording, trace, model, torch.float64)
    values = {name: parameter.detach() for name, parameter in model.named_parameters()}
    small.widen(grown(values, small.layout, small.sources, {}))
    after = outputs_of(recording, trace, model, torch.float64)
    blocks = [block.path for block in parts.blocks]
    of_fpi = _apart(gradients_of(recording, trace, model.train()), parts, own)
    of_run = _apart(following.of("backward")[0].gradients, parts, own)
    return {
        "changed_function": ((after - before).norm() / before.norm()).item(),
        "fpi_apart": max(of_fpi.values()),
        "aki_apart": min(value for path, value in of_run.items() if not path.startswith(f"{blocks[-1]}.")),
    }


def _apart(gradients: Mapping[str, Tensor], parts: Anatomy, own: Bert2Bert) -> dict[str, float]:
    """Measures, by layer of the MLPs, how far the gradients of the first two copies of its units are apart, over their
    norm."""
    apart = {}
    for block in parts.blocks:
        for path, module in block.mlp_linears:
            gradient = gradients.get(f"{path}.weight")
            if gradient is not None:
                first, second, *_ = (gradient.T if is_transposed(module) else gradient).double().chunk(own.width)
                apart[path] = ((first - second).norm() / first.norm()).item()
    return apart
