"""A pipeline schedule run with seconds for each stage: simulation, steady state, lower bound, timeline."""
