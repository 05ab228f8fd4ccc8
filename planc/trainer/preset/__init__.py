"""The preset file: its loading, its settings and its embedded plan."""
