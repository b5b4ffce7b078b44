"""Finds a model's Transformer blocks and their parts, by structure.

Techniques never spell a model's attribute names: they ask ``anatomy(model)``. Blocks are the children of a ModuleList
or Sequential that have one class and each hold attention (a path, or else a class, with ``attn`` or ``attention``), a
matrix beside it and linear layers. In a hybrid's ModuleList some do, and the layers between them, which mix tokens
otherwise, are blocks without attention. An encoder and a decoder are two stacks. A linear layer is what has
``in_features`` and ``out_features``, or GPT-2's transposed Conv1D; the search does not look inside one, so a wrapper
that passes these attributes on (:class:`AroundLinear`) still counts as the linear layer that it wraps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from suite.model.attention import AttentionFunction, AttentionSites
from suite.model.depth import check_alike, pin, pinned, set_blocks
from suite.model.held import is_elsewhere, stage_of
from suite.model.segments import Wrapper, segmented

Projection = Literal["query", "key", "value", "qkv"]

ATTENTION = re.compile("attn|attention", re.IGNORECASE)
HEADS = re.compile(r"(num|n)_?(attention_|attn_|q_)?heads?")
PROJECTION_NAMES: dict[Projection, set[str]] = {
    "query": {"q", "query", "wq"},
    "key": {"k", "key", "wk"},
    "value": {"v", "value", "wv"},
}


class NoBlocks(ValueError):
    """Is raised where no Transformer blocks are found in the model."""


class NoAttention(NoBlocks):
    """Is raised where a model has no attention, so that it is no Transformer."""


class PartOfModel(ValueError):
    """Is raised where what was asked is of the whole model, of which this process holds a part."""


class Part(NamedTuple):
    """Holds a module and its dotted name in the model."""

    path: str
    module: nn.Module


# linear layers ------------------------------------------------------------------------------------------------------


def is_transposed(linear: nn.Module) -> bool:
    """Tells whether the weight is stored in × out, as in GPT-2's Conv1D (``nf`` output features, y = x W + b)."""
    features = getattr(linear, "nf", None)
    weight = getattr(linear, "weight", None)
    return isinstance(features, int) and weight is not None and weight.ndim == 2 and weight.shape[1] == features


def is_linear(module: nn.Module) -> bool:
    """Tells whether the module is a linear layer: ``in_features`` and ``out_features``, or a Conv1D."""
    sizes = (getattr(module, "in_features", None), getattr(module, "out_features", None))
    return all(isinstance(size, int) for size in sizes) or is_transposed(module)


def in_features(linear: nn.Module) -> int:
    """Returns the size of the last dimension of a linear layer's input."""
    return getattr(linear, "in_features", None) or weight_matrix(linear).shape[1]


def out_features(linear: nn.Module) -> int:
    """Returns the size of the last dimension of a linear layer's output."""
    return getattr(linear, "out_features", None) or weight_matrix(linear).shape[0]


def weight_matrix(linear: nn.Module) -> Tensor:
    """Returns the weight as [out_features, in_features]: the parameter itself, or a view of it that writes through."""
    weight: Tensor = linear.weight  # type: ignore[assignment]
    return weight.T if is_transposed(linear) else weight


class AroundLinear(nn.Module):
    """Serves as base of modules that stand in for a linear layer and still use it: adapters, branch scales, quantisers.

    Subclasses override ``forward``. Every attribute that the wrapper lacks (``weight``, ``bias``, ``in_features``, ...)
    is the wrapped layer's, so that models which read them, and techniques stacked on top, see a linear layer.
    """

    linear: nn.Module

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        """Maps [..., in_features] -> [..., out_features]."""
        return self.linear(x)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "linear":  # before __init__ has run, e.g. while copying
                raise
            return getattr(super().__getattr__("linear"), name)


