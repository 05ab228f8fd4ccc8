"""The sentences that torch cannot do, or that planc does not compile for it."""
