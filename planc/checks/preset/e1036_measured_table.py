"""E1036: a table of measured runs cannot be used."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1036",
    title="a table of measured runs cannot be used",
    reads="preset",
    why="""`planc calibrate --from` reads a table of runs, as CSV with a header or as JSON: the file of a plan, the
seconds of its step or its receipt, and its peak of memory in bytes if it is known. The file cannot be read, a column or
a number is missing or is none, or the plans are not all on machines with one kind of chip. Nothing was written.""",
    bad="",
    good="",
)