# blocks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """Describes one Transformer block.

    Attributes:
        index: position in its stack.
        width: size of the residual stream.
        attention: the module that holds the (self-)attention's linear layers; with its own path.
        attention_linears: all linear layers under an attention path, cross-attention included.
        projections: what the self-attention projects its input with: ``qkv``, or ``query``, ``key`` and ``value``.
        mlp_linears: the block's other linear layers; of a hybrid's block without attention, those that read or write
            the residual stream.
        norms: normalisations over the model's width (not those of queries and keys).
        attention_output, mlp_output: the layers whose outputs join the residual stream; None where there is none.
        branches: all such layers, in order; a block with cross-attention has three, and where a hybrid's block has no
            attention, what it has in its place is one.
    """

    path: str
    module: nn.Module
    index: int
    width: int
    attention: Part
    attention_linears: tuple[Part, ...]
    projections: dict[Projection, Part]
    attention_output: Part | None
    mlp_linears: tuple[Part, ...]
    mlp_output: Part | None
    norms: tuple[Part, ...]
    branches: tuple[Part, ...]

    @property
    def attends(self) -> bool:
        """Tells whether it has attention: a hybrid's other layers have none."""
        return bool(self.attention_linears) or self.attention.path != self.path

    @property
    def linears(self) -> tuple[Part, ...]:
        """Returns all linear layers of the block."""
        return self.attention_linears + self.mlp_linears


@dataclass(frozen=True)
class BlockStack:
    """Holds consecutive blocks in one container. ``heads`` is None where the model does not say."""

    path: str
    container: nn.ModuleList | nn.Sequential
    blocks: tuple[Block, ...]
    width: int
    heads: int | None

    @property
    def depth(self) -> int:
        return len(self.blocks)

    def check_alike(self) -> None:
        """Raises ValueError where a copy of one block in another's place would make another model."""
        check_alike(self)


@dataclass
class Anatomy:
    """Holds the parts of one model, as it is now: :meth:`replace` and :meth:`set_blocks` refresh it.

    Of a model that a process holds in part (:mod:`suite.model.held`) it has the blocks that are there, a stack for each
    stage, and no ``main`` one. ``stacks`` are in the model's order; ``main`` is the one that had most parameters when
    they were first seen, and ``blocks``, ``depth``, ``width`` and ``heads`` are the main stack's. Use ``every_block``
    or ``linears`` for what concerns the whole model.
    """

    model: nn.Module

    # what there is ----------------------------------------------------------------------------------------------

    @cached_property
    def stacks(self) -> tuple[BlockStack, ...]:
        """Returns all stacks, in the model's order; raises NoBlocks."""
        stacks = tuple(stack for path, container in _containers(self.model) for stack in _stacks(path, container))
        if not stacks:
            raise _no_blocks(self.model)
        return stacks

    @property
    def is_part(self) -> bool:
        """Tells whether other processes hold the rest of the model."""
        return stage_of(self.stacks[0].blocks[0].module) is not None

    @cached_property
    def main(self) -> BlockStack:
        """Returns the stack with the most parameters (of a masked auto-encoder, the encoder); it stays so as it
        shrinks. Raises PartOfModel."""
        if self.is_part:
            raise PartOfModel("a technique acts on all blocks of the model together")
        pin(self)
        return next(stack for stack in self.stacks if (seen := pinned(stack)) and seen.main)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Returns the main stack's blocks."""
        return self.main.blocks

    @property
    def every_block(self) -> tuple[Block, ...]:
        """Returns the blocks of all stacks."""
        return tuple(block for stack in self.stacks for block in stack.blocks)

    @property
    def attending_blocks(self) -> tuple[Block, ...]:
        """Returns the blocks of all stacks that have attention: all but some of a hybrid's."""
        return tuple(block for block in self.every_block if block.attends)

    @property
    def linears(self) -> tuple[Part, ...]:
        """Returns the linear layers in all blocks of all stacks."""
        return tuple(part for block in self.every_block for part in block.linears)

    @property
    def depth(self) -> int:
        """Counts the blocks in the main stack."""
        return self.main.depth

    @property
    def width(self) -> int:
        """Returns the size of the main stack's residual stream."""
        return self.main.width

    @property
    def heads(self) -> int | None:
        """Counts the attention heads in a block of the main stack; None where the model does not say."""
        return self.main.heads

    @cached_property
    def embeddings(self) -> tuple[Part, ...]:
        """Returns the embedding tables outside the blocks."""
        return tuple(part for part in self._outside() if isinstance(part.module, nn.Embedding))

    @cached_property
    def head(self) -> tuple[Part, ...]:
        """Returns the output layers: linear layers outside the blocks that leave the residual stream's width."""
        linears = tuple(part for part in self._outside() if is_linear(part.module))
        widths = {stack.width for stack in self.stacks} | {
            embedding.module.embedding_dim for embedding in self.embeddings
        }
        leaving = tuple(part for part in linears if out_features(part.module) not in widths)
        return leaving or linears[-1:]

    def _outside(self) -> Iterator[Part]:
        inside = {id(stack.container) for stack in self.stacks}
        yield from _outermost(
            self.model, "", lambda module: is_linear(module) or isinstance(module, nn.Embedding), inside
        )

    # changing it ------------------------------------------------------------------------------------------------

    def replace(self, path: str, module: nn.Module) -> None:
        """Puts ``module`` at ``path``. Where one module stands at two paths (tied), only this one changes."""
        parent, _, name = path.rpartition(".")
        owner = self.model.get_submodule(parent)
        if name not in owner._modules:
            raise KeyError(f"the model has no module {path!r}; take paths from a fresh anatomy(model)")
        setattr(owner, name, module)
        self._refresh()

    def set_blocks(self, blocks: Sequence[nn.Module], stack: BlockStack | None = None) -> None:
        """Makes ``blocks`` the whole of a stack (the main one), e.g. the old ones and deep copies, or a part of them.

        Keeps the container; renumbers layer indices in the blocks; updates the depth where the configuration or a
        module above the stack states it. Raises ValueError on no blocks and on mixed layer types that it cannot extend.
        """
        set_blocks(self, stack or self.main, list(blocks))
        self._refresh()

    def _refresh(self) -> None:
        for name in ("stacks", "main", "embeddings", "head", "attention_sites"):
            self.__dict__.pop(name, None)

    # running it otherwise ---------------------------------------------------------------------------------------

    def segmented(
        self, segments: Sequence[tuple[int, int]], wrapper: Wrapper, stack: BlockStack | None = None
    ) -> AbstractContextManager[None]:
        """While active, blocks [i, j) of a stack (the main one) run as one: :func:`suite.model.segments.segmented`."""
        chosen = stack or self.main
        return segmented([block.module for block in chosen.blocks], segments, wrapper, chosen.path)

    @cached_property
    def attention_sites(self) -> AttentionSites:
        """Returns the places where blocks compute attention."""
        return AttentionSites(self.model, [block.module for block in self.attending_blocks])

    def attention(self, function: AttentionFunction) -> AbstractContextManager[None]:
        """While active, ``function`` computes every block's attention; raises NotSwappable. Pass one function object
        again and again rather than a new closure per step: each distinct one is registered once and kept."""
        return self.attention_sites.swapped(function)

    def set_fused_attention(self, on: bool) -> None:
        """Sets fused (scaled_dot_product_attention) or eager attention with materialised scores; raises
        NotSwappable."""
        self.attention_sites.set_fused(on)


