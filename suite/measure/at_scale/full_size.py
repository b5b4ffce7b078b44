"""Counts at paper scale on a laptop: one training step of a full-size model, counted without its numbers.

Memory and FLOPs follow from shapes alone. So the same Run and the same counters that count a real step count one of
fake tensors (torch's FakeTensorMode): each has a shape, a type and a storage of the right size, and no values. A model
of billions of parameters then takes seconds and less than a gigabyte, and at a size where both can be done the counts
equal those of a real run to the byte.

The batch is of the baseline's own data at that size, values left out; another sequence length changes its shape.
Weights are a fresh model's: no count depends on them.

The operators are those of the setting's device, which need not be here: a GPU fuses attention and dropout and casts
otherwise than a CPU (:mod:`suite.meters.gpu_operators`).

Under the compiled recipe the saved bytes are those of torch.compile's partitioned graphs
(:mod:`suite.measure.contenders.compiled_graphs`); FLOPs are the eager operators', as nothing that costs some is
recomputed.

A technique of several ranks is counted as one of them (:mod:`suite.measure.at_scale.fake_ranks`): what it holds, and
what it would send on an ideal ring.

Limits. A step that depends on values cannot be counted (a topology that follows gradients, a choice of examples by
their loss). For a Triton kernel of a technique its operators on a CPU are counted, which
may hold more for a moment. Never run on a GPU to compare: the kernels are those that torch's source chooses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from suite.entries.catalogue import reference_of
from suite.entries.installed import baseline_of
from suite.entries.sources import code_of
from suite.entries.together import built, run_of
from suite.kernels.sharded import is_distributed as is_sharded
from suite.loop.baseline import Baseline
from suite.loop.data import Data, Examples
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.technique import Unavailable
from suite.measure.at_scale.fake_ranks import fake_ranks
from suite.measure.at_scale.processor_limit import line_of
from suite.measure.at_scale.weightless import weightless
from suite.measure.contenders.compiled_graphs import partitioned_graphs
from suite.measure.contenders.stock import data_of
from suite.measure.contenders.world import is_distributed, reference_with_ranks, spelled_ranks, with_ranks
from suite.measure.provenance import Progress, silent
from suite.measure.traffic import Traffic, wire_bytes
from suite.meters.activations import SavedActivations
from suite.meters.holders import Living
from suite.meters.state import gradient_bytes, parameter_bytes, state_tensors
from suite.meters.storage import unique_bytes
from suite.process.child import ContenderFailed
from suite.record.job import BASELINE, Job, RecipeName, Setting, Size, Split, Task, canonical
from suite.record.machine import versions
from suite.record.paper_scale import PROVENANCE, PaperScale, SizeCount
from suite.record.placed import CountPlace
from suite.record.schema import COUNTS, Counters

Counting = Callable[[str, "Scale"], "StepCount"]
"""How a stack's step is counted at a scale: here (:func:`counted`) or aside."""
Asking = Callable[..., Any]
"""``asking(question, *arguments)``: how a question is answered for which techniques are loaded: here or aside."""
GENERATED_LATER = "what compiled code allocates is decided when it is generated"
STEPS = 2  # before the counted one: optimizers make their state, and schedules by progress come round


@dataclass(frozen=True)
class Scale:
    """Says what is counted: a step of a setting. Its ``steps`` make a whole run, after which one more step is counted.

    ``batch_size`` and ``sequence_length`` (tokens, text only) are the baseline's own where None. ``ranks`` is how many
    train together where a technique distributes the model, as many as it asks for where None; with it each of them has
    a batch of the baseline's own size, or its share of ``batch_size``, and so has a stack in one process.
    """

    setting: Setting
    batch_size: int | None = None
    sequence_length: int | None = None
    ranks: int | None = None


