"""Linear probes of frozen models: one forward pass extracts all layers, then all probes train together."""
