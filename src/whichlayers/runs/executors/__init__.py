"""Where stacks train: in this process, in worker processes, on a Ray cluster."""
