"""Torch on XLA: the second runtime of the xla target; uses the modules of cuda and the layouts of xla."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planc.backends.torch_xla.versions import TORCH_XLA
from planc.backends.xla import Xla

if TYPE_CHECKING:
    from planc.diag.diagnostic import Diagnostic
    from planc.ir.backend import Backend
    from planc.ir.session import Runtime
    from planc.ir.sharding import Sharded


class TorchXla(Xla):
    """Implements `planc.ir.backend.Backend` for torch_xla; what is not defined here is as for JAX on XLA."""

    name = "torch_xla"
    framework = TORCH_XLA

    def refusals(self, sharded: Sharded) -> list[Diagnostic]:
        from planc.backends.torch_xla.refusals.plan import refusals

        found = dict.fromkeys((*super().refusals(sharded), *refusals(sharded)))
        return sorted(found, key=lambda d: d.span)

    def emit(self, sharded: Sharded) -> str:
        from planc.backends.torch_xla.emit.program import emit

        return emit(sharded, self.version)

    def runtime(self) -> Runtime:
        from planc.backends.torch_xla.runtime import start_up

        return start_up


BACKEND: Backend = TorchXla()
