"""Lets tokens enter a stack late: its early blocks read the others alone.

::

    embedding       a b [M] d [M] f      each token at its own position
    early blocks    a b d f              as if there were no others
    late blocks     a b [M] d [M] f      the late ones as the embedding left them

In training every row has equally many late tokens. The others are gathered, with what the model tells its blocks of
tokens (masks, rotations by position), so that early blocks cost as many tokens less. In evaluation rows may differ:
they run whole, and nobody attends to a late token, which is the same function of the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from suite.model.calls import Forward, lacks_values, undisturbed
from suite.model.segments import split_hidden

if TYPE_CHECKING:
    from suite.model.anatomy import Block

SAME = 1e-4  # of logits: over the roundings of float32
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class LateTokens:
    """Puts hooks on a model and on the blocks of its one stack; a copy of the model has its own.

    ``token``: the one that is late wherever it stands in ``input_ids`` int64 [batch, length], ``count`` times in each
    row of a training batch. ``early``: how many blocks do not see it. ``joined`` is called when late tokens enter.
    """

    def __init__(self, token: int, count: int, early: int, joined: Callable[[], None]) -> None:
        self.token, self.count, self.early, self.joined = token, count, early, joined
        self.gathers = False  # in evaluation, too
        self.late: Tensor | None = None  # bool [batch, length]
        self.places: Tensor | None = None  # int64 [batch, length - count], ascending; None where rows run whole
        self.embedded: Tensor | None = None  # [batch, length, width]

    def attach(self, model: nn.Module, blocks: Sequence[Block]) -> None:
        """Registers the hooks."""
        model.register_forward_pre_hook(self.begin, with_kwargs=True)
        for number, block in enumerate(blocks[: self.early]):
            hook = partial(self.read, first=number == 0)
            block.module.register_forward_pre_hook(hook, with_kwargs=True)
        blocks[self.early].module.register_forward_pre_hook(self.join, with_kwargs=True)

    def begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Finds before the model: which tokens are late."""
        tokens = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        self.late, self.places, self.embedded = tokens == self.token, None, None
        if model.training or self.gathers:
            enough = (self.late.sum(1) == self.count).all()
            torch._assert_async(enough, f"each row of a training batch must have {self.count} late tokens")
            order = self.late.byte().argsort(dim=1, stable=True)
            self.places = order[:, : tokens.shape[1] - self.count]

    def read(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, first: bool) -> Arguments:
        """Returns before an early block: what it may know."""
        hidden, others, named = split_hidden(args, kwargs)
        late, places = self.late, self.places
        assert late is not None
        if first:
            self.embedded = hidden
        if places is None:
            return (hidden,), unattended(block, hidden.dtype, late, others, named)
        if first:
            hidden = at_tokens(hidden, places, late.shape[1])
        others, named = tree_map(lambda argument: at_tokens(argument, places, late.shape[1]), (others, named))
        return (hidden, *others), named

    def join(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Joins before the first late block: the late tokens, each at its place."""
        hidden, others, named = split_hidden(args, kwargs)
        assert self.late is not None and self.embedded is not None
        embedded = self.embedded.to(hidden.dtype)
        if self.places is None:
            hidden = torch.where(self.late[..., None], embedded, hidden)
        else:
            hidden = embedded.scatter(1, self.places[..., None].expand_as(hidden), hidden)
        self.late = self.places = self.embedded = None
        self.joined()
        return (hidden, *others), named

    def check(self, model: nn.Module, forward: Forward) -> None:
        """Raises ValueError where gathered rows and whole ones do not give equal logits: a block that counts positions
        by itself, or has no mask to tell it what to leave out."""
        joined, self.joined = self.joined, lambda: None
        try:
            with undisturbed(model), torch.no_grad():
                model.eval()
                whole = forward().logits
                self.gathers = True
                gathered = forward().logits
        except (RuntimeError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(
                f"the blocks of {type(model).__name__} cannot run on some of the tokens: {error}"
            ) from error
        finally:
            self.joined, self.gathers = joined, False
        if not lacks_values(whole) and (gathered - whole).norm() > SAME * whole.norm():
            raise ValueError(
                f"the blocks of {type(model).__name__} make something else of some tokens than of all with the others "
                "out of sight: they count positions by themselves; use a model that adds or rotates by positions first"
            )


def at_tokens(value: Any, places: Tensor, length: int) -> Any:
    """Returns of a tensor [batch or 1, ...] what belongs to the tokens ``places`` int64 [batch, n]: along every
    dimension of ``length`` behind the first. Anything else as it is."""
    if not isinstance(value, Tensor) or value.ndim < 2 or value.shape[0] not in (1, len(places)):
        return value
    for dim in range(1, value.ndim):
        if value.shape[dim] == length:
            shape = [len(places), *value.shape[1:]]
            shape[dim] = places.shape[1]
            index = places.view(len(places), *[1] * (dim - 1), -1, *[1] * (value.ndim - dim - 1)).expand(shape)
            value = value.expand(len(places), *value.shape[1:]).gather(dim, index)
    return value


def unattended(
    block: nn.Module, dtype: torch.dtype, late: Tensor, others: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any]:
    """Returns a block's arguments behind the hidden states, all by name, with ``late`` tokens bool [batch, length] out
    of every query's sight. Raises TypeError where it takes no attention mask."""
    names = [name for name in inspect.signature(type(block).forward).parameters if name != "self"][1:]
    mask_name = next((name for name in names if name.endswith("attention_mask")), None)
    if mask_name is None:
        raise TypeError(f"{type(block).__name__} takes no attention mask")
    named = dict(zip(names, others, strict=False)) | named
    mask, keys = named.get(mask_name), late[:, None, None, :]
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        named[mask_name] = mask & ~keys
    else:
        bias = torch.zeros(keys.shape, dtype=dtype, device=late.device).masked_fill(keys, torch.finfo(dtype).min)
        named[mask_name] = bias if mask is None else mask + bias
    return named
