"""Pipeline schedules: each rank's order of forwards and backwards, and the simulated time of a step."""
