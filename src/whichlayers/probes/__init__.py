"""Probing frozen models: one pass gives the states of all layers, then all probes train at once."""
