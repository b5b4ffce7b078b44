"""leantrain's harness: it knows no technique and no model by name.

Folders by role, each on the floors below it::

    cli        commands only
    show       what people look at: boards, plots, exports, tracking
    guard      regressions: does a tree, a record, a kernel keep its word?
    measure    makes evidence: counts, curves, timings; campaigns and studies
    judge      pure functions of evidence: rows, verdicts, interactions, history
    reading    recorded steps, read from outside
    entries    what describes and finds entries: cards, catalogue, spelling, settings, hashes of code
    loop       what decides a number: technique, stack, run, recipe, data, baseline
    chain  pipeline            blocks as a chain, and as stages over ranks
    model  meters  kernels     a model's parts; what a step costs; what Triton kernels share
    process    every process beside the command: start, speak, watch, end
    device  record             the machine under torch; what is run, what was seen, where it is stored, without torch

Techniques and baselines import from loop and what is below it (a study also from measure and judge), and the suite from
neither of them.
"""
