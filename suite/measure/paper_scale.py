"""Paper scale on a laptop: one training step of a full-size model, counted without its numbers.

Memory and FLOPs follow from shapes alone. So the same Run and the same counters that count a real step count one of
fake tensors (torch's FakeTensorMode): each has a shape, a type and a storage of the right size, and no values. A model
of billions of parameters then takes seconds and less than a gigabyte, and at a size where both can be done the counts
equal those of a real run to the byte.

The batch is of the baseline's own data at that size, values left out; another sequence length changes its shape.
Weights are a fresh model's: no count depends on them.

Limits. A step that depends on values cannot be counted (a topology that follows gradients, a choice of examples by
their loss), nor can one of several ranks. The operators are the CPU's: a GPU's may save a little more or less for the
backward pass; torch's fused attention with dropout, for one, exists on GPUs only.
"""

from __future__ import annotations

import copy
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.utils._foreach_utils
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from suite.contract.baseline import Baseline, baseline_of
from suite.contract.data import Data, Examples
from suite.contract.recipe import Recipe
from suite.contract.run import Run
from suite.contract.stack import build
from suite.contract.technique import Unavailable
from suite.judge.metrics import METRICS
from suite.measure.comparison import Progress, silent
from suite.measure.plan import reference_of
from suite.meters.state import gradient_bytes, parameter_bytes
from suite.record.job import BASELINE, Job, RecipeName, Setting, Size, Split, Task, canonical
from suite.record.schema import COUNTS, Counters

PROVENANCE = "counted at paper scale"
STEPS = 2  # before the counted one: optimizers make their state, and schedules by progress come round

aten = torch.ops.aten
SEQUENCES = frozenset({aten.arange.default, aten.arange.start, aten.arange.start_step, aten.linspace.default})
FILLED = frozenset({aten.full.default, aten.ones.default, aten.zeros.default})
LARGEST_KEPT = 1 << 16


@dataclass(frozen=True)
class Scale:
    """What is counted: a step of a setting. Its ``steps`` make a whole run, after which one more step is counted.

    ``batch_size`` and ``sequence_length`` (tokens, text only) are the baseline's own where None.
    """

    setting: Setting
    batch_size: int | None = None
    sequence_length: int | None = None


@dataclass(frozen=True)
class StepCount:
    """One step of a stack, counted; or the reason why it is not.

    Attributes:
        counters: of its numbers ``operators`` alone is no count of a real step, as autograd takes other operators for
            views of fake tensors.
        parameter_bytes, gradient_bytes: model state as it is after the step.
        batch: shapes of the batch, by name.
        data: where the batch's shapes come from.
    """

    stack: str
    counters: Counters | None = None
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    batch: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    data: str = ""
    unavailable: str = ""

    def quantities(self) -> dict[str, int]:
        """What was counted, by the name and in the order of reports: bytes, FLOPs, parameters."""
        counters = self.counters
        if counters is None:
            return {}
        known = {name: getattr(counters, name) for name, count in COUNTS.items() if not count.needs_values}
        known |= {"parameter_bytes": self.parameter_bytes, "gradient_bytes": self.gradient_bytes}
        return known | {f"peak.{kind}": size for kind, size in counters.peak_by_kind.items()}

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        uncounted = self.counters.uncounted_operators if self.counters else {}
        return {
            "stack": self.stack,
            "provenance": PROVENANCE if self.counters else "unavailable",
            "reason": self.unavailable,
            **self.quantities(),
            "uncounted_operators": uncounted,
            "batch": {name: list(shape) for name, shape in self.batch.items()},
            "data": self.data,
        }


