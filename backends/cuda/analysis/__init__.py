"""What torch needs to know of a plan: roles of axes, placements, styles, peak memory."""
