"""The laboratory: experiments and campaigns on planc itself, in a checkout. The package has none of it."""
