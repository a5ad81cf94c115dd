"""The study file: what it may say, the presets of the papers, and the trials that follow from it."""
