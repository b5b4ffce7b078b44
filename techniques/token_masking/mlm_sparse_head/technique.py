"""Implements the sparse prediction head: a masked language model's logits are computed where there is something to
predict alone.

BERT's own code (Devlin et al. 2019; ``gather_indexes`` before the head) and RoBERTa's (Liu et al. 2019, arXiv
1907.11692), and cramming (Geiping & Goldstein 2022, arXiv 2212.14034: sparse token prediction). The loss has a share r
of the positions, so transform and vocabulary projection need no others:

    loss = mean over positions with a label of CE(head(h), label)        h: r B T rows, not B T

Gradients are those of the whole head: what the loss leaves out sends none back. Logits wait until somebody asks for
them. A cross-entropy gets the rows that have a label; whatever else reads logits in training gets all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.anatomy import anatomy
from suite.model.forwards import standing_in
from suite.model.head import Head, head_of
from techniques.token_masking.shared.masked_tokens import Masks, masks_of

Rowwise = Callable[[Tensor], Tensor]
"""[..., width] -> [..., classes], each row by itself."""


def labelled_cross_entropy(
    hidden: Tensor,
    targets: Tensor,
    head: Rowwise,
    labels: int | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    **options: Any,
) -> Tensor:
    """Computes ``F.cross_entropy(head(hidden), targets)`` of hidden states [n, width] and targets int64 [n], where
    ``head`` runs on the rows with a target alone. ``labels`` is the most that there may be; None counts them, which
    waits for a GPU.
    """
    labelled = targets != ignore_index
    if labels is None:
        labels = int(labelled.sum())
    else:
        torch._assert_async(labelled.sum() <= labels, "a batch has more labels than its rows had at set-up")
    rows = labelled.byte().argsort(descending=True, stable=True)[:labels]
    losses = F.cross_entropy(
        head(hidden.index_select(0, rows)),
        targets.index_select(0, rows),
        ignore_index=ignore_index,
        reduction=reduction,
        **options,
    )
    return losses if reduction != "none" else losses.new_zeros(len(targets)).index_copy(0, rows, losses)


class LossOfLabels(Protocol):
    """Computes :func:`labelled_cross_entropy`, with the number of labels."""

    def __call__(self, hidden: Tensor, targets: Tensor, head: Rowwise, **options: Any) -> Tensor: ...


METADATA = {Tensor.size, Tensor.dim} | {getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device")}


class PostponedLogits(Tensor):
    """Stands for the logits [..., classes] that ``head`` would make of ``hidden`` [..., width]."""

    hidden: Tensor
    head: Rowwise
    loss: LossOfLabels

    @staticmethod
    def __new__(cls, hidden: Tensor, head: Rowwise, loss: LossOfLabels, classes: int) -> PostponedLogits:
        shape = (*hidden.shape[:-1], classes)
        logits = Tensor._make_wrapper_subclass(cls, shape, dtype=hidden.dtype, device=hidden.device)
        logits.hidden, logits.head, logits.loss = hidden, head, loss
        return logits

    @cached_property
    def computed(self) -> Tensor:
        """Computes all logits."""
        return self.head(self.hidden)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        logits, *others = args or (None,)
        if isinstance(logits, cls):
            if function is F.cross_entropy and logits.ndim == 2 and others[0].ndim == 1:
                return logits.loss(logits.hidden, others[0], logits.head, **kwargs)
            if function is Tensor.float:
                head = logits.head
                return cls(logits.hidden, lambda rows: head(rows).float(), logits.loss, logits.shape[-1])
            if function is Tensor.flatten and others == [0, logits.ndim - 2]:
                return cls(logits.hidden.flatten(0, -2), logits.head, logits.loss, logits.shape[-1])
        return function(*tree_map_only(cls, _computed, args), **tree_map_only(cls, _computed, kwargs))

    @classmethod
    def __torch_dispatch__(cls, operator: Any, *_: Any) -> Any:
        """Refuses operators, since without memory of its own it is nothing to compute with."""
        raise TypeError(f"{operator} got postponed logits: ask torch's functions, which compute them")


def _computed(logits: PostponedLogits) -> Tensor:
    return logits.computed


@contextmanager
def postponed(modules: Sequence[nn.Module], classes: int, loss: LossOfLabels) -> Iterator[None]:
    """Makes, while active, a head's modules, of which each gets what the one before gives, make
    :class:`PostponedLogits`."""
    forwards: list[Callable[..., Any]] = []

    def logits(hidden: Tensor) -> Tensor:
        kind = hidden.device.type
        autocast = partial(
            torch.autocast, kind, dtype=torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind)
        )

        def head(rows: Tensor) -> Tensor:
            with autocast():  # as here: a loss is computed outside of the model, where it is off
                for forward in forwards:
                    rows = forward(rows)
            return rows

        return PostponedLogits(hidden, head, loss, classes)

    def postponed_after(before: Callable[..., Any]) -> Callable[..., Any]:
        forwards.append(before)
        return logits if len(forwards) == len(modules) else _passed

    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(standing_in(module, postponed_after))
        yield


def _passed(hidden: Tensor) -> Tensor:
    return hidden


@dataclass
class SparseHead(Technique):
    """Works for models whose batches have ``labels`` of single tokens. Evaluation runs the whole head, as ever.

    Where all rows have equally many labels, as BERT's here, shapes are known in advance and no GPU is waited for.
    """

    head: Head = field(init=False, repr=False, default=Head((), 0))
    masks: Masks = field(init=False, repr=False, default=Masks(1, None, 0))
    left_out: Act = field(init=False, repr=False, default_factory=Act)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if run.recipe.compile:
            raise ValueError(
                "mlm_sparse_head postpones logits, which torch.compile cannot trace: use the recipe modern"
            )
        self.masks = masks_of(run.data)
        self.head = head_of(anatomy(model), partial(run.trial, model))
        return model

    def around_step(self, run: Run) -> AbstractContextManager[Any]:
        modules = [run.model.get_submodule(part.path) for part in self.head.parts]
        return postponed(modules, self.head.classes, self.loss_of_labels)

    def loss_of_labels(self, hidden: Tensor, targets: Tensor, head: Rowwise, **options: Any) -> Tensor:
        """Computes :func:`labelled_cross_entropy` of whole rows, one after the other."""
        label = self.masks.labels
        labels = None if label is None else label * len(targets) // self.masks.length
        self.left_out()
        return labelled_cross_entropy(hidden, targets, head, labels, **options)

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {**dict(self.head.parts), "leaves positions out": self.left_out}
