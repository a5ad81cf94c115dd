"""Loading pretrained encoders, locating their layers, and modifying them (re-initialize, permute, prune)."""
