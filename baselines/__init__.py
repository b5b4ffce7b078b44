"""The fixed baselines: bert, gpt, vit, mae."""
