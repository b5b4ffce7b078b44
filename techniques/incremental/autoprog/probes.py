"""Tells what the steps of short runs show of AutoProg: what each step trained, what a search chose, and what growth
copied.

Of a search, all candidates are computed again: each as a model of its own, made for its pictures, with the supernet's
weights as they were when it ended. Growth is looked at in a run whose candidates have losses of which the smallest's is
best for its cost, so that it must grow at every stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from suite.device.random_state import unchanged_randomness
from suite.loop.run import Run
from suite.meters.flops import FlopCounter
from suite.model.anatomy import anatomy
from suite.model.calls import undisturbed
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Moment, Trace, Values
from techniques.incremental.autoprog.growth import block_cost
from techniques.incremental.autoprog.technique import AutoProg
from techniques.incremental.shared.grids import resampling, triangles
from techniques.incremental.shared.states import same_state
from techniques.shared.block_flops import block_step_flops, counted_block_flops
from techniques.shared.plain import filled, plain_model

OF_ITS_BASELINES = True  # whose models can be made for any size of pictures
EPS = torch.finfo(torch.float32).eps
MOST = 3  # depths, and sizes, among the candidates of a later stage
ROUNDINGS = 100  # of a loss in float32, of pictures that are made smaller in another order
TIE = 1e-6  # of the logarithms, of losses in float32


def records(run: Run, own: AutoProg) -> bool:
    """Records all steps: what each trained."""
    return own.stages > 1


@dataclass
class Step:
    """Records what a step trained: of the model's ``depth`` blocks those ``ran``, on pictures of ``side``."""

    trace: Trace
    depth: int
    ran: int
    side: int


@judged(
    "off_schedule",
    "Between searches all blocks of the present model train on pictures of one size; a search trains candidates, the "
    "largest first.",
    "The authors' prog/progressive.py and train_one_epoch_super",
    id="schedule",
)
@judged(
    "fell",
    "Depth and picture size never fall from one stage to the next.",
    "The authors' main_prog.py: candidates begin at the present depth and resolution",
    id="only_grows",
    scope="end_to_end",
)
@judged(
    "not_whole",
    "The last stage trains the whole model on whole pictures.",
    "linspace(scale, 1, stages) of the authors' prog/progressive.py",
    id="ends_whole",
    scope="end_to_end",
)
@judged(
    "parameters_at_the_end",
    "The final architecture is the baseline's.",
    "linspace(scale, 1, stages) of the authors' prog/progressive.py",
    id="same_parameters",
    equals=1.0,
)
@judged(
    "judged_off",
    "A search takes for a candidate's loss that of the supernet without the first copies that the candidate lacks, on "
    "the batch that comes next.",
    "auto_grow of the authors' main_prog.py",
    id="judges",
    note="each candidate as a model of its own, with the supernet's weights, to a hundred roundings of float32",
)
@judged(
    "choices_off",
    "A search chooses, of the candidates' losses in the supernet and their costs, argmin L T^alpha, where L falls "
    "like T^-alpha.",
    "auto_grow of the authors' main_prog.py",
    id="chooses",
    note="each candidate as a model of its own, with the supernet's weights",
)
@judged(
    "cost_over_flops",
    "The cost T of a candidate is that of its blocks, attention's products of tokens with tokens among them.",
    "Section 3: T is measured on the authors' GPUs; counted FLOPs here",
    id="cost",
    equals=1.0,
    tolerance=1e-9,
    kind="counted",
    note="a block's multiplications over those counted in a forward pass, of few tokens and of many",
)
@judged(
    "copies_off",
    "New blocks are copies of their neighbours in the moving average of the weights (MoGrow).",
    "Momentum growth; load_slice_clone_ema of the authors' prog/helpers.py",
    id="momentum_growth",
    at_most=16.0,  # roundings of float32: of as many updates of the average
    note="in a run that takes the smallest candidates, and so grows at every stage",
)
@judged(
    "changed",
    "Growth and choice change no weight of the blocks that stay, nor outside of them.",
    "Abstract: the parameters of the supernet are recycled",
    id="rest_stays",
)
@judged(
    "off_state",
    "The optimizer's state of all weights that stay goes on.",
    "this entry's choice",
    id="optimizer_goes_on",
)
@judged(
    "flops_over_formula",
    "A stage costs what its blocks and tokens cost: a block (side / patch)^2 tokens, linear for matrices, quadratic "
    "for attention.",
    "follows from the growth space",
    id="flops_of_a_stage",
    equals=1.0,
    tolerance=1e-9,
    kind="counted",
    recipes=["classic"],  # the backward pass of fused attention multiplies once more
    note="in a run that takes the smallest candidates",
)
def probes(recording: Recording, own: AutoProg) -> Mapping[str, float]:
    """Steps, searches, stages and parameters that are off are counted; ``copies_off`` is in roundings. For a claim,
    ``search_steps_off`` counts searches that do not train another candidate than their largest, or change the model at
    another step than their last."""
    if own.stages == 1:
        return {}
    plan = _Plan(recording, own)
    (searching, judged), forced = _listening(recording.twin()), _steps(_smallest_always(recording.twin()))
    steps = _steps(searching)
    growth = _growth(forced, own, plan)
    costs = _costs_over_flops(recording.run)
    return {
        "cost_over_flops": max(costs, key=lambda ratio: abs(ratio - 1)),
        "off_schedule": sum(_off_schedule(taken, plan) for taken in (steps, forced)),
        "fell": _fell(steps, plan) + _fell(forced, plan),
        "not_whole": sum(
            (step.ran, step.side) != (plan.depths[-1], plan.sides[-1])
            for every in (steps, forced)
            for step in every[plan.starts[-1] :]
        ),
        **_choices(recording, steps, judged, plan),
        **growth,
        "search_steps_off": _search_steps_off((steps, forced), plan),
        "flops_over_formula": _flops_over_formula(recording, plan),
        "parameters_at_the_end": _elements(steps[-1].trace.after.parameters.values())
        / _elements(plain_model(recording).parameters()),
    }


