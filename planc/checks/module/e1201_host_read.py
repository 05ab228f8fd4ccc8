"""E1201: a tensor's value is read on the host."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1201",
    title="a tensor's value is read on the host",
    reads="module",
    why="""On XLA tensors are lazy: operations are traced into one program and run together. `.item()`, `.tolist()`,
`if tensor:` and whatever else needs a value ends the program there, compiles it, and waits for the
device, at every step. A choice becomes `torch.where`; a number that the step works with stays a 0-D
tensor.""",
    bad="",
    good="",
)
