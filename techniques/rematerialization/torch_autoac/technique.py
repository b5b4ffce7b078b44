"""Implements torch's automatic activation checkpointing (``torch._functorch.partitioners``): a memory budget for each
block.

AOTAutograd traces a block's forward and backward passes into one graph. Its partitioner finds, by a minimum cut, what
is to be saved if all that is cheap runs again; below a budget of 1, by a knapsack, which further operators run again so
that the fewest FLOPs save enough bytes. The two graphs then run operator by operator, as they would compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from functorch.compile import aot_function, min_cut_rematerialization_partition, nop
from torch import Tensor, nn
from torch._functorch import config
from torch.func import functional_call
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import CheckpointPolicy

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import PLANS, Technique, Unavailable
from suite.model.segments import segment_name, without_cache

Solver = Literal["dp", "greedy", "ilp"]
SOLVERS: tuple[Solver, ...] = ("dp", "greedy", "ilp")


def partition(joint: GraphModule, inputs: Sequence[Any], **options: Any) -> tuple[GraphModule, GraphModule]:
    """Returns torch's partition of a joint graph, in which randomness is saved: its partitioner draws it anew on a CPU.

    Views become reshapes, which are views wherever they can be. Tracing goes by what an operator's fake kernel says of
    strides, and dropout's on the way back says contiguous where the gradient, and so the result, is not.

    Raises ValueError where it does so nonetheless, which it does at a budget of 0.
    """
    for node in filter(_is_random, joint.graph.nodes):
        for changed in (node, *node.users):
            changed.meta |= {"recompute": CheckpointPolicy.MUST_SAVE, "ac_graph_id": 0}
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
    if any(map(_is_random, backward.graph.nodes)):
        raise ValueError("with this budget dropout would be drawn anew in the backward pass: choose one well above 0")
    for changed in (forward, backward):
        for node in changed.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
            node.target = torch.ops.aten.reshape.default
        changed.recompile()
    return forward, backward


def _is_random(node: Node) -> bool:
    """Tells whether a node draws at random; attention's backward operators carry the tag, too, but read the seed that
    the forward pass has kept."""
    drawn = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return drawn and not str(node.target).endswith("_backward.default")


class _Bound(nn.Module):
    """Wraps a block's own forward as a module, so that parameters can stand in for the block's, and no hook runs."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block, self.bound = block, block.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.bound(*args, **kwargs)


class Partitioned:
    """Runs a block's forward, as AOTAutograd's two graphs. Traced once for each form of its arguments."""

    def __init__(self, block: nn.Module, settings: Mapping[str, Any], act: Act) -> None:
        self.bound, self.settings, self.act = _Bound(block), dict(settings), act
        self.graphs: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.bound(*args, **kwargs)
        args = tuple(without_cache(value, 0) for value in args)
        kwargs = {name: without_cache(value, 0) for name, value in kwargs.items()}
        leaves, form = tree_flatten((args, kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        tensors = [leaves[place] for place in places]
        own = dict(self.bound.named_parameters()), dict(self.bound.named_buffers())
        kinds = [(tensor.shape, tensor.dtype, tensor.requires_grad) for tensor in (*own[0].values(), *tensors)]
        rest = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
        rates = [module.p for module in self.bound.modules() if isinstance(module, nn.Dropout)]
        kind = tensors[0].device.type
        modes = self.bound.block.training, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        key = repr((form, kinds, rest, rates, modes))
        if key not in self.graphs:

            def function(parameters: Any, buffers: Any, tensors: list[Tensor]) -> Any:
                filled = list(leaves)
                for place, tensor in zip(places, tensors, strict=True):
                    filled[place] = tensor
                args, kwargs = tree_unflatten(filled, form)
                return functional_call(self.bound, (parameters, buffers), args, kwargs)

            self.graphs[key] = aot_function(function, fw_compiler=nop, bw_compiler=nop, partition_fn=partition)
        self.act()
        with config.patch(self.settings):
            return self.graphs[key](*own, tensors)


@dataclass
class TorchAutoAC(Technique):
    """Gives each block its ``budget``: torch's ``activation_memory_budget`` of each block, from the bytes of its inputs
    (0) to what the minimum cut saves (1), which is less than eager autograd saves; ``solver`` of the knapsack."""

    takes: ClassVar[str] = PLANS
    budget: float = 0.5
    solver: Solver = "dp"

    blocks: dict[str, Partitioned] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.budget <= 1:
            raise ValueError(f"budget is torch's activation_memory_budget, from 0 to 1, not {self.budget}")
        if self.solver not in SOLVERS:
            raise ValueError(f"solver is one of {', '.join(SOLVERS)}, not {self.solver!r}")

    @property
    def settings(self) -> dict[str, Any]:
        return {"activation_memory_budget": self.budget, "activation_memory_budget_solver": self.solver}

    @contextmanager
    def around_step(self, run: Run) -> Iterator[None]:
        with ExitStack() as stack:
            for name, block in _named_blocks(run).items():
                own = self.blocks.get(name)
                if own is None or own.bound.block is not block:
                    own = self.blocks[name] = Partitioned(block, self.settings, Act() if own is None else own.act)
                stack.enter_context(_forward(block, own))
            yield

    def sites(self, run: Run) -> Mapping[str, Site]:
        if run.recipe.compile:
            raise Unavailable(
                "torch.compile partitions the whole model by torch._functorch.config.activation_memory_budget itself; "
                "here each block is partitioned, under the classic and the modern recipe"
            )
        named = _named_blocks(run)
        self.blocks = {name: Partitioned(block, self.settings, Act()) for name, block in named.items()}
        return {name: block.act for name, block in self.blocks.items()}


def _named_blocks(run: Run) -> dict[str, nn.Module]:
    return {
        segment_name(stack.path, number, number + 1): block.module
        for stack in run.anatomy.stacks
        for number, block in enumerate(stack.blocks)
    }


@contextmanager
def _forward(block: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """While active, ``forward`` stands in for the block's."""
    before = vars(block).get("forward")
    block.forward = forward
    try:
        yield
    finally:
        if before is None:
            del block.forward
        else:
            block.forward = before
