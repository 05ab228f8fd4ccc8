"""Rules of presets, training and receipts: raised by the trainer."""
