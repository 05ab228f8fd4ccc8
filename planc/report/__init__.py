"""Reports as pages: one typed model of what is shown, and HTML, SVG and JSON written from it."""
