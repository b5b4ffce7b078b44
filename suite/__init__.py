"""leantrain: which published ways to train a Transformer faster really help, measured."""
