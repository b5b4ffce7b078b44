"""Update by update the entries that optax has too. Its JAX shares nothing with torch; it is imported only here."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from techniques.optimizers.adamw.technique import AdamW
from techniques.optimizers.lion.technique import Lion
from techniques.shared.adam import Adam
from techniques.shared.sgd import SGD

ADAM, DECAYED = {"b1": 0.8, "b2": 0.95, "eps": 1e-6}, {"lr": 3e-2, "weight_decay": 0.3}


@pytest.mark.parametrize(
    ("name", "theirs", "ours"),
    [
        ("sgd", {"momentum": 0.9}, lambda p: SGD(p, lr=3e-2, momentum=0.9)),
        ("sgd", {"momentum": 0.9, "nesterov": True}, lambda p: SGD(p, lr=3e-2, momentum=0.9, nesterov=True)),
        ("adam", ADAM, lambda p: Adam(p, lr=3e-2, betas=(0.8, 0.95), eps=1e-6)),
        ("adamw", ADAM | {"weight_decay": 0.3}, lambda p: AdamW(p, betas=(0.8, 0.95), eps=1e-6, **DECAYED)),
        ("lion", {"b1": 0.95, "b2": 0.98, "weight_decay": 0.3}, lambda p: Lion(p, betas=(0.95, 0.98), **DECAYED)),
    ],
)
def test_update_by_update_optax(
    name: str, theirs: dict[str, float], ours: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
) -> None:
    import jax.numpy as jnp
    import numpy as np
    import optax

    parameter = nn.Parameter(torch.linspace(-1, 1, 31 * 7))
    optimizer, transform = ours([parameter]), getattr(optax, name)(3e-2, **theirs)
    expected = jnp.asarray(parameter.detach().numpy())
    state = transform.init(expected)
    for gradient in torch.randn(8, 31 * 7, generator=torch.Generator().manual_seed(0)):
        parameter.grad = gradient
        optimizer.step()
        update, state = transform.update(jnp.asarray(gradient.numpy()), state, expected)
        expected = optax.apply_updates(expected, update)
        np.testing.assert_allclose(parameter.detach().numpy(), np.asarray(expected), rtol=1e-5, atol=1e-6)
