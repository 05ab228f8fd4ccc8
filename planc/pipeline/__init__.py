"""Pipeline schedules with seconds per stage: simulation, steady state, lower bound, timeline."""
