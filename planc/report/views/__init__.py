"""Views of a report, one file each: its data, how it is derived from a costed plan, and its picture."""
