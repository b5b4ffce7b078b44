"""Holds code that several techniques share. A technique imports from its own folder and from here, and from no other's.

Each module says in its first lines which techniques use it and why they share it. Nothing here imports a technique.
What only one technique needs belongs into that technique's folder.
"""
