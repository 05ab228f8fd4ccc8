"""The learning rate at each step."""

from __future__ import annotations

from math import cos, pi

from planc.trainer.preset.settings import TrainTable


def learning_rate(train: TrainTable, step: int) -> float:
    """Return the learning rate of 1-based `step`: linear warm-up, then the schedule.

    `wsd` keeps the peak and decays linearly over the last `decay_steps` (Hu and others 2024, MiniCPM, section 4). The
    cosine ends at the preset's `steps`, so a run shortened by `--steps` has the same first steps; a longer run stays at
    `min_lr`.
    """
    if step <= train.warmup_steps:
        return train.lr * step / train.warmup_steps
    if train.schedule == "constant":
        return train.lr
    if train.schedule == "wsd":
        left = max(0, train.steps - step) / train.decay_steps
        return train.min_lr + (train.lr - train.min_lr) * min(1.0, left)
    length = max(1, train.steps - train.warmup_steps)
    done = min(1.0, (step - train.warmup_steps) / length)
    return train.min_lr + (train.lr - train.min_lr) * (1 + cos(pi * done)) / 2