@dataclass(frozen=True)
class StepCount:
    """Holds the counts of one step of a stack; or the reason why it is not.

    Attributes:
        counters: of its numbers ``operators`` alone is no count of a real step, as autograd takes other operators for
            views of fake tensors.
        parameter_bytes, gradient_bytes: model state as it is after the step.
        state_bytes: ZeRO's model states (1910.02054, section 3.1) when the backward pass ends: parameters, gradients,
            optimizer state, masters.
        collective_bytes: of each kind of collective that a rank asks for, by its whole tensor.
        batch: shapes of the batch, by name.
        data: where the batch's shapes come from.
        failed: whether it is not counted since something failed, which is no word on the stack.
    """

    stack: str
    counters: Counters | None = None
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    state_bytes: int = 0
    collective_bytes: Mapping[str, int] = field(default_factory=dict)
    batch: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    data: str = ""
    unavailable: str = ""
    failed: bool = False

    @classmethod
    def of_failure(cls, stack: str, failure: ContenderFailed) -> StepCount:
        """Returns what stands for the count of a step that failed."""
        return cls(stack, unavailable=f"{failure.status}: {failure.reason}", failed=True)

    def quantities(self) -> dict[str, int]:
        """Returns what was counted, by the name and in the order of reports: bytes, FLOPs, parameters."""
        counters = self.counters
        if counters is None:
            return {}
        known = {name: getattr(counters, name) for name in COUNTS if name not in self.not_counted()}
        state = {
            "parameter_bytes": self.parameter_bytes,
            "gradient_bytes": self.gradient_bytes,
            "state_bytes": self.state_bytes,
        }
        if counters.compiled:
            return known | state
        peak = {"peak_tensor_bytes": known.pop("peak_tensor_bytes")}  # last, before what it is made of
        return known | state | peak | {f"peak.{kind}": size for kind, size in counters.peak_by_kind.items()}

    def not_counted(self) -> dict[str, str]:
        """Returns the counters that have no number here, with the reason."""
        if self.counters is None:
            return {}
        peak = {"peak_tensor_bytes": GENERATED_LATER} if self.counters.compiled else {}
        return peak | {
            name: count.needs_values
            for name, count in COUNTS.items()
            if count.needs_values and not (name == "communication_bytes" and self.ranks > 1)
        }

    @property
    def ranks(self) -> int:
        """Tells how many train together; all numbers are of the first."""
        return self.counters.ranks if self.counters else 1

    @property
    def state_bytes_per_parameter(self) -> float | None:
        """Returns the model states of a rank over the parameters of its model, whole or in shards, of a rank that has
        some of the layers over those: 16 of AdamW in one process."""
        return self.state_bytes / self.counters.parameter_count if self.counters else None

    def collectives(self) -> dict[str, dict[str, int]]:
        """Returns the collectives by their kind: bytes of the whole tensors, and what this rank sends of them on an
        ideal ring."""
        return {
            name: {"bytes": size, "ring_bytes": wire_bytes({name: size}, self.ranks)}
            for name, size in self.collective_bytes.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        uncounted = self.counters.uncounted_operators if self.counters else {}
        return {
            "stack": self.stack,
            "provenance": PROVENANCE if self.counters else "unavailable",
            "reason": self.unavailable,
            **self.quantities(),
            "ranks": self.ranks,
            "state_bytes_per_parameter": self.state_bytes_per_parameter,
            "collectives": self.collectives(),
            "semantics": self.counters and {"saved": self.counters.saved_semantics, "flops": self.counters.semantics},
            "not_counted": self.not_counted(),
            "uncounted_operators": uncounted,
            "batch": {name: list(shape) for name, shape in self.batch.items()},
            "data": self.data,
        }


def counted(stack: str, scale: Scale, then: Callable[[Run], None] = lambda run: None) -> StepCount:
    """Counts one step of the stack at that scale; ``then`` gets the run as that step leaves it. What cannot be counted
    is a StepCount with the reason.

    Raises ValueError where the scale does not fit the baseline or the model, and what `built` and `Run` raise for a
    stack or a model that cannot be built.
    """
    try:
        with trained_at(stack, scale) as run:
            shapes = shapes_of(run)
            traffic = Traffic()  # a mode of its own at each operator, for which one process has no use
            with traffic if run.world_size > 1 else nullcontext(), noted_state(run) as states:
                counters = run.count_step()
            if counters.communication_bytes is not None:
                sent = traffic.wire_bytes(run.world_size)
                counters = counters.model_copy(update={"communication_bytes": sent})
            if (
                run.recipe.compile
            ):  # the counters' dispatch modes turn compilation off: the saved bytes have a step alone
                with SavedActivations(run.model) as saved:
                    run.train_step(*run.next_batch())
                compiled = {"saved_activation_bytes": saved.saved_bytes, "saved_semantics": "compiled"}
                counters = counters.model_copy(update=compiled)
            count = StepCount(
                stack,
                counters,
                parameter_bytes(run.model),
                gradient_bytes(run.model),
                max(states, default=0) or model_states(run),  # of a stage that computes no loss, as the step leaves it
                by_kind(traffic.bytes_by_collective),
                shapes,
                run.data.name,
            )
            then(run)
            return count
    except Unavailable as error:
        return StepCount(stack, unavailable=str(error))
    except RuntimeError as error:  # what torch raises where a tensor without values is asked for some
        return StepCount(stack, unavailable=why_not(error))
    except ValueError as refusal:  # of what does not run without values, though it does with some
        if isinstance(refusal.__cause__, RuntimeError) and refusal.__traceback__ is not None:
            return StepCount(
                stack, unavailable=why_not(RuntimeError(str(refusal)).with_traceback(refusal.__traceback__))
            )
        raise


def model_states(run: Run) -> int:
    """Counts the bytes of parameters, gradients, optimizer state and masters as they are."""
    held = [parameter for group in run.optimizer.param_groups for parameter in group["params"]]
    parameters = list({id(parameter): parameter for parameter in (*run.model.parameters(), *held)}.values())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return unique_bytes([*parameters, *gradients, *state_tensors(run.optimizer)])


@contextmanager
def noted_state(run: Run) -> Iterator[list[int]]:
    """Notes the bytes of the model's states at the end of each backward pass that is made meanwhile."""
    noted: list[int] = []
    backward = run.backward

    def then_noted(loss: Tensor) -> None:
        backward(loss)
        noted.append(model_states(run))

    run.backward = then_noted  # type: ignore[method-assign]
    try:
        yield noted
    finally:
        run.backward = backward  # type: ignore[method-assign]


@contextmanager
def trained_at(stack: str, scale: Scale) -> Iterator[Run]:
    """Has a run of the stack at that scale, after its steps; inside, tensors have no values.

    Raises ValueError where the scale does not fit the baseline or the model, and what `built` and `Run` raise.
    """
    setting = scale.setting if scale.setting.steps else scale.setting.but(steps=STEPS)
    technique = built(stack)
    baseline = _shaped(baseline_of(setting), scale, is_distributed(stack))
    recipe = technique.recipe(baseline.recipe_of(setting))
    with (
        fake_ranks(recipe.world_size) as mesh,
        weightless(setting.device),
        partitioned_graphs() if recipe.compile else nullcontext(),
    ):
        job = Job(setting=setting.but(device="cpu"), stack=stack)  # where fake tensors say they are
        before = Living()
        run = run_of(job, technique=technique, baseline=baseline, mesh=mesh)
        _fits(run, scale)
        for _ in range(run.recipe.steps):
            run.train_step(*run.next_batch())
        sharded = any(is_sharded(parameter) for parameter in run.model.parameters())
        # Stock is taken by address, and a DTensor does not say that its part has none.
        with nullcontext() if sharded else before.left_out(*data_of(run)):
            yield run


KINDS = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}


