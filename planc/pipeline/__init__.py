"""Pipeline schedules: simulation with the seconds of each stage, steady state, lower bounds, timeline."""