def counted(stack: str, scale: Scale) -> StepCount:
    """One step of the stack at that scale. What cannot be counted is a StepCount with the reason.

    Raises ValueError where the scale does not fit the baseline or the model, and what `build` and `Run` raise for a
    stack or a model that cannot be built.
    """
    setting = scale.setting if scale.setting.steps else scale.setting.but(steps=STEPS)
    baseline = _shaped(baseline_of(setting), scale)
    technique = build(stack)
    recipe = technique.recipe(baseline.recipe_of(setting))
    if recipe.world_size > 1:
        return StepCount(stack, unavailable=f"takes {recipe.world_size} ranks, and one process is counted")
    if recipe.compile:
        return StepCount(stack, unavailable="a compiled step has no counts of its own: count its eager recipe, modern")
    try:
        with weightless():
            run = Run(Job(setting=setting, stack=stack), technique=technique, baseline=baseline)
            _fits(run, scale)
            for _ in range(run.recipe.steps):
                run.train_step(*run.next_batch())
            shapes = {name: tuple(tensor.shape) for name, tensor in run.next_batch()[0].items()}
            counters = run.count_step()
            return StepCount(
                stack, counters, parameter_bytes(run.model), gradient_bytes(run.model), shapes, run.data.name
            )
    except Unavailable as error:
        return StepCount(stack, unavailable=str(error))
    except RuntimeError as error:  # what torch raises where a tensor without values is asked for some
        return StepCount(stack, unavailable=_why(error))


@dataclass(frozen=True)
class SideBySide:
    """A stack beside its reference; ``reference`` is None for the baseline itself."""

    scale: Scale
    reference: StepCount | None
    stack: StepCount

    def ratios(self) -> dict[str, float]:
        """Stack over reference, of what the reference has any of."""
        theirs = self.reference.quantities() if self.reference else {}
        return {name: ours / theirs[name] for name, ours in self.stack.quantities().items() if theirs.get(name)}

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        reference = self.reference and self.reference.as_dict()
        own = {"batch_size": self.scale.batch_size, "sequence_length": self.scale.sequence_length}
        return {
            "scale": self.scale.setting.model_dump() | own,
            "reference": reference,
            "stack": self.stack.as_dict(),
            "ratios": self.ratios(),
        }


def side_by_side(
    stacks: Iterable[str], scale: Scale, task: Task | None = None, progress: Progress = silent
) -> list[SideBySide]:
    """Each stack and the reference that its card names, counted; ``task`` in place of the card's own."""
    wanted: list[tuple[str, str | None, Scale]] = []
    for stack in map(canonical, stacks):
        reference, own = reference_of(stack) if stack != BASELINE else (None, scale.setting.task)
        wanted.append((stack, reference, replace(scale, setting=scale.setting.but(task=task or own))))
    sides = [(each, at) for stack, reference, at in wanted for each in (reference, stack) if each is not None]
    known: dict[tuple[str, Scale], StepCount] = {}
    for done, (each, at) in enumerate(sides):
        progress(done / len(sides), each)
        if (each, at) not in known:
            known[each, at] = counted(each, at)
    return [
        SideBySide(at, known[reference, at] if reference is not None else None, known[stack, at])
        for stack, reference, at in wanted
    ]


# for people ---------------------------------------------------------------------------------------------------------

TITLES = {name: each.title + (", bytes" if each.unit == "B" else "") for name, each in METRICS.items()} | {
    "parameter_bytes": "parameters, bytes",
    "gradient_bytes": "gradients, bytes",
}


def title(pair: SideBySide) -> str:
    """What was counted, in one line: every report of these numbers begins with how they came about."""
    at, side = pair.scale.setting, pair.stack if pair.stack.counters else pair.reference or pair.stack
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in side.batch.items())
    model = Path(at.model).name if at.model else at.size
    parts = (at.baseline, model, at.recipe, at.task, shapes and f"batch {shapes} (shapes of {side.data})")
    return f"{PROVENANCE}: " + " · ".join(filter(None, parts))


def lines(pair: SideBySide) -> list[tuple[str, ...]]:
    """A quantity a line: its title, the reference's number if there is one, the stack's, their ratio."""
    ours, ratios = pair.stack.quantities(), pair.ratios()
    theirs = pair.reference.quantities() if pair.reference else {}
    rows = []
    for name in ours or theirs:
        label = TITLES.get(name, f"  of it {name.removeprefix('peak.').replace('_', ' ')}")
        cells = [_shown(name, numbers.get(name)) for numbers in ([theirs, ours] if pair.reference else [ours])]
        ratio = [f"{ratios[name]:.4g}" if name in ratios else ""] if pair.reference else []
        rows.append((label, *cells, *ratio))
    return rows


