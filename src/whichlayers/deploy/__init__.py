"""Finetune and save the model that a study recommends, load it and predict with it."""
