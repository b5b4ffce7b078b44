"""One of two gloo ranks: trains fitted models under DDP and FSDP2, and writes what each does otherwise than plain."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP

from leantrain.fitting import Fitted, fit
from suite.chain.schedule import Op, Schedule
from suite.meters.live import LiveBytes
from tests.leaving import leave

WIDTH, DEPTH, WORDS, STEPS = 16, 4, 32, 3
Batch = dict[str, Tensor]
Gradients = list[Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        keys = self.mixed(x)
        x = x + F.scaled_dot_product_attention(x, keys, keys)
        return x + self.mlp(x)


class Stage(nn.Sequential):
    """Blocks that are sharded together, and run one by one."""


class Tokens(nn.Module):
    """A tied head, dropout, attention; ``spare`` weights are never used."""

    def __init__(self, spare: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.stages = nn.ModuleList(Stage(Block(), Block()) for _ in range(DEPTH // 2))
        self.spare = nn.Linear(WIDTH, WIDTH) if spare else None
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    @property
    def blocks(self) -> list[Block]:
        return [block for stage in self.stages for block in stage]  # type: ignore[attr-defined]

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for stage in self.stages:
            x = stage(x)
        return self.head(self.norm(x))


def batch_of(step: int, rank: int, length: int = 12) -> Batch:
    draw = torch.Generator().manual_seed(10 * step + rank)
    words = torch.randint(WORDS, (2, length + 1), generator=draw)
    return {"words": words[:, :-1], "next": words[:, 1:]}


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["words"]).float().flatten(0, 1), batch["next"].flatten())


def in_bf16(model: nn.Module, batch: Batch) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return loss_of(model, batch)


# plans ----------------------------------------------------------------------------------------------------------------


def ops(text: str) -> Schedule:
    """``f0 F1 | B1``: run, save, turn, back."""
    kinds: dict[str, Any] = {"f": "run", "F": "save", "B": "back"}
    return Schedule(DEPTH, tuple(Op("turn") if op == "|" else Op(kinds[op[0]], int(op[1:])) for op in text.split()))


SCHEDULES = {
    "each": "f0 f1 f2 f3 | F3 B3 F2 B2 F1 B1 F0 B0",
    "pairs": "f0 f1 f2 f3 | F2 F3 B3 B2 F0 F1 B1 B0",
    "whole": "f0 f1 f2 f3 | F0 F1 F2 F3 B3 B2 B1 B0",
    "nested": "f0 f1 f2 F3 | B3 f0 f1 F2 B2 F0 F1 B1 B0",
}
PLANS = ["least", "middle", *SCHEDULES]


def fitted_of(model: nn.Module, batch: Batch, plan: str, loss: Any = loss_of) -> Fitted:
    """A model with a plan: the least budget's, one between it and a plain pass's, or one that is written down."""
    if plan in SCHEDULES:
        fitted = fit(model, batch, loss, "1GB", verify=False)
        fitted.plan = replace(fitted.plan, schedule=ops(SCHEDULES[plan]))
        fitted.plans = {(shapes, held): fitted.plan for shapes, _ in fitted.plans for held in (False, True)}
        return fitted
    low, high = ends(model, batch, loss)
    return fit(model, batch, loss, f"{low if plan == 'least' else (low + high) // 2}B")


def ends(model: nn.Module, batch: Batch, loss: Any) -> tuple[int, int]:
    """The least budget and that of a plain pass, in bytes."""
    high = fit(model, batch, loss, "1GB", verify=False).plan
    try:
        fit(model, batch, loss, f"{high.resident_bytes}B", verify=False)
    except ValueError as error:
        amount, unit = str(error).split("its least is ")[1].split(",")[0].split(" ")
        return int(float(amount) * 1.001 * {"kB": 1e3, "MB": 1e6}[unit]), high.peak_bytes  # it is said in four digits
    raise AssertionError("a pass without activations")


# training -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """How models train: ``micro`` passes a step, of which the last is reduced; ``longer`` tokens on the second rank."""

    micro: int = 1
    longer: int = 0
    bf16: bool = False
    spare: bool = False
    ddp: tuple[tuple[str, Any], ...] = ()
    layout: str = "blocks"
    reshard: bool = True
    mixed: bool = False

    @property
    def loss(self) -> Callable[[nn.Module, Batch], Tensor]:
        return in_bf16 if self.bf16 else loss_of

    def batch(self, step: int) -> Batch:
        rank = dist.get_rank() if dist.is_initialized() else int(sys.argv[1])
        return batch_of(step, rank, 12 + self.longer * rank)


def trained(model: Any, way: Way, seen: Callable[[], Any] = lambda: None) -> tuple[list[Gradients], list[Any]]:
    """The gradients of each step, and what ``seen`` saw after each pass forward and back."""
    gradients, sights = [], []
    for step in range(STEPS):
        torch.manual_seed(100 * step + dist.get_rank())
        for micro in range(way.micro):
            last = micro + 1 == way.micro
            with model.no_sync() if isinstance(model, DDP) and not last else nullcontext():
                if isinstance(model, FSDPModule):
                    model.set_requires_gradient_sync(last)
                value = way.loss(model, way.batch(10 * step + micro))
                sights.append(seen())
                value.backward()
                sights.append(seen())
        gradients.append([whole(each.grad) for each in model.parameters() if each.grad is not None])
        with torch.no_grad():
            for each in model.parameters():
                if each.grad is not None:
                    each -= 0.1 * each.grad
        model.zero_grad()
    return gradients, sights


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


def different(ours: list[Gradients], theirs: list[Gradients]) -> str:
    pairs = [pair for mine, plain in zip(ours, theirs, strict=True) for pair in zip(mine, plain, strict=True)]
    wrong = sum(not torch.equal(one, other) for one, other in pairs)
    return f"{wrong} of {len(pairs)} gradients differ" if wrong else ""


# DDP ------------------------------------------------------------------------------------------------------------------

WAYS = {
    "": Way(),
    "static_graph": Way(ddp=(("static_graph", True),)),
    "find_unused_parameters": Way(ddp=(("find_unused_parameters", True),), spare=True),
    "bucket views": Way(ddp=(("gradient_as_bucket_view", True), ("bucket_cap_mb", 0.002))),
    "no_sync": Way(micro=3),
    "bf16": Way(bf16=True),
    "lengths": Way(longer=8),
}


@cache
def plain_ddp(way: Way) -> tuple[list[Gradients], Counter[str]]:
    model, counts = wrapped(Tokens(way.spare), way)
    return trained(model, way)[0], counts


def wrapped(model: nn.Module, way: Way) -> tuple[DDP, Counter[str]]:
    """With a count of how often each parameter's bucket is reduced."""
    ddp, counts = DDP(model, **dict(way.ddp)), Counter[str]()
    names = {id(each): name for name, each in model.named_parameters()}

    def reduce(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        counts.update(names[id(each)] for each in bucket.parameters())
        return default_hooks.allreduce_hook(group, bucket)

    ddp.register_comm_hook(None, reduce)
    return ddp, counts


def under_ddp(way: Way, plan: str, when: str) -> str:
    model = Tokens(way.spare)
    if when == "before":
        fitted = fitted_of(model, way.batch(0), plan, way.loss)
        ddp, counts = wrapped(model, way)
    else:
        ddp, counts = wrapped(model, way)
        if when == "begun":
            trained(ddp, way)
            ddp.module.load_state_dict(Tokens(way.spare).state_dict())
            counts.clear()
        fitted = fitted_of(ddp.module if when == "module" else ddp, way.batch(0), plan, way.loss)
    return judged(fitted, ddp, counts, way)


def judged(fitted: Fitted, ddp: DDP, counts: Counter[str], way: Way) -> str:
    assert fitted.plan.recomputed
    expected, reduced = plain_ddp(way)
    with fitted.step():
        gradients, _ = trained(ddp, way)
    assert counts == reduced and set(counts.values()) == {STEPS}, counts
    return different(gradients, expected)


def ddp_cases() -> Iterator[tuple[str, Callable[[], str]]]:
    for plan in PLANS:
        for when in ("before", "after", "module") if plan in ("least", "nested") else ("after",):
            yield f"ddp {when} {plan}", partial(under_ddp, WAYS[""], plan, when)
    for name, way in WAYS.items():
        for plan in ("each", "nested") if name else ():
            after = "begun" if name == "static_graph" else "after"  # it takes the first pass that it sees for a step
            yield f"ddp {name} {plan}", partial(under_ddp, way, plan, "before" if plan == "each" else after)
    for when in ("after", "module"):
        yield f"ddp static_graph {when}", partial(refused_by_static_graph, when)


def refused_by_static_graph(when: str) -> str:
    try:
        under_ddp(WAYS["static_graph"], "each", when)
    except ValueError as error:
        return "" if "static_graph" in str(error) else str(error)
    return "not refused"


# FSDP2 ----------------------------------------------------------------------------------------------------------------

SHARDED = {
    "": Way(),
    "kept": Way(reshard=False),
    "mixed": Way(mixed=True),
    "no_sync": Way(micro=2),
    "bf16": Way(bf16=True),
    "parts": Way(layout="parts"),
    "pairs": Way(layout="pairs"),
    "stages": Way(layout="stages"),
    "root": Way(layout="root"),
}


def sharded(model: Tokens, way: Way) -> Any:
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if way.mixed else MixedPrecisionPolicy()
    shard = partial(fully_shard, reshard_after_forward=way.reshard, mp_policy=policy)
    for stage in model.stages:
        if way.layout == "pairs":
            shard(list(stage))
        elif way.layout == "stages":
            shard(stage)
    for block in model.blocks:
        if way.layout == "parts":
            shard(block.mixed)
            shard(block.mlp)
        elif way.layout == "blocks":
            shard(block)
    return fully_shard(model, mp_policy=policy)


def gathered(model: nn.Module) -> list[tuple[bool, int]]:
    """Whether each module's weights are sharded, and the bytes of what was gathered for it."""
    found = []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                outputs = [each for param in group.fsdp_params for each in getattr(param, "all_gather_outputs", [])]
                found.append((group.is_sharded, sum(each.untyped_storage().nbytes() for each in outputs)))
    return found


@cache
def plain_fsdp(way: Way) -> tuple[list[Gradients], list[Any]]:
    model = sharded(Tokens(way.spare), way)
    return trained(model, way, partial(gathered, model))


def under_fsdp(way: Way, plan: str, when: str) -> str:
    model: Any = Tokens(way.spare)
    if when == "before":
        fitted = fitted_of(model, way.batch(0), plan, way.loss)
        model = sharded(model, way)
    else:
        model = sharded(model, way)
        fitted = fitted_of(model, way.batch(0), plan, way.loss)
    assert fitted.plan.recomputed
    expected, plain_sights = plain_fsdp(way)
    with fitted.step():
        gradients, sights = trained(model, way, partial(gathered, model))
    kept = [(now, plain) for now, plain in zip(sights, plain_sights, strict=True) if now != plain]
    return different(gradients, expected) or (f"weights stay gathered: {kept[0]}" if kept else "")


def fsdp_cases() -> Iterator[tuple[str, Callable[[], str]]]:
    for plan in PLANS:
        for when in ("before", "after") if plan in ("middle", "nested") else ("after",):
            yield f"fsdp {when} {plan}", partial(under_fsdp, SHARDED[""], plan, when)
    for name, way in SHARDED.items():
        for plan in ("each", "nested") if name else ():
            yield f"fsdp {name} {plan}", partial(under_fsdp, way, plan, "before" if plan == "each" else "after")
    for plan in ("whole", "nested"):
        yield f"fsdp memory {plan}", partial(saves_memory, plan)
    yield "fsdp peak", peaks_as_said


def saves_memory(plan: str) -> str:
    """A run of several blocks keeps fewer inputs than a run a block does."""
    way = Way()
    peaks = []
    for each in ("each", plan):
        model = sharded(Tokens(), way)
        peaks.append(kept_by(model, way, fitted_of(model, way.batch(0), each)))
    expected = []
    for each in ("each", plan):
        alone = Tokens()
        expected.append(kept_by(alone, way, fitted_of(alone, way.batch(0), each)))
    return "" if peaks[0] - peaks[1] == expected[0] - expected[1] else f"{peaks} where a whole model keeps {expected}"


def kept_by(model: nn.Module, way: Way, fitted: Fitted) -> int:
    """Bytes alive between a pass forward and its way back; gloo's threads let go of what they gathered at any time."""
    kept = []
    for _ in range(4):
        with fitted.step(), LiveBytes() as live:
            value = loss_of(model, way.batch(0))
            kept.append(live.live_bytes)
            value.backward()
        model.zero_grad()
    return min(kept[1:])  # the first pass makes what stays


def peaks_as_said() -> str:
    """Within the budget, of weights gathered a block at a time."""
    way = Way()
    model = sharded(Tokens(), way)
    fitted = fitted_of(model, way.batch(0), "least")
    with fitted.step():
        for _ in range(2):  # the first pass makes what stays
            model.zero_grad()
            with LiveBytes() as live:
                loss_of(model, way.batch(0)).backward()
    peak = live.high_bytes + fitted.plan.resident_bytes
    return "" if peak <= fitted.memory_bytes else f"{peak} bytes of {fitted.memory_bytes}: {fitted}"


# ranks that differ ----------------------------------------------------------------------------------------------------


def said(value: str) -> list[str]:
    everyone: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def one_plan(longer: int) -> str:
    """Ranks whose batches differ choose one plan, that of the larger."""
    way = Way(longer=longer)
    model = sharded(Tokens(), way)
    plans = said(str(fitted_of(model, way.batch(0), "middle").plan.schedule))
    return "" if len(set(plans)) == 1 else f"plans differ: {plans}"


def one_refusal() -> str:
    """A budget that one rank's batch does not fit in."""
    way = Way(longer=40)
    model = sharded(Tokens(), way)
    least = [int(each) for each in said(str(ends(Tokens(), way.batch(0), loss_of)[0]))]
    try:
        fit(model, way.batch(0), loss_of, f"{sum(least) // 2}B")
        end = "fits"
    except ValueError as error:
        end = str(error)
    answers = said(end.split(":")[0])
    return "" if answers[0] == answers[1] and "does not fit" in answers[0] else f"answers differ: {answers}"


def one_difference() -> str:
    """A block that does another thing when it runs again, on one rank alone."""

    def moody(block: nn.Module, args: Any, output: Tensor) -> Tensor:
        again = torch._C._current_graph_task_id() != -1  # a backward pass is running
        return 2 * output if again and dist.get_rank() else output

    model, way = Tokens(), Way()
    low, _ = ends(sharded(Tokens(), way), way.batch(0), loss_of)
    model.blocks[1].mlp[1].register_forward_hook(moody)
    try:
        fit(sharded(model, way), way.batch(0), loss_of, f"{low}B")
        end = "fits"
    except ValueError as error:
        end = str(error)
    answers = said(end)
    return "" if all("cannot be fitted" in each for each in answers) else f"answers differ: {answers}"


def one_noise() -> str:
    """A loss that no two passes agree on, on one rank alone."""
    calls = Counter[int]()

    def noisy(model: nn.Module, batch: Batch) -> Tensor:
        calls[0] += dist.get_rank()
        return loss_of(model, batch) + calls[0]

    model, way = sharded(Tokens(), Way()), Way()
    return "" if fitted_of(model, way.batch(0), "middle", noisy).plan.recomputed else "nothing runs again"


def uneven_cases() -> Iterator[tuple[str, Callable[[], str]]]:
    yield "uneven plan", partial(one_plan, 8)
    yield "uneven refusal", one_refusal
    yield "uneven difference", one_difference
    yield "uneven noise", one_noise


def cases() -> dict[str, Callable[[], str]]:
    return dict([*ddp_cases(), *fsdp_cases(), *uneven_cases()])


def main(rank: int, folder: Path, only: str = "") -> None:
    torch.set_num_threads(1)
    early = Tokens()
    early_fitted = fitted_of(early, batch_of(0, rank), "middle")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=20)
    )

    def before_the_group() -> str:
        return judged(early_fitted, *wrapped(early, Way()), Way())

    results = {}
    for name, case in {"ddp before the group": before_the_group, **cases()}.items():
        if only in name:
            try:
                results[name] = case()
            except Exception as error:
                results[name] = f"{type(error).__name__}: {error}"
    torch.save(results, folder / f"out{rank}")
    leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
