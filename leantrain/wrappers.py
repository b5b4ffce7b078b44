"""Wraps sharpness-aware training around any optimizer, in your own loop.

A wrapper is a torch optimizer: schedulers, ``state_dict``, Accelerate and the Trainer of transformers take it where
they take the optimizer that it wraps, whose groups and state it shares. Each needs its caller's help in every step; a
step without raises RuntimeError, since it would be the wrapped optimizer's own. In the Trainer
:class:`leantrain.trainer.SharpnessAware` gives it.

===============  ====================================================================================================
SAM              Foret et al. 2021 (arXiv 2010.01412); ``adaptive`` is ASAM, Kwon et al. 2021 (arXiv 2102.11600)
ESAM             Du et al. 2022 (arXiv 2110.03141): perturbs some of the weights, learns from the sharpest examples
SAF              Du et al. 2022 (arXiv 2205.14083): stays near what the model itself said of an example epochs ago
MESA             the same paper's other form: stays near an average of the weights
===============  ====================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.kernels.sharded import is_distributed
from suite.kernels.wrapped import WrappedOptimizer
from techniques.sharpness.esam.technique import drawn, sharpest
from techniques.sharpness.saf.technique import PastOutputs
from techniques.sharpness.saf_mesa.technique import average_in, frozen
from techniques.sharpness.shared.ascent import ascend, buffers_kept, check_radius, restore
from techniques.sharpness.shared.trajectory import check_trajectory, trajectory_losses


class Wrapper(WrappedOptimizer):
    """Wraps an optimizer whose step needs its caller's help."""

    _step_supports_amp_scaling = False  # a GradScaler unscales the gradients before a step
    help: ClassVar[str] = ""
    """What the caller is to do before each step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._helped = False
        super().__init__(optimizer)

    def _use_help(self) -> None:
        """Raises RuntimeError where the caller gave none since the last step, but for steps of rate 0: checkpoints of
        several ranks make one, for the state."""
        if not self._helped and any(group.get("lr", 1) != 0 for group in self.param_groups):
            raise RuntimeError(
                f"a step of {type(self).__name__} alone is one of the optimizer that it wraps: before each, {self.help}"
            )
        self._helped = False


class SAM(Wrapper):
    """Steps along the gradient taken at the worst point of a ball of radius ``rho`` around the weights.

        >>> optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.05)
        >>> loss_of(model).backward()
        >>> with optimizer.worst_point():     # the weights are there, gradients are zero
        ...     loss_of(model).backward()
        >>> optimizer.step()                  # from the weights as they were, to the bit

    ``step(closure)`` does all of it with a closure that returns the loss after its backward pass. Gradients of several
    ranks are as the model leaves them: averaged under DDP, sharded under FSDP2, where the norm is over all ranks. The
    worst point has memory of its own: a CUDA graph of the forward pass alone (``torch.cuda.make_graphed_callables``)
    would go on reading the weights. With ``model``, its running statistics (batch norm's) are those of the first pass,
    at the weights themselves; an optimizer alone cannot see them, and they move twice a step.
    """

    help = (
        "compute the gradients anew inside worst_point(), or give step a closure; in the Trainer of transformers add "
        "the callback leantrain.trainer.SharpnessAware"
    )

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        rho: float = 0.05,
        adaptive: bool = False,
        model: nn.Module | None = None,
    ) -> None:
        check_radius(rho)
        super().__init__(optimizer)
        self.rho, self.adaptive, self.model = rho, adaptive, model

    @contextmanager
    def worst_point(self) -> Iterator[None]:
        """Moves the weights along the gradients that are there, and clears those; back at the end, also by an error."""
        parameters = self.with_gradient()
        if not parameters:
            raise RuntimeError("SAM climbs along the gradient, and there is none: call loss.backward() before")
        weights = ascend(parameters, self.rho, adaptive=self.adaptive)
        try:
            self.zero_grad()
            with buffers_kept(self.model):
                yield
            self._helped = True
        finally:
            restore(parameters, weights)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is None:
            self._use_help()
            return self.optimizer.step()
        with torch.enable_grad():
            self.zero_grad()
            loss = closure()
            with self.worst_point():
                closure()
        self._use_help()
        self.optimizer.step()
        return loss


class ESAM(Wrapper):
    """Implements SAM of which each tensor is perturbed with probability ``beta``, and which learns from the share
    ``gamma`` of the batch whose loss the perturbation raises most.

        >>> optimizer = ESAM(torch.optim.SGD(model.parameters(), lr=0.1))
        >>> def losses(kept):                  # of each example; kept has the indices of those to take, or is None
        ...     those = slice(None) if kept is None else kept
        ...     return F.cross_entropy(model(inputs[those]), targets[those], reduction="none")
        >>> optimizer.step(losses)

    ``step`` returns the mean loss before. All passes of a step draw the same noise. Layers that keep running statistics
    see each pass. Which tensors are perturbed comes from ``seed``, equal on every rank; each rank chooses among its own
    examples. In a program of several ranks all gradients are computed, and not only those of the perturbed tensors:
    what reduces them waits for all.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        rho: float = 0.05,
        beta: float = 0.6,
        gamma: float = 0.5,
        seed: int = 0,
    ) -> None:
        check_radius(rho)
        for name, share in (("beta", beta), ("gamma", gamma)):
            if not 0 < share <= 1:
                raise ValueError(f"{name} is a share in (0, 1], not {share}")
        super().__init__(optimizer)
        self.rho, self.beta, self.gamma = rho, beta, gamma
        self.generator_state = torch.Generator().manual_seed(seed).get_state()

    def step(self, closure: Callable[[Tensor | None], Tensor] | None = None) -> Tensor:  # type: ignore[override]
        if closure is None:
            raise ValueError("ESAM needs the loss of each example, three times: give step a function of kept examples")
        generator = torch.Generator()
        generator.set_state(self.generator_state)
        trained = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        chosen = drawn(trained, self.beta, generator)
        self.generator_state = generator.get_state()
        self.zero_grad()
        with torch.enable_grad():
            with torch.random.fork_rng(_devices(trained)):
                before = closure(None)
                if before.ndim != 1:
                    raise ValueError(f"ESAM chooses examples: return the loss of each, not {list(before.shape)}")
                if chosen:
                    several = torch.distributed.is_available() and torch.distributed.is_initialized()
                    before.mean().backward(inputs=None if several else chosen)
            moved = [parameter for parameter in chosen if parameter.grad is not None]
            weights = ascend(moved, self.rho / self.beta) if moved else []
            try:
                self.zero_grad()
                kept = None
                if self.gamma < 1:
                    with torch.no_grad(), torch.random.fork_rng(_devices(trained)):
                        kept = sharpest(closure(None) - before.detach(), self.gamma)
                closure(kept).mean().backward()
            finally:
                if moved:
                    restore(moved, weights)
        self.optimizer.step()
        return before.detach().mean()

    def own_state(self) -> dict[str, Any]:
        return {"generator": self.generator_state}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.generator_state = state["generator"].cpu()


