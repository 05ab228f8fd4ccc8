"""Code of transformers' classes as it runs on a device, where fake tensors would have it do something else.

Its masks ask whether a row of the batch holds several sequences, a question about values, and take fake tensors for
those of a compiler's trace, where they build a mask that a device needs not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def one_sequence_a_row() -> Iterator[None]:
    """A context in which transformers' masks are those of whole sequences."""
    masks = sys.modules.get("transformers.masking_utils")
    if masks is None:
        yield
        return
    with patch.object(masks, "find_packed_sequence_indices", lambda *_: None):
        yield
