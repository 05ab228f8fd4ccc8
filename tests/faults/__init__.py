"""Faults in every call, line and socket of a run."""

from tests.faults.calls import Fault
from tests.faults.lines import LineFault
from tests.faults.sockets import SocketFault

AnyFault = Fault | LineFault | SocketFault
