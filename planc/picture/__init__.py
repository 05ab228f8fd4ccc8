"""Draws pictures: marks (shapes and text at pixel positions), charts made of marks, and templates that write them as
SVG. This package does not depend on plans."""