@torch.no_grad()
def _costs_over_flops(run: Run) -> list[float]:
    block, ratios = run.anatomy.blocks[0], []
    for tokens in (2, 50):
        hidden = next(block.module.parameters()).new_zeros(1, tokens, block.width)
        with unchanged_randomness(run.device), undisturbed(block.module), FlopCounter() as counted:
            block.module(hidden)
        ratios.append(block_cost(block, tokens) / (counted.total / 2))
    return ratios


class _Plan:
    """Plans the schedule, from the algorithm: stages of equal length, a search at the start of each but the last."""

    def __init__(self, recording: Recording, own: AutoProg) -> None:
        run = recording.run
        steps, shape = run.recipe.steps, run.data.shape  # type: ignore[attr-defined]
        full = anatomy(plain_model(recording)).depth
        self.starts = [math.ceil(stage * steps / own.stages) for stage in range(own.stages)]
        self.ends = [start + max(2, round(own.search * steps)) for start in self.starts[:-1]]
        shares = [own.smallest + (1 - own.smallest) * stage / (own.stages - 1) for stage in range(own.stages)]
        self.depths = sorted({math.floor(share * full + 0.5) for share in shares})
        grid = shape.side // shape.patch
        self.sides = sorted({math.floor(share * grid + 0.5) * shape.patch for share in shares})
        self.patch, self.steps = shape.patch, steps

    def settled(self, step: int) -> bool:
        """Tells whether no search is on."""
        return not any(start <= step < end for start, end in zip(self.starts, self.ends, strict=False))

    def candidates(self, stage: int, depth: int, side: int) -> list[tuple[int, int]]:
        """Returns the candidates of a stage's search, from the depth and size before it."""
        depths = [possible for possible in self.depths if possible >= depth or not stage]
        sides = [possible for possible in self.sides if possible >= side or not stage]
        if stage:
            depths, sides = depths[:MOST], sides[:MOST]
        return [(depth, size) for depth in depths for size in sides]


def _own(recording: Recording) -> AutoProg:
    return recording.run.technique.member(AutoProg)


def _smallest_always(recording: Recording) -> Recording:
    """Returns the same recording, whose candidates lie on a power law, the larger the better, but the first lies below
    it."""
    own = _own(recording)

    def judged(run: Run) -> tuple[list[float], list[float]]:
        costs = [2.0**index for index in range(len(own.candidates))]
        return [cost**-0.25 * (0.97 if cost == 1 else 1.0) for cost in costs], costs

    own.judged = judged  # type: ignore[method-assign]
    return recording


def _listening(recording: Recording) -> tuple[Recording, list[list[float]]]:
    """Returns the same recording, and what each of its searches will take for the losses of its candidates."""
    own, heard = _own(recording), list[list[float]]()
    judge = own.judged

    def judged(run: Run) -> tuple[list[float], list[float]]:
        losses, costs = judge(run)
        heard.append(losses)
        return losses, costs

    own.judged = judged  # type: ignore[method-assign]
    return recording, heard


