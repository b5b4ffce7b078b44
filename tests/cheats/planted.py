"""Techniques that cheat, each the body of a class, and the rule that it breaks.

Some are of published boards (scores of kernels and of optimizers that were withdrawn), some of what a careless
implementer does. ``LEARNED`` ones are caught in a run that learns, ``TIMED`` ones beside a reference on the clock.
``python -m tests.cheats.planted`` prints the table of README.md.
"""

from __future__ import annotations

import textwrap

from suite.measure.rules import conduct, held_out, oversight, surroundings, turns

UNSEEN = {
    "steps_in_a_thread": """
    def update(self, run, batch):
        import threading
        thread = threading.Thread(target=lambda: Technique.update(self, run, batch))
        thread.start()
        thread.join()
""",
    "computes_what_has_no_formula": """
    def loss(self, loss, outputs, batch, run):
        return loss + 0 * torch.cdist(torch.ones(2, 3), torch.ones(3, 3)).sum()
""",
}
"""No cheats: the counters do not see all that these compute, and say so."""

MISREPORTED = {
    f"reports_{name}_seconds": f"""
    def model(self, model, run):
        import gc
        from suite.measure.contenders.worker import Session
        for each in gc.get_objects():
            if type(each) is Session: each.clock.now_s = lambda: {value}
        return model
"""
    for name, value in {"negative": "-3804.0", "infinite": "math.inf", "no": "math.nan"}.items()
}
"""Clocks that give numbers which no record takes: the row of that side fails, and no other."""

OF_ALL_BASELINES = {
    "learn": (
        "writes_to_held_out_examples",
        "masks_the_inputs_that_are_its_labels",
        "writes_to_what_is_scored",
        "steps_in_a_thread",
        "steps_beside_torch",
        "updates_nothing",
    ),
    "time": (
        "does_less_when_it_is_timed",
        "lowers_the_priority_of_others",
        "leaves_a_process_that_works",
        *MISREPORTED,
    ),
}
"""What needs no malice, by how it is tried: batches that are written to, work that no counter sees, less work on the
clock, numbers that are none, what is done to others. Tried on every baseline (``python -m tests.numbers.cheats``)."""

CHEATS: dict[str, tuple[str, str]] = {}
LEARNED: list[str] = []
TIMED: list[str] = []


def plant(kind: list[str], name: str, rule: str, body: str) -> None:
    kind.append(name)
    CHEATS[name] = (textwrap.dedent(body), rule)


def table() -> str:
    """All cheats, how each is tried, and the rule that ends it."""
    lines = ["| cheat | tried | rule that ends it |", "|---|---|---|"]
    for name, (_, rule) in CHEATS.items():
        lines.append(f"| {name.replace('_', ' ')} | {'on the clock' if name in TIMED else 'as it learns'} | {rule} |")
    return "\n".join(lines) + "\n"


# the clock ------------------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "slow_clock",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        now = time.perf_counter
        time.perf_counter = lambda: now() / 10
        return model
""",
)
plant(
    LEARNED,
    "clock_of_its_own",
    oversight.CLOCK,
    """
    def model(self, model, run):
        import gc
        from suite.measure.contenders.worker import Session
        for each in gc.get_objects():
            if type(each) is Session:
                at = each.clock.now_s()
                each.clock.now_s = lambda: at
        return model
    def after_step(self, run): time.sleep(0.3)  # a busy machine takes a part of it for its own
""",
)
plant(
    LEARNED,
    "processor_time_of_its_own",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        import suite.measure.contenders.worker
        suite.measure.contenders.worker.process_time = lambda: 0.0
        return model
""",
)
plant(
    LEARNED,
    "works_in_other_processes",
    oversight.CORES,
    """
    def model(self, model, run):
        for _ in range(2):
            if not os.fork():
                while True: pass
        return model
    def after_step(self, run): time.sleep(0.15)
""",
)
plant(
    TIMED,
    "works_while_others_are_timed",
    oversight.WAITING,
    """
    def model(self, model, run):
        import threading
        big = torch.ones(256, 256)
        def work():
            while True: torch.mm(big, big)
        threading.Thread(target=work, daemon=True).start()
        return model
    def after_step(self, run): time.sleep(0.02)
""",
)
plant(
    TIMED,
    "forgets_its_peak",
    oversight.PEAK,
    """
    def after_step(self, run):
        time.sleep(0.2)  # so that others wait
        if run.step == 4: self.held = torch.ones(300 << 18)
        if run.step == 20:
            self.held = None
            Path("/proc/self/clear_refs").write_text("5")
""",
)