def anatomy(model: nn.Module) -> Anatomy:
    """Returns the anatomy of a model; raises NoBlocks when it has no Transformer blocks."""
    parts = Anatomy(model)
    pin(parts)
    return parts


def check_attend(blocks: Sequence[Block]) -> None:
    """Raises ValueError where a block of a hybrid has no attention."""
    for block in blocks:
        if not block.attends:
            raise ValueError(
                f"{block.path} has no attention, as some layers of a hybrid, and this is done to every block's: use a "
                "model whose blocks all attend"
            )


# finding ------------------------------------------------------------------------------------------------------------


def _no_blocks(model: nn.Module) -> NoBlocks:
    name = type(model).__name__
    where = next(
        (f"{path} ({type(module).__name__})" for path, module in model.named_modules() if _attends(path, module)), ""
    )
    if not where:
        return NoAttention(
            f"no Transformer blocks in {name}, which has no attention (no path or class with 'attn' or 'attention'): "
            "use a Hugging Face or timm Transformer, or name the attention submodule of your blocks 'attn'"
        )
    return NoBlocks(
        f"cannot tell the blocks of {name}, which has attention at {where}: leantrain looks for a ModuleList or "
        "Sequential of blocks, each with linear layers, some with attention; keep your blocks in one such list"
    )


def _attends(path: str, module: nn.Module) -> bool:
    """Tells whether a module is attention by its own name or its class's."""
    return bool(ATTENTION.search(path.rpartition(".")[2]) or ATTENTION.search(type(module).__name__))


