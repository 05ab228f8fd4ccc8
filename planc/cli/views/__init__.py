"""The answers of commands as text: reports, tables, charts."""
