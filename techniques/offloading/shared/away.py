"""Keeps parameters in a second tier of memory, so that they are on the device only while they are used.

An :class:`Away` parameter has the shape, the type and the gradient of the one that it replaces; its values are in a
tier (:mod:`suite.chain.tiers`). Each operator that reads it gets a device copy: the one that was loaded before, or one
fetched for this operator alone. Views of it (a transposed weight that autograd saves for the backward pass) are away,
too, so that nothing holds the device copy but who loaded it. What an operator writes goes back to the tier.

So whoever reads a model, a checkpoint, an average of weights, a probe, reads the right values, at the price of the
link; and a schedule that loads parameters in time decides only when, never whether.

For ``l2l`` and ``zero_infinity_param``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from suite.chain.tiers import StoredTensor, Tier


class Home:
    """Says where a parameter's values are: in the tier, and, while it is loaded, on the device."""

    def __init__(self, stored: StoredTensor) -> None:
        self.stored = stored
        self.here: Tensor | None = None

    def values(self) -> Tensor:
        """Returns the values on the device: loaded, or fetched for as long as the caller holds them."""
        return self.here if self.here is not None else self.stored.take(keep=True)


class Away(Tensor):
    """Stands for a parameter, or a view of one, whose values are in a tier."""

    home: Home

    @staticmethod
    def __new__(cls, home: Home, shape: Tensor, requires_grad: bool = False) -> Self:
        """Creates it by ``shape``, which is a tensor of this shape, layout and type; its values do not matter."""
        return torch.Tensor._make_wrapper_subclass(
            cls,
            shape.shape,
            strides=shape.stride(),
            storage_offset=shape.storage_offset(),
            dtype=shape.dtype,
            device=home.stored.device,
            requires_grad=requires_grad,
        )

    def __init__(self, home: Home, shape: Tensor, requires_grad: bool = False) -> None:
        self.home = home

    @property
    def here(self) -> Tensor | None:
        """Returns what of it is on the device."""
        return self.home.here

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["here"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Tensor:
        raise NotImplementedError("parameters that are away cannot be compiled")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Away({self.dtype}, {list(self.shape)})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """Makes a copy that is there, and no schedule's: a model to evaluate, averaged weights."""
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.detach().clone(), self.requires_grad)
        return memo[id(self)]

    def view_of(self, whole: Tensor) -> Tensor:
        """Returns this view of the home's values."""
        return whole.view(-1).view(self.dtype).as_strided(self.shape, self.stride(), self.storage_offset())

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view and isinstance(args[0], Away):
            return _view(func, args, kwargs)
        there: dict[int, tuple[Away, Tensor, Tensor]] = {}

        def unwrapped(value: Any) -> Any:
            if not isinstance(value, Away):
                return value
            whole = value.home.values()
            values = value.view_of(whole)
            there[id(values)] = value, values, whole
            return values

        plain_args, plain_kwargs = tree_map(unwrapped, (args, kwargs))
        output = func(*plain_args, **plain_kwargs)
        for written in _written(func, plain_args, plain_kwargs):
            if id(written) in there:
                away, _, whole = there[id(written)]
                away.home.stored.write(whole)
        return tree_map(lambda value: there[id(value)][0] if id(value) in there else value, output)


def _view(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Returns the view of a parameter that is away: the same home, another layout."""
    away = args[0]
    with _disable_current_modes():
        size = away.home.stored.nbytes // away.dtype.itemsize
        whole = torch.empty(size, dtype=away.dtype, device="meta")
        layout = whole.as_strided(away.shape, away.stride(), away.storage_offset())
        views = func(layout, *args[1:], **kwargs)
    return tree_map(lambda view: Away(away.home, view) if isinstance(view, Tensor) else view, views)


def _written(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value: Any = args[position] if position < len(args) else kwargs.get(argument.name)
            yield from value if isinstance(value, list | tuple) else (value,)


class Unit:
    """Groups parameters that come and go together: a block's. ``receive`` gets each as it goes, with its gradient."""

    def __init__(self, parameters: Iterable[Away], receive: Callable[[Away], None] | None = None) -> None:
        self.parameters, self.receive = list(parameters), receive
        self.homes = [parameter.home for parameter in self.parameters]

    def fetch(self) -> None:
        """Starts their way to the device."""
        for home in self.homes:
            if home.here is None:
                home.stored.fetch()

    def load(self) -> None:
        """Has them on the device until :meth:`free`."""
        self.fetch()
        for home in self.homes:
            home.here = home.values()

    def free(self) -> None:
        """Leaves their values to the tier, those on their way, too."""
        for home in self.homes:
            if home.stored.coming:
                home.stored.take(keep=True)
            home.here = None
        if self.receive is not None:
            for parameter in self.parameters:
                self.receive(parameter)


def sent_away(
    model: nn.Module, modules: Iterable[nn.Module], tier: Tier, receive: Callable[[Away], None] | None = None
) -> tuple[list[Unit], dict[nn.Parameter, Away]]:
    """Sends the parameters of ``modules``, parts of ``model``, to a tier: a unit for each, and what now stands in the
    place of each parameter. ``model.state_dict`` has their values, and loading one sets them. ``receive``: the units'.

    A parameter of several modules comes with the first. Raises TierFull.
    """
    places: dict[nn.Parameter, Away] = {}
    units = []
    for module in modules:
        own = []
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is None or isinstance(parameter, Away):
                    continue
                if parameter not in places:
                    values = parameter.detach().contiguous()
                    away = Away(Home(tier.store(values)), values, parameter.requires_grad)
                    away._is_param = True  # as torch marks those of a subclass
                    places[parameter] = away
                    own.append(away)
                part._parameters[name] = places[parameter]  # type: ignore[assignment]
        units.append(Unit(own, receive))
    model.register_state_dict_post_hook(_with_values)
    return units, places


def in_their_places(groups: list[dict[str, Any]], places: Mapping[nn.Parameter, Away]) -> list[dict[str, Any]]:
    """Returns the parameter groups of what now stands in the parameters' places."""
    return [
        {**group, "params": [places.get(parameter, parameter) for parameter in group["params"]]} for group in groups
    ]


def _with_values(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for name, value in state.items():
        if isinstance(value, Away):
            state[name] = value.clone()
