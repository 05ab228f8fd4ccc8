"""Reports as pages: one typed data model of the content, rendered as HTML, SVG and JSON."""
