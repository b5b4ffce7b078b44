"""Consecutive blocks as one function of the hidden states, inside a model whose own forward loops over them.

The model's loop stays as it is. A segment's first block runs the whole segment under a wrapper (rematerialisation,
offloading, ...); the others let the hidden states pass through, in the blocks' own return structure:

    model's loop      block 0     block 1     block 2     block 3
    segment (0, 3)    0 1 2 here  passes      passes      runs as ever
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Wrapper = Callable[[Callable[[Tensor], Any], Tensor], Any]


class SegmentError(ValueError):
    """These blocks cannot run as one segment; the message says why and what to do."""


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
            gets other arguments than the first of its segment (T5's first block makes the others' position bias).
    """
    _check(segments, len(blocks), name)
    patched = []
    try:
        for start, end in segments:
            segment = _Segment(blocks[start:end], start, wrapper, f"{name}[{start}:{end}]")
            for position, block in enumerate(blocks[start:end]):
                patched.append((block, "forward" in vars(block), block.forward))
                block.forward = segment.lead if position == 0 else segment.follow(position)
        yield
    finally:
        for block, was_own, forward in reversed(patched):
            if was_own:
                block.forward = forward
            else:
                del block.forward


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
        self.forwards = [block.forward for block in blocks]
        self.start, self.wrapper, self.name = start, wrapper, name
        self.given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self.extras: tuple[Any, ...] | None = None

    def lead(self, *args: Any, **kwargs: Any) -> Any:
        """The first block's forward: the whole segment."""
        hidden, args, kwargs = split_hidden(args, kwargs)
        self.given = args, kwargs
        own_args = tuple(_without_cache(value, self.start) for value in args)
        own_kwargs = {key: _without_cache(value, self.start) for key, value in kwargs.items()}

        def run(hidden: Tensor) -> Any:
            output: Any = hidden
            for forward in self.forwards:
                output = forward(output[0] if isinstance(output, tuple) else output, *own_args, **own_kwargs)
            return output

        output = self.wrapper(run, hidden)
        self.extras = output[1:] if isinstance(output, tuple) else None
        if len(self.forwards) == 1:
            self.forget()
        return output

    def follow(self, position: int) -> Callable[..., Any]:
        """A later block's forward: the hidden states, as the segment left them."""
        last = position == len(self.forwards) - 1

        def forward(*args: Any, **kwargs: Any) -> Any:
            hidden, args, kwargs = split_hidden(args, kwargs)
            given_args, given_kwargs = self.given
            if not (_same(args, given_args) and _same(kwargs, given_kwargs)):
                raise SegmentError(
                    f"block {position} of segment {self.name} gets other arguments than the segment's first block, so "
                    "that they cannot run as one; start a new segment at this block"
                )
            output = hidden if self.extras is None else (hidden, *self.extras)
            if last:
                self.forget()
            return output

        return forward

    def forget(self) -> None:
        """Drops the tensors of this forward, which would otherwise live until the next."""
        self.given, self.extras = ((), {}), None


def split_hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, tuple[Any, ...], dict[str, Any]]:
    """The hidden states and the other arguments of a block."""
    if args:
        return args[0], args[1:], kwargs
    if "hidden_states" in kwargs:
        return kwargs["hidden_states"], (), {key: value for key, value in kwargs.items() if key != "hidden_states"}
    raise SegmentError(f"no hidden states among the block's arguments {list(kwargs)}; pass them first, by position")


def _without_cache(value: Any, layer: int) -> Any:
    """Returns None for a key-value cache that holds nothing of this layer, and any other value as it is."""
    if hasattr(value, "get_seq_length") and hasattr(value, "update"):
        if value.get_seq_length(layer):  # blocks before the segment have filled their own layers
            raise SegmentError("a filled key-value cache cannot enter a segment; leave past_key_values out")
        return None
    return value


def _same(left: Any, right: Any) -> bool:
    """Whether two arguments are the same: tensors by identity, containers by their items, all else by ==."""
    if left is right:
        return True
    if isinstance(left, Tensor) or isinstance(right, Tensor) or type(left) is not type(right):
        return False
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(value, right[key]) for key, value in left.items())
    return bool(left == right)
