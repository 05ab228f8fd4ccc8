"""Analyses a plan in torch's terms: roles of axes, placements, parallel styles, peak memory."""
