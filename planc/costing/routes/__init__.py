"""Collectives routed over the links of a machine: the bytes that all groups of an axis put on each link.

`routed_group` returns what `planc.costing.machine.topology.tower_group` computes in closed form: the levels of a group
and the seconds of its collectives. Closed forms exist for towers of levels and tori; tests check that both agree there.
"""

from planc.costing.routes.algorithms import routed_group

__all__ = ["routed_group"]
