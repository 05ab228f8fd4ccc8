"""Propagation of layouts through named-dim ops, and the semantic collectives that follow."""

from planc.sharding.collectives import semantic_collectives
from planc.sharding.propagate import propagate

__all__ = ["propagate", "semantic_collectives"]