def notes(pair: SideBySide) -> list[str]:
    """Why a side was not counted, and what its FLOPs leave out."""
    sentences = []
    for side in filter(None, (pair.reference, pair.stack)):
        if side.counters is None:
            sentences.append(f"{side.stack}: unavailable: {side.unavailable}")
        elif side.counters.uncounted_operators:
            names = ", ".join(side.counters.uncounted_operators)
            sentences.append(f"{side.stack}: FLOPs are a lower bound, without those of {names}")
    return sentences


def _shown(name: str, number: int | None) -> str:
    if number is None:
        return "-"
    base, units = (1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
    if name == "flops" or name.endswith("_count"):
        base, units = 1000, ("", "K", "M", "G", "T", "P")
    power = max(each for each in range(len(units)) if each == 0 or number >= base**each)
    return f"{number / base**power:.4g} {units[power]}".strip() if power else f"{number} {units[0]}".strip()


# fake tensors -------------------------------------------------------------------------------------------------------


class Weightless(FakeTensorMode):
    """Fake tensors on which a step takes the path, and saves the bytes, that it does on real ones on a CPU.

    Small tensors that a program makes of sizes alone (positions, a step counter, drop rates by depth) keep their
    values, as it asks for them: "are these positions of one sequence?". Torch's own mode keeps single numbers only.
    """

    def __init__(self) -> None:
        super().__init__(
            allow_non_fake_inputs=True
        )  # a real one that a library made at import is as good as a fake one
        self._allow_unsafe_data_ptr_access = False  # whoever wants an address gets an error, not a crash

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output: Any = super().dispatch(func, types, args, kwargs or {})
        if _of_sizes(func, output):
            with no_dispatch():
                real = func(*args, **(kwargs or {}))
            return self.fake_tensor_converter.from_real_tensor(self, real, make_constant=True)
        if func is aten.native_layer_norm.default and args[2] is not None and args[2].dtype != args[0].dtype:
            # Torch's meta kernel gives the statistics the input's type. The CPU's keeps the weight's, and saves it.
            y, *statistics = output
            with self:
                return (y, *(torch.empty_like(each, dtype=args[2].dtype) for each in statistics))
        return output

    def invalidate_written_to_constants(self, func: Any, flat_arg_fake_tensors: Any, args: Any, kwargs: Any) -> None:
        """As torch's own, which forgets the tensors that foreach operators write to in lists."""
        super().invalidate_written_to_constants(func, flat_arg_fake_tensors, args, kwargs)
        for argument, value in zip(func._schema.arguments, args):
            if argument.is_write and isinstance(value, list | tuple):
                for each in value:
                    if self.is_our_fake(each) and each.constant is not None:
                        self.fake_tensor_converter.invalidate_constant_aliases(each.constant)

    def may_turn_const(self, t: Tensor) -> bool:
        return (
            t.numel() <= LARGEST_KEPT
            and t.layout is torch.strided
            and t.device.type == "cpu"
            and not self.is_our_fake(t)
        )


def _of_sizes(func: Any, output: Any) -> bool:
    """Whether an operator makes a small tensor whose values follow from sizes: not a weight or a buffer of zeros."""
    if func not in SEQUENCES and func not in FILLED:
        return False
    kept = func in SEQUENCES or output.numel() == 1 or not output.is_floating_point()
    return kept and output.numel() <= LARGEST_KEPT and output.device.type == "cpu"


@contextmanager
def weightless() -> Iterator[None]:
    """While active, tensors have no values. What libraries do otherwise with fake tensors they do as with real ones."""
    foreach: Any = torch.utils._foreach_utils
    with ExitStack() as stack:
        # nn.Module.to swaps fake parameters, which fails as the mode itself refers to them; real ones get new data.
        stack.enter_context(_replaced(torch.utils, "swap_tensors", _with_data_of))
        # Draws again what fell outside, so it looks; torch itself passes over meta tensors here.
        stack.enter_context(_replaced(nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor))
        # torch's own looks at addresses and copies memory.
        stack.enter_context(_replaced(Tensor, "__deepcopy__", _copied))
        # torch takes the loop in place of the foreach operators for any subclass of Tensor.
        types = [*foreach._foreach_supported_types, FakeTensor]
        stack.enter_context(_replaced(foreach, "_foreach_supported_types", types))
        # transformers takes fake tensors for a trace, and then makes masks that a real step goes without.
        for name in ("transformers.masking_utils", "transformers.modeling_attn_mask_utils"):
            if name in sys.modules:  # a model of that library has imported them
                stack.enter_context(_replaced(sys.modules[name], "is_tracing", lambda tensor=None: False))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(Weightless())
        yield


def _with_data_of(parameter: Tensor, converted: Tensor) -> None:
    parameter.data = converted.detach()


@torch.no_grad()
def _copied(tensor: Any, memo: dict[Any, Any]) -> Tensor:
    """What deepcopy makes of a tensor: a parameter is cloned, another gets its whole storage copied, once for all."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    if isinstance(tensor, nn.Parameter):
        copied: Any = nn.Parameter(tensor.detach().clone(), tensor.requires_grad)
    elif tensor.constant is not None:
        copied = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    else:
        storage = tensor.untyped_storage()
        storages = memo.setdefault("torch", {})
        if storage._cdata not in storages:
            storages[storage._cdata] = torch.empty(storage.nbytes(), dtype=torch.uint8)
        whole = storages[storage._cdata].view(tensor.dtype)
        copied = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        copied.requires_grad_(tensor.requires_grad)
    memo[id(tensor)] = copied
    copied.grad = copy.deepcopy(tensor.grad, memo)
    for name, value in vars(tensor).items():
        if not hasattr(copied, name):
            setattr(copied, name, copy.deepcopy(value, memo))
    return copied


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _why(error: RuntimeError) -> str:
    """What failed, and the line that wanted it: a technique's or a model's, if it is one of theirs."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [each for each in frames if Path(torch.__file__).parent not in Path(each.filename).parents]
    harness = Path(__file__).parents[1]
    last = ([each for each in outside if harness not in Path(each.filename).parents] or outside)[-1]
    where = f"{'/'.join(Path(last.filename).parts[-3:])}, line {last.lineno}: {last.line}"
    operator = getattr(error, "func", None)
    if operator is not None:
        return f"its step reads values, and tensors have none here: {operator} in {where}"
    return f"its step fails on tensors without values: {str(error).splitlines()[0]} in {where}"


# the baseline, at that scale ----------------------------------------------------------------------------------------


def _shaped(baseline: Baseline, scale: Scale) -> Baseline:
    """The baseline with the scale's batch and sequence length, and with its data's shapes in place of its data."""
    if scale.sequence_length is not None and baseline.modality != "text":
        raise ValueError(f"{baseline.id} reads images, which have no sequence length to choose: leave it out")
    kind: Any = type(baseline)

    class Shaped(kind):
        def recipe(self, size: Size, name: RecipeName, task: Task) -> Recipe:
            recipe: Recipe = super().recipe(size, name, task)
            return replace(recipe, batch_size=scale.batch_size or recipe.batch_size)

        def data(self, size: Size, split: Split, location: str | None = None) -> Data:
            data: Data = super().data(size, split, location)
            train, test = (_without_values(part, scale.sequence_length) for part in (data.train, data.test))
            return replace(data, train=train, test=test, sampler=in_order)

    return Shaped()


def _without_values(examples: Examples, length: int | None) -> Examples:
    def shape(tensor: Tensor) -> tuple[int, ...]:
        return tensor.shape if length is None else (len(tensor), length, *tensor.shape[2:])

    return Examples({name: torch.empty(shape(each), dtype=each.dtype) for name, each in examples.tensors.items()})


def in_order(examples: int, seed: int, position: int, count: int) -> Tensor:
    """A sampler: int64 [count]. The usual one keeps an epoch's order for later runs, which want real numbers."""
    return torch.arange(position, position + count) % examples


def _fits(run: Run, scale: Scale) -> None:
    """Fake tensors look nothing up, so that a position too many would go unnoticed."""
    positions = getattr(getattr(run.model, "config", None), "max_position_embeddings", None)
    if scale.sequence_length is not None and positions is not None and positions < scale.sequence_length:
        raise ValueError(
            f"{scale.sequence_length} tokens a sequence, but the model has {positions} positions: choose fewer, or a "
            "model (--model) with more"
        )
