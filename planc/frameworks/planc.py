"""planc's own programs: every kernel and overlap is what a sentence says."""

from planc.frameworks.framework import Framework

FRAMEWORK = Framework(name="planc", title="planc", spread=0.0)