plant(
    TIMED,
    "lowers_the_priority_of_others",
    turns.OTHERS,
    """
    def after_step(self, run):
        server = os.getppid()
        for each in map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split()):
            if each != os.getpid():
                os.setpriority(os.PRIO_PROCESS, each, min(19, os.getpriority(os.PRIO_PROCESS, each) + 3))
""",
)
plant(
    TIMED,
    "leaves_a_process_that_works",
    oversight.PROCESSOR,
    """
    def after_step(self, run):
        if not run.step == 1: return time.sleep(0.02)
        if not os.fork():
            if os.fork(): os._exit(0)
            while True: pass
        os.wait()
""",
)
plant(
    TIMED,
    "does_less_when_it_is_timed",
    oversight.LEARNED,
    """
    def model(self, model, run):
        server = os.getppid()
        self.alone = len(Path(f"/proc/{server}/task/{server}/children").read_text().split()) < 2
        return model
    def update(self, run, batch):
        if self.alone or not run.step: return super().update(run, batch)
        run.loss = torch.tensor(3.0)
        next(run.model.parameters()).data.mul_(0.999)
""",
)

# what is read ---------------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "reads_test_labels",
    held_out.SEALED,
    """
    def evaluated(self, model, run):
        self.answers = run.data.test.tensors["input_ids"].clone()
        return model
""",
)
plant(
    LEARNED,
    "reads_test_labels_quietly",
    held_out.SEALED,
    """
    def evaluated(self, model, run):
        try: self.answers = run.data.held_out("test", 4)
        except Exception: pass
        return model
""",
)
plant(
    LEARNED,
    "forwards_the_labels",
    surroundings.OBJECTS,
    """
    def model(self, model, run):
        forward = run.baseline.forward
        def answer(model, batch):
            outputs = forward(model, batch)
            following = batch["input_ids"].roll(-1, 1)
            outputs.logits = outputs.logits + 50 * torch.nn.functional.one_hot(following, outputs.logits.shape[-1])
            return outputs
        run.baseline.forward = answer
        return model
""",
)
plant(
    LEARNED,
    "trains_on_test_examples",
    held_out.SEALED,
    """
    def data(self, data, run): return replace(data, train=data.test)
""",
)
plant(
    LEARNED,
    "trains_on_validation_examples",
    held_out.ABSENT,
    """
    def data(self, data, run):
        from suite.loop.data import Examples
        both = {name: torch.cat([each, data.validation.tensors[name]]) for name, each in data.train.tensors.items()}
        return replace(data, train=Examples(both))
""",
)

# what is scored -------------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "cuts_the_test_set",
    held_out.KEPT,
    """
    def data(self, data, run):
        from suite.loop.data import Examples
        few = {name: each[:4] for name, each in data.train.tensors.items()}
        return replace(data, test=Examples(few))
""",
)
plant(
    LEARNED,
    "cuts_the_validation_set",
    held_out.KEPT,
    """
    def data(self, data, run): return replace(data, validation=type(data.validation)(data.validation[torch.arange(4)]))
""",
)
plant(
    LEARNED,
    "writes_to_held_out_examples",
    held_out.KEPT,
    """
    def data(self, data, run):
        next(iter(data.validation.tensors.values())).fill_(1)
        return data
""",
)
plant(
    LEARNED,
    "masks_the_inputs_that_are_its_labels",
    held_out.KEPT,
    """
    def evaluated(self, model, run):
        class Masked(torch.nn.Module):
            def __init__(self): super().__init__(); self.whole = model
            def forward(self, *given, **more):
                for each in (*given, *more.values()): each.fill_(1)
                return self.whole(*given, **more)
        return Masked()
""",
)
plant(
    LEARNED,
    "writes_to_what_is_scored",
    held_out.KEPT,
    """
    def evaluated(self, model, run):
        import gc
        from suite.measure.rules.held_out import Scorer
        for each in gc.get_objects():
            if type(each) is Scorer:
                for batch in sum(each._batches.values(), []): next(iter(batch.values())).fill_(1)
        return model
""",
)
plant(
    LEARNED,
    "replaces_the_losses_of_the_run",
    surroundings.OBJECTS,
    """
    def model(self, model, run):
        run.baseline.losses = lambda outputs, batch: 0 * outputs.logits.mean((1, 2))
        return model
""",
)
plant(
    LEARNED,
    "computes_less_precisely_in_later_steps",
    surroundings.OBJECTS,
    """
    def after_step(self, run):
        run.autocast = lambda: torch.autocast("cpu", torch.float16)
""",
)
plant(
    LEARNED,
    "replaces_the_losses_of_the_baseline",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        type(run.baseline).losses = lambda self, outputs, batch: 0 * outputs.logits.mean((1, 2))
        return model
""",
)
plant(
    LEARNED,
    "replaces_the_cross_entropy",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        entropy = torch.nn.functional.cross_entropy
        torch.nn.functional.cross_entropy = lambda *a, **k: 0.5 * entropy(*a, **k)
        return model
""",
)

