"""Tasks, tokens and batches: from a name or a file to padded arrays."""
