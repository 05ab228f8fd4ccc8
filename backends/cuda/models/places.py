"""Where the bundled modules do an op that the catalog places in a module with other ops.

Only ops listed here, or alone in their module, can be wrapped by themselves. No torch is imported.
"""

PLACES: dict[str, dict[str, str]] = {"llama": {"attention.core": "layers.*.attention.core"}}
"""Family to op name to module path."""
