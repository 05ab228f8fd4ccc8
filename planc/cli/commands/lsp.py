"""`planc lsp`: the language server for editors, over standard input and output."""

from __future__ import annotations

import argparse
import logging
import os
import sys


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stdio", action="store_true", help="what it does anyway; editors like to say it")


def run(options: argparse.Namespace) -> int:
    try:
        import lsprotocol  # noqa: F401
        import pygls  # noqa: F401
    except ModuleNotFoundError as error:
        print(f"planc lsp: {error.name} is not installed: pip install 'planc[lsp]'", file=sys.stderr)
        return 2
    from planc.editor.server import make_server
    from planc.editor.transport import serve

    logging.getLogger("pygls").setLevel(logging.CRITICAL)  # a client's mistakes are answered, not logged
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        return serve(make_server(), sys.stdin.buffer, answers)
