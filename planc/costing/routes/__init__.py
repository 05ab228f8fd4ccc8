"""Collectives routed over the links of a machine: the bytes that all groups of an axis put on each link.

`routed_group` returns what `planc.costing.machine.topology.tower_group` computes in closed form for trees and tori: the
network levels of a group and the seconds of its collectives. Tests check that both agree there.
"""

from planc.costing.routes.algorithms import routed_group

__all__ = ["routed_group"]
