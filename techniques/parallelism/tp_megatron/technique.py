"""Implements Megatron-LM's tensor parallelism (Shoeybi et al., 2019, section 3): ranks divide each layer, two
all-reduces a pass.

With heads and hidden units divided among ranks, of which r is one::

    attention   Z = g( sum over own heads: softmax(Q_h K_h^T / sqrt(d)) V_h B_h ),  Q, K, V = f(X) A_r      + bias
    MLP         Z = g( GeLU(f(X) A_r) B_r )                                                                  + bias

    f           forward: identity         backward: all-reduce of the gradient
    g           forward: all-reduce       backward: identity

Columns of A and rows of B are cut (figure 3), a fused A by heads. All else is replicated: embeddings, norms, the biases
that follow g, the head. It gets the same gradient on all ranks, and stays equal. Every rank sees the whole batch.
Dropout between f and g differs among ranks, all other is one on all (section 3, last paragraph).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from suite.device.random_state import RandomState
from suite.loop.data import Batch, mixed_seed
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import ParameterGroups, Technique, overrides
from suite.model.anatomy import is_transposed, weight_matrix
from suite.model.calls import undisturbed
from suite.record.job import StackError
from techniques.parallelism.tp_megatron.division import Division, linear
from techniques.shared.replicas import begin_alike

WITHIN = 4  # the stream of random numbers between f and g


class CopyToRanks(torch.autograd.Function):
    """Implements f: each rank computes its part from the whole of ``x``, whose gradient is the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class ReduceFromRanks(torch.autograd.Function):
    """Implements g: the sum of what the ranks made; it takes the place of ``partial``."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: ProcessGroup) -> Tensor:
        ctx.mark_dirty(partial)
        dist.all_reduce(partial, group=group)
        return partial

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def row_parallel(x: Tensor, weight: Tensor, bias: Tensor | None, group: ProcessGroup) -> Tensor:
    """Maps [..., own in_features], [out_features, own in_features] -> [..., out_features], summed over ranks; the bias
    is added once, after it."""
    total: Tensor = ReduceFromRanks.apply(F.linear(x, weight), group)
    return total if bias is None else total + bias.to(total.dtype)


class Region:
    """Holds what is between f and g: one attention, or one MLP.

    Layers that read one tensor (query, key and value; a gate and what it gates) share one f, so that its gradient is
    reduced once. ``seed`` says, of a step, where the rank's own random numbers begin.
    """

    def __init__(self, number: int, run: Run) -> None:
        self.number, self.run = number, run
        self.read: Tensor | None = None
        self.copied: Tensor | None = None
        self.outside: RandomState | None = None
        self.reduced = Act()

    def enter(self, layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Applies before a layer that makes the own part: f."""
        x, *others = args
        if self.read is not x:
            self.read, self.copied = x, CopyToRanks.apply(x, self.run.group)
        if layer.training and self.outside is None:
            run = self.run
            self.outside = RandomState.now(run.device)
            torch.manual_seed(mixed_seed(run.seed, WITHIN, run.step, self.number, run.rank))
        return self.copied, *others

    def leave(self, layer: RowParallel, x: Tensor) -> Tensor:
        """Runs the layer that joins the parts: g."""
        if self.outside is not None:
            self.outside.restore()
        self.read = self.copied = self.outside = None
        self.reduced()
        return row_parallel(x, weight_matrix(layer), layer.bias, self.run.group)

    def __deepcopy__(self, memo: dict[int, Any]) -> Region:
        return self  # a copy of the model has the same ranks


