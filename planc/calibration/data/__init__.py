"""Published measurements of training runs, each with its source; `tests.lab.published.rows` describes the columns."""
