"""What describes and finds entries: cards, the catalogue, settings, sources, checkpoints."""
