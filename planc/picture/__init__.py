"""Pictures: marks on a plane, charts of them, and the templates that write them as SVG. Nothing here knows a plan."""
