"""The learning rate at each step."""

from __future__ import annotations

from math import cos, pi

from planc.trainer.preset.settings import TrainTable


def learning_rate(train: TrainTable, step: int) -> float:
    """Return the learning rate of `step` (counted from 1): a linear warm-up, and then the preset's schedule.

    `wsd` keeps the peak and decays linearly over the last `decay_steps` (Hu and others 2024, MiniCPM, section 4). The
    cosine ends at the preset's `steps`: a run that `--steps` shortens has the same rates up to its end, and a longer
    run stays at `min_lr`.
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
