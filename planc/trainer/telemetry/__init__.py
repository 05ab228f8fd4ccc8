"""What a run reports: metrics, boards, profiles, goodput."""