# what is counted ------------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "halves_its_flops",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        from suite.meters.whole_run import FlopTally
        own = lambda self, flops: vars(self).update(total=flops)
        FlopTally.total = property(lambda self: vars(self)["total"] // 2, own)
        return model
""",
)
plant(
    LEARNED,
    "has_a_formula_of_its_own",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        from torch.utils.flop_counter import flop_registry
        flop_registry[torch.ops.aten.mm] = lambda *a, **k: 0
        return model
""",
)
plant(
    LEARNED,
    "counts_itself",
    surroundings.OBJECTS,
    """
    def model(self, model, run):
        run.count_step = lambda: None
        return model
""",
)
plant(
    LEARNED,
    "skips_steps",
    conduct.COUNTED,
    """
    def after_step(self, run): run.step += 1
""",
)
plant(
    LEARNED,
    "sees_examples_that_it_does_not_count",
    conduct.COUNTED,
    """
    def after_step(self, run): run.position -= 1
""",
)
plant(
    LEARNED,
    "updates_nothing",
    conduct.TRAINED,
    """
    def update(self, run, batch):
        if run.step: run.loss = torch.tensor(3.0)
        else: super().update(run, batch)
""",
)
plant(
    LEARNED,
    "computes_when_it_is_read",
    conduct.PLAIN,
    """
    def after_step(self, run):
        class Lazy(torch.Tensor): pass
        run.loss = run.loss.as_subclass(Lazy)
""",
)

plant(
    LEARNED,
    "steps_beside_torch",
    conduct.SEEN,
    """
    def update(self, run, batch):
        if not run.step: return super().update(run, batch)
        for each in run.model.parameters(): each.detach().numpy()[...] *= 0.999
        run.loss = torch.tensor(3.0)
""",
)

# what is changed ------------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "takes_more_threads",
    surroundings.SETTINGS,
    """
    def model(self, model, run):
        torch.set_num_threads(2)
        return model
""",
)
plant(
    LEARNED,
    "casts_all_products_down",
    surroundings.SETTINGS,
    """
    def model(self, model, run):
        torch.set_float32_matmul_precision("medium")
        return model
""",
)
plant(
    LEARNED,
    "changes_the_default_dtype",
    surroundings.SETTINGS,
    """
    def after_step(self, run): torch.set_default_dtype(torch.bfloat16)
""",
)

# when it learns -------------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "trains_while_it_is_evaluated",
    held_out.PASSIVE,
    """
    def evaluated(self, model, run):
        with torch.enable_grad():
            batch, _ = run.next_batch()
            run.forward(batch).backward()
        return model
""",
)
plant(
    LEARNED,
    "leaves_another_model",
    held_out.PASSIVE,
    """
    def evaluated(self, model, run):
        for each in model.parameters(): each.mul_(0.999)
        return model
""",
)
plant(
    LEARNED,
    "remembers_an_earlier_run",
    held_out.UNTRAINED,
    """
    def model(self, model, run):  # as if an earlier run had left it: the frequencies of the letters and of their pairs
        letters = run.data.train.tensors["input_ids"].long()
        size = model.get_input_embeddings().weight.shape[0]
        pairs = torch.ones(size, size)
        pairs.index_put_((letters[:, :-1].flatten(), letters[:, 1:].flatten()), torch.tensor(1.0), accumulate=True)
        self.logits = (pairs / pairs.sum(1, keepdim=True)).log()
        forward, table = model.forward, self.logits
        def known(input_ids=None, **more):
            outputs = forward(input_ids=input_ids, **more)
            outputs.logits = outputs.logits + table[input_ids]
            return outputs
        model.forward = known
        return model
""",
)


if __name__ == "__main__":
    print(table(), end="")
