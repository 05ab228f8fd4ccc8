"""Reports as pages: typed data of a page's content, rendered as HTML, SVG and JSON."""
