"""planc's own programs: every kernel and overlap is what a sentence says."""

from planc.ir.policy import Policy

POLICY = Policy(name="planc", title="planc", spread=0.0)
