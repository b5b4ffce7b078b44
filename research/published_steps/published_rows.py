"""Has training steps that others measured on GPUs and published: the rows, and what each says was run.

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
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from research.published_steps.nanotron_stages import stages_of
from research.published_steps.stalls import set_apart
from suite.record.operator_counts import Phase, TracedStep
from suite.topics.modelled_time.gpu_links import FABRICS, NODE, Collective

FOLDER = Path(__file__).parent
TRACES = "traces.json.gz"
PREDICTED = "predicted.csv"
Line = Mapping[str, str]


@dataclass(frozen=True)
class EightBits:
    """Describes how operands of products become eight floating bits.

    Attributes:
        scaling: delayed, tensor, block or mx: what a scale is of, and when it is known.
        transposed: whether a cast writes the transpose, too, as products read operands by rows alone.
        weights_kept: whether weights are kept in eight bits, and cast by the update.
    """

    scaling: str
    transposed: bool
    weights_kept: bool


@dataclass(frozen=True)
class Case:
    """Describes a step to trace. Sizes that a kind of model does not have are 0.

    Attributes:
        library, model: "timm" and a model's name there, or "transformers" and a configuration's ``model_type``.
        batch, length: examples, and tokens of each (0: images).
        parameters, autocast: dtypes; autocast is empty where there is none.
        attention: eager (products and softmax) or sdpa.
        recomputed: whether every block is computed again in the backward pass; ``to_its_end``: all of it, as reentrant
            checkpoints do, or no more than the backward pass needs.
        adapters, adapted: rank of low-rank adapters, and the ends of the names of the linear layers that have one.
        optimizer: adamw, sgd (with momentum, tensor by tensor, gradients zeroed and kept), or none.
        forward_only, clipped, compiled, dropout: what the step does.
        fused: whether norms, rotary embeddings and the loss are one kernel each.
        chunked_loss: whether the loss is computed from the last hidden states in chunks, its gradient at once.
        wide_logits: whether the loss is of float32 copies of the logits; ``logits_held``: whether the logits are kept
            beside their copies.
        repeated: whether keys and values are copied for every head of the queries.
        quantised: how the weights of the blocks' linear layers are held: "4bit", or "4bit wide" where norms are
            float32, and with them all that is added up from block to block; empty where they are not.
        method: a name of peft's adapters, with their own settings; empty for low-rank ones and for none.
        answers: outputs a token, of a model that has no language model's head.
        tensor_ranks: ranks that share each layer (Megatron's split, sequences split between layers); one is traced.
        context_ranks: ranks that share each sequence, of which one has ``length`` tokens.
        eight_bits: how the blocks' linear layers multiply in FP8; None where they do not.
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
    quantised: str = ""
    method: str = ""
    tensor_ranks: int = 1
    answers: int = 0
    to_its_end: bool = False
    logits_held: bool = False
    repeated: bool = False
    context_ranks: int = 1
    eight_bits: EightBits | None = None

    @property
    def tied(self) -> bool:
        """Tells whether the head's weight is the embedding's: of these models all but Mistral's and the larger
        Llamas'."""
        return self.model not in ("mistral", "llama") or (self.model == "llama" and self.hidden < 4096)

    @property
    def key(self) -> str:
        """Returns the key under which equal cases have one trace. Of what differs from the defaults alone: a new
        attribute changes no known key."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        said = {name: value for name, (value, default) in values.items() if value != default}
        said |= {name: asdict(value) for name, value in said.items() if isinstance(value, EightBits)}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class StageMemory:
    """Records what ranks of a stage hold.

    Attributes:
        parameters: of a rank.
        layers: of the stage.
        head: whether it makes the logits.
        in_flight: micro batches whose activations it keeps at most.
    """

    parameters: float
    layers: int
    head: bool
    in_flight: int


@dataclass(frozen=True)
class SharedMemory:
    """Records what the ranks of a pipeline hold besides what the trace of one shows, which has a head.

    Attributes:
        traced: the stage that is traced.
        stages: all.
        state_bytes: a parameter, of what ranks do not share; ``shared_bytes``: of what so many ``shards`` share.
        ran: whether it has a result.
        reported_bytes: the published peak.
    """

    traced: StageMemory
    stages: tuple[StageMemory, ...]
    state_bytes: float
    shared_bytes: float
    shards: int
    ran: bool
    reported_bytes: float | None


@dataclass(frozen=True)
class PublishedRow:
    """Holds one published measurement.

    Attributes:
        table, line: where it stands; ``source`` is the table's own, a repository's file at a commit.
        device: the GPU's name in ``devices.toml``.
        kind: of model, as tables of results name it.
        attention, precision, technique: what results are told apart by.
        measured_s: of one step; peak_bytes: allocated; None where the table has none.
        accumulated: passes forward and backward that one update follows.
        shards: ranks that share the update.
        alike: rows with equal ones differ in their technique alone, and their ratios are compared.
        set_up: the same of rows whose ratios are only shown; ``alike`` where that is empty.
        gpus: that trained together; collectives, fabric: what they send, and over which links.
        memory: what their memory is made of, where several share a model.
        power_w, limit_w, epoch_s: mean power of a board, its limit, and an epoch's time, where the table has them.
        host_bound: whether its source says that the host bounds its times: they compare with one another alone.
        stages: of a pipeline, 1 where there is none.
        layer_runs, head_runs: of a pipeline's update: how often a layer and what is no layer run one after the other.
        update_share: of the traced step's update that a rank makes; its share of the ``shards`` where 0.
        deeper: the case with another number of layers, whose trace tells a layer's operators from the others.
        set_apart: why its time is no word on operators and links; empty where it is judged.
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
    set_up: str = ""
    gpus: int = 1
    collectives: tuple[Collective, ...] = ()
    fabric: str = ""
    memory: SharedMemory | None = None
    power_w: float | None = None
    limit_w: float = 0.0
    epoch_s: float = 0.0
    host_bound: bool = False
    stages: int = 1
    layer_runs: int = 0
    head_runs: int = 0
    update_share: float = 0.0
    deeper: Case | None = None
    set_apart: str = ""
    case: Case | None = None
    why_not: str = ""

    @property
    def node(self) -> int:
        """Counts the GPUs that links inside join, where it ran."""
        return FABRICS[self.fabric].node if self.fabric else NODE

    def but(self, why_not: str) -> PublishedRow:
        return replace(self, case=None, why_not=why_not)


GIB = 2**30


def _sizes(line: Line) -> dict[str, Any]:
    columns = {
        "layers": "layers",
        "hidden": "hidden",
        "heads": "heads",
        "kv_heads": "kv_heads",
        "ffn": "ffn_hidden",
        "vocabulary": "vocab",
    }
    return {field: int(float(line[column])) for field, column in columns.items()}


def _timm(line: Line) -> PublishedRow:
    row = PublishedRow(
        "timm_vit_train",
        0,
        line["source"],
        "RTX-3090",
        line["family"],
        "amp_fp16",
        "unfused",
        line["memory_layout"],
        _ms(line),
        alike=f"{line['model']} {line['micro_batch']}",
    )
    model = line["model"]
    if line["layers"]:
        model = model.removesuffix("_in21ft1k").removesuffix("_sam")  # the same network, trained otherwise
    case = Case(
        "timm",
        model,
        int(line["micro_batch"]),
        layers=int(float(line["layers"] or 0)),
        autocast="float16",
        attention="eager",
        optimizer="sgd",
    )
    return replace(row, case=case)


NEUSIGHT_DEVICES = {
    "AMD Instinct MI100": "MI100",
    "AMD Instinct MI210": "MI210",
    "AMD Instinct MI250": "MI250",
    "NVIDIA A100-SXM4-40GB": "A100-40",
    "NVIDIA A100-PCIE-40GB": "A100-40-PCIE",
    "NVIDIA A100 80GB PCIe": "A100-80-PCIE",
    "NVIDIA L4": "L4",
    "NVIDIA H100 80GB HBM3": "H100-SXM",
    "Tesla P100-PCIE-16GB": "P100",
    "Tesla P4": "P4",
    "Tesla T4": "T4",
    "Tesla V100-PCIE-32GB": "V100-PCIE",
}
NEUSIGHT_MODELS = {"bert_large": "bert", "gpt2_large": "gpt2", "gpt3_xl": "gpt2", "gpt3_27": "gpt2", "opt_13": "opt"}


def _neusight(line: Line) -> PublishedRow:
    forward_only = line["mode"] == "forward only"
    compiled = line["compile"] != "no"
    model = NEUSIGHT_MODELS[line["model"]]
    device = NEUSIGHT_DEVICES.get(line["hardware"], "")
    row = PublishedRow(
        "neusight_steps",
        0,
        line["source"],
        device,
        model,
        "fp32",
        "unfused",
        "compiled" if compiled else "forward only" if forward_only else "none",
        _ms(line),
        alike=f"{line['hardware']} {line['model']} {line['micro_batch']} {line['mode']}",
    )
    if not device:
        return row.but(f"{line['hardware']} is not in the table of GPUs")
    if line["gpus"] != "1":
        return row.but("its collectives have no link's rate here")
    case = Case(
        "transformers",
        model,
        int(line["micro_batch"]),
        int(line["sequence"]),
        int(line["layers"]),
        int(line["hidden"]),
        int(line["heads"]),
        int(line["heads"]),
        int(line["ffn_hidden"]),
        int(line["vocab"]),
        attention="eager",
        optimizer="none",
        forward_only=forward_only,
        compiled=compiled,
        dropout=not forward_only,
    )
    return replace(row, case=case)


FMS_MODELS = {
    "bigcode": "gpt_bigcode",
    "mistralai/Mistral": "mistral",
    "ibm": "granite",
    "meta-llama": "llama",
    "TheBloke/Mistral": "mistral",
    "TheBloke/Llama": "llama",
    "NousResearch/Llama": "llama",
    "TechxGenus": "llama",
}


def _transformers_of(line: Line) -> tuple[int, int]:
    """Reads the version of transformers that the line's software names, whose models changed what they keep."""
    version = line["software"].partition("transformers==")[2].partition(",")[0].split(".")
    return int(version[0]), int(version[1])


def _fms(line: Line) -> PublishedRow:
    technique, adapted, gpus = line["technique"], line["peft_method"] == "lora", int(line["gpus"])
    fused, chunked = "foak" in technique, "liger" in technique
    quantised = "4bit wide" if technique == "baseline-peft-bnb" else "4bit" if "bnb" in technique else ""
    quantised = "4bit" if "gptq" in technique else quantised
    words = ["lora" if adapted else "full", "quantised" * bool(quantised), "fused" * fused, "liger" * chunked]
    words.append(line["mixed_precision"].strip())
    model = next((kind for name, kind in FMS_MODELS.items() if line["model"].startswith(name)), "")
    half = {"bf16": "bf16", "fp16": "fp16"}.get(line["mixed_precision"], "")
    precision = f"amp_{half}" if half else "bf16"
    row = PublishedRow(
        "fms_finetune_techniques",
        0,
        line["source"],
        "A100-80",
        model or "other",
        precision,
        "flash",
        " ".join(word for word in words if word and word != "none").replace("bf16", "amp").replace("fp16", "amp"),
        _ms(line),
        GIB * float(line["peak_allocated_gib"]) if line["peak_allocated_gib"] and gpus == 1 else None,
        alike=f"{line['model']} {line['micro_batch']} {line['software']} {gpus}",
        gpus=gpus,
        shards=gpus,
    )
    if line["status"] != "measured":
        return row.but("it has no result")
    if not model or not line["layers"]:
        return row.but("its model is a mixture of experts")
    if "fixed length" not in line["dataset"]:
        return row.but("its sequences vary in length")
    case = Case(
        "transformers",
        model,
        int(line["micro_batch"]),
        int(float(line["sequence"])),
        **_sizes(line),
        parameters=line["parameters_dtype"],
        recomputed=True,
        autocast={"bf16": "bfloat16", "fp16": "float16", "": ""}[half],
        adapters=int(float(line["lora_rank"])) if adapted else 0,
        adapted=tuple(line["lora_targets"].split()) if adapted else (),
        quantised=quantised,
        clipped=True,
        fused=fused,
        chunked_loss=chunked,
        wide_logits=model != "gpt_bigcode",
        to_its_end=True,
        logits_held=_transformers_of(line) >= (4, 46),
        repeated=model == "mistral" and _transformers_of(line) < (4, 48),
    )
    parameters = float(line["parameters"])
    sent = sharded(2 * parameters * (0.25 if quantised else 1.0), 0 if adapted else 2 * parameters, gpus)
    return replace(row, case=case, collectives=sent, fabric="A100")


def sharded(
    weights: float, gradients: float, ranks: int, passes: int = 1, again: bool = True
) -> tuple[Collective, ...]:
    """Lists what ranks that shard weights, gradients and states send a step, bytes given: beside the operators."""
    if ranks < 2:
        return ()
    return (
        Collective("all-gather", "forward", weights, ranks, times=passes),
        *((Collective("all-gather", "backward", weights, ranks, times=passes),) if again else ()),
        Collective("reduce-scatter", "backward", gradients, ranks, times=passes),
    )


MPT_DEVICES = {"a100_40gb": "A100-40", "a100_80gb": "A100-80", "h100_80gb": "H100-SXM"}


def _mpt(line: Line) -> PublishedRow:
    gpus, passes = int(line["gpus"]), int(line["grad_accumulation"] or 1)
    fp8, recomputed = line["precision"] == "amp_fp8", line["activation_checkpointing"] == "yes"
    alike = ("hardware", "gpus", "model", "sequence", "micro_batch", "global_batch")
    row = PublishedRow(
        "llm_foundry_mpt",
        0,
        line["source"],
        MPT_DEVICES[line["hardware"]],
        "mpt",
        line["precision"],
        "flash",
        "fp8" if fp8 else "recomputed" if recomputed else "none",
        _ms(line),
        accumulated=passes,
        shards=gpus,
        gpus=gpus,
        set_up=" ".join(line[column] for column in alike),
    )
    if line["activation_cpu_offload"] == "yes":
        return row.but("it moves activations to the host's memory, by rules that it does not state")
    amp = line["precision"] in ("amp_bf16", "amp_fp8")
    case = Case(
        "transformers",
        "gpt2",
        int(line["micro_batch"]),
        int(line["sequence"]),
        int(line["layers"]),
        int(line["hidden"]),
        int(line["heads"]),
        int(line["heads"]),
        4 * int(line["hidden"]),
        int(line["vocab"]),
        parameters="float32" if amp else "bfloat16",
        autocast="bfloat16" if amp else "",
        recomputed=recomputed,
        clipped=True,
        eight_bits=EightBits("delayed", True, False) if fp8 else None,
    )
    parameters = float(line["parameters"])
    sent = sharded(2 * parameters, (4 if amp else 2) * parameters, gpus, passes, line["sharding"] == "FULL_SHARD")
    return replace(row, case=case, collectives=sent, fabric=line["hardware"][:4].upper())


def _nanotron_row(line: Line) -> PublishedRow:
    """Returns what is known of the row without its case."""
    dp, pp, tp, passes = (int(line[name]) for name in ("dp", "pp", "tp", "grad_accumulation"))
    zero = line["zero_stage"] == "1"
    return PublishedRow(
        "nanotron_ultrascale",
        0,
        line["source"],
        "H100-SXM",
        f"llama {line['model']}",
        "bf16",
        "flash",
        " ".join(["zero 1" if zero else "ddp", "tensor" * (tp > 1), "pipeline" * (pp > 1)]).strip().replace("  ", " "),
        _ms(line) if line["status"] == "measured" else None,
        accumulated=passes + pp - 1,
        shards=dp if zero else 1,
        gpus=int(line["gpus"]),
        stages=pp,
        alike=f"{line['model']} {line['kv_heads']} on {line['nodes']} nodes" if pp == 1 else "",
        set_up=" ".join(line[column] for column in ("model", "kv_heads", "nodes", "dp", "pp", "tp", "micro_batch")),
    )


def _nanotron(line: Line) -> PublishedRow:
    """Reads the row as one rank of the last stage, whose blocks and head it shares with ``tp`` others."""
    dp, pp, tp, batch = (int(line[name]) for name in ("dp", "pp", "tp", "micro_batch"))
    passes, zero = int(line["grad_accumulation"]), line["zero_stage"] == "1"
    measured = line["status"] == "measured"
    row = _nanotron_row(line)
    if not measured and not _shareable(line):
        return row.but("it has no result")
    if not line["kv_heads"]:
        return row.but("its number of key heads is not known")
    if not _shareable(line):
        return row.but("its heads or layers cannot be shared so")
    sizes = _sizes(line)
    layers = max(1, round(sizes["layers"] / pp))
    embedded = sizes["vocabulary"] * sizes["hidden"] / tp
    a_layer = (
        sizes["hidden"] ** 2 * (2 + 2 * sizes["kv_heads"] / sizes["heads"]) + 3 * sizes["hidden"] * sizes["ffn"]
    ) / tp
    tied = line["tied_embeddings"] != "no"

    def stage(layers: int, embeds: bool, head: bool, in_flight: int) -> StageMemory:
        embeddings = embeds + head - (embeds and head and tied)
        return StageMemory(layers * a_layer + embeddings * embedded, layers, head, in_flight)

    case = Case(
        "rank",
        "llama",
        batch,
        int(line["sequence"]),
        **{**sizes, "layers": layers},
        parameters="bfloat16",
        tensor_ranks=tp,
        optimizer="adamw",
    )
    blocks = stages_of(
        sizes["layers"],
        pp,
        4 * sizes["hidden"] ** 2 + 3 * sizes["hidden"] * sizes["ffn"],
        sizes["vocabulary"] * sizes["hidden"],
    )
    if not measured and not all(of.blocks for of in blocks):
        return row.but("it has no result")  # nor evidence of memory: of 46 with such a stage one ran
    stages = tuple(stage(of.layers, of.embeds, of.head, min(pp - place, passes)) for place, of in enumerate(blocks))
    traced = stage(layers, pp == 1, True, 1)
    memory = SharedMemory(
        traced,
        stages,
        4,
        12,
        dp if zero else 1,
        measured,
        GIB * float(line["peak_memory_gib"]) if line["peak_memory_gib"] else None,
    )
    dearest = max(blocks, key=lambda of: of.cost)
    layer_runs = sizes["layers"] + (passes - 1) * dearest.layers
    own = max(each.parameters for each in stages)
    return replace(
        row,
        case=case,
        memory=memory,
        fabric="H100",
        layer_runs=layer_runs,
        head_runs=1 + (passes - 1) * dearest.head,
        update_share=own / traced.parameters / row.shards,
        collectives=tuple(_sent_by(line, own, layer_runs, passes + pp - 1, not zero)),
    )


def _shareable(line: Line) -> bool:
    """Tells whether its heads divide among tensor ranks, and each stage has a layer."""
    if not line["kv_heads"]:
        return False
    return int(line["heads"]) % int(line["tp"]) == 0 and int(line["layers"]) >= int(line["pp"])


def _sent_by(line: Line, own: float, layer_runs: int, passes: int, reduced_whole: bool = False) -> Iterator[Collective]:
    """Yields what the ranks of nanotron and of Megatron send, which are counted along tensors, then data, then stages:
    a step waits for all but what a product read, which is gathered again for its weight's gradient beside the product
    that needs none of it. ``reduced_whole`` says that all ranks get the whole gradient."""
    dp, pp, tp = (int(line[name]) for name in ("dp", "pp", "tp"))
    hidden = 2.0 * int(line["micro_batch"]) * int(line["sequence"]) * int(line["hidden"])
    phases: tuple[Phase, Phase] = ("forward", "backward")
    for phase in phases if tp > 1 else ():  # around both halves of a block
        yield Collective("all-gather", phase, hidden, tp, 1, 2 * layer_runs, False)
        yield Collective("reduce-scatter", phase, hidden, tp, 1, 2 * layer_runs, False)
    if tp > 1:
        yield Collective("all-gather", "backward", hidden, tp, 1, 2 * layer_runs, True)
    for phase in phases if pp > 1 else ():
        yield Collective("send", phase, hidden / tp, pp, tp * dp, passes, False)
    if dp > 1 and reduced_whole:
        yield Collective("all-reduce", "optimizer", 4 * own, dp, tp, 1, False)
    elif dp > 1:
        yield Collective("reduce-scatter", "optimizer", 4 * own, dp, tp, 1, False)
        yield Collective("all-gather", "optimizer", 2 * own, dp, tp, 1, False)


def _simumax(line: Line) -> PublishedRow:
    """Reads the row as one rank of the last stage. All stages have as many layers; nothing runs beside collectives."""
    dp, pp, tp, passes = (int(line[name]) for name in ("dp", "pp", "tp", "grad_accumulation"))
    sizes = _sizes(line)
    layers, hidden = sizes["layers"] // pp, sizes["hidden"]
    case = Case(
        "rank",
        "llama",
        int(line["micro_batch"]),
        int(line["sequence"]),
        **{**sizes, "layers": layers},
        parameters="bfloat16",
        tensor_ranks=tp,
        optimizer="adamw",
    )
    a_layer = hidden**2 * (2 + 2 * sizes["kv_heads"] / sizes["heads"]) + 3 * hidden * sizes["ffn"]
    embedded = sizes["vocabulary"] * hidden
    own, traced = (layers * a_layer + (1 + (pp == 1)) * embedded) / tp, (layers * a_layer + embedded) / tp
    layer_runs = sizes["layers"] + (passes - 1) * layers
    return PublishedRow(
        "simumax_b200",
        0,
        line["source"],
        "B200",
        f"llama {line['model'].split()[2]}".rstrip(","),
        "bf16",
        "flash",
        " ".join(["zero 1", "tensor" * (tp > 1), "pipeline" * (pp > 1)]).strip().replace("  ", " "),
        _ms(line),
        accumulated=passes + pp - 1,
        shards=dp,
        alike=f"{line['model']} {int(line['grad_accumulation']) * dp}" if pp == 1 else "",
        gpus=int(line["gpus"]),
        collectives=tuple(_sent_by(line, own, layer_runs, passes + pp - 1)),
        fabric="B200",
        stages=pp,
        layer_runs=layer_runs,
        head_runs=passes,
        update_share=own / traced / dp,
        deeper=replace(case, layers=layers + 1) if pp > 1 else None,
        case=case,
    )


BRIDGE_DEVICES = {"H100": "H100-SXM", "B200": "B200", "GB200": "GB200", "GB300": "GB300"}
BRIDGE_WHY_NOT = {
    "LoRA": "its adapters are on layers that ranks share, which is not traced",
    "fine-tuning": "its sequences are packed, of lengths that it does not state",
    "nvfp4": "products in four bits have no declared cost",
}


def _bridge(line: Line) -> PublishedRow:
    """Reads the row as one rank of the last stage. Where embedding and head each take a layer's place (126 layers over
    8 or 16 stages) the last stage has a layer less than the others."""
    dp, pp, tp, cp, chunks, passes = (int(line[name]) for name in ("dp", "pp", "tp", "cp", "vpp", "grad_accumulation"))
    sizes, hopper, sharded_whole = _sizes(line), line["hardware"] == "H100", line["fsdp"] == "1"
    spare = -sizes["layers"] % pp
    layers, wide = (sizes["layers"] + spare) // pp - bool(spare), (sizes["layers"] + spare) // pp
    scaling = line["precision"].partition(", ")[2].partition(" ")[0]
    hidden, tokens = sizes["hidden"], int(line["sequence"]) // cp
    case = Case(
        "rank",
        "llama",
        int(line["micro_batch"]),
        tokens,
        **{**sizes, "layers": layers},
        parameters="bfloat16",
        tensor_ranks=tp,
        context_ranks=cp,
        fused=True,
        eight_bits=EightBits(scaling, hopper or scaling == "mx", True),
    )
    a_layer = hidden**2 * (2 + 2 * sizes["kv_heads"] / sizes["heads"]) + 3 * hidden * sizes["ffn"]
    embedded = sizes["vocabulary"] * hidden
    own, traced = (layers * a_layer + (1 + (pp == 1)) * embedded) / tp, (layers * a_layer + embedded) / tp
    shards = dp * cp
    ways = {
        "sharded": sharded_whole,
        "zero 1": not sharded_whole,
        "tensor": tp > 1,
        "pipeline": pp > 1,
        "context": cp > 1,
    }
    layer_runs = layers * passes + round((pp - 1) * wide / chunks)
    row = PublishedRow(
        "megatron_bridge",
        0,
        line["source"],
        BRIDGE_DEVICES[line["hardware"]],
        line["model"].lower(),
        line["precision"],
        "flash",
        " ".join(name for name, taken in ways.items() if taken),
        _ms(line),
        accumulated=passes,
        shards=shards,
        gpus=int(line["gpus"]),
        fabric=line["hardware"],
        stages=pp,
        layer_runs=layer_runs,
        head_runs=passes,
        update_share=own / traced / shards,
        deeper=replace(case, layers=layers + 1) if pp > 1 else None,
        collectives=tuple(_sent_by_bridge(line, own, layer_runs)),
        case=case,
    )
    why_not = BRIDGE_WHY_NOT.get(line["task"]) or BRIDGE_WHY_NOT.get(line["precision"])
    return replace(row.but(why_not), deeper=None) if why_not else row


MLPERF_DEVICES = {"(B200": "B200", "(GB200": "GB200", "(GB300": "GB300"}


def _mlperf_llama(line: Line) -> PublishedRow:
    """Reads the row as Megatron-Bridge's are: the same libraries, by a scale a tensor (``FP8_RECIPE`` of its common
    configuration), gradients and weights sent beside operators."""
    device = next((short for name, short in MLPERF_DEVICES.items() if name in line["hardware"]), "")
    ranks = {name: int(line[name] or 0) for name in ("tp", "pp", "cp", "micro_batch")}
    row = PublishedRow(
        "mlperf_llama31_8b", 0, line["source"], "", "llama 3.1 8b", line["precision"], "fused", "zero 1", _ms(line)
    )
    if not device:
        return row.but("its GPU is not in the table of GPUs")
    if line["precision"] != "fp8" or not all(ranks.values()):
        return row.but("its precision or its layout is not stated, or it is of four bits")
    of_model = int(line["gpus"]) // (ranks["tp"] * ranks["pp"] * ranks["cp"])
    stated = {"hardware": device, "dp": str(of_model), "vpp": "1", "fsdp": "0", "precision": "fp8, tensor scaling"}
    return replace(_bridge({**line, **stated, "model": row.kind, "task": "pre-training"}), table=row.table)


def _sent_by_bridge(line: Line, own: float, layer_runs: int) -> Iterator[Collective]:
    """Yields what ranks send that count along tensors, then sequences, data and stages, all of it beside operators
    (user buffers, buckets, interleaved stages): gathered weights and products' inputs in eight bits, gradients and sums
    in 16."""
    dp, pp, tp, cp, chunks, passes = (int(line[name]) for name in ("dp", "pp", "tp", "cp", "vpp", "grad_accumulation"))
    tokens = float(line["micro_batch"]) * int(line["sequence"]) / cp
    hidden, narrow = tokens * int(line["hidden"]), int(line["kv_heads"]) / int(line["heads"])
    phases: tuple[Phase, Phase] = ("forward", "backward")
    for phase in phases if tp > 1 else ():
        yield Collective("all-gather", phase, hidden, tp, 1, 2 * layer_runs)
        yield Collective("reduce-scatter", phase, 2 * hidden, tp, 1, 2 * layer_runs)
    for phase in phases if cp > 1 else ():  # keys and values of the others
        yield Collective("send", phase, 4 * narrow * hidden / tp * (cp - 1), cp, tp, layer_runs)
    for phase in phases if pp > 1 else ():
        yield Collective("send", phase, 2 * hidden / tp, pp, tp * cp * dp, passes * chunks, chunks > 1)
    shards = dp * cp
    if line["fsdp"] == "1":
        yield from (Collective("all-gather", phase, own, shards, tp, passes) for phase in phases)
        yield Collective("reduce-scatter", "backward", 2 * own, shards, tp, passes)
    elif shards > 1:
        yield Collective("all-gather", "forward", own, shards, tp)
        yield Collective("reduce-scatter", "backward", 2 * own, shards, tp)


def _peft(line: Line) -> PublishedRow:
    method = line["method"]
    plain = method == "LORA" and not any(word in line["experiment"] for word in ("lorafa", "mica", "dora", "bdlora"))
    technique = "variant of lora" if method == "LORA" and not plain else method.lower()
    row = PublishedRow(
        "peft_methods",
        0,
        line["source"],
        "L40S",
        "llama",
        "bf16",
        "flash",
        technique,
        _ms(line),
        alike=line["model"] if line["task"] == "MetaMathQA" else "",
        host_bound=True,
    )
    if line["task"] != "MetaMathQA":
        return row.but("it trains a diffusion model")
    settings = _peft_settings(line)
    if not plain and method != "full fine-tuning" and settings is None:
        return row.but("its optimizer or its adapters' settings are no part of the row")
    tokens = round(float(line["tokens_per_s"]) * float(line["step_time_ms"]) / 1e3 / int(line["micro_batch"]))
    case = Case(
        "transformers",
        "llama",
        int(line["micro_batch"]),
        tokens,
        **_sizes(line),
        parameters="bfloat16",
        adapters=int(float(line["rank"])) if plain else 0,
        adapted=tuple(line["target_modules"].split(",")) if plain else (),
        clipped=True,
        method="" if settings is None or plain else f"{method} {json.dumps(settings, sort_keys=True)}",
    )
    return replace(row, case=case)


PEFT_RANKED = frozenset(
    {
        "DELORA",
        "GRALORA",
        "HIRA",
        "LILY",
        "LOHA",
        "LOKR",
        "MISS",
        "PSOFT",
        "PVERA",
        "TINYLORA",
        "VERA",
        "PEANUT",
        "GLORA",
    }
)
"""Adapters whose only settings, besides where they are, are a rank."""
PEFT_TOKENS = {"PREFIX_TUNING": 57344, "PROMPT_TUNING": 3072}
"""Trained parameters a virtual token."""
PEFT_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "P_TUNING": {"num_virtual_tokens": 20, "encoder_hidden_size": 3072},
    "C3A": {"block_size": 64},
    "FOURIERFT": {"n_frequency": 5000},
    "WAVEFT": {"n_frequency": 5000},
    "ROAD": {},
    "IA3": {},
    "DEFT": {"r": 32, "para": True},
}
"""By their names in the table and by how many parameters they train."""


