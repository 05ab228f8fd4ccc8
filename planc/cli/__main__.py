"""`python -m planc.cli` is `planc`."""

from planc.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
