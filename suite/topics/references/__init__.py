"""The references: what they have learned, and what they can tell apart."""
