"""Views (sections) of a page, one per file: the view's data, its derivation from a costed plan, and its picture."""
