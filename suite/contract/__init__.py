"""What an entry and a run are: technique, stack, card, catalogue, baseline, recipe, data, and the training run.

Here belongs what a technique's author has to know. It imports ``record``, ``model`` and ``meters``. It hands on
:class:`~suite.contract.technique.Technique` to override, :class:`~suite.contract.run.Run` to train a job, the catalogue
of what is installed, and the hashes of the code that evidence depends on. Cards and the catalogue load no torch.
"""
