"""EarlyBERT."""