class SAF(Wrapper):
    """Keeps the logits of each of ``examples`` from ``epochs_ago`` visits before, in host memory; its term is added.

        >>> optimizer = SAF(torch.optim.SGD(model.parameters(), lr=0.1), examples=len(dataset), classes=10)
        >>> logits = model(inputs)
        >>> loss = F.cross_entropy(logits, targets) + optimizer.term(logits, indices)   # of the data set
        >>> loss.backward()
        >>> optimizer.step()

    ``start`` is the number of steps from which on the term counts: the authors' 5 of 90 epochs. Under FSDP2 each rank
    keeps what all of them have said, so that an example may come back on another. DDP is nothing that an optimizer can
    see: there a rank keeps what it has said itself, and examples should stay with their rank.
    """

    help = "add term(logits, indices) to the loss"

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        examples: int,
        classes: int,
        strength: float = 0.3,
        temperature: float = 5.0,
        epochs_ago: int = 3,
        start: int = 0,
    ) -> None:
        check_trajectory(strength, temperature, 0.0)
        if epochs_ago < 1 or start < 0:
            raise ValueError(f"epochs_ago is at least 1 and start, a step, at least 0, not {epochs_ago} and {start}")
        super().__init__(optimizer)
        self.strength, self.temperature, self.start = strength, temperature, start
        self.past = PastOutputs(epochs_ago, examples, classes)
        self.steps, self.seen = 0, list[tuple[Tensor, Tensor]]()

    def term(self, logits: Tensor, indices: Tensor) -> Tensor:
        """Computes strength tau^2 KL(past || now), the mean over a batch; 0 for examples without a past. Shapes [batch,
        classes] and [batch]. The logits become the past at the step."""
        if logits.ndim != 2 or len(logits) != len(indices):
            raise ValueError(
                f"SAF keeps one row of class logits for each example, not {list(logits.shape)} for {len(indices)}"
            )
        self._helped = True
        self.seen.append((indices.cpu(), logits.detach()))
        before, known = self.past.get(indices.cpu())
        if self.steps < self.start or not known.any():
            return logits.new_zeros(())
        divergences = trajectory_losses(logits, before.to(logits.device, non_blocking=True), self.temperature)
        return self.strength * (divergences * known.to(logits.device)).mean()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is None:
            self._use_help()
        loss = self.optimizer.step(closure)
        for indices, logits in self._of_all_ranks(self.seen):
            self.past.put(indices, logits)
        self.seen.clear()
        self.steps += 1
        return loss

    def _of_all_ranks(self, seen: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        """Returns what each rank of the parameters' mesh has seen in this step, on the host."""
        mesh = next((p.device_mesh for each in self.param_groups for p in each["params"] if is_distributed(p)), None)
        if mesh is None:
            return seen
        for dimension in range(mesh.ndim):
            group = mesh.get_group(dimension)
            by_rank: list[list[tuple[Tensor, Tensor]]] = [[]] * group.size()
            torch.distributed.all_gather_object(by_rank, [(i, logits.cpu()) for i, logits in seen], group=group)
            seen = [each for of_rank in by_rank for each in of_rank]
        return seen

    def own_state(self) -> dict[str, Any]:
        return {"steps": self.steps, "outputs": self.past.outputs, "visits": self.past.visits}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.past.outputs, self.past.visits = state["outputs"].cpu(), state["visits"].cpu()


class MESA(Wrapper):
    """Keeps v <- decay v + (1 - decay) w of ``model``, whose outputs teach it; the term is added to the loss.

        >>> optimizer = MESA(torch.optim.SGD(model.parameters(), lr=0.1), model)
        >>> logits = model(inputs)
        >>> loss = F.cross_entropy(logits, targets) + optimizer.term(logits, lambda teacher: teacher(inputs))
        >>> loss.backward()
        >>> optimizer.step()

    The ``teacher`` begins as a copy of the model. One that FSDP2 has sharded cannot be copied: there copy it before,
    shard both alike, and give the copy.
    """

    help = "add term(logits, taught) to the loss"

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        strength: float = 0.8,
        temperature: float = 5.0,
        decay: float = 0.9998,
        start: int = 0,
        teacher: nn.Module | None = None,
    ) -> None:
        check_trajectory(strength, temperature, 0.0)
        if teacher is None and any(map(is_distributed, model.parameters())):
            raise ValueError(
                "a model that FSDP2 has sharded cannot be copied: copy it before, shard both alike, and give the copy "
                "as teacher"
            )
        if not 0 <= decay < 1 or start < 0:
            raise ValueError(f"decay lies in [0, 1) and start, a step, is at least 0, not {decay} and {start}")
        super().__init__(optimizer)
        self.model = model
        self.teacher = frozen(model) if teacher is None else teacher.eval().requires_grad_(False)
        self.strength, self.temperature, self.decay, self.start, self.steps = strength, temperature, decay, start, 0

    def term(self, logits: Tensor, taught: Callable[[nn.Module], Tensor]) -> Tensor:
        """Computes strength tau^2 KL(teacher || now), the mean over the rows of logits [..., classes]."""
        self._helped = True
        if self.steps < self.start:
            return logits.new_zeros(())
        with torch.no_grad():
            past = taught(self.teacher)
        now, then = logits.flatten(0, -2), past.flatten(0, -2)
        return self.strength * trajectory_losses(now, then, self.temperature).mean()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is None:
            self._use_help()
        loss = self.optimizer.step(closure)
        average_in(self.teacher, self.model, self.decay)
        self.steps += 1
        return loss

    def own_state(self) -> dict[str, Any]:
        return {"steps": self.steps, "teacher": self.teacher.state_dict()}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.teacher.load_state_dict(state["teacher"])


def _devices(parameters: list[Tensor]) -> list[torch.device]:
    return list({each.device for each in parameters if each.is_cuda})
