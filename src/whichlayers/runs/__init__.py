"""Running a study: plan of stacks, resources, time and disk estimates, scheduler, executors, status."""
