"""Proves that a stack attached: in a run's first step its sites are watched, and never again.

::

    set-up            Technique.sites
    the first step    a hook on every module that is a site: its forward ran
                      a hook on every trained parameter, and a look when the optimizer steps: it has a gradient
    its end           the hooks are gone; NotAttached where a site did nothing
    the run's end     NotAttached where an act that was due by then was never called

Beside the sites, each of the model's own parameters inside its blocks must get a gradient where the plain model gives
it one; else the stack has cut it off. The plain model is asked only where one is missing: an expert to which no token
was routed is nobody's fault. Outside the blocks, models have parameters that a task leaves unused (a mask token, a
pooler): a warning names them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.optim import Optimizer

from suite.device.random_state import unchanged_randomness
from suite.loop.data import Batch
from suite.loop.sites import Act, Due, NotAttached, Site
from suite.model.anatomy import anatomy
from suite.model.calls import lacks_values

if TYPE_CHECKING:
    from suite.loop.run import Run

NAMED = 3  # sites that a sentence names
WHAT_TO_DO = (
    "Leave it out, or take another model: this one does not go through what it changes. If the technique is yours, "
    "mend what it does or its sites()"
)
WHAT_TO_DO_AT_THE_END = "Train for longer: the run was over before it began; or leave it out"


class Attachment:
    """Keeps the proof of one run. ``plain`` is the model before any technique changes it; :meth:`begin` ends the
    set-up."""

    def __init__(self, plain: nn.Module) -> None:
        self.proven = False
        self.sites: dict[str, Site] = {}
        self._own = dict(plain.named_parameters())
        self._blocks = tuple(f"{stack.path}." for stack in anatomy(plain).stacks)
        self._ran: set[int] = set()
        self._rehearsed = False

    def begin(self, run: Run) -> None:
        """Asks the techniques for their sites. Raises NotAttached where one names none."""
        self.sites = dict(run.technique.sites(run))
        left = {id(parameter) for parameter in run.model.parameters()}
        self._own = {
            name: parameter for name, parameter in self._own.items() if id(parameter) in left
        }  # others may be freed

    def added(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Returns the parameters of ``model`` that techniques have added to the plain one, by name."""
        own = {id(parameter) for parameter in self._own.values()}
        return {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in own}

    @contextmanager
    def proving(self, run: Run, batch: Batch) -> Iterator[None]:
        """Watches the first step, while it is active. Raises NotAttached at its end."""
        trained = list(run.trained_parameters().values())
        with ExitStack() as hooks:
            if not run.recipe.compile:  # see rehearse
                hooks.enter_context(self._watched_modules())
            gradients = hooks.enter_context(watched_gradients(trained, run.optimizer))
            yield
        self.proven = True
        try:
            self._prove(run, batch, gradients, {id(parameter) for parameter in trained} - gradients)
        except NotAttached:
            if not diverged(run):  # which says more than what a technique left out because of it
                raise

    def _prove(self, run: Run, batch: Batch, gradients: set[int], silent: set[int]) -> None:
        unused = self._excused(run, batch, silent)
        excused = {id(parameter) for parameter in unused.values()}
        proven = gradients | excused | self._ran
        self._demand(run, lambda site: site.count > 0 if isinstance(site, Act) else id(site) in proven, "step")
        cut_off = [name for name, parameter in self._own.items() if id(parameter) in silent - excused]
        if cut_off:
            stack = "+".join(dict.fromkeys(path.partition(".")[0] for path in self.sites))
            raise NotAttached(
                f"{stack} cuts off {len(cut_off)} parameters of the model, which get a gradient without it: "
                f"{listed(cut_off)}. {WHAT_TO_DO}"
            )
        if unused:
            name = type(run.model).__name__
            warnings.warn(f"{len(unused)} parameters of {name} get no gradient: {listed(unused)}", stacklevel=4)

    def rehearse(self, run: Run, batch: Batch) -> None:
        """Runs, for a compiled run, a forward pass of the eager model before the first one: hooks would be part of the
        graph, which would be made again without them. It leaves no trace."""
        if self._rehearsed:
            return
        self._rehearsed = True
        own, buffers = run.generator.get_state(), list(run.model.buffers())
        copies = [buffer.clone() for buffer in buffers]
        with self._watched_modules(), torch.no_grad(), unchanged_randomness(run.device), run.autocast():
            run.baseline.forward(run.model, batch)
        run.generator.set_state(own)
        for buffer, copied in zip(buffers, copies, strict=True):
            buffer.copy_(copied)

    def end(self, run: Run) -> None:
        """Ends the proof with the run. Raises NotAttached where an act was never called."""
        self._demand(run, lambda site: not isinstance(site, Act) or site.count > 0, "run")

    # a resumed run has proven itself --------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Tells how often each act was called."""
        return {name: site.count for name, site in self.sites.items() if isinstance(site, Act)}

    def resume(self, counts: dict[str, int], step: int) -> None:
        """Goes on after ``step`` steps, with the acts of the run that was saved."""
        self.proven = step > 0
        for name, site in self.sites.items():
            if isinstance(site, Act):
                site.count = counts.get(name, 0)

    # what is asked --------------------------------------------------------------------------------------------------

    @contextmanager
    def _watched_modules(self) -> Iterator[None]:
        modules = {id(site): site for site in self.sites.values() if isinstance(site, nn.Module)}
        handles = [
            module.register_forward_hook(lambda site, *_: self._ran.add(id(site))) for module in modules.values()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _excused(self, run: Run, batch: Batch, silent: Collection[int]) -> dict[str, nn.Parameter]:
        """Returns the ``silent`` parameters that the model itself may leave without a gradient, by name."""
        own = {name: parameter for name, parameter in self._own.items() if id(parameter) in silent}
        inside = {name for name in own if name.startswith(self._blocks)}
        if inside and self.sites:
            inside -= plain_gradients(run, batch)
            own = {
                name: parameter
                for name, parameter in own.items()
                if name in inside or not name.startswith(self._blocks)
            }
        return own

    def _demand(self, run: Run, did: Callable[[Site], bool], due: Due) -> None:
        by_technique: dict[str, dict[str, Site]] = {}
        for path, site in self.sites.items():
            name, _, rest = path.partition(".")
            if due == "run" or not isinstance(site, Act) or site.due == due:
                by_technique.setdefault(name, {})[rest] = site
        done = _done_by_any(run, {path for path, site in self.sites.items() if did(site)}, set(self.sites))
        for technique, sites in by_technique.items():
            idle = [f"{name} {idleness(site)}" for name, site in sites.items() if f"{technique}.{name}" not in done]
            if idle:
                when, what_to_do = {
                    "step": ("in the first step", WHAT_TO_DO),
                    "run": ("in the whole run", WHAT_TO_DO_AT_THE_END),
                }[due]
                raise NotAttached(
                    f"{technique} did nothing at {len(idle)} of its {len(sites)} sites {when}: {listed(idle)}. "
                    f"{what_to_do}"
                )


def _done_by_any(run: Run, done: set[str], sites: set[str]) -> set[str]:
    """Returns the sites at which this rank did something; of a model that ranks hold in parts, at which any did: of
    tensors without values, whose other ranks are imagined, all."""
    if run.mesh is None or not run.anatomy.is_part:
        return done
    if any(map(lacks_values, run.model.parameters())):
        return sites
    everyones: list[set[str]] = [set()] * run.world_size
    torch.distributed.all_gather_object(everyones, done, group=run.group)
    return set().union(*everyones)


def listed(names: Collection[str]) -> str:
    """Returns the first few of the names."""
    return ", ".join([*list(names)[:NAMED], *(["..."] if len(names) > NAMED else [])])


def idleness(site: Site) -> str:
    """Tells what a site did not do."""
    if isinstance(site, Act):
        return "(never called)"
    return "(no gradient)" if isinstance(site, nn.Parameter) else "(never ran)"


def diverged(run: Run) -> bool:
    """Tells whether the loss is not finite; a fake one has no value to ask for."""
    return not isinstance(run.loss, FakeTensor) and not bool(run.loss.isfinite())


@contextmanager
def watched_gradients(parameters: Collection[nn.Parameter], optimizer: Optimizer) -> Iterator[set[int]]:
    """Collects the ids of the parameters that have a gradient: after the block, of those that the optimizer holds, when
    it stepped last; of the others (it may hold shards of them), as soon as autograd has made one."""
    gradients: set[int] = set()
    held = {id(owned) for group in optimizer.param_groups for owned in group["params"]}

    def at_the_step(*_: object) -> None:
        gradients.difference_update(
            id(parameter) for parameter in parameters if id(parameter) in held and parameter.grad is None
        )

    handles = [
        one.register_post_accumulate_grad_hook(lambda parameter: gradients.add(id(parameter))) for one in parameters
    ]
    handles.append(optimizer.register_step_pre_hook(at_the_step))
    try:
        yield gradients
    finally:
        for handle in handles:
            handle.remove()


def plain_gradients(run: Run, batch: Batch) -> set[str]:
    """Returns the names of the parameters that get a gradient from ``batch`` where no technique changes the model."""
    with unchanged_randomness(run.device):
        model = run.plain_model().train()
        with run.autocast():
            outputs = run.baseline.forward(model, batch)
        run.baseline.losses(outputs, batch).mean().backward()
    return {name for name, parameter in model.named_parameters() if parameter.grad is not None}