def _peft_settings(line: Line) -> dict[str, Any] | None:
    """Returns what the row says of its adapters, in peft's own words."""
    method, trained = line["method"], int(line["trainable_parameters"])
    targets = {"target_modules": line["target_modules"].split(",")} if line["target_modules"] else {}
    if method in PEFT_TOKENS:
        return {"num_virtual_tokens": trained // PEFT_TOKENS[method]}
    if method == "IA3":
        return {**targets, "feedforward_modules": ["down_proj"]}
    if method in PEFT_SETTINGS:
        return {**({} if method == "P_TUNING" else targets), **PEFT_SETTINGS[method]}
    if method == "LOKR":
        return {"r": int(float(line["rank"])), "decompose_factor": 4, **targets}
    if method == "FROD":
        return {"sparse_rate": 0.02 if "sparse0.02" in line["experiment"] else 0.01, **targets}
    if method == "ADALORA":
        return {"r": 8, "total_step": int(line["steps"]), **targets}
    return {"r": int(float(line["rank"])), **targets} if method in PEFT_RANKED and line["rank"] else None


def _liger(line: Line) -> PublishedRow:
    row = PublishedRow(
        "liger_kernels", 0, line["source"], "", "kernel", line["dtype"], "", f"{line['kernel']} {line['provider']}"
    )
    return row.but("it times a kernel alone, and no step")


ZEUS_DEVICES = {"A40": "A40", "V100": "V100-PCIE", "P100": "P100", "Quadro RTX 6000": "RTX-6000"}
ZEUS_TOKENS = {"squad": 384, "sentiment140": 128}
"""Neither lengths nor precision are stated: these are the usual ones of the task, and float32."""


def _zeus(line: Line) -> PublishedRow:
    batch, limit = int(line["micro_batch"]), float(line["power_limit_w"])
    row = PublishedRow(
        "zeus_bert_power",
        0,
        line["source"],
        ZEUS_DEVICES[line["hardware"]],
        "bert",
        "fp32",
        "unfused",
        "power limit",
        alike=f"{line['hardware']} {line['dataset']} {line['micro_batch']}",
        power_w=float(line["average_power_w"]),
        limit_w=limit,
        epoch_s=float(line["epoch_time_s"]),
    )
    case = Case(
        "transformers",
        "bert",
        batch,
        ZEUS_TOKENS[line["dataset"]],
        12,
        768,
        12,
        12,
        3072,
        30522,
        attention="eager",
        dropout=True,
        answers=2,
    )
    return replace(row, case=case)


def _torchtitan(line: Line) -> PublishedRow:
    tokens = float(line["sequence"]) * float(line["local_batch"])
    row = PublishedRow(
        "torchtitan_llama3",
        0,
        line["source"],
        "",
        "llama",
        "bf16",
        "flash",
        line["technique"],
        tokens / float(line["tokens_per_s_per_gpu"]),
        gpus=int(line["gpus"]),
        set_up=" ".join(line[column] for column in ("model", "gpus", "sequence", "local_batch", "parallelism")),
    )
    return row.but("its H100 of 500 W and HBM2e is not in the table of GPUs")


def _mlperf(line: Line) -> PublishedRow:
    row = PublishedRow(
        "mlperf_bert_large",
        0,
        line["source"],
        "",
        "bert",
        line["precision"],
        "fused",
        line["technique"],
        _ms(line),
        gpus=int(line["gpus"]),
        set_up=line["submitter"] if line["division"] == "open" else "",
    )
    return row.but("its batches are packed or unpadded: how many tokens they have is not stated")


READERS: Mapping[str, Callable[[Line], PublishedRow]] = {
    "timm_vit_train": _timm,
    "neusight_steps": _neusight,
    "fms_finetune_techniques": _fms,
    "llm_foundry_mpt": _mpt,
    "peft_methods": _peft,
    "nanotron_ultrascale": _nanotron,
    "simumax_b200": _simumax,
    "megatron_bridge": _bridge,
    "mlperf_llama31_8b": _mlperf_llama,
    "liger_kernels": _liger,
    "zeus_bert_power": _zeus,
    "torchtitan_llama3": _torchtitan,
    "mlperf_bert_large": _mlperf,
}
"""The tables whose rows are steps."""


def _ms(line: Line) -> float | None:
    return float(line["step_time_ms"]) / 1e3 if line["step_time_ms"] else None


def lines_of(table: str) -> list[dict[str, str]]:
    """Reads a table beside this module, a line a mapping."""
    with (FOLDER / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def rows() -> tuple[PublishedRow, ...]:
    """Returns every row of every table of steps."""
    return tuple(
        replace(read(line), table=table, line=number, set_apart=why)
        for table, read in READERS.items()
        for number, (line, why) in enumerate(_with_reasons(table), start=2)
    )


def _with_reasons(table: str) -> Iterator[tuple[Line, str]]:
    """Yields a table's lines, each with why its time is set apart."""
    lines = lines_of(table)
    return zip(lines, set_apart(lines) if table == "nanotron_ultrascale" else [""] * len(lines), strict=True)


def cases() -> Iterator[Case]:
    """Yields the steps to trace, each once."""
    seen: dict[str, Case] = {}
    for row in rows():
        for case in (row.case, row.deeper):
            if case is not None and case.key not in seen:
                seen[case.key] = case
                yield case


@dataclass(frozen=True)
class Traced:
    """Holds what a case's trace gave: its operators, its peak of allocated bytes, those that the forward pass of one
    layer leaves behind, or why there is nothing."""

    step: TracedStep | None = None
    peak_bytes: int = 0
    layer_bytes: int = 0
    why_not: str = ""


class Traces(Mapping[str, Traced]):
    """Maps the key of each traced case to what its trace gave. A step of some hundred operators becomes a value when it
    is asked for: a page asks for few of them."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known
        self._values: dict[str, Traced] = {}

    def __getitem__(self, key: str) -> Traced:
        if key not in self._values:
            stored = self._known[key]
            step = TracedStep.from_json(stored["step"]) if stored["step"] else None
            self._values[key] = Traced(step, stored["peak_bytes"], stored.get("layer_bytes", 0), stored["why_not"])
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


@cache
def traces(folder: Path = FOLDER) -> Mapping[str, Traced]:
    """Reads what is traced."""
    path = folder / TRACES
    return Traces(json.loads(gzip.decompress(path.read_bytes())) if path.is_file() else {})


def write_traces(known: Mapping[str, Traced], folder: Path = FOLDER) -> None:
    """Writes the traces, equal ones to equal bytes."""
    stored = {
        key: {
            "step": traced.step.as_json() if traced.step else "",
            "peak_bytes": traced.peak_bytes,
            "layer_bytes": traced.layer_bytes,
            "why_not": traced.why_not,
        }
        for key, traced in sorted(known.items())
    }
    (folder / TRACES).write_bytes(gzip.compress(json.dumps(stored).encode(), 9, mtime=0))
    traces.cache_clear()


def predicted(folder: Path = FOLDER, by: str = "modelled_s") -> Mapping[tuple[str, int], float]:
    """Reads each predicted row's time in s, by constants of the other sources, by table and line, as the study left it;
    ``of_other_gpus_s`` is by those of other sources' rows on other GPUs, of the rows that have it."""
    path = folder / PREDICTED
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {(row["table"], int(row["line"])): float(row[by]) for row in csv.DictReader(file) if row[by]}
