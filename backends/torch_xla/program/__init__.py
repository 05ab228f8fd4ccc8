"""Functions of emitted programs, in modules that run as they stand; `common/specialise.py` reads them."""