class RowParallel(nn.Module):
    """Replaces a linear layer, by the same names, of which each rank has some inputs. It ends a :class:`Region`."""

    def __init__(self, layer: Any, region: Region) -> None:
        super().__init__()
        self.weight, self.bias, self.region = layer.weight, layer.bias, region
        names = ("nx", "nf") if is_transposed(layer) else ("in_features", "out_features")
        for name in names:
            setattr(self, name, getattr(layer, name))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [..., own in_features] -> [..., out_features]."""
        return self.region.leave(self, x)


@dataclass
class TensorParallel(Technique):
    """Composes with optimizers whose update is elementwise: a rank has a part of a matrix alone."""

    ranks: int = 2

    run: Run | None = field(init=False, repr=False, default=None)
    division: Division | None = field(init=False, repr=False, default=None)
    regions: list[Region] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ValueError(f"layers are divided among 2 ranks or more, not {self.ranks}")

    def recipe(self, recipe: Recipe) -> Recipe:
        if recipe.compile:
            raise ValueError("layers that ranks divide are not compiled: take the recipe classic or modern")
        return replace(recipe, world_size=self.ranks)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        self.run = run
        return model

    def parallelize(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        assert self.run is not None
        run = self.run
        begin_alike(model, mesh.get_group())
        self.division = self._division(model, run)
        self.division.take(model, run.rank)
        self.regions = [Region(number, run) for number in range(len(self.division.regions))]
        for units, region in zip(self.division.regions, self.regions, strict=True):
            for path in units.rows:
                linear(model, path).module.register_forward_pre_hook(region.enter)
            joint = linear(model, units.joint)
            owner, _, name = joint.path.rpartition(".")
            setattr(model.get_submodule(owner), name, RowParallel(joint.module, region))
        self._check_inside(model)
        return model

    def _division(self, model: nn.Module, run: Run) -> Division:
        """Raises StackError where another technique has made layers that cannot be cut, else as :meth:`Division.of`:
        where the model is no better without any."""
        try:
            return Division.of(model, lambda: run.trial(model), self.ranks)
        except ValueError as error:
            others = getattr(run.technique, "techniques", {})
            changing = [name for name, own in others.items() if own is not self and overrides(own, "model")]
            if not changing:
                raise
            found, _, _ = str(error).partition(": ")  # what follows is advice, or an error of torch's
        plain = run.plain_model()
        Division.of(plain, lambda: run.trial(plain), self.ranks)
        raise StackError(
            f"tp_megatron and {' and '.join(changing)} cannot be stacked: ranks cannot divide the layers that are left "
            f"({found}); take dp_ddp, whose ranks have whole ones"
        )

    def _check_inside(self, model: nn.Module) -> None:
        """Raises ValueError where a replicated parameter is used between f and g, of whose gradient a rank has a part
        alone (a norm of queries and keys, a table of relative positions)."""
        assert self.run is not None and self.division is not None
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        inside: set[str] = set()

        def note(layer: nn.Module, args: tuple[Any, ...]) -> None:
            inside.update(names[id(leaf)] for leaf in leaves_up_to_f(args[0]) if id(leaf) in names)

        joints = [module for module in model.modules() if isinstance(module, RowParallel)]
        hooks = [joint.register_forward_pre_hook(note) for joint in joints]
        with undisturbed(model), torch.enable_grad():
            model.eval()
            self.run.trial(model)
        for hook in hooks:
            hook.remove()
        if others := sorted(inside - self.division.cuts.keys()):
            raise ValueError(f"{others[0]} belongs to heads or units of all ranks: use a model whose layers share none")

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        cut = self._cut(run.model)
        parts = (
            {
                **group,
                "params": [parameter for parameter in group["params"] if (id(parameter) in cut) is sharded],
                "sharded": sharded,
            }
            for group in groups
            for sharded in (True, False)
        )
        return [part for part in parts if part["params"]]

    def _cut(self, model: nn.Module) -> set[int]:
        cuts = self.division.cuts if self.division is not None else {}
        return {id(parameter) for name, parameter in model.named_parameters() if name in cuts}

    def sites(self, run: Run) -> Mapping[str, Site]:
        reductions = {f"reduces in region {region.number}": region.reduced for region in self.regions}
        return {**reductions, **run.trained_parameters()}

    def update(self, run: Run, batch: Batch) -> None:
        if run.step == 0:
            torch.manual_seed(mixed_seed(run.seed, 1, 0))  # dropout outside of f and g is the first rank's
        run.optimizer.zero_grad(set_to_none=True)
        loss = run.forward(self._whole_batch(run))
        run.backward(loss)
        run.loss = loss.detach()
        if run.technique.after_backward(run):
            return
        if limit := run.recipe.gradient_clip:
            self._clip(run, limit)
        run.optimizer.step()

    def _whole_batch(self, run: Run) -> Batch:
        batch, run.indices = run.data.batch(mixed_seed(run.seed, 2), run.position, run.recipe.batch_size)
        return {name: tensor.to(run.device) for name, tensor in batch.items()}

    def _clip(self, run: Run, limit: float) -> None:
        """Clips by the norm over all ranks, in which what is replicated counts once."""
        cut = self._cut(run.model)
        for together in run.clipped_together(run.model.parameters()):
            squared = _square([parameter for parameter in together if id(parameter) in cut])
            dist.all_reduce(squared, group=run.group)
            norm = (squared + _square([parameter for parameter in together if id(parameter) not in cut])).sqrt()
            nn.utils.clip_grads_with_norm_(together, limit, norm)

    def evaluated(self, model: nn.Module, run: Run) -> nn.Module:
        """Returns the whole model, on every rank."""
        if self.division is None:
            return model

        def gather(part: Tensor) -> list[Tensor]:
            parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(self.ranks)]
            dist.all_gather(parts, part.contiguous(), group=run.group)
            return parts

        return self.division.whole(model, gather)


def leaves_up_to_f(x: Tensor) -> list[Tensor]:
    """Finds the parameters that ``x`` was made with since f."""
    leaves, waiting, seen = [], [x.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or node.name() == "CopyToRanksBackward":
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves.append(leaf)
        waiting += [following for following, _ in node.next_functions]
    return leaves


def _square(parameters: Sequence[Tensor]) -> Tensor:
    return nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None]).square()
