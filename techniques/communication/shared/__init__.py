"""Has the code that several techniques of this category share, and no other category needs.

Each module says in its first lines which techniques use it and why they share it. Nothing here imports a technique.
"""
