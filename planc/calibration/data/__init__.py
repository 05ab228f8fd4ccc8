"""Published measurements, one row each with its source. Facts only; see `planc.calibration.rows`."""
