"""Has the fixed models, data and recipes that techniques are measured against: BERT, GPT, ViT, MAE."""
