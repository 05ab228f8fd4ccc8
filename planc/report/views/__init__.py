"""Views of a report, one file each: its data, how it comes from a costed plan, and its picture."""