def _outermost(
    module: nn.Module, path: str, wanted: Callable[[nn.Module], bool], skipped: set[int] | None = None
) -> Iterator[Part]:
    """Yields the modules that are ``wanted`` and not inside another such one, in registration order, each object
    once."""
    seen = set(skipped or ())

    def walk(module: nn.Module, path: str) -> Iterator[Part]:
        for name, child in module.named_children():
            if id(child) in seen:
                continue
            seen.add(id(child))
            child_path = f"{path}.{name}" if path else name
            if wanted(child):
                yield Part(child_path, child)
            else:
                yield from walk(child, child_path)

    yield from walk(module, path)


def _containers(model: nn.Module) -> list[tuple[str, nn.ModuleList | nn.Sequential]]:
    """Returns the innermost lists of modules that are a stack of blocks (innermost: not Swin's stages)."""
    containers: list[tuple[str, nn.ModuleList | nn.Sequential]] = []
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module):
            held = [child for child in module if not is_elsewhere(child)]
            if held and _is_stack(module, held):
                containers = [
                    (outer, container) for outer, container in containers if outer and not path.startswith(f"{outer}.")
                ]
                containers.append((path, module))
    return containers


def _is_stack(container: nn.ModuleList | nn.Sequential, held: Sequence[nn.Module]) -> bool:
    """Tells whether all modules look like Transformer blocks of one class; or, in a ModuleList, some do, and the others
    mix tokens otherwise: a hybrid's layers, with linear layers that read and write the same residual stream."""
    blocks = [child for child in held if _looks_like_block(child)]
    if len(blocks) == len(held) and len({type(child) for child in container}) == 1:
        return True
    if not blocks or not isinstance(container, nn.ModuleList):
        return False
    width = _width(blocks[0])
    sizes = [
        [(in_features(part.module), out_features(part.module)) for part in _outermost(child, "", is_linear)]
        for child in held
    ]
    return all({width} <= {i for i, _ in of} & {o for _, o in of} for of in sizes)


def _looks_like_block(module: nn.Module) -> bool:
    roots = attention_roots(module)
    matrices = [name for name, parameter in module.named_parameters() if parameter.ndim >= 2]
    in_attention = [is_in_attention(name, roots) for name in matrices]
    linear_inside = next(_outermost(module, "", is_linear), None) is not None
    return linear_inside and any(in_attention) and not all(in_attention)


def attention_roots(block: nn.Module) -> tuple[str, ...]:
    """Returns the paths within a block of the modules whose class alone says that they are attention; none where paths
    say it."""
    if any(ATTENTION.search(name) for name, parameter in block.named_parameters() if parameter.ndim >= 2):
        return ()
    return tuple(part.path for part in _outermost(block, "", lambda module: _attends("", module)))


def is_in_attention(path: str, roots: Sequence[str]) -> bool:
    """Tells whether what is at ``path`` in a block belongs to its attention."""
    return bool(ATTENTION.search(path)) or any(path.startswith(f"{root}.") for root in roots)


def _stacks(path: str, container: nn.ModuleList | nn.Sequential) -> Iterator[BlockStack]:
    """Yields all blocks of a container; where the process holds a part alone, those of each of its stages."""
    held = [(i, child) for i, child in enumerate(container) if not is_elsewhere(child)]
    for _, numbered in groupby(held, key=lambda entry: stage_of(entry[1])):
        children = list(numbered)
        width = _width(next((child for _, child in children if _looks_like_block(child)), children[0][1]))
        blocks = tuple(_block(f"{path}.{i}" if path else str(i), child, i, width) for i, child in children)
        yield BlockStack(path, container, blocks, width, _heads(blocks[0].attention.module))


def _width(block: nn.Module) -> int:
    """Returns the size that most of the block's linear layers read or write (not SwinV2's first: it makes a position
    bias)."""
    linears = [part.module for part in _outermost(block, "", is_linear)]
    return Counter(size for linear in linears for size in (in_features(linear), out_features(linear))).most_common(1)[
        0
    ][0]


