"""Building blocks of models, one file each, such as attention or an MLP.

A `Part` holds the parameters, tensors and ops of a building block. `assemble` joins parts into a `Model`; the file of a
family chooses the parts and their order.
"""
