"""planc's own programs, in which sentences of the plan determine every kernel and overlap."""

from planc.ir.policy import Policy

POLICY = Policy(name="planc", title="planc", spread=0.0)
