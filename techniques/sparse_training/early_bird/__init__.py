"""Early-bird tickets."""