def _block(path: str, module: nn.Module, index: int, width: int) -> Block:
    linears = list(_outermost(module, path, is_linear))
    by_attention: dict[str, list[Part]] = {}
    mlp = []
    roots = attention_roots(module)
    for part in linears:
        owner = _attention_path(part.path[len(path) + 1 :], roots)
        if owner is None:
            mlp.append(part)
        else:
            by_attention.setdefault(owner, []).append(part)
    own = next(iter(by_attention), _attention_module_path(module, roots))
    mixers: list[list[Part]] = []
    if not own and not by_attention:  # a mixer calls its inner layers as it likes, or computes with their weights alone
        mlp = [part for part in mlp if width in (in_features(part.module), out_features(part.module))]
        mixers = [list(of) for _, of in groupby(mlp, lambda part: part.path[len(path) + 1 :].partition(".")[0])][:-1]
    projections = _projections(by_attention.get(own, []), f"{path}.{own}" if own else path)
    taken = {part.path for part in projections.values()}
    outputs = [_output(parts, width, taken) for parts in (*by_attention.values(), *mixers)]
    mlp_output = _output(mlp, width, set())
    norms = tuple(
        Part(f"{path}.{name}", norm)
        for name, norm in module.named_modules()
        if "norm" in type(norm).__name__.lower() and not any(norm.children()) and _spans(norm, width)
    )
    return Block(
        path=path,
        module=module,
        index=index,
        width=width,
        attention=Part(f"{path}.{own}" if own else path, module.get_submodule(own)),
        attention_linears=tuple(part for parts in by_attention.values() for part in parts),
        projections=projections,
        attention_output=outputs[0] if outputs and not mixers else None,
        mlp_linears=tuple(mlp),
        mlp_output=mlp_output,
        norms=norms,
        branches=tuple(part for part in (*outputs, mlp_output) if part is not None),
    )


def _attention_path(path: str, roots: Sequence[str]) -> str | None:
    """Returns the attention module that a linear layer at ``path`` (within its block) belongs to; "" is the block
    itself."""
    if root := next((root for root in roots if path.startswith(f"{root}.")), None):
        return root
    names = path.split(".")
    for position, name in enumerate(names):
        if ATTENTION.search(name):
            return ".".join(names[: position + 1] if position + 1 < len(names) else names[:position])
    return None


def _attention_module_path(block: nn.Module, roots: Sequence[str]) -> str:
    """Returns the path of an attention whose matrices are bare parameters: the first module with an attention name."""
    return next((name for name, _ in block.named_modules() if ATTENTION.search(name) or name in roots), "")


def _output(linears: Sequence[Part], width: int, projections: set[str]) -> Part | None:
    """Returns the last layer that writes the residual stream's width."""
    others = [part for part in linears if part.path not in projections]
    return next((part for part in reversed(others) if out_features(part.module) == width), None)


def _projections(linears: Sequence[Part], attention_path: str) -> dict[Projection, Part]:
    """Returns query, key and value by name; otherwise the one layer that widens its input is all three, fused."""
    by_name: dict[Projection, Part] = {}
    for key, names in PROJECTION_NAMES.items():
        words = {part: re.split(r"[._]", part.path[len(attention_path) + 1 :].lower()) for part in linears}
        named = [part for part in linears if names & set(words[part])]
        if named:  # DeBERTa has key_proj and pos_key_proj: the plainer name is the content's
            by_name[key] = min(named, key=lambda part: len(words[part]))
    if len(set(by_name.values())) == len(PROJECTION_NAMES):
        return by_name
    if len(set(by_name.values())) > 1 or (by_name and len(by_name) < len(PROJECTION_NAMES)):
        return {}  # a query of its own beside keys and values in one
    fused = [part for part in linears if out_features(part.module) > in_features(part.module)]
    return {"qkv": fused[0]} if len(fused) == 1 else {}


def _spans(norm: nn.Module, width: int) -> bool:
    weight = getattr(norm, "weight", None)
    return not isinstance(weight, Tensor) or weight.shape == (width,)


def _heads(attention: nn.Module) -> int | None:
    """Returns an integer attribute called like "number of heads", of the attention or of the configuration that it
    keeps."""
    for module in attention.modules():
        for holder in (module, getattr(module, "config", None)):
            for name, value in vars(holder).items() if holder is not None else ():
                if HEADS.fullmatch(name) and isinstance(value, int):
                    return value
    return None


def innermost(part: Part) -> Part:
    """The linear layer itself, inside all wrappers, with its own path."""
    path, module = part
    while isinstance(module, AroundLinear):
        path, module = f"{path}.linear", module.linear
    return Part(path, module)
