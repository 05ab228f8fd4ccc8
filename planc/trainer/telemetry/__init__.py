"""Reports about a run: metrics file, dashboards, profiles, goodput."""
