"""What a GPU would run, traced without one: which kernels, what they save, in which types."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import aot_function, make_boxed_func
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from suite.measure.at_scale.weightless import weightless
from suite.meters.activations import SavedActivations
from suite.meters.flops import FlopCounter, attention_backward_flops, attention_flops
from suite.meters.gpu_operators import FLOAT32, FLOAT32_BY_DTYPE, fused_attention_kernel
from suite.meters.tensors import TensorBytes

BFLOAT16, FLOAT = torch.bfloat16, torch.float32


class Names(TorchDispatchMode):
    """The operators that pass the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func._overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@contextmanager
def names() -> Iterator[list[str]]:
    with Names() as mode:
        yield mode.seen


def saved(run: Callable[[], Tensor]) -> int:
    with SavedActivations() as meter:
        run().sum().backward()
    return meter.saved_bytes


def test_dropout_keeps_a_mask_of_one_byte_an_element() -> None:
    with weightless("cuda"):
        x = torch.randn(8, 100, requires_grad=True)
        assert saved(lambda: F.dropout(x, 0.1)) == 800
        assert saved(lambda: nn.Dropout(0.1)(x)) == 800
        assert saved(lambda: F.dropout(x, 0.1, training=False)) == 0
        assert x.grad is not None and x.grad.shape == x.shape
    with weightless("cpu"):
        x = torch.randn(8, 100, requires_grad=True)
        assert saved(lambda: F.dropout(x, 0.1)) == 3200  # the noise


def sides(
    heads: int = 4,
    length: int = 64,
    width: int = 64,
    dtype: torch.dtype = BFLOAT16,
    keys: int | None = None,
    **other: Any,
) -> tuple[Tensor, ...]:
    shapes = [(2, heads, length, width), *[(2, other.get("groups", heads), keys or length, width)] * 2]
    return tuple(torch.empty(shape, dtype=dtype, requires_grad=True) for shape in shapes)


@pytest.mark.parametrize(
    ("arguments", "options", "kernel"),
    [
        ({}, {}, "flash"),
        ({}, {"is_causal": True, "dropout_p": 0.1}, "flash"),
        ({"width": 256}, {}, "flash"),
        ({"width": 20}, {}, "flash"),  # padded to 24
        ({"width": 264}, {}, "efficient"),
        ({"dtype": FLOAT}, {"dropout_p": 0.1}, "efficient"),
        ({"dtype": FLOAT, "width": 20}, {}, "efficient"),
        ({"dtype": FLOAT, "width": 18}, {}, "math"),
        ({"dtype": torch.float64}, {}, "math"),
        ({"keys": 32}, {"is_causal": True}, "efficient"),
        ({"keys": 32}, {}, "flash"),
        ({"groups": 2}, {"enable_gqa": True}, "flash"),
        ({}, {"attn_mask": (64, 64, torch.bool)}, "efficient"),
        ({"length": 50}, {"attn_mask": (50, 50, BFLOAT16)}, "efficient"),
        ({"width": 20}, {"attn_mask": (64, 64, torch.bool)}, "math"),
    ],
)
def test_attention_takes_the_kernel_that_cuda_would(arguments: Any, options: Any, kernel: str) -> None:
    with weightless("cuda"):
        q, k, v = sides(**arguments)
        if "attn_mask" in options:
            *shape, dtype = options["attn_mask"]
            options = {**options, "attn_mask": torch.ones(shape, dtype=dtype)}
        chosen = fused_attention_kernel(
            q, k, v, options.get("attn_mask"), options.get("is_causal", False), options.get("enable_gqa", False)
        )
        with names() as seen:
            output = F.scaled_dot_product_attention(q, k, v, **options)
            output.sum().backward()
        assert output.shape == q.shape and [each.grad.shape for each in (q, k, v)] == [each.shape for each in (q, k, v)]
    assert chosen == kernel
    if kernel == "math":
        assert "bmm" in seen and not any("attention" in name for name in seen)
    else:
        assert [name for name in seen if "attention" in name] == [
            f"_scaled_dot_product_{kernel}_attention",
            f"_scaled_dot_product_{kernel}_attention_backward",
        ]


def test_attention_whose_last_dimension_is_strided_is_not_fused() -> None:
    with weightless("cuda"):
        q, k, v = sides()
        assert fused_attention_kernel(q.mT, k.mT, v.mT) == "math"


def test_fused_attention_saves_its_operands_its_output_and_a_number_a_row_with_dropout_too() -> None:
    with weightless("cuda"):
        q, k, v = sides()
        once = saved(lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1))
        seeds = 2 * 8 + 8  # of the generator
        assert once == 4 * q.nbytes + 2 * 4 * 64 * 4 + seeds
        with FlopCounter() as flops:
            F.scaled_dot_product_attention(q, k, v, dropout_p=0.1).sum().backward()
        shapes = [tuple(each.shape) for each in (q, k, v)]
        assert flops.total == attention_flops(*shapes) + attention_backward_flops(*shapes)
        assert not flops.uncounted


