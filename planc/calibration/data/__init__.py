"""Published measurements, one row each with its source. Facts only; see `tests.lab.published.rows`."""
