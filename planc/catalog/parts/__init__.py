"""Parts of models, one file each, from which the families are put together.

A part is a `Part`: parameters, tensors and ops of one stretch of a section. `assemble` joins them to
a `Model`. A family file has the sizes and says which parts follow each other.
"""
