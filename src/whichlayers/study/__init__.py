"""Studies: the study file, presets, and expansion into trials."""
