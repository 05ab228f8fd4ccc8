"""Makes the code of transformers' classes run on fake tensors as it would on a device.

The mask functions of transformers read values to find several sequences packed into one batch row. On fake tensors they
behave as under a compiler, and build a mask that they would not build on a device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def one_sequence_a_row() -> Iterator[None]:
    """A context in which the mask functions of transformers assume one sequence per batch row."""
    masks = sys.modules.get("transformers.masking_utils")
    if masks is None:
        yield
        return
    with patch.object(masks, "find_packed_sequence_indices", lambda *_: None):
        yield
