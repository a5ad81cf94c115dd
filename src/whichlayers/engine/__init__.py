"""The stacked engine: many finetuning trials trained as one model."""
