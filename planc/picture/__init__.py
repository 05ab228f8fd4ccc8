"""Draws charts, independently of plans: a picture is a list of marks (shapes and text at pixel positions), which
templates write as SVG."""
