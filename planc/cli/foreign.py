"""Command-line options for reading configuration files of other systems, such as Megatron-LM."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from planc.diag.errors import PlanError
from planc.driver import Examined, unread

if TYPE_CHECKING:
    from planc.interop.values import Options

FOREIGN = (".sh", ".slurm", ".sbatch", ".bash", ".yaml", ".yml", ".json", ".toml", ".txt", ".args", ".py")
"""Suffixes of other systems' files. A Python file is never run: E1301 says what to import in its place."""


def add_foreign(parser: argparse.ArgumentParser, *, cluster: bool = True) -> None:
    """Add `--from`, `--model`, `--ignore` and, if `cluster`, `--cluster`, for what another system's file omits."""
    parser.add_argument(
        "--from", dest="system", default="", metavar="SYSTEM", help="whose file it is, where its look does not say"
    )
    if cluster:
        parser.add_argument("--cluster", default="", metavar="CLUSTER", help='the machines, such as "8 x h100_node"')
    parser.add_argument("--model", default="", metavar="MODEL", help="the model, as a `model` sentence names it")
    parser.add_argument("--ignore", action="append", default=[], metavar="FIELD", help="a field that changes nothing")


def is_foreign_name(file: Path) -> bool:
    """True if `file` has a suffix of another system's configuration, not of a plan."""
    return file.suffix.lower() in FOREIGN


def add_given(parser: argparse.ArgumentParser, help: str = "the value of a field that the file leaves open") -> None:
    """Add the option `--set NAME=VALUE` for a field that another system's file does not set."""
    parser.add_argument("--set", action="append", default=[], type=_setting, metavar="NAME=VALUE", help=help)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def check_system(name: str) -> str:
    """Return an error message if `name` is not "" and no system whose files planc reads; else ""."""
    if not name:
        return ""
    from planc.cli.common import did_you_mean
    from planc.interop.systems import systems

    if name in systems():
        return ""
    return f"`{name}` is no system that planc knows; {did_you_mean(name, systems()) or ', '.join(systems())}"


def foreign_options(options: argparse.Namespace, folder: Path) -> Options:
    """Return the `Options` for reading another system's file, from the command line. `folder` is the folder of the
    plan.

    Raises PlanError if `--cluster` is malformed.
    """
    from planc.interop.values import Options
    from planc.interop.words import read_cluster

    words, devices = options.cluster or "", 0
    if words:
        cluster = read_cluster(words, folder)
        if isinstance(cluster, tuple):
            raise PlanError(cluster)
        devices = cluster.devices
    given = {name: str(value) for name, value in options.set}
    return Options(
        cluster=words,
        devices=devices,
        model=options.model,
        given=given,
        folder=folder,
        ignored=tuple(options.ignore),
        allow_code=getattr(options, "allow_code", False),
        approximate=not getattr(options, "strict", True),
        sources=getattr(options, "sources", False),
    )


def examine_foreign(file: Path, options: argparse.Namespace, *beside: Path) -> Examined:
    """Check and cost another system's `file`, with the `options` of `add_foreign`. The files `beside` it belong to the
    same configuration."""
    from planc.interop.check import examine_files

    try:
        given = foreign_options(options, file.parent)
    except PlanError as error:
        return unread(error.diagnostics, {})
    return examine_files([file, *beside], given, options.system, options.target).examined
