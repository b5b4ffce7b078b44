"""Every kernel as its ``peer.py`` declares it: right, also with what is not finite and where indices exceed 32 bits;
in as few launches as it says; and its machine code.
"""

from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from suite.guard import kernel_report
from suite.kernels import gates
from suite.kernels.bench import CHECKED_SIZES, Bench, Inputs, error_units, examine
from tests.kernels import compiled

interpreter = pytest.importorskip("triton.runtime.interpreter")  # Triton has no wheel for some platforms
multi_tensor = pytest.importorskip("suite.kernels.multi_tensor")
parts = pytest.importorskip("suite.kernels.optimizer_parts")

if not multi_tensor.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

BLOCK, PIECE = parts.BLOCK, parts.PIECE
CPU = torch.device("cpu")
FOLDERS = {entry.id: entry.module.removesuffix(".technique") for entry in kernel_report.selected([])}
BENCHES: dict[str, Bench] = {
    f"{id}/{name}": bench
    for id, folder in FOLDERS.items()
    for name, bench in import_module(f"{folder}.peer").BENCHES.items()
}
MULTI_TENSOR = {name: bench for name, bench in BENCHES.items() if bench.multi_tensor}
every = pytest.mark.parametrize("bench", BENCHES.values(), ids=BENCHES)
every_multi_tensor = pytest.mark.parametrize("bench", MULTI_TENSOR.values(), ids=MULTI_TENSOR)


def made(bench: Bench, sizes: list[int]) -> Inputs:
    return bench.make(sizes, CPU, torch.Generator().manual_seed(0))


@every
def test_a_step_is_the_reference(bench: Bench) -> None:
    if bench.checked_sizes == CHECKED_SIZES:
        bench = replace(bench, checked_sizes=(1, 0, PIECE + 1, BLOCK + 77))
    assert not examine(bench, CPU, timed=False).trouble


@every
def test_what_is_not_finite_spoils_what_it_spoils_in_the_reference(bench: Bench) -> None:
    inputs = made(bench, [PIECE + 5, 7, 9])
    for tensor, value in zip(inputs.get("gradients", next(iter(inputs.values()))), ("nan", "inf", "-inf")):
        tensor[3] = float(value)
    expected = bench.reference(inputs)
    bench.kernel(inputs)()
    bench.unpack(inputs)
    for name, references in expected.items():
        for place, (got, reference) in enumerate(zip(inputs[name], references, strict=True)):
            spoilt = ~reference.isfinite()
            wide = got.double()  # eight bits cannot be filled
            torch.testing.assert_close(wide[spoilt], reference[spoilt], rtol=0, atol=0, equal_nan=True)
            inputs[name][place] = wide.masked_fill(spoilt, 0.0).to(got.dtype)
            reference[spoilt] = 0.0
    assert error_units(inputs, expected) <= bench.tolerance


@every_multi_tensor
@pytest.mark.parametrize("elements", [BLOCK, BLOCK - 1], ids=["whole", "tail"])
def test_elements_beyond_2_to_the_31(bench: Bench, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block deep inside a tensor too large to allocate; only what this block may touch is there."""
    chunk = 2**32 // BLOCK + 1
    first = chunk * BLOCK

    def groups(self: object, lasting: list[list[Tensor]], passing: list[list[Tensor]]) -> list[Any]:
        column = [tensor for (tensor,) in (*lasting, *passing)]
        rows = [*(tensor.data_ptr() - first * tensor.itemsize for tensor in column), first + elements]
        table = torch.tensor(rows).view(-1, 1)
        return [multi_tensor.Group(tuple(tensor.dtype for tensor in column), [0], table, torch.tensor([chunk]))]

    monkeypatch.setattr(multi_tensor.LaunchTables, "groups", groups)
    inputs = made(bench, [BLOCK])
    before = {name: tensor.clone() for name, (tensor,) in inputs.items()}
    expected = bench.reference({name: [tensor[:elements]] for name, tensor in before.items()})
    bench.kernel(inputs)()
    bench.unpack(inputs)
    assert error_units({name: [inputs[name][0][:elements]] for name in expected}, expected) <= (bench.tolerance)
    assert all(torch.equal(inputs[name][0][elements:], old[elements:]) for name, old in before.items())


LAUNCHES = {
    **{f"{id}/float32": ["adam_kernel"] for id in ("adam", "adamw")},
    "sgd_momentum/float32": ["sgd_kernel"],
    "acclip/float32": ["acclip_kernel"],
    "lion/float32": ["lion_kernel"],
    "lars/float32": ["norms_kernel", "ratios_kernel", "apply_kernel"],
    "lars/float32_unadapted": ["apply_kernel"],
    "lamb/float32": ["moments_kernel", "ratios_kernel", "apply_kernel"],
    "sam/ascend_float32": ["square_sums_kernel", "factor_kernel", "ascend_kernel"],
}


@pytest.mark.parametrize(("name", "launches"), LAUNCHES.items(), ids=LAUNCHES)
def test_a_step_over_any_number_of_tensors_launches_this_and_nothing_else(
    name: str, launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the second step, when tables are there; torch's operators may but allocate memory and upload addresses."""
    launched: list[str] = []
    operators: set[str] = set()

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            operators.add(operator.overloadpacket.__name__)
            return operator(*args, **(kwargs or {}))

    monkeypatch.setattr(
        interpreter.InterpretedFunction, "run", lambda self, *args, **kwargs: launched.append(self.fn.__name__)
    )
    step = BENCHES[name].kernel(made(BENCHES[name], [5] * 60))
    step()
    launched.clear()
    with Recorded():
        step()
    assert launched == launches
    assert operators <= {"empty", "empty_like", "split_with_sizes", "select", "copy_"}


@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
def test_machine_code_for_hopper_is_within_budget(folder: str) -> None:
    manifests = import_module(f"{folder}.kernel").MANIFESTS
    codes = compiled.machine_code(f"{folder}.kernel")
    assert codes.keys() == manifests.keys()
    violations = {name: gates.check(code, manifests[name].budget) for name, code in codes.items()}
    assert not any(violations.values()), violations
