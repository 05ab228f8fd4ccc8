"""What families are put together from: one file for each part of a model.

A part is a `Part`: parameters, tensors and ops of one stretch of a section. `assemble` joins them to
a `Model`. A family file has the sizes and says which parts follow each other.
"""
