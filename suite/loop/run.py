"""Runs one training run: the loop, and nothing else.

A run is deterministic: the same job gives the same trajectory to the bit under one arithmetic
(:mod:`suite.record.numerics`). It can be saved and resumed at any step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from suite.device.pinned import copied
from suite.device.random_state import RandomState, unchanged_randomness
from suite.loop.attachment import Attachment
from suite.loop.baseline import Baseline, Predictor, Sample
from suite.loop.data import Batch, Data, HeldOut, generator, mixed_seed
from suite.loop.recipe import Recipe
from suite.loop.stack import Stack
from suite.loop.technique import NO_OWN_GRADIENTS, ParameterGroups, auxiliary_of
from suite.meters.communication import Communication
from suite.meters.counters import count_step
from suite.model.anatomy import Anatomy, PartOfModel, anatomy
from suite.record.files import replacing
from suite.record.job import Job, Split, StackError
from suite.record.schema import Counters
from suite.record.text import reason

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


SAMPLES = 6  # test examples that a person is shown
OWN_STAGES = (
    "a rank of a pipeline has the blocks of its own stages alone: leave one of the two out, or take ranks that divide "
    "the batch and not the blocks"
)
BLAMELESS = (torch.OutOfMemoryError, torch.distributed.DistError)
"""Errors of the machine, and of ranks that do not hear from each other: whether parameters are sharded is no matter."""


class Diverged(ArithmeticError):
    """Is raised where the training loss is not finite."""


class Run:
    """Does the training run of a job.

    ``technique`` and ``baseline`` are those that the job names (:func:`suite.entries.jobs.run_of`), or stand in for
    them: for scouts, for fake data, for tests. With ``weights`` the run starts from that checkpoint instead of a fresh
    initialisation, and with ``split`` it trains on that part of the baseline's data instead of the task's own.

    Attributes that techniques use: ``model`` (as trained), ``anatomy`` (of it), ``optimizer``, ``recipe``, ``data``,
    ``baseline``, ``step`` (finished steps), ``position`` (examples seen), ``progress`` (in [0, 1]), ``indices`` (of
    the current batch's examples, int64), ``loss`` (of the last update, detached), ``device``, ``generator`` (for the
    technique's own noise), ``mesh`` (None in a single process), ``seed``.
    """

    def __init__(
        self,
        job: Job,
        technique: Stack,
        baseline: Baseline,
        *,
        weights: Path | None = None,
        split: Split | None = None,
        mesh: DeviceMesh | None = None,
    ) -> None:
        self.job, self.weights, self.mesh = job, weights, mesh
        self.technique, self.baseline = technique, baseline
        self.seed = job.seed
        setting = job.setting
        self.device = torch.device(setting.device)
        self.recipe: Recipe = self.technique.recipe(self.baseline.recipe_of(setting))
        if self.recipe.world_size != self.world_size:
            raise ValueError(f"the recipe asks for {self.recipe.world_size} ranks, the run has {self.world_size}")

        self.step = 0
        self.position = 0
        self.loss = torch.tensor(math.nan)
        self.indices = torch.empty(0, dtype=torch.int64)
        self.generator = generator(self.seed, 3)
        self._anatomy: Anatomy | None = None
        self._held_out_batches: dict[HeldOut, list[Batch]] = {}
        self._ahead: Future[tuple[Batch, Tensor]] | None = None
        self._ahead_key: tuple[Data, int, int] | None = None

        examples = self.baseline.data(setting.size, split or setting.task, setting.data)
        self.data: Data = self.technique.data(examples, self)
        built = self.plain_model()
        self.attachment = Attachment(built)
        built = self.technique.model(built, self).to(self.device)
        if self.mesh is not None:
            built = self.technique.parallelize(built, self.mesh)
        with self._named():
            self.adopt(built)
            torch.manual_seed(mixed_seed(self.seed, 1, self.rank))  # dropout is not initialisation's
            self.attachment.begin(self)

    def plain_model(self) -> nn.Module:
        """Returns a freshly initialised model, or one with the checkpoint's weights, as techniques get it."""
        setting = self.job.setting
        torch.manual_seed(mixed_seed(self.seed, 0))
        model = self.baseline.model(setting.size, self.data, setting.model)
        if self.weights is not None:
            load_weights(model, self.weights)
        model.to(self.device)
        anatomy(model).set_fused_attention(self.recipe.fused_attention)
        return model

    # what techniques read -------------------------------------------------------------------------------------------

    @property
    def world_size(self) -> int:
        return self.mesh.size() if self.mesh is not None else 1

    @property
    def rank(self) -> int:
        return self.mesh.get_local_rank() if self.mesh is not None else 0

    @property
    def group(self) -> ProcessGroup:
        """Returns the process group of all ranks; an error in a single process."""
        if self.mesh is None:
            raise RuntimeError("a run in a single process has no process group")
        return self.mesh.get_group()

    def demand_whole(self, why: str) -> None:
        """Raises StackError where ranks hold the model in parts; ``why`` says what of a technique needs all of it."""
        if self.mesh is not None and self.anatomy.is_part:
            raise StackError(f"{self.job.stack} cannot be stacked: {why}, and {OWN_STAGES}")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Names the stack, by a StackError, where ranks hold a model in parts and a technique asks for the whole: for
        all of its blocks, or for tensors that are no shards."""
        try:
            yield
        except PartOfModel as error:
            raise StackError(f"{self.job.stack} cannot be stacked: {error}, and {OWN_STAGES}") from None
        except (RuntimeError, NotImplementedError, TypeError) as error:
            others = len(self.technique.techniques) > 1  # to whom a shard may be none
            if not (self.technique.shards_parameters and others) or isinstance(error, BLAMELESS):
                raise
            raise StackError(
                f"{self.job.stack} cannot be stacked: a technique computes with whole parameters, and ranks hold them "
                f"in shards ({reason(error)}); take ranks that have a model each"
            ) from error

    @property
    def progress(self) -> float:
        """Returns the finished share of the run's steps, in [0, 1]."""
        return self.step / self.recipe.steps

    @property
    def anatomy(self) -> Anatomy:
        """Returns the model's blocks; computed when first asked for and again after :meth:`adopt`."""
        if self._anatomy is None:
            self._anatomy = anatomy(self.model)
        return self._anatomy

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """Returns the model's own parameters that the optimizer moves, by name; whole, also where it holds shards of
        them."""
        held = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
        trainable = {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        return {
            name: parameter for name, parameter in trainable.items() if self.gradients_sharded or id(parameter) in held
        }

    # verbs ----------------------------------------------------------------------------------------------------------

    def forward(self, batch: Batch) -> Tensor:
        """Computes the loss (scalar, float32) of a batch under the recipe's precision, with the techniques' added
        terms."""
        if self.recipe.compile and not self.attachment.proven:
            self.attachment.rehearse(self, batch)
        with self.autocast():
            outputs = self.baseline.forward(self.forward_model, batch)
        loss = self.baseline.losses(outputs, batch).mean()
        return self.technique.loss(loss, outputs, batch, self)

    def trial(self, model: nn.Module) -> Any:
        """Returns the outputs of ``model``, adopted or not yet, for two training examples: techniques that look at how
        a model computes let it run so (:mod:`suite.model.calls`)."""
        batch, _ = self.data.batch(mixed_seed(self.seed, 2), 0, 2)
        with self.autocast():
            return self.baseline.forward(model, self._to_device(batch))

    @contextmanager
    def unreduced(self) -> Iterator[None]:
        """Keeps the gradients of backward passes this rank's own: nothing that ranks exchange meanwhile. Raises
        StackError where a rank has no gradients of its own."""
        if self.technique.shards_parameters:
            raise StackError(f"{self.job.stack} cannot be stacked: {NO_OWN_GRADIENTS}")
        with getattr(self.model, "no_sync", nullcontext)(), self.technique.unreduced(self):
            yield

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of ``loss`` to those of the parameters."""
        loss.backward()

    def apply_gradients(self) -> None:
        """Calls the after-backward methods of the techniques, then, unless one leaves the update out, clipping and the
        step."""
        if self.technique.after_backward(self):
            return
        if self.recipe.gradient_clip:
            self.clip_gradients(self.recipe.gradient_clip)
        self.optimizer.step()

    def clip_gradients(self, largest_norm: float) -> Tensor:
        """Scales the gradients so that their global L2 norm is at most ``largest_norm``; returns the norm before.
        Auxiliary parameters have a norm of their own."""
        held = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        norms = []
        for together in self.clipped_together(held):
            norm = nn.utils.get_total_norm([p.grad for p in together if p.grad is not None])
            if self.gradients_sharded:  # the norm is over all ranks
                squared = norm.square()
                torch.distributed.all_reduce(squared, group=self.group)
                norm = squared.sqrt()
            nn.utils.clip_grads_with_norm_(together, largest_norm, norm)
            norms.append(norm)
        return norms[0]

    def clipped_together(self, parameters: Iterable[Tensor]) -> list[list[Tensor]]:
        """Returns the ``parameters`` with a gradient, by whose norm they are clipped: the model's own, and, where there
        are auxiliary ones, those."""
        beside = auxiliary_of(self.optimizer)
        with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
        own = [parameter for parameter in with_gradient if id(parameter) not in beside]
        return [own, [parameter for parameter in with_gradient if id(parameter) in beside]] if beside else [own]

    def adopt(self, model: nn.Module) -> None:
        """Trains ``model`` from now on, with a fresh optimizer: at the start, and whenever a technique grows the model.

        Optimizer state of parameters that stay is the technique's to carry over.
        """
        self.model = model.train()
        self._anatomy = None
        self.forward_model: nn.Module = torch.compile(model) if self.recipe.compile else model  # type: ignore[assignment]
        groups = self.technique.parameters(self.default_parameters(), self)
        optimizer = self.technique.optimizer(groups, self.recipe)
        self.optimizer: Optimizer = self.technique.wrap_optimizer(optimizer, self)
        self._set_learning_rate()

    @property
    def gradients_sharded(self) -> bool:
        """Tells whether a technique gives each rank its own share of the gradients: a group then says ``sharded``."""
        return any(group.get("sharded") for group in self.optimizer.param_groups)

    def default_parameters(self) -> ParameterGroups:
        """Returns the trainable parameters in two groups: weight decay on matrices, none on biases, norms and
        scales."""
        trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": self.recipe.weight_decay},
            {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def autocast(self) -> torch.autocast:
        """Returns the recipe's precision: bf16 autocast or nothing. A technique of another one puts its own in place of
        this method while the run is set up."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.recipe.precision == "bf16")

    def scout(self, technique: Stack, *, seed: int, steps: int | None = None) -> Run:
        """Returns a separate run of the same baseline on the same data, for techniques that must train to know what to
        do."""
        setting = self.job.setting.but(steps=steps, device=str(self.device))
        job = Job(setting=setting, stack=self.job.stack, seed=seed)
        return Run(job, technique, self.baseline, weights=self.weights)

    # the loop -------------------------------------------------------------------------------------------------------

    def train_step(self, batch: Batch, indices: Tensor) -> None:
        """Makes one step on the batch of the examples ``indices``: learning rate, update, after-step methods.

        The first raises NotAttached where a technique did nothing at one of its sites.
        """
        if self.attachment.proven:
            self._train_step(batch, indices)
            return
        with self._named(), self.attachment.proving(self, batch):
            self._train_step(batch, indices)

    def _train_step(self, batch: Batch, indices: Tensor) -> None:
        self.indices = indices
        self._set_learning_rate()
        with self.technique.around_step(self):
            self.technique.update(self, batch)
        self.position += self.recipe.batch_size
        self.step += 1
        self.technique.after_step(self)

    def train(self, steps: int) -> list[float]:
        """Makes ``steps`` steps and returns what they gave; their training losses. Raises Diverged at the first that is
        not finite."""
        losses = []
        for _ in range(steps):
            batch, indices = self.next_batch()
            self.train_step(batch, indices)
            losses.append(self.loss)
        values = torch.stack(losses).tolist() if losses else []
        for offset, value in enumerate(values):
            if not math.isfinite(value):
                raise Diverged(f"the training loss became {value} at step {self.step - steps + offset + 1}")
        return values

    def count_step(self) -> Counters:
        """Counts one more training step, under the exact counters; of several ranks, this one's."""
        batch, indices = self.next_batch()
        with ExitStack() as stack:
            traffic = stack.enter_context(Communication()) if self.mesh is not None else None
            counters = count_step(
                lambda: self.train_step(batch, indices), self.model, self.optimizer, batch, compiled=self.recipe.compile
            )
        sent = traffic.ring_bytes(self.world_size) if traffic else None
        return counters.model_copy(update={"communication_bytes": sent, "ranks": self.world_size})

    def evaluate(self, part: HeldOut = "validation") -> dict[str, float]:
        """Returns the mean loss and further metrics of the evaluated model on held-out examples. Leaves the training
        state as it was. Tuning and stopping see ``validation``; only what is reported at the end is ``test``.

        Raises Diverged if the loss is not finite.
        """
        with self.predicting() as predict:
            means = self.baseline.mean_scores(predict, self._held_out(part))
        if not math.isfinite(means["loss"]):
            raise Diverged(f"the {part} loss became {means['loss']} after step {self.step}")
        return means

    def probes(self) -> dict[str, float]:
        """Returns the techniques' own measurements, at the end of the run.

        Raises NotAttached where a technique has not done what it was to do by then.
        """
        self.attachment.end(self)
        return dict(self.technique.probes(self))

    def samples(self) -> list[Sample]:
        """Returns what the evaluated model makes of a few test examples, spread over all of them."""
        batches = self._held_out("test")
        few = batches[:: max(1, len(batches) // SAMPLES)][:SAMPLES]
        with self.predicting() as predict:
            batch = {name: torch.cat([one[name][:1] for one in few]) for name in few[0]}
            return self.baseline.samples(predict, batch)

    @contextmanager
    def predicting(self) -> Iterator[Predictor]:
        """Gives the evaluated model's outputs for a batch, without gradients. Leaves the training state as it was."""
        with unchanged_randomness(self.device), torch.no_grad():
            replica = self.model.module if isinstance(self.model, DistributedDataParallel) else self.model
            model = self.technique.evaluated(replica, self)  # names are those of one process's model
            model.eval()

            def predict(batch: Batch) -> Any:
                with self.autocast():
                    return self.baseline.forward(model, batch)

            yield predict
            self.model.train()

    def _held_out(self, part: HeldOut) -> list[Batch]:
        """Returns batches of the baseline's own size, whatever a technique trains with, so that masks and noise
        agree."""
        if part not in self._held_out_batches:
            count = self.baseline.recipe_of(self.job.setting).batch_size
            self._held_out_batches[part] = [self._to_device(batch) for batch in self.data.held_out(part, count)]
        return self._held_out_batches[part]

    def next_batch(self) -> tuple[Batch, Tensor]:
        """Returns this rank's share of the global batch, on the device; on an accelerator the next is prepared
        meanwhile."""
        if self.device.type == "cpu":
            batch, indices = self._global_batch(self.position)
        else:
            batch, indices = self._prefetched()
        share = slice(self.rank, None, self.world_size)
        if self.world_size > 1:
            batch, indices = {name: tensor[share] for name, tensor in batch.items()}, indices[share]
        return self._to_device(batch), indices

    def _global_batch(self, position: int) -> tuple[Batch, Tensor]:
        return self.data.batch(mixed_seed(self.seed, 2), position, self.recipe.batch_size)

    def _prefetched(self) -> tuple[Batch, Tensor]:
        wanted = (self.data, self.position, self.recipe.batch_size)
        if self._ahead is not None and self._ahead_key == wanted:
            ready = self._ahead.result()
        else:
            ready = self._global_batch(self.position)
        following = self.position + self.recipe.batch_size
        self._ahead_key = (self.data, following, self.recipe.batch_size)
        self._ahead = self._worker.submit(self._global_batch, following)
        return ready

    @cached_property
    def _worker(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "batches")

    def _to_device(self, batch: Batch) -> Batch:
        return {name: copied(tensor, self.device) for name, tensor in batch.items()}

    def _set_learning_rate(self) -> None:
        rate = self.recipe.learning_rate_at(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("learning_rate_scale", 1.0)

    # saving ---------------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Writes the whole training state, atomically: another process sees the old file or the new one."""
        random = RandomState.now(self.device)
        state = {
            "step": self.step,
            "position": self.position,
            "technique": self.technique.state(),
            "acts": self.attachment.counts(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "random": random.cpu,
            "cuda_random": random.cuda,
        }
        with replacing(path) as partial:
            torch.save(state, partial)

    def load(self, path: Path) -> None:
        """Continues from a state that :meth:`save` wrote for a run of the same baseline, stack, seed and device.

        Each tensor comes back where it was: moved to a GPU, an optimizer's step counters would be waited for at every
        step, and what a technique keeps on the host would meet it there.
        """
        state = torch.load(path, weights_only=True)
        self.step, self.position = state["step"], state["position"]
        self.attachment.resume(state["acts"], self.step)
        self.technique.restore(state["technique"], self)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        RandomState(self.device, state["random"], state["cuda_random"]).restore()


def load_weights(model: nn.Module, path: Path) -> None:
    """Loads a checkpoint's weights into ``model``; a head of another shape (other classes) keeps its fresh weights.

    Raises ValueError if nothing fits.
    """
    saved = torch.load(path, map_location="cpu", weights_only=True)
    own = model.state_dict()
    fitting = {name: tensor for name, tensor in saved.items() if name in own and own[name].shape == tensor.shape}
    if not fitting:
        raise ValueError(f"{path} holds no weights of this model; delete it, and it is made again")
    model.load_state_dict(fitting, strict=False)
