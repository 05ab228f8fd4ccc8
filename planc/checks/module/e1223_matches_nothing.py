"""E1223: a rule that matches no leaf."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1223",
    title="a rule that matches no leaf",
    reads="module",
    why="""The pattern of a rule is compared with the path of each leaf of a JAX tree: the keys and fields that lead
to it, with slashes between, where `*` stands for any text. A rule for no leaf is a slip, or is of another tree.""",
    bad="",
    good="",
)
