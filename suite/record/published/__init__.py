"""Training steps that others measured on GPUs and published: the rows, and what each says was run.

The tables beside this module are copies of public ones (``README.md`` there: licences, sources, what to beware of). A
:class:`PublishedRow` is one of their lines; its :class:`Case` is the step to trace, or ``why_not`` says why this suite
cannot express it. What a table does not say and the case needs is in the functions below, a reason a line. Imports no
torch.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from suite.record.operators import TracedStep

FOLDER = Path(__file__).parent
TRACES = "traces.json.gz"
Line = Mapping[str, str]


@dataclass(frozen=True)
class Case:
    """A step to trace. Sizes that a kind of model does not have are 0.

    Attributes:
        library, model: "timm" and a model's name there, or "transformers" and a configuration's ``model_type``.
        batch, length: examples, and tokens of each (0: images).
        parameters, autocast: dtypes; autocast is empty where there is none.
        attention: eager (products and softmax) or sdpa.
        recomputed: whether every block is computed again in the backward pass.
        adapters, adapted: rank of low-rank adapters, and the ends of the names of the linear layers that have one.
        optimizer: adamw, sgd (with momentum, tensor by tensor, gradients zeroed and kept), or none.
        forward_only, clipped, compiled, dropout: what the step does.
        fused: whether norms, rotary embeddings and the loss are one kernel each.
        chunked_loss: whether the loss is computed from the last hidden states in chunks, its gradient at once.
        wide_logits: whether the loss is of float32 copies of the logits.
    """

    library: str
    model: str
    batch: int
    length: int = 0
    layers: int = 0
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0
    ffn: int = 0
    vocabulary: int = 0
    parameters: str = "float32"
    autocast: str = ""
    attention: str = "sdpa"
    recomputed: bool = False
    adapters: int = 0
    adapted: tuple[str, ...] = ()
    optimizer: str = "adamw"
    forward_only: bool = False
    clipped: bool = False
    compiled: bool = False
    dropout: bool = False
    fused: bool = False
    chunked_loss: bool = False
    wide_logits: bool = True

    @property
    def tied(self) -> bool:
        """Whether the head's weight is the embedding's: of these models all but Mistral's and the larger Llamas'."""
        return self.model not in ("mistral", "llama") or (self.model == "llama" and self.hidden < 4096)

    @property
    def key(self) -> str:
        """Equal cases have one trace. Of what differs from the defaults alone: a new attribute changes no known key."""
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        said = {name: value for name, (value, default) in values.items() if value != default}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class PublishedRow:
    """One published measurement.

    Attributes:
        table, line: where it stands; ``source`` is the table's own, a repository's file at a commit.
        device: the GPU's name in ``devices.toml``.
        kind: of model, as tables of results name it.
        attention, precision, technique: what results are told apart by.
        measured_s: of one step; peak_bytes: allocated; None where the table has none.
        accumulated: passes forward and backward that one update follows.
        shards: ranks that share the update.
        alike: rows with equal ones differ in their technique alone, and their ratios are compared.
        case, why_not: the step, or the reason why there is none.
    """

    table: str
    line: int
    source: str
    device: str
    kind: str
    precision: str
    attention: str
    technique: str
    measured_s: float | None = None
    peak_bytes: float | None = None
    accumulated: int = 1
    shards: int = 1
    alike: str = ""
    case: Case | None = None
    why_not: str = ""

    def but(self, why_not: str) -> PublishedRow:
        return replace(self, case=None, why_not=why_not)


GIB = 2**30


def _sizes(line: Line) -> dict[str, Any]:
    columns = {"layers": "layers", "hidden": "hidden", "heads": "heads", "kv_heads": "kv_heads", "ffn": "ffn_hidden",
               "vocabulary": "vocab"}  # fmt: skip
    return {field: int(float(line[column])) for field, column in columns.items()}


def _timm(line: Line) -> PublishedRow:
    row = PublishedRow(
        "timm_vit_train", 0, line["source"], "RTX-3090", line["family"], "amp_fp16", "unfused", line["memory_layout"],
        _ms(line), alike=f"{line['model']} {line['micro_batch']}",
    )  # fmt: skip
    model = line["model"]
    if line["layers"]:
        model = model.removesuffix("_in21ft1k").removesuffix("_sam")  # the same network, trained otherwise
    case = Case(
        "timm", model, int(line["micro_batch"]), layers=int(float(line["layers"] or 0)), autocast="float16",
        attention="eager", optimizer="sgd",
    )  # fmt: skip
    return replace(row, case=case)


NEUSIGHT_DEVICES = {
    "NVIDIA A100-PCIE-40GB": "A100-40-PCIE", "NVIDIA A100 80GB PCIe": "A100-80-PCIE", "NVIDIA L4": "L4",
    "NVIDIA H100 80GB HBM3": "H100-SXM", "Tesla P100-PCIE-16GB": "P100", "Tesla P4": "P4", "Tesla T4": "T4",
    "Tesla V100-PCIE-32GB": "V100-PCIE",
}  # fmt: skip
NEUSIGHT_MODELS = {"bert_large": "bert", "gpt2_large": "gpt2", "gpt3_xl": "gpt2", "gpt3_27": "gpt2", "opt_13": "opt"}


def _neusight(line: Line) -> PublishedRow:
    forward_only = line["mode"] == "forward only"
    compiled = line["compile"] != "no"
    model = NEUSIGHT_MODELS[line["model"]]
    device = NEUSIGHT_DEVICES.get(line["hardware"], "")
    row = PublishedRow(
        "neusight_steps", 0, line["source"], device, model, "fp32", "unfused",
        "compiled" if compiled else "forward only" if forward_only else "none", _ms(line),
        alike=f"{line['hardware']} {line['model']} {line['micro_batch']} {line['mode']}",
    )  # fmt: skip
    if not device:
        return row.but(f"{line['hardware']} is not in the table of GPUs")
    if line["gpus"] != "1":
        return row.but("its collectives have no link's rate here")
    case = Case(
        "transformers", model, int(line["micro_batch"]), int(line["sequence"]), int(line["layers"]),
        int(line["hidden"]), int(line["heads"]), int(line["heads"]), int(line["ffn_hidden"]), int(line["vocab"]),
        attention="eager", optimizer="none", forward_only=forward_only, compiled=compiled, dropout=not forward_only,
    )  # fmt: skip
    return replace(row, case=case)


FMS_MODELS = {"bigcode": "gpt_bigcode", "mistralai": "mistral", "ibm": "granite", "meta-llama": "llama"}


def _fms(line: Line) -> PublishedRow:
    technique, adapted = line["technique"], line["peft_method"] == "lora"
    fused, chunked = "foak" in technique, "liger" in technique
    words = ["lora" if adapted else "full", "fused" * fused, "liger" * chunked, line["mixed_precision"].strip()]
    model = FMS_MODELS.get(line["model"].partition("/")[0], "")
    precision = "bf16" if line["mixed_precision"] == "none" else "amp_bf16"
    row = PublishedRow(
        "fms_finetune_techniques", 0, line["source"], "A100-80", model or "other", precision, "flash",
        " ".join(each for each in words if each and each != "none").replace("bf16", "amp"),
        _ms(line), GIB * float(line["peak_allocated_gib"]) if line["peak_allocated_gib"] else None,
        alike=f"{line['model']} {line['micro_batch']} {line['software']}",
    )  # fmt: skip
    if line["gpus"] != "1":
        return row.but("its collectives have no link's rate here")
    if line["status"] != "measured":
        return row.but("it has no result")
    if ("bnb" in technique and adapted) or "gptq" in technique:
        return row.but("its quantised weights have a kernel of their own, which has no declared cost")
    if not model or not line["layers"]:
        return row.but("its model is of another kind (70B, quantised, or a mixture of experts)")
    if "fixed length" not in line["dataset"]:
        return row.but("its sequences vary in length")
    case = Case(
        "transformers", model, int(line["micro_batch"]), int(float(line["sequence"])), **_sizes(line),
        parameters=line["parameters_dtype"], autocast="" if precision == "bf16" else "bfloat16", recomputed=True,
        adapters=int(float(line["lora_rank"])) if adapted else 0,
        adapted=tuple(line["lora_targets"].split()) if adapted else (),
        clipped=True, fused=fused, chunked_loss=chunked, wide_logits=model != "gpt_bigcode",
    )  # fmt: skip
    return replace(row, case=case)


MPT_DEVICES = {"a100_40gb": "A100-40", "a100_80gb": "A100-80", "h100_80gb": "H100-SXM"}


def _mpt(line: Line) -> PublishedRow:
    row = PublishedRow(
        "llm_foundry_mpt", 0, line["source"], MPT_DEVICES[line["hardware"]], "mpt", line["precision"], "flash",
        "recomputed" if line["activation_checkpointing"] == "yes" else "none", _ms(line),
        accumulated=int(line["grad_accumulation"] or 1), shards=int(line["gpus"]),
        alike="",
    )  # fmt: skip
    if line["gpus"] != "8":
        return row.but("its collectives cross nodes, and have no link's rate here")
    if line["precision"] == "amp_fp8":
        return row.but("its FP8 products and casts have kernels of their own, which have no declared cost")
    if line["activation_cpu_offload"] == "yes" or int(line["hidden"]) >= 7168:
        return row.but("it moves activations to the host, or is of 30 billion parameters and more")
    amp = line["precision"] == "amp_bf16"
    case = Case(
        "transformers", "gpt2", int(line["micro_batch"]), int(line["sequence"]), int(line["layers"]),
        int(line["hidden"]), int(line["heads"]), int(line["heads"]), 4 * int(line["hidden"]), int(line["vocab"]),
        parameters="float32" if amp else "bfloat16", autocast="bfloat16" if amp else "",
        recomputed=line["activation_checkpointing"] == "yes", clipped=True,
    )  # fmt: skip
    return replace(row, case=case)


def _peft(line: Line) -> PublishedRow:
    method = line["method"]
    row = PublishedRow(
        "peft_methods", 0, line["source"], "L40S", "llama", "bf16", "flash", method.lower(), _ms(line),
        alike=line["model"],
    )  # fmt: skip
    if line["task"] != "MetaMathQA":
        return row.but("it trains a diffusion model")
    plain = method == "LORA" and not any(word in line["experiment"] for word in ("lorafa", "mica", "dora", "bdlora"))
    if not plain and method != "full fine-tuning":
        return row.but("its adapters have no form here")
    tokens = round(float(line["tokens_per_s"]) * float(line["step_time_ms"]) / 1e3 / int(line["micro_batch"]))
    case = Case(
        "transformers", "llama", int(line["micro_batch"]), tokens, **_sizes(line),
        parameters="bfloat16", adapters=int(float(line["rank"])) if plain else 0,
        adapted=tuple(line["target_modules"].split(",")) if plain else (), clipped=True,
    )  # fmt: skip
    return replace(row, case=case)


def _liger(line: Line) -> PublishedRow:
    row = PublishedRow(
        "liger_kernels", 0, line["source"], "", "kernel", line["dtype"], "", f"{line['kernel']} {line['provider']}"
    )  # fmt: skip
    return row.but("it times a kernel alone, and no step")


def _zeus(line: Line) -> PublishedRow:
    row = PublishedRow("zeus_bert_power", 0, line["source"], "", "bert", "", "", "power limit")
    return row.but("it states neither precision, nor the sequences' length, nor the examples of an epoch")


READERS: Mapping[str, Callable[[Line], PublishedRow]] = {
    "timm_vit_train": _timm, "neusight_steps": _neusight, "fms_finetune_techniques": _fms, "llm_foundry_mpt": _mpt,
    "peft_methods": _peft, "liger_kernels": _liger, "zeus_bert_power": _zeus,
}  # fmt: skip
"""The tables whose rows are steps."""


def _ms(line: Line) -> float | None:
    return float(line["step_time_ms"]) / 1e3 if line["step_time_ms"] else None


def lines_of(table: str) -> list[dict[str, str]]:
    """A table beside this module, a line a mapping."""
    with (FOLDER / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def rows() -> tuple[PublishedRow, ...]:
    """Every row of every table of steps."""
    return tuple(
        replace(read(line), table=table, line=number)
        for table, read in READERS.items()
        for number, line in enumerate(lines_of(table), start=2)
    )


def cases() -> Iterator[Case]:
    """The steps to trace, each once."""
    seen: dict[str, Case] = {}
    for row in rows():
        if row.case is not None and row.case.key not in seen:
            seen[row.case.key] = row.case
            yield row.case


@dataclass(frozen=True)
class Traced:
    """What a case's trace gave: its operators and its peak of allocated bytes, or why there is none."""

    step: TracedStep | None = None
    peak_bytes: int = 0
    why_not: str = ""


@cache
def traces(folder: Path = FOLDER) -> Mapping[str, Traced]:
    """What is traced, by the key of its case."""
    path = folder / TRACES
    if not path.is_file():
        return {}
    known: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return {
        key: Traced(TracedStep.from_json(each["step"]) if each["step"] else None, each["peak_bytes"], each["why_not"])
        for key, each in known.items()
    }


def write_traces(known: Mapping[str, Traced], folder: Path = FOLDER) -> None:
    """Writes the traces, equal ones to equal bytes."""
    stored = {
        key: {"step": each.step.as_json() if each.step else "", "peak_bytes": each.peak_bytes, "why_not": each.why_not}
        for key, each in sorted(known.items())
    }
    (folder / TRACES).write_bytes(gzip.compress(json.dumps(stored).encode(), 9, mtime=0))
    traces.cache_clear()
