"""Checkpoints: the state to resume a run, under any plan of the same model and on any target.

A checkpoint is a folder `step-00000100` with

- `part-RRRRR-KKKKK.safetensors`: boxes (rectangular parts) of the named tensors of the state, as rank R held them.
  The metadata says where each box lies in its tensor, in the format that torch.distributed.checkpoint's reader of
  safetensors understands; a name occurs once in a file;
- `history.json`: the losses so far;
- `checkpoint.json`: step, model, data, settings, and the size and SHA-256 of every other file, and its own.

A checkpoint is written into a hidden folder, which is renamed when everything is on disk, so a folder with that name is
complete. Ranks do not communicate while they write: rank 0 waits for the files of the other ranks.
"""
