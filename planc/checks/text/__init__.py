"""Rules of what is written: raised while a file is read and built into a plan."""
