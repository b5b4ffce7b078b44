"""L2L, layer to layer (Pudipeddi, Mesmakhosroshahi, Xi, Bharadwaj, 2020, arXiv 2002.05645): the model is the host's,
and the device runs one layer at a time, for all micro-batches of a minibatch.

    for each layer l, upwards:      load w_l;  for each micro-batch: stash x on the host, x = f_l(x);  free w_l
    for each micro-batch:           loss, and its gradient g for the last layer's output
    for each layer l, downwards:    load w_l;  for each micro-batch: f_l again at the stashed x, g = its backward at g;
                                    send the gradient of w_l to the host;  free w_l
    the host updates

The device holds one layer's weights, two while the next is on its way, however deep the model is; weights cross the
link twice a minibatch and their gradients once, however many micro-batches there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from suite.chain.relay import Relay
from suite.chain.schedule import TURN, Op, Schedule, tidied
from suite.chain.tiers import HostTier
from suite.loop.chains import blocks_of
from suite.loop.data import Batch
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import ParameterGroups, Technique, Unavailable
from suite.record.job import StackError
from techniques.offloading.l2l.layerwise import Cut, MicroBatch, micro_batches
from techniques.offloading.shared.away import Unit, in_their_places, sent_away
from techniques.offloading.shared.host_adam import HostAdamW, halved


def layer_by_layer(depth: int) -> Schedule:
    """Writes the algorithm as a schedule: the next layer's weights come while one runs."""
    there, back = [Op("load", 0)], [Op("load", depth - 1)]
    for layer in range(depth):
        there += [Op("load", layer + 1)] if layer + 1 < depth else []
        there += [Op("run", layer), Op("offload", layer), Op("free", layer)]
    for layer in reversed(range(depth)):
        back += [Op("load", layer - 1)] if layer else []
        back += [Op("save", layer), Op("back", layer), Op("free", layer)]
    return tidied(depth, [*there, TURN, *back])


def gradient_of(tensor: Tensor) -> Tensor:
    """Returns what a backward pass has left there."""
    assert tensor.grad is not None
    return tensor.grad


@dataclass
class L2L(Technique):
    """Runs ``micro_batches`` in a minibatch, the recipe's batch. ``half``: weights in bfloat16; None as the recipe
    computes."""

    micro_batches: int = 4
    half: bool | None = None

    weights: HostTier = field(init=False, repr=False)
    stash: HostTier = field(init=False, repr=False)
    units: list[list[Unit]] = field(init=False, repr=False, default_factory=list)
    host: HostAdamW = field(init=False, repr=False)
    cut: Cut = field(init=False, repr=False)
    relayed: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise ValueError(f"micro_batches is 1 or more, not {self.micro_batches}")

    def recipe(self, recipe: Recipe) -> Recipe:
        if recipe.compile:
            raise Unavailable("a compiled graph has all layers in it, and l2l runs one at a time: take modern")
        if self.micro_batches > recipe.batch_size:
            raise ValueError(
                f"a batch of {recipe.batch_size} examples has no {self.micro_batches} micro-batches: choose fewer"
            )
        return replace(recipe, precision="bf16") if self.half else recipe

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if run.mesh is not None:
            raise StackError(
                f"{run.job.stack} cannot be stacked: l2l updates the layers of one process, and ranks would exchange "
                "their gradients first; leave out what makes several ranks"
            )
        half = run.recipe.precision == "bf16" if self.half is None else self.half
        return halved(model) if half else model

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        self.weights, self.stash, self.units = HostTier(), HostTier(), []
        for stack in run.anatomy.stacks:
            blocks = [block.module for block in stack.blocks]
            units, places = sent_away(run.model, blocks, self.weights, lambda parameters: self.host.receive(parameters))
            self.units.append(units)
            groups = in_their_places(groups, places)
        self.cut = Cut(run)
        return groups

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> HostAdamW:
        self.host = HostAdamW.of(parameters, HostTier(), recipe)
        return self.host

    def update(self, run: Run, batch: Batch) -> None:
        self.host.zero_grad()
        micros = micro_batches(batch, self.micro_batches)
        relays = self.upwards(run, micros)
        run.loss, gradients = self.turn(run, micros)
        self.downwards(micros, relays, gradients)
        for parameter in self.host.host:  # those outside the layers
            self.host.receive(parameter)
        if not run.technique.after_backward(run):
            self.host.update()

    @torch.no_grad()
    def upwards(self, run: Run, micros: list[MicroBatch]) -> list[Relay]:
        """Goes up through all stacks, each with a relay of its own."""
        relays = []
        for number, blocks in enumerate(blocks_of(run)):
            relay = Relay(blocks, layer_by_layer(len(blocks)), self.stash, self.units[number])
            relays.append(relay)
            for micro in micros:
                relay.enter(*self.cut.enter(micro, number))
            for micro, output in zip(micros, relay.there(), strict=True):
                micro.outputs.append(output)
        return relays

    def turn(self, run: Run, micros: list[MicroBatch]) -> tuple[Tensor, list[Tensor]]:
        """Returns the loss, and by micro-batch its gradient for the last stack's output."""
        losses, gradients = [], []
        for micro in micros:
            output = micro.outputs[-1].requires_grad_()
            loss = self.cut.loss(micro)
            run.backward(loss)
            losses.append(loss.detach())
            gradients.append(gradient_of(output))
            micro.outputs.pop()
        return torch.stack(losses).sum(), gradients

    def downwards(self, micros: list[MicroBatch], relays: list[Relay], gradients: list[Tensor]) -> None:
        """Goes back through all stacks, and through what is before each of them."""
        for number in reversed(range(len(relays))):
            relays.pop().back(gradients)
            self.relayed()
            for place, micro in enumerate(micros):
                before = [output.requires_grad_() for output in micro.outputs]
                entering, _ = self.cut.enter(micro, number)
                if entering.requires_grad:
                    torch.autograd.backward(entering, gradients[place])
                if before:
                    gradients[place] = gradient_of(micro.outputs.pop())

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {**run.trained_parameters(), "relays the layers": self.relayed}