def _steps(recording: Recording) -> list[Step]:
    """Takes a whole run, and what each step trained."""
    run, sides, steps = recording.run, list[int](), list[Step]()

    def note(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        if torch.is_grad_enabled():  # a search looks at its candidates without
            sides.append(args[0].shape[-1])

    (cutter,) = (module for module in run.model.modules() if isinstance(module, nn.Conv2d))
    hook = cutter.register_forward_pre_hook(note)
    for _ in range(run.recipe.steps):
        blocks = run.anatomy.blocks
        recording.record_step()
        ran = sum(any(part.path in recording.trace.ran for part in block.linears) for block in blocks)
        steps.append(Step(recording.trace, len(blocks), ran, sides[-1]))
    hook.remove()
    return steps


def _off_schedule(steps: Sequence[Step], plan: _Plan) -> int:
    off = sum(steps[start].ran < steps[start].depth for start in plan.starts)
    for start, after in pairwise([*plan.starts, plan.steps]):
        settled = [step for number, step in enumerate(steps) if start <= number < after and plan.settled(number)]
        off += sum(step.ran < step.depth or step.side != settled[0].side for step in settled)
    return off


def _search_steps_off(runs: Sequence[Sequence[Step]], plan: _Plan) -> int:
    return sum(_stray_changes(run, plan) for run in runs) + (not any(_tries(run, plan) for run in runs))


def _stray_changes(steps: Sequence[Step], plan: _Plan) -> int:
    changes = [number + 1 for number, step in enumerate(steps) if _depth(step.trace.before) != _depth(step.trace.after)]
    return sum(change not in plan.ends and change not in plan.starts for change in changes)


def _tries(steps: Sequence[Step], plan: _Plan) -> bool:
    """Tells whether a search trains another candidate than its largest: of few steps, one may draw that alone."""
    drawn = [steps[start:end] for start, end in zip(plan.starts, plan.ends, strict=False)]
    return any((other.ran, other.side) != (every[0].ran, every[0].side) for every in drawn for other in every[1:])


def _elements(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _depth(moment: Moment) -> int:
    return len(_blocks(moment.parameters, _path(moment.parameters)))


def _fell(steps: Sequence[Step], plan: _Plan) -> int:
    settled = [steps[end] for end in plan.ends] + [steps[-1]]
    return sum(after.ran < before.ran or after.side < before.side for before, after in pairwise(settled))


def _choices(
    recording: Recording, steps: Sequence[Step], judged: Sequence[Sequence[float]], plan: _Plan
) -> dict[str, float]:
    depth, side = plan.depths[0], plan.sides[0]
    counts = {"judged_off": 0.0, "choices_off": 0.0}
    for stage, end in enumerate(plan.ends):
        candidates = plan.candidates(stage, depth, side)
        values = steps[end - 1].trace.update.after.parameters
        indices = [_kept(depth, steps[end - 1].depth, blocks) for blocks, _ in candidates]
        losses = [
            _loss(recording, values, blocks, size, steps[end].trace)
            for blocks, (_, size) in zip(indices, candidates, strict=True)
        ]
        counts["judged_off"] += not np.allclose(losses, judged[stage], rtol=ROUNDINGS * EPS, atol=0)
        block = recording.run.anatomy.blocks[0]
        costs = [blocks * block_step_flops(block, 1, (size // plan.patch) ** 2) for blocks, size in candidates]
        wanted = candidates[_argmin(losses, costs)]
        depth, side = steps[end].depth, steps[end].side
        counts["choices_off"] += wanted != (depth, side)
    return counts


def _kept(before: int, depth: int, wanted: int) -> list[int]:
    """Returns the blocks of a supernet of ``depth``, grown from ``before``, that a candidate has: those that were
    there, each followed by its copies, of which the last ones."""
    times, further = divmod(depth, before)
    copies, place = [], 0
    for index in range(before):
        several = times + (index >= before - further)
        copies += list(range(place + 1, place + several))
        place += several
    gone = copies[: depth - wanted]
    return [index for index in range(depth) if index not in gone]


def _loss(recording: Recording, values: Values, blocks: list[int], side: int, following: Trace) -> float:
    """Computes the loss of the model with these blocks of the supernet, made for pictures of ``side``, on the step's
    batch."""
    run = recording.run
    data: Any = replace(run.data, shape=run.data.shape._replace(side=side))  # type: ignore[attr-defined,call-arg]
    with unchanged_randomness(run.device):
        model = run.baseline.model(run.job.setting.size, data).to(run.device)
    parts = anatomy(model)
    path = parts.main.path
    parts.set_blocks([block.module for block in parts.blocks][: len(blocks)])
    renamed = {name: value for name, value in values.items() if not name.startswith(f"{path}.")}
    for place, index in enumerate(blocks):
        old, new = f"{path}.{index}.", f"{path}.{place}."
        renamed |= {new + name.removeprefix(old): value for name, value in values.items() if name.startswith(old)}
    for name, parameter in model.named_parameters():
        if parameter.shape != renamed[name].shape:
            matrix = resampling(renamed[name].shape[1], parameter.shape[1])
            renamed[name] = (matrix @ renamed[name].double()).to(parameter.dtype)
    shrink = triangles(data.train.tensors["pixels"].shape[-1], side)
    batch = dict(following.batch)
    if side != following.batch["pixel_values"].shape[-1]:
        batch["pixel_values"] = (shrink @ batch["pixel_values"].double() @ shrink.T).float()
    with torch.no_grad():
        outputs = run.baseline.forward(filled(model, renamed).eval(), batch)
        return run.baseline.losses(outputs, batch).mean().item()


def _argmin(losses: Sequence[float], costs: Sequence[float]) -> int:
    """Returns the argmin of L T^alpha, alpha from the straight line through the points (log T, log L)."""
    x, y = torch.tensor(costs, dtype=torch.float64).log(), torch.tensor(losses, dtype=torch.float64).log()
    line = torch.linalg.lstsq(torch.stack([x, torch.ones_like(x)], 1), y[:, None]).solution[:, 0]
    scores = y + max(-line[0].item(), 0.0) * x
    return int((scores <= scores.min() + TIE).nonzero()[0])


def _growth(steps: Sequence[Step], own: AutoProg, plan: _Plan) -> dict[str, float]:
    """Returns the errors of all steps after which the model has another depth."""
    rate = 1 / (1 + own.memory * plan.steps)
    counts = {"copies_off": 0.0, "changed": 0.0, "off_state": 0.0}
    path = _path(steps[0].trace.before.parameters)
    averages = _blocks(steps[0].trace.before.parameters, path)
    grown = 0
    for step in steps:
        before, after = step.trace.update.after, step.trace.after
        now = _blocks(before.parameters, path)
        averages = [
            {name: mean[name] + rate * (weights[name].double() - mean[name]) for name in mean}
            for mean, weights in zip(averages, now, strict=True)
        ]
        new = _blocks(after.parameters, path)
        if len(new) < len(now):  # a choice
            origin, copies = _kept(plan.depths[0], len(now), len(new)), []
        elif len(new) > len(now):  # growth
            indices = _kept(len(now), len(new), len(now))
            copies = [index for index in range(len(new)) if index not in indices]
            origin = [sum(index >= old for old in indices) - 1 for index in range(len(new))]
            grown += 1
        else:
            continue
        for place, index in enumerate(origin):
            for name, value in new[place].items():
                if place in copies:
                    expected = averages[index][name]
                    off = (value.double() - expected).norm() / expected.norm().clamp(min=EPS)
                    counts["copies_off"] = max(counts["copies_off"], off.item() / EPS)
                else:
                    full = f"{path}.{place}.{name}", f"{path}.{index}.{name}"
                    counts["changed"] += not torch.equal(value, before.parameters[full[1]])
                    counts["off_state"] += not same_state(before.state.get(full[1], {}), after.state.get(full[0], {}))
        outside = [name for name in before.parameters if not name.startswith(f"{path}.")]
        counts["changed"] += sum(
            not torch.equal(before.parameters[parameter], after.parameters[parameter]) for parameter in outside
        )
        counts["off_state"] += sum(
            not same_state(before.state.get(parameter, {}), after.state.get(parameter, {})) for parameter in outside
        )
        averages = [averages[index] for index in origin]
    return counts if grown else dict.fromkeys(counts, math.nan)


def _path(values: Values) -> str:
    """Returns the path of the stack of blocks: what stands before the number of the first one."""
    return next(name for name in values if ".0." in name).partition(".0.")[0]


def _blocks(values: Values, path: str) -> list[dict[str, Tensor]]:
    """Returns the parameters of each block, by their names in it."""
    blocks: dict[int, dict[str, Tensor]] = {}
    for name, value in values.items():
        if name.startswith(f"{path}."):
            number, _, rest = name.removeprefix(f"{path}.").partition(".")
            blocks.setdefault(int(number), {})[rest] = value
    return [blocks[number] for number in sorted(blocks)]


def _flops_over_formula(recording: Recording, plan: _Plan) -> float:
    """Returns the FLOPs over the formula's of a run that stays as small as it may: what its last block costs in a
    settled step of each stage."""
    run = _smallest_always(recording.twin()).run
    block, rows = run.anatomy.blocks[0], run.recipe.batch_size
    starts = [*plan.ends, plan.starts[-1]]
    sides = [plan.sides[0]] * len(plan.ends) + [plan.sides[-1]]
    formula = sum(block_step_flops(block, rows, (side // plan.patch) ** 2) for side in sides)
    return sum(counted_block_flops(run, starts)) / formula
