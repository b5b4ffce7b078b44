"""leantrain's harness: it knows no technique and no model by name.

Folders by role, each on the floors below it::

    cli        commands only
    show       what people look at: boards, plots, exports, tracking
    guard      regressions: does a tree, a record, a kernel keep its word?
    measure    makes evidence: counts, curves, timings; campaigns and studies
    judge      pure functions of evidence: rows, verdicts, interactions, history
    contract   what an entry and a run are
    model  meters  kernels     a model's parts; what a step costs; what Triton kernels share
    record     what is run, what was seen, where it is stored; imports no torch

Techniques and baselines import from contract, model, meters and kernels (a study also from measure and judge), and the
suite from neither of them.
"""
