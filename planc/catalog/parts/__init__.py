"""Parts of models, one file each, from which the families are assembled.

A part is a `Part`: parameters, tensors and ops of one stretch of a section. `assemble` joins them to a `Model`. A
family's file has the sizes and the order of the parts.
"""
