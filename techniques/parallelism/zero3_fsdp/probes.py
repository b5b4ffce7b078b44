"""Checks what every rank holds under ZeRO's third stage, and what one more step of it does; read from the run itself,
whose parameters are nowhere whole between steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from suite.device.random_state import RandomState, replayed
from suite.kernels.sharded import local
from suite.loop.data import Batch
from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.record.job import StackError
from techniques.parallelism.zero3_fsdp.technique import Zero3
from techniques.shared.plain import apart, filled, plain_model
from techniques.shared.ranks import summed

OF_ITS_BASELINES = True  # without dropout or batch norm, so that a batch is the sum of its examples


def records(run: Run, own: Zero3) -> bool:
    """Selects no step: a trace copies parameters, and here they are parts."""
    return False


@judged("ranks", "Two processes train one model", "This entry's default", equals=2.0, kind="counted")
@judged(
    "mean_roundings",
    "The gradients are the mean over ranks of those that each makes of its own examples",
    "Section 5.2",
    id="mean_of_the_ranks",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    sizes=["pico", "nano"],
    note="no dropout",
)
@judged(
    "update_roundings",
    "Each step is AdamW's with that gradient, clipped by the norm of all shards",
    "Section 5.1",
    id="same_update",
    at_most=64.0,  # a norm of all gradients, and AdamW's ten operations
)
@judged(
    "own_gradients",
    "A technique that asks for each rank's own gradients is refused: a rank has shards of all ranks' alone",
    "This suite's",
    id="no_own_gradients",
)
def probes(recording: Recording, own: Zero3) -> Mapping[str, float]:
    """Claims read ``share``, ``gradient_share`` and ``state_share``, the values that this rank holds after a backward
    pass over those of the model, and ``gathered``, the most blocks whose parameters are whole at once in a forward
    pass."""
    run = recording.run
    if run.world_size == 1:
        return {"ranks": 1}
    trained = {name: parameter for name, parameter in run.model.named_parameters() if parameter.requires_grad}
    before, random = whole(trained), RandomState.now(run.device)
    batch, _ = run.next_batch()
    run.optimizer.zero_grad(set_to_none=True)
    gathered = _most_gathered(run, batch)
    gradients = whole({name: parameter.grad for name, parameter in trained.items() if parameter.grad is not None})
    count = sum(parameter.numel() for parameter in trained.values())
    moments = [value for state in run.optimizer.state.values() for value in state.values() if value.numel() > 1]
    shares = {
        "share": sum(local(parameter).numel() for parameter in trained.values()) / count,
        "gradient_share": sum(
            local(parameter.grad).numel() for parameter in trained.values() if parameter.grad is not None
        )
        / count,
        "state_share": sum(local(moment).numel() for moment in moments) / (2 * count),
    }
    with replayed(random):
        expected = _mean_gradients(recording, before, batch)
    shown = {"gathered": gathered, "mean_roundings": apart(gradients, expected)}
    shown["update_roundings"] = _update_roundings(run, trained, before, gradients)
    try:
        with run.unreduced():
            shown["own_gradients"] = 1.0
    except StackError:
        shown["own_gradients"] = 0.0
    return {"ranks": run.world_size, **shares, **shown}


def whole(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Gathers the tensors of all ranks' parts, float64."""
    full = {name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for name, tensor in tensors.items()}
    return {name: value.detach().double().clone() for name, value in full.items()}


def _most_gathered(run: Run, batch: Batch) -> int:
    """Counts the most blocks whose parameters are whole at once, in a forward and a backward pass."""
    blocks = [block.module for block in run.anatomy.every_block]
    most = 0

    def count(*_: object) -> None:
        nonlocal most
        most = max(most, sum(not isinstance(next(block.parameters()), DTensor) for block in blocks))

    hooks = [block.register_forward_pre_hook(count) for block in blocks]
    loss = run.forward(batch)
    for hook in hooks:
        hook.remove()
    run.backward(loss)
    return most


def _mean_gradients(recording: Recording, parameters: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    """Computes the mean gradients of plain models, each rank's on its own examples."""
    plain = filled(plain_model(recording), {name: parameter.float() for name, parameter in parameters.items()})
    baseline = recording.run.baseline
    with torch.enable_grad():
        baseline.losses(baseline.forward(plain, batch), batch).mean().backward()
    own = {
        name: parameter.grad
        for name, parameter in plain.named_parameters()
        if name in parameters and parameter.grad is not None
    }
    return {name: summed(recording, own[name].double()) / recording.run.world_size for name in sorted(own)}


def _update_roundings(
    run: Run, trained: Mapping[str, nn.Parameter], before: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
) -> float:
    """Computes the distance of the optimizer's step from AdamW's in float64, in float32 roundings of a weight and the
    learning rate."""
    rate = run.recipe.learning_rate
    weights = {name: nn.Parameter(value.clone()) for name, value in before.items()}
    names = {id(parameter): name for name, parameter in trained.items()}
    groups = []
    for group in run.optimizer.param_groups:
        group["lr"] = rate
        own = [weights[names[id(parameter)]] for parameter in group["params"]]
        groups.append({"params": own, "weight_decay": group["weight_decay"]})
    adamw = torch.optim.AdamW(groups, lr=rate, betas=(run.recipe.beta1, run.recipe.beta2), eps=run.recipe.eps)
    for name, parameter in trained.items():
        weights[name].grad = gradients[name]
        state = whole(run.optimizer.state[parameter])
        adamw.state[weights[name]] = {**state, "step": state["step"].float()}
    if run.recipe.gradient_clip:
        nn.utils.clip_grad_norm_(weights.values(), run.recipe.gradient_clip)
    adamw.step()
    run.apply_gradients()
    unit = torch.finfo(torch.float32).eps
    worst = 0.0
    for name, after in whole(trained).items():
        off = (after - weights[name].detach()).abs() / (unit * (before[name].abs() + rate))
        worst = max(worst, off.max().item())
    return worst
