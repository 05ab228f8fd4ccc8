"""E1424: a topology of another tool that cannot be read."""

from planc.diag.registry import Rule

RULE = Rule(
    code="E1424",
    title="a topology of another tool that cannot be read",
    reads="graph",
    why="""`planc graph --from` reads whole texts of `nvidia-smi topo -m`, NCCL's topology and graph XML, Slurm's
topology files and `jax.devices()`. A text that is cut short, of another tool, nested too deep or with words that its
tool does not write is refused, since a machine read from a part of it would be another one.""",
    bad="",
    good="",
)
