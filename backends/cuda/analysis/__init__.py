"""Analyses of a plan for torch: roles of mesh axes, DTensor placements, parallel styles, peak memory."""
