"""Has the studies that several techniques take part in, one module each.

Each has ``study(lab, asked)``, where ``asked`` is what a technique's card says of it (:mod:`suite.entries.card`), and
``plot(tables)``. No module here names a technique: stacks come from the card.
"""
