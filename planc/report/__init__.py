"""Reports as pages: a typed data model of a page's content, which is rendered as HTML, SVG and JSON."""
