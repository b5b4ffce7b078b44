"""Runs consecutive blocks as one function of the hidden states, inside a model whose own forward loops over them.

The model's loop stays as it is. A segment's first block runs the whole segment under a wrapper (rematerialisation,
offloading, ...); the others let the hidden states pass through, in the blocks' own return structure:

    model's loop      block 0     block 1     block 2     block 3
    segment (0, 3)    0 1 2 here  passes      passes      runs as ever

A wrapper may run a segment again for the backward pass. Running statistics (batch normalisation's) count it once: the
second run sees them as the first did, and leaves them as the first left them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.compiler import is_compiling

from suite.model.calls import Forward, calls
from suite.model.forwards import standing_in

if TYPE_CHECKING:
    from suite.model.anatomy import Block

Wrapper = Callable[[Callable[[Tensor], Any], Tensor], Any]


class Replays:
    """Keeps a segment's running statistics (the persistent buffers of modules that train) at one update a step."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self.modules = modules
        self.before: list[Tensor] | None = None

    @contextmanager
    def run(self) -> Iterator[None]:
        after = list(self._statistics())
        if self.before is None:
            self.before = [value.clone() for _, _, value in after]  # batch normalisation bumps no version counter
            yield
            return
        for (module, name, _), value in zip(after, self.before, strict=True):
            module._buffers[name] = value.clone()
        try:
            yield
        finally:  # checkpoint leaves as soon as the last saved tensor is there
            for module, name, value in after:
                module._buffers[name] = value

    def _statistics(self) -> Iterator[tuple[nn.Module, str, Tensor]]:
        for module in self.modules:
            for name, value in module._buffers.items():
                if value is not None and module.training and name not in module._non_persistent_buffers_set:
                    yield module, name, value


class SegmentError(ValueError):
    """Is raised where these blocks cannot run as one segment; the message says why and what to do."""


@contextmanager
def segmented(
    blocks: Sequence[nn.Module], segments: Sequence[tuple[int, int]], wrapper: Wrapper, name: str = "the stack"
) -> Iterator[None]:
    """While active, ``wrapper(function, hidden)`` computes each segment; ``function(hidden)`` runs blocks [start, end).

    ``wrapper=partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)`` keeps only the hidden states [batch,
    tokens, width] at the segments' starts; results and gradients are the plain model's to the bit. Blocks outside all
    segments run as ever. Key-value caches do not enter segments: a rerun would write them twice.

    Hooks on the blocks themselves see the segment's ends; hooks on modules inside the blocks see what they always see.

    Raises:
        SegmentError: segments that overlap, are empty or leave the stack; and, in the model's forward, a block that
            gets other arguments than the first of its segment (T5's first block makes the others' position bias), or
            other hidden states than the one before it gave. :func:`joinable` says where segments must begin.
    """
    _check(segments, len(blocks), name)
    with ExitStack() as stack:
        for start, end in segments:
            segment = _Segment(blocks[start:end], start, wrapper, segment_name(name, start, end))
            for block in blocks[start:end]:
                stack.enter_context(standing_in(block, segment.next))
        yield


def segment_name(stack: str, start: int, end: int) -> str:
    """Returns a segment's name, for people."""
    return f"{stack}[{start}:{end}]"


def joinable(model: nn.Module, blocks: Sequence[Block], forward: Forward) -> list[tuple[int, int]]:
    """Returns the longest ranges of consecutive blocks that ``model`` calls with equal arguments, so that segments may
    lie in them. Raises SegmentError where a block does not run."""
    seen = calls(model, blocks, forward)
    if len(seen) < len(blocks):
        raise SegmentError(
            f"{len(blocks) - len(seen)} of the {len(blocks)} blocks do not run, so that none can be joined"
        )
    others = [split_hidden(call.args, dict(call.kwargs))[1:] for call in seen]
    starts = [n for n in range(len(seen)) if n == 0 or not _same(others[n], others[n - 1])]
    return list(zip(starts, [*starts[1:], len(seen)], strict=True))


