"""Published measurements beside predictions: rows as plans, the error table, the fit of hardware numbers."""