def test_what_is_traced_ahead_of_autograd_has_a_gpu_s_operators_too() -> None:
    graphs: list[str] = []

    def noted(graph: fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph.code)
        return make_boxed_func(graph)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout(F.scaled_dot_product_attention(q, k, v, dropout_p=0.1), 0.1)

    with weightless("cuda"):
        aot_function(attend, fw_compiler=noted, bw_compiler=noted)(*sides()).sum().backward()
    assert "_scaled_dot_product_flash_attention" in graphs[0] and "native_dropout" in graphs[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as torch warns of an operator whose kernel is gone
        aot_function(attend, fw_compiler=noted, bw_compiler=noted)(*sides()).sum().backward()
    assert "_scaled_dot_product_flash_attention" not in graphs[2]


def test_a_masked_attention_keeps_an_additive_mask_for_every_head_where_rows_are_not_whole_sixteens() -> None:
    with weightless("cuda"):
        for length, heads_of_mask in ((64, 1), (50, 8)):
            q, k, v = sides(length=length)
            mask = torch.ones(length, length, dtype=torch.bool)
            padded = -(-length // 16) * 16
            once = saved(lambda q=q, k=k, v=v, mask=mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
            rows = -(-length // 32) * 32
            assert once == 4 * q.nbytes + 8 * rows * 4 + 2 * 8 + heads_of_mask * length * padded * 2


def test_autocast_runs_in_float32_what_cuda_s_does() -> None:
    def types() -> list[torch.dtype]:
        x, weight = torch.randn(4, 8), torch.ones(8)
        with torch.autocast("cpu", BFLOAT16):
            y = x @ x.mT
            z = F.linear(x, torch.randn(8, 8))
            return [
                y.dtype,
                y.softmax(-1).dtype,
                F.layer_norm(z, (8,), weight).dtype,
                (y**3).dtype,
                y.sum().dtype,
                F.gelu(y).dtype,
                F.softmax(y, -1, dtype=torch.float64).dtype,
            ]

    with weightless("cuda"):
        assert types() == [BFLOAT16, FLOAT, FLOAT, FLOAT, FLOAT, BFLOAT16, torch.float64]
    with weightless("cpu"):
        assert types() == [BFLOAT16, BFLOAT16, BFLOAT16, BFLOAT16, BFLOAT16, BFLOAT16, torch.float64]


def test_the_list_of_autocast_is_torch_s() -> None:
    """Of the header that this torch was compiled with."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    if not header.exists():
        pytest.skip("this torch comes without its headers")
    listed = {
        macro: tuple(
            ".".join(re.findall(r"\w+", entry))
            for entry in re.findall(r"_\(([\w, ]+)\)", text)
            if "upsample" not in entry
        )
        for macro, text in re.findall(r"#define (AT_FORALL_\w+)\(_\)\s*\\\n(.*?)\n\n", header.read_text(), re.DOTALL)
    }
    assert listed["AT_FORALL_FP32"] == FLOAT32
    assert listed["AT_FORALL_FP32_SET_OPT_DTYPE"] == FLOAT32_BY_DTYPE


@pytest.mark.parametrize(("device", "dtype"), [("cuda", FLOAT), ("cpu", BFLOAT16)])
def test_a_normalisation_keeps_its_statistics_in_the_type_that_the_device_adds_up_in(
    device: str, dtype: torch.dtype
) -> None:
    with weightless(device):
        norm = nn.LayerNorm(8).bfloat16()
        x = torch.randn(4, 8, dtype=BFLOAT16, requires_grad=True)
        _, mean, rstd = torch.native_layer_norm(x, (8,), norm.weight, norm.bias, 1e-5)
        assert mean.dtype == rstd.dtype == dtype


def test_optimizers_take_the_operators_over_lists_on_a_gpu() -> None:
    def step() -> list[str]:
        parameters = [nn.Parameter(torch.randn(3)) for _ in range(2)]
        for each in parameters:
            each.grad = torch.randn(3)
        optimizer = torch.optim.AdamW(parameters)
        with names() as seen:
            optimizer.step()
        return seen

    with weightless("cuda"):
        assert "_foreach_addcdiv_" in step()
    with weightless("cpu"):
        assert "_foreach_addcdiv_" not in step()


def test_real_tensors_and_what_comes_after_are_as_before() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 2, 8, 8, requires_grad=True)
    state = torch.get_rng_state()

    def results() -> list[Tensor]:
        torch.set_rng_state(state)
        return [F.dropout(x, 0.5), F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), (x.detach() ** 2).sum()]

    before = results()
    with weightless("cuda"):
        pass
    assert all(map(torch.equal, before, results()))
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::scaled_dot_product_attention", "AutogradCPU")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_saves_and_holds_what_was_counted_without_one() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(64, 2, dropout=0.1, batch_first=True)
            self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attention(x, x, x, need_weights=False)[0]
            return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1)

    def step(device: str) -> tuple[int, int]:
        model, x = Layer().to(device), torch.randn(4, 128, 64, device=device)
        tensors = TensorBytes().seed(model, None, x)
        with SavedActivations(model) as activations, tensors:
            with torch.autocast(device, BFLOAT16):
                loss = model(x).float().sum()
            loss.backward()
        return activations.saved_bytes, tensors.peak_bytes

    real = step("cuda")
    with weightless("cuda"):
        assert step("cpu") == real
