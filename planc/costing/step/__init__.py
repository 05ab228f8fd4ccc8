"""The step: seconds of each section, rank and transfer, put together."""
