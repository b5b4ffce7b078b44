"""Handles chains of blocks: what they cost, schedules over them, who runs and predicts these, and the second tier of
memory."""
