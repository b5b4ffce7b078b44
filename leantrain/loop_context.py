"""Makes the steps of a loop that a stack was applied to."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from leantrain.own_loop import OwnLoop, StackOptimizer
from suite.device.random_state import RandomState


class StepContext:
    """Has what a loop calls, step by step; :func:`leantrain.apply` makes it."""

    def __init__(self, run: OwnLoop) -> None:
        self.run = run
        run.handle = self.optimizer = StackOptimizer(run)
        self._proof: ExitStack | None = None

    @property
    def finished(self) -> int:
        """Steps that are over."""
        return self.run.step

    @contextmanager
    def step(self, batch: Any = None, indices: Tensor | None = None) -> Iterator[None]:
        """Stands around a batch's forward and backward pass and ``optimizer.step()``; where gradients are accumulated,
        around each batch of the step, the last of which steps.

        Args:
            indices: numbers of the examples, int64 [batch], for techniques that know them from epoch to epoch.

        Raises RuntimeError where the stack makes the passes itself: ``context.update(batch)`` is its step.
        """
        if updating := self.run.overriding("update"):
            raise RuntimeError(f"{updating[0]} makes a step's passes itself: context.update(batch) is the whole step")
        with self.around(batch, indices):
            yield

    def loss(self, loss: Tensor, outputs: Any, batch: Any = None) -> Tensor:
        """Returns ``loss`` (a scalar, the mean over the batch) with what the stack adds to it. Where gradients are
        accumulated, divide what this returns by the number of batches, and not what goes in."""
        run = self.run
        total = run.technique.loss(loss, run.user.outputs_of(outputs), self._named(batch), run)
        run.helped, run.loss = True, total.detach()
        return total

    def clip_gradients(self, largest_norm: float) -> Tensor:
        """Scales the gradients so that those of the model have a joint L2 norm of at most ``largest_norm``; returns the
        norm that they had, a scalar. Call it before ``optimizer.step()`` in the place of
        :func:`torch.nn.utils.clip_grad_norm_`, where what a technique trains beside the model would shrink the model's
        gradients: here it has a norm of its own."""
        return self.run.clip_gradients(largest_norm)

    def update(self, batch: Any, indices: Tensor | None = None) -> Tensor:
        """Makes a whole step on a batch, passes and update, as the suite's own; returns its loss, detached."""
        self.run.latest = named = self.run.user.named(batch)
        try:
            self.run.train_step(named, self._numbers(named, indices))  # type: ignore[arg-type]
        except TypeError as error:
            if "0-d tensor" not in str(error):  # torch's words of a scalar in the place of a vector
                raise
            raise ValueError(
                f"{self.run.job.stack} tells examples apart by their losses: let loss(model, batch) give one for each"
            ) from error
        return self.run.loss

    @contextmanager
    def evaluated(self) -> Iterator[nn.Module]:
        """Gives the model to evaluate or to keep, without gradients: averaged weights, removed units, merged layers."""
        model = self.run.model
        with self.run.predicting():
            yield self.run.technique.evaluated(model, self.run).eval()

    # saving ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the whole training state: model, optimizer, what the techniques keep, random numbers. It holds
        tensors, numbers and strings alone, so ``torch.load(path, weights_only=True)`` reads what ``torch.save``
        wrote."""
        run, random = self.run, RandomState.now(self.run.device)
        return {
            "stack": str(run.job.stack),
            "step": run.step,
            "position": run.position,
            "technique": run.technique.state(),
            "acts": run.attachment.counts(),
            "model": run.model.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "generator": run.generator.get_state(),
            "random": random.cpu,
            "cuda_random": random.cuda,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of the same stack, applied to a model of the same kind.

        Raises ValueError for another stack's.
        """
        run = self.run
        if state.get("stack") != run.job.stack:
            raise ValueError(f"the state is of {state.get('stack')}, and this stack is {run.job.stack}: apply that one")
        run.step, run.position = state["step"], state["position"]
        run.attachment.resume(state["acts"], run.step)
        run.technique.restore(state["technique"], run)
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.hold(run.optimizer)
        run.generator.set_state(state["generator"].cpu())
        cuda = state["cuda_random"]
        RandomState(run.device, state["random"].cpu(), None if cuda is None else cuda.cpu()).restore()

    # a step ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def around(self, batch: Any = None, indices: Tensor | None = None) -> Iterator[None]:
        """Does the same as :meth:`step`, for whoever makes the passes of any stack."""
        run = self.run
        if batch is not None:
            run.latest = run.user.named(batch)
        run.numbers = None if indices is None else indices.cpu()
        run._set_learning_rate()
        if self._proof is None and not run.attachment.proven:
            self._proof = ExitStack()
            self._proof.enter_context(run.attachment.proving(run, self._example(batch)))
        run.inside = True
        try:
            with run.technique.around_step(run):
                yield
            if run.stepped:
                self._finish()
        except BaseException:
            if self._proof is not None:
                self._proof.__exit__(*sys.exc_info())
                self._proof = None
            raise
        finally:
            run.inside = False

    def passes(self, batch: Any, indices: Tensor | None = None) -> Tensor:
        """Makes the passes of a stack that makes them itself, within a step whose ``optimizer.step()`` is the
        loop's."""
        run = self.run
        run.latest = named = run.user.named(batch)
        run.numbers, run.deferred = self._numbers(named, indices), True
        run.technique.update(run, named)
        return run.loss

    def _finish(self) -> None:
        run = self.run
        run.stepped = run.helped = run.pending = run.deferred = False
        run.position += run.recipe.batch_size
        run.step += 1
        run.technique.after_step(run)
        if self._proof is not None:
            proof, self._proof = self._proof, None
            proof.close()

    def _example(self, batch: Any) -> Any:
        return self._named(batch) or self.run.user.example

    def _named(self, batch: Any) -> Any:
        return (self.run.latest or {}) if batch is None else self.run.user.named(batch)

    def _numbers(self, batch: Mapping[str, Tensor], indices: Tensor | None) -> Tensor | None:
        """Numbers the examples of passes that the stack makes: those techniques pick among a batch's examples, whatever
        their numbers are; ones that know examples again get no numbers but the loop's."""
        if indices is not None or self.run.user.examples is not None:
            return None if indices is None else indices.cpu()
        return torch.arange(len(next(iter(batch.values()))))
