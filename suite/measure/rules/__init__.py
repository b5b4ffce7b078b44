"""Says what a run may not do if its numbers are to mean anything, each rule with the check that guards it.

Techniques are trusted code: whoever wants to deceive this harness can. The checks catch the careless, and what a
search for fast code finds by itself: a clock that is patched, a test set that is read, an answer that is remembered.
Each is done outside of what is timed, and changes no bit of what is learned. CONTRIBUTING has the table.
"""