def _check(segments: Sequence[tuple[int, int]], depth: int, name: str) -> None:
    finished = 0
    for start, end in sorted(segments):
        if not finished <= start < end <= depth:
            raise SegmentError(
                f"segments {list(segments)} do not fit {name}: give pairs start < end within 0..{depth} without overlap"
            )
        finished = end


class _Segment:
    def __init__(self, blocks: Sequence[nn.Module], start: int, wrapper: Wrapper, name: str) -> None:
        self.length, self.forwards = len(blocks), list[Callable[..., Any]]()
        self.modules = [module for block in blocks for module in block.modules()]
        self.start, self.wrapper, self.name = start, wrapper, name
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self.extras: tuple[Any, ...] | None = None
        self.hidden: Tensor | None = None

    def next(self, before: Callable[..., Any]) -> Callable[..., Any]:
        """What stands in for the next block's forward, from the first to the last."""
        self.forwards.append(before)
        return self.lead if len(self.forwards) == 1 else self.follow(len(self.forwards) - 1)

    def lead(self, *args: Any, **kwargs: Any) -> Any:
        """Runs as the first block's forward: the whole segment."""
        hidden, args, kwargs = split_hidden(args, kwargs)
        self.arguments = args, kwargs
        own_args = tuple(without_cache(value, self.start) for value in args)
        own_kwargs = {key: without_cache(value, self.start) for key, value in kwargs.items()}

        replays = Replays(self.modules)

        def run(hidden: Tensor) -> Any:
            output: Any = hidden
            with nullcontext() if is_compiling() else replays.run():
                for forward in self.forwards:
                    output = forward(output[0] if isinstance(output, tuple) else output, *own_args, **own_kwargs)
            return output

        output = self.wrapper(run, hidden)
        self.hidden, self.extras = (output[0], output[1:]) if isinstance(output, tuple) else (output, None)
        if len(self.forwards) == 1:
            self.forget()
        return output

    def follow(self, position: int) -> Callable[..., Any]:
        """Returns a later block's forward: the hidden states, as the segment left them."""
        last = position == self.length - 1

        def forward(*args: Any, **kwargs: Any) -> Any:
            hidden, args, kwargs = split_hidden(args, kwargs)
            given_args, given_kwargs = self.arguments
            if not (_same(args, given_args) and _same(kwargs, given_kwargs)):
                raise SegmentError(
                    f"block {position} of segment {self.name} gets other arguments than the segment's first block, so "
                    "that they cannot run as one; start a new segment at this block"
                )
            if hidden is not self.hidden:
                raise SegmentError(
                    f"the model changes the hidden states before block {position} of segment {self.name}, so that it "
                    "cannot run with those before it as one; start a new segment at this block"
                )
            output = hidden if self.extras is None else (hidden, *self.extras)
            if last:
                self.forget()
            return output

        return forward

    def forget(self) -> None:
        """Drops the tensors of this forward, which would otherwise live until the next."""
        self.arguments, self.extras, self.hidden = ((), {}), None, None


def split_hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
    """Returns the hidden states and the other arguments of a block."""
    if args:
        return args[0], args[1:], kwargs
    if "hidden_states" in kwargs:
        return kwargs["hidden_states"], (), {key: value for key, value in kwargs.items() if key != "hidden_states"}
    raise SegmentError(f"no hidden states among the block's arguments {list(kwargs)}; pass them first, by position")


def without_cache(value: Any, layer: int) -> Any:
    """Returns None for a key-value cache that holds nothing of this layer, and any other value as it is."""
    if hasattr(value, "get_seq_length") and hasattr(value, "update"):
        if value.get_seq_length(layer):  # blocks before the segment have filled their own layers
            raise SegmentError("a filled key-value cache cannot enter a segment; leave past_key_values out")
        return None
    return value


def _same(left: Any, right: Any) -> bool:
    """Tells whether two arguments are the same: tensors by identity, containers by their items, all else by ==."""
    if left is right:
        return True
    if isinstance(left, Tensor) or isinstance(right, Tensor) or type(left) is not type(right):
        return False
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(value, right[key]) for key, value in left.items())
    return bool(left == right)
