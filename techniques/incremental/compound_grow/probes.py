"""Tells what the steps of a short run show of CompoundGrow: how much of model and input each used, and how the model
grew.

Tokens are counted where the first block's MLP sees them, in a second run of the same job: no trace has activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.model.anatomy import Anatomy, Block, anatomy, is_transposed
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.incremental.compound_grow.technique import CompoundGrow
from techniques.incremental.shared.growth import narrowed
from techniques.incremental.shared.growth_moves import off_state, off_values
from techniques.shared.plain import filled, outputs_of, plain_model

OF_ITS_BASELINES = True  # whose MLPs are two layers, and whose optimizer is AdamW


def records(run: Run, own: CompoundGrow) -> bool:
    """Records all steps: what each used, and how the model grew."""
    return not own.is_reference


@judged(
    "off_schedule",
    "Blocks, MLP units and tokens start at a half; blocks grow first, the others together",
    "Authors' code, progressive/masked_lm.py",
    id="schedule",
)
@judged(
    "off_values",
    "A new block is a copy of block i modulo the blocks that there were; an MLP k times as wide has its matrices k "
    "times, the second divided by k; nothing else changes",
    "Authors' code, transform_model",
    id="operators",
)
@judged(
    "changed_function",
    "Growing the MLP changes no output",
    "Authors' code, transform_model: recover net2net",
    id="mlp_growth_preserves_the_function",
    at_most=1e-9,  # of the outputs' norm, in float64
)
@judged(
    "off_state",
    "The optimizer starts anew with each growth",
    "Authors' code, get_optimizer: one for each stage",
    id="fresh_optimizer",
    note="carry_optimizer=false",
)
@judged("untrained", "After a growth the whole model is trained", "Authors' code", id="all_train")
@judged(
    "unheard_positions",
    "Pooling keeps all position embeddings in use, which cutting rows does not",
    "Section 3.2, length",
    id="keeps_positions",
    baselines=["bert"],
)
@judged(
    "off_pools",
    "Tokens of a pool enter the blocks as their mean, and each gets what the blocks add to it",
    "Section 3.2, length: mean pooling; authors' code, EmbedPoolLayer",
    id="pools",
    at_most=1e-5,  # of the largest number, in float32
    baselines=["bert"],
    note="no dropout; what tokens get of their pool is this suite's, see the variant",
)
@judged(
    "leaks",
    "A causal model sees no later token while its input is short",
    "what any causal model must keep; the paper has none",
    id="shows_no_successor",
    baselines=["gpt"],
)
@judged(
    "relative_block_flops",
    "The blocks' matrices do at most 0.66 of the baseline's work",
    "follows from the stages, a quarter of the steps, another quarter, a half",
    id="fewer_block_flops",
    at_most=0.66,
    kind="counted",
    scope="end_to_end",
    note=(
        "weights times tokens of each step of a short run; an MLP of two to four times the width, so that a half of "
        "it is a quarter to a third of a block"
    ),
)
def probes(recording: Recording, own: CompoundGrow) -> Mapping[str, float]:
    """``changed_function`` is relative to the outputs' norm, in float64. ``unheard_positions`` counts rows of the table
    without a gradient, and ``off_pools`` is how far tokens are from being heard and answered alike, while the input is
    short."""
    if own.is_reference:
        return {}
    run, traces = recording.run, recording.traces
    parts = anatomy(plain_model(recording))
    seen, leaks, off_pools = _short_inputs(recording, own)
    whole_tokens = seen[-1]
    wholly = dict(parts.model.named_parameters())
    matrices = [f"{part.path}.weight" for block in parts.blocks for part in block.linears]
    whole = sum(wholly[name].numel() for name in matrices)
    used, off_schedule = 0, 0
    ends = [round(end * run.recipe.steps) for end in own.fractions]
    for trace, tokens in zip(traces, seen, strict=True):
        weights = trace.before.parameters
        blocks = [block for block in parts.blocks if f"{block.linears[0].path}.weight" in weights]
        units = {_units(block, weights) for block in blocks}
        stage = sum(trace.step >= end for end in ends)
        short = own.length if stage < 2 else 1
        planned = (
            parts.depth // (own.depth if stage < 1 else 1),
            {_units(parts.blocks[0], wholly) // (own.ffn if stage < 2 else 1)},
            {1 + -(-(whole_tokens - 1) // short), whole_tokens // short},  # pooled, or cut
        )
        off_schedule += (len(blocks), units) != planned[:2] or tokens not in planned[2]
        used += tokens * sum(weights[name].numel() for name in matrices if name in weights)
    expected = partial(_expected, parts)
    grew = [
        (trace, after)
        for trace, after in pairwise(traces)
        if _shapes(trace.update.after.parameters) != _shapes(trace.after.parameters)
    ]
    return {
        "relative_block_flops": used / (whole * whole_tokens * len(traces)),
        "off_schedule": off_schedule,
        "off_values": sum(off_values(trace, expected) for trace, _ in grew),
        "off_state": sum(off_state(trace, expected, carried=own.carry_optimizer) for trace, _ in grew),
        "untrained": sum(
            not (name in after.update.before.hyper and after.update.moved(name).any())
            for _, after in grew
            for name in after.of("backward")[0].gradients
        ),
        "changed_function": _changed_function(recording, own, grew[-1][0]) if own.ffn > 1 else 0.0,
        "unheard_positions": _unheard(traces[0], parts, whole_tokens),
        "off_pools": off_pools,
        "leaks": leaks,
    }


def _shapes(values: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in values.items()}


def _expected(parts: Anatomy, name: str, small: Mapping[str, Tensor], like: Tensor, degree: int) -> Tensor | None:
    """Copies of an MLP's units side by side, each for 1/k where they are read; of the block that is copied."""
    source = _source(name, small, parts)
    if source not in small:
        return None
    values = small[source]
    for dimension, size in enumerate(like.shape):
        copies = size // values.shape[dimension]
        if copies > 1:
            read = any(name == f"{block.mlp_output.path}.weight" for block in parts.blocks if block.mlp_output)
            power = (1 if read else 0) if degree == 0 else (0 if read else degree)
            values = torch.cat([values] * copies, dimension) / copies**power
    return values


