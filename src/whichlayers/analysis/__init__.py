"""What the results mean: tidy frames, intervals, paired comparisons. Reads results.db and nothing else."""
