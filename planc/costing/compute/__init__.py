"""Compute: FLOPs, bytes and seconds of the ops of one microbatch on one device."""