def _source(name: str, small: Mapping[str, Tensor], parts: Anatomy) -> str:
    """Returns the parameter that one of the grown model is a copy of: of block i modulo the blocks that there were."""
    path = f"{parts.main.path}."
    if not name.startswith(path):
        return name
    shallow = {name.removeprefix(path).split(".")[0] for name in small if name.startswith(path)}
    number, _, rest = name.removeprefix(path).partition(".")
    return f"{path}{int(number) % len(shallow)}.{rest}"


def _units(block: Block, weights: Mapping[str, Tensor]) -> int:
    output = block.mlp_output
    assert output is not None
    return weights[f"{output.path}.weight"].shape[0 if is_transposed(output.module) else 1]


def _changed_function(recording: Recording, own: CompoundGrow, trace: Trace) -> float:
    """Measures how the function changed between the models with the recorded values before and after the growth of the
    MLPs."""
    small, large = plain_model(recording), plain_model(recording)
    narrowed(small, {"units": own.ffn}, recording.run.trial)
    outputs = [
        outputs_of(recording, trace, filled(model, values), torch.float64)
        for model, values in ((small, trace.update.after.parameters), (large, trace.after.parameters))
    ]
    return ((outputs[1] - outputs[0]).norm() / outputs[0].norm()).item()


def _unheard(trace: Trace, parts: Anatomy, tokens: int) -> int:
    gradients = trace.of("backward")[0].gradients
    tables = [gradients[f"{part.path}.weight"] for part in parts.embeddings if f"{part.path}.weight" in gradients]
    return sum(int((~table.any(1)).sum()) for table in tables if len(table) == tokens)


def _short_inputs(recording: Recording, own: CompoundGrow) -> tuple[list[int], float, float]:
    """Returns the tokens that the first block's MLP sees in each step; and, of the first stage, ``leaks`` and
    ``off_pools``."""
    run = recording.twin().run
    seen: list[int] = []

    def note(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if not seen[-1]:
            seen[-1] = arguments[0].shape[1]

    leaks, off_pools = _leaks(run), _off_pools(run, own.length)
    assert run.anatomy.blocks[0].mlp_output is not None
    run.anatomy.blocks[0].mlp_output.module.register_forward_pre_hook(note)
    for _ in range(run.recipe.steps):
        seen.append(0)
        run.train(1)
    return seen, leaks, off_pools


@torch.no_grad()
def _leaks(run: Run) -> float:
    batch, _ = run.next_batch()
    tokens = batch["input_ids"]
    changed = tokens.clone()
    changed[:, -1] = (tokens[:, -1] + 1) % (int(tokens.max()) + 1)
    run.model.eval()
    with run.technique.around_step(run):
        first, second = (
            run.baseline.forward(run.model, {**batch, "input_ids": tensor}).logits[:, :-1]
            for tensor in (tokens, changed)
        )
    run.model.train()
    return (first - second).abs().max().item()


def _off_pools(run: Run, size: int) -> float:
    """The first token hears the tokens of a pool by their mean: its gradient at each is the same. What the blocks add
    to a pool is added to each of its tokens."""
    ends: dict[str, Tensor] = {}

    def enters(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        ends["enters"] = arguments[0]

    def leaves(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
        ends["leaves"] = output if isinstance(output, Tensor) else output[0]

    blocks = run.anatomy.blocks
    hooks = [
        blocks[0].module.register_forward_pre_hook(enters),
        blocks[-1].module.register_forward_hook(leaves),
    ]
    batch, _ = run.next_batch()
    with run.technique.around_step(run):
        run.baseline.forward(run.model, batch)
    for hook in hooks:
        hook.remove()
    added = ends["leaves"] - ends["enters"]
    (heard,) = torch.autograd.grad(added[:, 0].sum(), ends["enters"])
    off = []
    for signal in (added.detach(), heard):
        pools = signal[:, 1:].split(size, dim=1)
        off += [((pool - pool[:, :1]).abs().max() / signal.abs().max()).item() for pool in pools]
    return max(off)
