"""Views of a report, one file each: the data of the view, how it is derived from a costed plan, and its picture."""
