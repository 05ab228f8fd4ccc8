"""Reports of a run: metrics, boards, profiles, goodput."""
