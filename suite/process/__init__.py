"""Starts every process beside the command, speaks with it, watches it, and ends it with all that it started.

::

    command ── Server ── zygote: has libraries loaded, forks ── Child: a session, which answers commands
            │                     the same, forked from here ── Child
            ├─ programs: other people's, and ours as scripts
            └─ watched: the command's own work

What is measured, judged or tried in them belongs to the rooms below, which hand functions in. No torch is loaded here.
"""
