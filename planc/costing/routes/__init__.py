"""Collectives routed over the links of a machine: what all groups of an axis leave on each link, and which is busiest.

`routed_group` answers what `planc.costing.machine.topology.tower_group` does in closed form: where a group lies and
what a collective over it takes. Closed forms answer for towers of levels and tori, where the tests hold both equal.
"""

from planc.costing.routes.algorithms import routed_group

__all__ = ["routed_group"]
