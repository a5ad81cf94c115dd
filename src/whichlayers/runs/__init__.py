"""Running a study: the results store, the plan, the executors, resuming, status and export."""
