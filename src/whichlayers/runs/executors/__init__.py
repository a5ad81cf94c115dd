"""Executors, which run stacks: in the main process, in worker processes, or on a Ray cluster."""