def by_kind(sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns the bytes by collective, in the papers' words: torch has several operators for each."""
    totals: Counter[str] = Counter()
    for operator, size in sizes.items():
        name = operator.strip("_").removesuffix("_base")
        totals[KINDS.get(name, name)] += size
    return dict(totals)


def shapes_of(run: Run) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a batch, by name."""
    return {name: tuple(tensor.shape) for name, tensor in run.next_batch()[0].items()}


@dataclass(frozen=True)
class SideBySide:
    """Puts a stack beside its reference; ``reference`` is None for the baseline itself."""

    scale: Scale
    reference: StepCount | None
    stack: StepCount

    def ratios(self) -> dict[str, float]:
        """Returns stack over reference, of what the reference has any of."""
        theirs = self.reference.quantities() if self.reference else {}
        return {name: ours / theirs[name] for name, ours in self.stack.quantities().items() if theirs.get(name)}

    def as_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        reference = self.reference and self.reference.as_dict()
        at = self.scale
        own = {"batch_size": at.batch_size, "sequence_length": at.sequence_length, "ranks": at.ranks}
        return {
            "scale": self.scale.setting.model_dump() | own,
            "reference": reference,
            "stack": self.stack.as_dict(),
            "ratios": self.ratios(),
        }


def here(question: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the answer to a question for which techniques are loaded, in this process."""
    return question(*arguments)


def side_by_side(
    stacks: Iterable[str],
    scale: Scale,
    task: Task | None = None,
    progress: Progress = silent,
    count: Counting = counted,
    ask: Asking = here,
) -> list[SideBySide]:
    """Counts each stack and the reference that its card names; ``task`` in place of the card's own. What refuses the
    scale has the reason where others are counted beside it, and raises ValueError where none is."""
    wanted: list[tuple[str, str | None, Scale]] = []
    known: dict[tuple[str, Scale], StepCount] = {}
    for stack in map(canonical, stacks):
        reference, own = reference_of(stack) if stack != BASELINE else (None, scale.setting.task)
        at = replace(scale, setting=scale.setting.but(task=task or own))
        if scale.ranks is not None:
            try:
                stack, reference = ask(_on_ranks, stack, scale.ranks)
            except ContenderFailed as failure:
                known[stack, at] = StepCount.of_failure(stack, failure)
                reference = None  # on as many ranks: that is not known
        wanted.append((stack, reference, at))
    sides = [(name, at) for stack, reference, at in wanted for name in (reference, stack) if name is not None]
    for done, (side, at) in enumerate(sides):
        progress(done / len(sides), side)
        if (side, at) not in known:
            try:
                known[side, at] = count(side, at)
            except ValueError as refusal:
                if len(wanted) == 1 or side == BASELINE:
                    raise
                known[side, at] = StepCount(side, unavailable=str(refusal))
    return [
        SideBySide(at, known[reference, at] if reference is not None else None, known[stack, at])
        for stack, reference, at in wanted
    ]


def survey(
    stacks: Iterable[str],
    scale: Scale,
    known: PaperScale,
    keep: Callable[[PaperScale], object],
    task: Task | None = None,
    progress: Progress = silent,
    count: Counting = counted,
    failed: Callable[[StepCount], object] = lambda count: None,
    ask: Asking = here,
) -> PaperScale:
    """Counts the stacks and their references at that scale, and adds them to what is known; what has the same code as
    then is not counted again. A stack that spells its ranks is counted as :func:`of_its_ranks` says. ``keep`` gets all
    that is known after each count. What refuses the model, or cannot be counted, is known with its reason; ``failed``
    gets what failed, which is not kept."""
    at = scale.setting.but(steps=scale.setting.steps or STEPS)
    wanted: dict[tuple[Setting, str], tuple[str, int | None]] = {}  # to what each is compared with, its ranks
    for asked in map(canonical, stacks):
        try:
            reference, own = ask(compared_with, asked, at.task)
            sides = {
                side: (ask(compared_with, side, at.task)[0], ask(spelled_ranks, side)) for side in (reference, asked)
            }
        except ContenderFailed as failure:
            failed(StepCount.of_failure(asked, failure))
            continue
        wanted |= {(at.but(task=task or own), side): other for side, other in sides.items()}
    codes = {(size_count.place, size_count.stack): size_count.code for size_count in known.counts}
    for done, ((setting, stack), (reference, ranks)) in enumerate(wanted.items()):
        progress(done / len(wanted), stack)
        place = CountPlace(setting.baseline, setting.size, setting.recipe, setting.device, setting.task)
        code = code_of(setting, stack).counts
        if codes.get((place, stack)) == code:
            continue
        try:
            step = count(stack, replace(scale, setting=setting, ranks=ranks or scale.ranks))
        except ValueError as refusal:
            step = StepCount(stack, unavailable=str(refusal))
        if step.failed:
            failed(step)
            continue
        entry = SizeCount(
            place=place,
            stack=stack,
            reference=reference,
            code=code,
            quantities=step.quantities(),
            batch=dict(step.batch),
            unavailable=step.unavailable,
        )
        today = datetime.now(UTC).date().isoformat()
        known = known.with_newer(PaperScale(made=today, versions=versions(), counts=[entry]))
        keep(known)
    return known


def _on_ranks(stack: str, ranks: int) -> tuple[str, str]:
    """Returns the stack and its reference on so many ranks. Raises ValueError for a stack that trains in one
    process."""
    stack = with_ranks(stack, ranks)
    return stack, reference_with_ranks(stack, ranks)


def of_its_ranks(stack: str, scale: Scale) -> Scale:
    """Returns the scale for as many ranks as the stack spells, each of which then has a batch of the baseline's own
    size: the baseline's does not divide among a thousand."""
    return scale if (ranks := spelled_ranks(stack)) is None else replace(scale, ranks=ranks)


def compared_with(stack: str, task: Task) -> tuple[str, Task]:
    """Returns the reference of a stack, on as many ranks as it spells, and the task of its card; the baseline is its
    own."""
    if stack == BASELINE:
        return stack, task
    reference, own = reference_of(stack)
    ranks = spelled_ranks(stack)
    return reference if ranks is None else reference_with_ranks(stack, ranks), own


def why_not(error: RuntimeError) -> str:
    """Tells what of a step without values failed, and the line that wanted it: a technique's or a model's, if it is one
    of theirs."""
    where = line_of(error.__traceback__)
    operator = getattr(error, "func", None)
    if operator is not None:
        return f"its step reads values, and tensors have none here: {operator} in {where}"
    return f"its step fails on tensors without values: {str(error).splitlines()[0]} in {where}"


# the baseline, at that scale ----------------------------------------------------------------------------------------


def _shaped(baseline: Baseline, scale: Scale, distributed: bool) -> Baseline:
    """Returns the baseline with the scale's batch and sequence length, and with its data's shapes in place of its data.

    Raises ValueError where a batch does not divide among the ranks.
    """
    if scale.sequence_length is not None and baseline.modality != "text":
        raise ValueError(f"{baseline.id} reads images, which have no sequence length to choose: leave it out")
    kind: Any = type(baseline)

    class Shaped(kind):
        def recipe(self, size: Size, name: RecipeName, task: Task) -> Recipe:
            recipe: Recipe = super().recipe(size, name, task)
            return replace(recipe, batch_size=_batch_size(recipe.batch_size, scale, distributed))

        def data(self, size: Size, split: Split, location: str | None = None) -> Data:
            of_a_user = scale.setting.model is not None  # the baseline's own counts say which data they are of
            data: Data = (super().shapes if of_a_user else super().data)(size, split, location)
            parts = {"train": data.train, "validation": data.validation, "test": data.test}
            shapes: dict[str, Any] = {
                name: _without_values(part, scale.sequence_length) for name, part in parts.items()
            }
            return replace(data, **shapes, sampler=in_order)

    return Shaped()


def _batch_size(own: int, scale: Scale, distributed: bool) -> int:
    """Returns the examples of all ranks of a distributed stack, of one of them otherwise."""
    ranks = scale.ranks or 1
    if scale.batch_size is not None and scale.batch_size % ranks:
        raise ValueError(
            f"a batch of {scale.batch_size} examples does not divide among {ranks} ranks: choose a multiple of {ranks}"
        )
    per_rank = own if scale.batch_size is None else scale.batch_size // ranks
    return per_rank * ranks if distributed else per_rank


def _without_values(examples: Examples, length: int | None) -> Examples:
    def shape(tensor: Tensor) -> tuple[int, ...]:
        return tensor.shape if length is None else (len(tensor), length, *tensor.shape[2:])

    return Examples({name: torch.empty(shape(tensor), dtype=tensor.dtype) for name, tensor in examples.tensors.items()})


def in_order(examples: int, seed: int, position: int, count: int) -> Tensor:
    """Samples in order: int64 [count]. The usual one keeps an epoch's order for later runs, which want real numbers."""
    return torch.arange(position, position + count) % examples


def _fits(run: Run, scale: Scale) -> None:
    """Checks that positions fit, since fake tensors look nothing up, so that a position too many would go unnoticed."""
    positions = getattr(getattr(run.model, "config", None), "max_position_embeddings", None)
    if scale.sequence_length is not None and positions is not None and positions < scale.sequence_length:
        raise ValueError(
            f"{scale.sequence_length} tokens a sequence, but the model has {positions} positions: choose fewer, or a "
            "model (--model) with more"
        )
