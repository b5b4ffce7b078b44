"""Runs a pipeline of stages on several ranks: one executor for every schedule, over point-to-point messages.

Each rank keeps the parameters of its stages and does what its list says (:mod:`suite.pipeline.timetable`)::

    forward     take what the stage before handed on ── run the stage ── send what it hands on
    backward    take the gradient of that ── run the stage backward ── send the gradient of what was taken
    update      add up gradients of what several ranks hold ── clip ── the optimizer's step on the own stages

A batch's micro-batches are its consecutive parts, and each loss counts 1/m, so that the sum of the gradients is that of
the batch. All ranks draw the whole batch: a stage needs the inputs for masks, the last one the targets.

Schedules that never flush have micro-batches under way between training steps. What these need is part of the saved
state: the tensors that autograd keeps for them, the stashed weights, and the messages that nobody has taken.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from suite.device.random_state import RandomState, replayed, unchanged_randomness
from suite.loop.data import Batch, mixed_seed
from suite.loop.recipe import Recipe
from suite.loop.run import OWN_STAGES, Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique, auxiliary_of
from suite.pipeline.mail import Letter, Mail, Shape
from suite.pipeline.stages import HandedOn, Stages, cut
from suite.pipeline.timetable import PipelineOp, PipelineSchedule, Program
from suite.pipeline.weight_versions import WeightVersions
from suite.record.job import StackError
from techniques.shared.replicas import begin_alike

TRIED = 2  # examples of the pass that shows what stages use
AHEAD = 2  # operations whose messages are expected
SCALAR = Shape((), torch.float32)


@dataclass
class Flight:
    """Holds a micro-batch between its two passes on a stage. ``output``: what is handed on, or the loss, with its
    graph; None where the stage is run again for the backward pass, from the ``random`` state of the first time."""

    hidden: Tensor | None
    output: Tensor | None
    loss: Tensor | None = None
    random: RandomState | None = None
    saved: Kept | None = None


class Kept:
    """Holds what autograd keeps of a forward pass, so that it can be saved and put back: weights by their names, since
    they are read as they are when the backward pass comes; all else as it was.
    """

    def __init__(self, parameters: Mapping[str, Tensor], items: Sequence[Any] = ()) -> None:
        self.parameters, self.saved = parameters, list(items)
        self.items: list[Any] = []
        self._names = {parameter.untyped_storage()._cdata: name for name, parameter in parameters.items()}

    def keep(self, tensor: Tensor) -> int:
        name = self._names.get(tensor.untyped_storage()._cdata)
        place = len(self.items)
        if place < len(self.saved):
            self.items.append(self.saved[place])
        elif name is None:
            self.items.append(tensor)
        else:
            self.items.append([name, list(tensor.size()), list(tensor.stride()), tensor.storage_offset()])
        return place

    def give(self, place: int) -> Tensor:
        item = self.items[place]
        if isinstance(item, Tensor):
            return item
        name, size, stride, offset = item
        return self.parameters[name].detach().as_strided(size, stride, offset)

    @property
    def hooks(self) -> AbstractContextManager[Any]:
        return torch.autograd.graph.saved_tensors_hooks(self.keep, self.give)


@dataclass
class Pipelined(Technique):
    """Is the base of pipelines. A subclass says its :meth:`schedule`."""

    ranks: int = 2
    flushes: ClassVar[bool] = True
    """Whether nothing is under way between training steps, so that all stages can clip by one norm."""

    plan: PipelineSchedule = field(init=False, repr=False)
    run: Run | None = field(init=False, repr=False, default=None)
    stages: Stages = field(init=False, repr=False)
    mail: Mail = field(init=False, repr=False)
    weights: WeightVersions = field(init=False, repr=False)
    flights: dict[tuple[int, int], Flight] = field(init=False, repr=False, default_factory=dict)
    batches: dict[int, Batch] = field(init=False, repr=False, default_factory=dict)
    resumed: dict[str, Any] = field(init=False, repr=False, default_factory=dict)
    passed: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ValueError(f"a pipeline needs 2 ranks or more, not {self.ranks}")
        self.plan = self.schedule()

    @abstractmethod
    def schedule(self) -> PipelineSchedule:
        """Says who does what when."""

    def recomputed(self, micro: int) -> bool:
        """Tells whether a stage keeps its input alone of a micro-batch, and is run again for the backward pass."""
        return False

    def weights_of_backward(self, run: Run, op: PipelineOp) -> AbstractContextManager[Any]:
        """Returns the context of a backward pass: other weights than those of the version that it uses."""
        return nullcontext()

    def optimize(self, run: Run) -> None:
        """Makes the optimizer's step on this rank's stages."""
        run.optimizer.step()

    # the contract -----------------------------------------------------------------------------------------------------

    def recipe(self, recipe: Recipe) -> Recipe:
        if recipe.compile:
            raise ValueError("a pipeline's stages are not compiled: take the recipe classic or modern")
        if recipe.batch_size % self.plan.micro_batches:
            raise ValueError(
                f"a batch of {recipe.batch_size} does not divide into {self.plan.micro_batches} micro-batches: "
                "set micro_batches to a divisor of it"
            )
        return replace(recipe, world_size=self.ranks)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        self.run = run
        return model

    def parallelize(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        assert self.run is not None
        run = self.run
        self._check_precision(run)
        begin_alike(model, mesh.get_group())
        self.stages = cut(model, self.plan.stages, lambda: run.trial(model).logits, TRIED)
        self._check_trained(run, model)
        self.stages.keep(model, self.plan.stages_of(mesh.get_local_rank()))
        self.weights = WeightVersions(list(model.parameters()))
        self.mail = Mail(mesh.get_group(), run.device)
        self.groups = {ranks: self._group(ranks, mesh) for ranks in dict.fromkeys(self._holders.values())}
        return model

    @staticmethod
    def _check_precision(run: Run) -> None:
        """Raises StackError where another technique changes the precision of layers, of which a rank has some alone."""
        own, recipe = run.recipe.precision, run.baseline.recipe_of(run.job.setting)
        if own != recipe.precision:
            raise StackError(
                f"{run.job.stack} cannot be stacked: a rank of a pipeline has the layers of its own stages alone, and "
                f"what makes them {own} acts on those of all; take a recipe that trains in {own} itself"
            )

    def _check_trained(self, run: Run, model: nn.Module) -> None:
        """Raises StackError where another technique has added parameters that no output depends on: their loss, of
        blocks of all stages, would have to come to the last one. And where it leaves a rank nothing to train."""
        added = run.attachment.added(model)
        if lost := [name for name in added if name in self.stages.unseen and added[name].requires_grad]:
            raise StackError(
                f"{run.job.stack} cannot be stacked: {lost[0]} learns from a loss of its own block, and {OWN_STAGES}"
            )
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        for rank in range(self.plan.ranks):
            if not any(trained & self.stages.used[stage] for stage in self.plan.stages_of(rank)):
                raise StackError(
                    f"{run.job.stack} cannot be stacked: all that trains is in other stages than those of rank {rank}, "
                    f"and {OWN_STAGES}"
                )

    def _group(self, ranks: tuple[int, ...], mesh: DeviceMesh) -> ProcessGroup | None:
        if len(ranks) < 2:
            return None
        if len(ranks) == mesh.size():
            return mesh.get_group()
        own = dist.new_group([dist.get_global_rank(mesh.get_group(), rank) for rank in ranks])
        return own if isinstance(own, ProcessGroup) else None  # a rank outside of it gets no group

    @cached_property
    def _holders(self) -> dict[str, tuple[int, ...]]:
        """Returns the ranks that hold a parameter."""
        held = [self.plan.stages_of(rank) for rank in range(self.plan.ranks)]
        return {
            name: tuple(rank for rank, own in enumerate(held) if set(own) & set(self.stages.owners(name)))
            for name, _ in self.stages.skeleton.named_parameters()
        }

    @cached_property
    def _with_the_loss(self) -> list[int]:
        """Returns the ranks that have the last stage."""
        return [rank for rank in range(self.plan.ranks) if self.plan.stages - 1 in self.plan.stages_of(rank)]

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"hands on between stages": self.passed, **run.trained_parameters()}

    # a training step --------------------------------------------------------------------------------------------------

    def update(self, run: Run, batch: Batch) -> None:
        if self.resumed:
            self._resume(run)
        program = self.plan.step(run.step)
        ops = program[run.rank]
        run.optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros(SCALAR.size, dtype=SCALAR.dtype, device=run.device)
        for rank in (rank for rank in self._with_the_loss if rank != run.rank):
            self.mail.expect(Letter("loss", rank, run.step), rank, SCALAR)
        for at, op in enumerate(ops):
            for following in ops[at : at + AHEAD]:
                self._expect(run, self._needed(following))
            if op.kind == "forward":
                self._forward(run, op)
            elif op.kind == "backward":
                loss += self._backward(run, op)
            elif op is ops[-1]:
                self._update(run, op)
        self._expect_what_is_sent(run, program)
        run.loss = self._shared(run, loss)
        self.mail.flush()
        self.batches = {number: batch for number, batch in self.batches.items() if number > run.step}

    def _forward(self, run: Run, op: PipelineOp) -> None:
        hidden = self.mail.take(Letter("forward", op.stage - 1, op.micro)).requires_grad_() if op.stage else None
        self.weights.use(op.version)
        flight = self.flights[op.stage, op.micro] = Flight(hidden, None)
        if self.recomputed(op.micro):
            flight.random = RandomState.now(run.device)
            with torch.no_grad():
                output = self._stage(run, op, hidden)
        elif self.flushes:
            output = flight.output = self._stage(run, op, hidden)
        else:
            flight.saved = Kept(dict(run.model.named_parameters()))
            with flight.saved.hooks:
                output = flight.output = self._stage(run, op, hidden)
        if op.stage == self.stages.last:
            flight.loss = output.detach()
        else:
            self._check_shape(run, op, output)
            self.mail.send(Letter("forward", op.stage, op.micro), self.plan.place(op.stage + 1, op.micro), output)
            self.passed()

    def _backward(self, run: Run, op: PipelineOp) -> Tensor | float:
        """Returns what the micro-batch adds to the loss, on the last stage."""
        flight = self.flights.pop((op.stage, op.micro))
        last = op.stage == self.stages.last
        gradient = None if last else self.mail.take(Letter("backward", op.stage + 1, op.micro))
        self.weights.use(op.version)
        with self.weights_of_backward(run, op):
            output = flight.output if flight.output is not None else self._again(run, op, flight)
            if last:
                run.backward(output / self.plan.micro_batches)
            else:
                torch.autograd.backward(output, gradient)
        if flight.hidden is not None:
            assert flight.hidden.grad is not None
            letter, receiver = Letter("backward", op.stage, op.micro), self.plan.place(op.stage - 1, op.micro)
            self.mail.send(letter, receiver, flight.hidden.grad)
            self.passed()
        return 0.0 if flight.loss is None else flight.loss / self.plan.micro_batches

    def _stage(self, run: Run, op: PipelineOp, hidden: Tensor | None) -> Tensor:
        """Computes what a stage hands on, or the loss of the micro-batch."""
        with self.stages.running(op.stage, hidden):
            try:
                return run.forward(self._examples(run, op.micro))
            except HandedOn as handed:
                return handed.hidden

    def _again(self, run: Run, op: PipelineOp, flight: Flight) -> Tensor:
        """Runs the forward pass with its graph, for a micro-batch of which its input was kept; statistics count it
        once."""
        assert flight.random is not None
        copies = [(buffer, buffer.clone()) for buffer in run.model.buffers()]
        with replayed(flight.random):
            output = self._stage(run, op, flight.hidden)
        for buffer, values in copies:
            if not torch.equal(buffer, values):  # the graph may hold the others, which stay as they are
                buffer.copy_(values)
        return output

    def _update(self, run: Run, op: PipelineOp) -> None:
        later = self.plan.step(run.step + 1)[run.rank]
        under_way = {
            (instruction.stage, instruction.micro) for instruction in later if instruction.kind == "backward"
        } | self.flights.keys()
        wanted = {instruction.version for instruction in later if instruction.kind != "update"}
        wanted |= {self._version_of_backward(run, stage, micro) for stage, micro in under_way}
        self.weights.begin_update(wanted)
        self._add_up(run)
        if not run.technique.after_backward(run):
            if limit := run.recipe.gradient_clip:
                self._clip(run, limit)
            self.optimize(run)
        self.weights.end_update()

    def _version_of_backward(self, run: Run, stage: int, micro: int) -> int:
        """Returns the version that the pass will use, which is made with its own batch."""
        ops = self.plan.step(micro // self.plan.micro_batches)[run.rank]
        return next(op.version for op in ops if op[:3] == ("backward", stage, micro))

    def _examples(self, run: Run, micro: int) -> Batch:
        """Draws a micro-batch as a single process draws the batch that it is a part of."""
        number, place = divmod(micro, self.plan.micro_batches)
        if number not in self.batches:
            count = run.recipe.batch_size
            batch, _ = run.data.batch(mixed_seed(run.seed, 2), number * count, count)
            self.batches[number] = {name: tensor.to(run.device) for name, tensor in batch.items()}
        return {name: batch.chunk(self.plan.micro_batches)[place] for name, batch in self.batches[number].items()}

    # messages ---------------------------------------------------------------------------------------------------------

    def _needed(self, op: PipelineOp) -> Letter | None:
        if op.kind == "forward" and op.stage:
            return Letter("forward", op.stage - 1, op.micro)
        if op.kind == "backward" and op.stage < self.stages.last:
            return Letter("backward", op.stage + 1, op.micro)
        return None

    def _expect(self, run: Run, letter: Letter | None) -> None:
        if letter is not None:
            boundary = letter.stage - (letter.kind == "backward")
            shape = self.stages.shape(boundary, run.recipe.batch_size // self.plan.micro_batches)
            self.mail.expect(letter, self.plan.place(letter.stage, letter.micro), shape)

    def _check_shape(self, run: Run, op: PipelineOp, output: Tensor) -> None:
        """Raises StackError where the next stage expects another message: examples have changed since the set-up."""
        expected = self.stages.shape(op.stage, run.recipe.batch_size // self.plan.micro_batches)
        if (tuple(output.shape), output.dtype) != expected:
            raise StackError(
                f"{run.job.stack} cannot be stacked: its examples change in size or type while it trains, and what a "
                f"stage hands on does not: {list(expected.size)} at first, {list(output.shape)} in step {run.step + 1}"
            )

    def _expect_what_is_sent(self, run: Run, program: Program) -> None:
        """Expects what others have sent in this step, for operations of a later one."""
        taken = {self._needed(op) for op in program[run.rank]}
        for op in (operator for ops in program for operator in ops if operator.kind != "update"):
            to = op.stage + (1 if op.kind == "forward" else -1)
            mine = 0 <= to <= self.stages.last and self.plan.place(to, op.micro) == run.rank
            if mine and (letter := Letter(op.kind, op.stage, op.micro)) not in taken:
                self._expect(run, letter)

    def _shared(self, run: Run, own: Tensor) -> Tensor:
        """Gives the loss of the batch to all ranks: the sum of what the ranks with a last stage have."""
        holders = self._with_the_loss
        if run.rank in holders:
            for rank in (rank for rank in range(run.world_size) if rank != run.rank):
                self.mail.send(Letter("loss", run.rank, run.step), rank, own)
        parts = [own if rank == run.rank else self.mail.take(Letter("loss", rank, run.step)) for rank in holders]
        return torch.stack(parts).sum()

    # what several ranks hold ------------------------------------------------------------------------------------------

    def _add_up(self, run: Run) -> None:
        """Adds up gradients of trained parameters that several ranks hold: on each, their sum."""
        own = dict(run.model.named_parameters())
        for ranks, group in self.groups.items():
            if group is None or run.rank not in ranks:
                continue
            shared = [own[name] for name, holders in self._holders.items() if holders == ranks and name in own]
            shared = [tensor for tensor in shared if tensor.requires_grad]
            if not shared:  # a tied table that is frozen
                continue
            gradients = [torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in shared]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat, group=group)
            for tensor, gradient in zip(shared, flat.split([tensor.numel() for tensor in shared]), strict=True):
                tensor.grad = gradient.view_as(tensor).clone()

    def _clip(self, run: Run, limit: float) -> None:
        """By the norm over all stages, each parameter once, in the order in which one process has them; auxiliary
        parameters by theirs."""
        if not self.flushes:
            self._clip_stage(run, limit)
            return
        own = dict(run.model.named_parameters())
        names = sorted(
            (name for name, parameter in self.stages.skeleton.named_parameters() if parameter.requires_grad),
            key=lambda name: self.stages.skeleton.get_parameter(name).ndim < 2,
        )
        beside = auxiliary_of(run.optimizer)
        norms = torch.zeros(2, len(names), device=run.device)  # and whose: 1 of the model's own, 2 of auxiliary ones
        for at, name in enumerate(names):
            if self._holders[name][0] == run.rank and (gradient := own[name].grad) is not None:
                norms[0, at], norms[1, at] = torch.linalg.vector_norm(gradient), 1.0 + (id(own[name]) in beside)
        dist.all_reduce(norms, group=run.group)
        for whose, together in enumerate(run.clipped_together(own.values()), start=1):
            there = norms[0]
            if not isinstance(norms, FakeTensor):  # a fake one has no value to ask for
                there = there[norms[1] == whose]
            nn.utils.clip_grads_with_norm_(together, limit, torch.linalg.vector_norm(there))

    def _clip_stage(self, run: Run, limit: float) -> None:
        """Clips by the norm of the own stage, since one over all would wait for the slowest; stages that hold a
        parameter in common, and wait for each other, by one norm: their copies stay equal."""
        shared = [ranks for ranks in self.groups if len(ranks) > 1]
        group = (
            run.group if len(shared) > 1 else next((self.groups[ranks] for ranks in shared if run.rank in ranks), None)
        )
        if group is None:
            run.clip_gradients(limit)
            return
        counted = {id(each) for name, each in run.model.named_parameters() if self._holders[name][0] == run.rank}
        both = run.clipped_together(run.model.parameters())
        squared = torch.zeros(2, device=run.device)  # of the model's own, and of auxiliary ones
        for whose, together in enumerate(both):
            norms = [torch.linalg.vector_norm(each.grad) for each in together if id(each) in counted]
            if norms:
                squared[whose] = torch.stack(norms).square().sum()
        dist.all_reduce(squared, group=group)
        for norm, together in zip(squared.sqrt(), both, strict=False):
            nn.utils.clip_grads_with_norm_(together, limit, norm)

    # evaluation ------------------------------------------------------------------------------------------------------

    def evaluated(self, model: nn.Module, run: Run) -> nn.Module:
        """Returns the whole model, on every rank: what each rank holds is sent to all."""
        self.weights.use(self.weights.newest)
        if not hasattr(self, "stages"):
            return model
        own, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        parameters: dict[str, Tensor] = {}
        for name, like in self.stages.skeleton.named_parameters():
            source = self._holders[name][0]
            values = own[name].detach() if source == run.rank else torch.empty_like(like, device=run.device)
            parameters[name] = values.clone()
            dist.broadcast(parameters[name], group=run.group, group_src=source)
        for name, stage in self.stages.buffers.items():
            buffers[name] = buffers[name].clone()
            dist.broadcast(buffers[name], group=run.group, group_src=self.plan.place(stage, 0))
        return self.stages.whole(parameters, buffers)

    # saving -----------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        flights = [
            {
                "stage": stage,
                "micro": micro,
                "hidden": flight.hidden,
                "loss": flight.loss,
                "kept": flight.saved.items if flight.saved else [],
            }
            for (stage, micro), flight in self.flights.items()
        ]
        return {"flights": flights, "versions": self.weights.state(), "waiting": self.mail.waiting()}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.resumed = state

    def _resume(self, run: Run) -> None:
        """Resumes once the model has its weights again: the passes under way are made anew, and autograd gets what it
        kept."""
        self.weights.restore(self.resumed["versions"])
        self.mail.put_back(self.resumed["waiting"])
        for flow in self.resumed["flights"]:
            hidden = flow["hidden"]
            if hidden is not None:
                hidden = hidden.detach().requires_grad_()
            flight = Flight(hidden, None, flow["loss"])
            flight.saved = Kept(dict(run.model.named_parameters()), flow["kept"])
            with unchanged_randomness(run.device), flight.saved.hooks:
                op = PipelineOp("forward", flow["stage"], flow["micro"], 0)
                flight.output = self._stage(run, op, hidden)
            self.flights[flow["stage"], flow["micro"]] = flight
        self.resumed = {}
