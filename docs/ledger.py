"""The ledger of figures: every claim of planc with its bound and the last figure, and the page written from it."""

from __future__ import annotations

import tomllib
from datetime import date
from itertools import groupby
from pathlib import Path

from pydantic import BaseModel, ConfigDict

LEDGER = Path(__file__).resolve().parent / "measured" / "ledger.toml"
WIDTH = 120
"""Longest line of the page, in characters."""


class Claim(BaseModel):
    """One line of the ledger."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    theme: str
    claim: str
    """The thing that planc has to show."""
    bound: str
    """The limit that the figure must keep, or "no bound" where it is reported alone."""
    figure: str
    """The last figure measured."""
    met: bool
    date: date
    command: str
    """The command that measures it, as Markdown."""
    commit: str = ""
    """The commit that was measured, where it was written down."""


def ledger() -> list[Claim]:
    """Every claim, in the order of the file. Raises ValidationError for a field that is missing or unknown."""
    return [Claim.model_validate(entry) for entry in tomllib.loads(LEDGER.read_text())["claim"]]


def ledger_page(claims: list[Claim]) -> str:
    """The page: a table for each theme, one line of at most WIDTH characters a claim."""
    missed = sum(not c.met for c in claims)
    parts = [HEAD.format(all=len(claims), met=len(claims) - missed)]
    for theme, of_theme in groupby(claims, key=lambda c: c.theme):
        parts += [f"\n## {theme}\n\n| met | claim | bound | figure | measured |\n|---|---|---|---|---|\n"]
        parts += [f"| {row}\n" for row in map(_row, of_theme)]
    return "".join(parts)


def _row(claim: Claim) -> str:
    return f"{'yes' if claim.met else '**no**'} | {claim.claim} | {claim.bound} | {claim.figure} | {claim.date} |"


HEAD = """# The ledger

Each claim that planc makes of itself, its bound and the last figure measured: {met} of {all} are met. The command of
each claim is in [ledger.toml](ledger.toml), and how a figure came about in the notes of its theme:
[house](notes/house.md), [accelerators](notes/accelerators.md), [reports](notes/reports.md),
[other systems' files](notes/interop.md), [hostile input](notes/strangers.md), [CUDA](notes/cuda.md),
[any model](notes/any-model.md), [two stacks](notes/spine.md), [language](notes/language.md),
[derivation](notes/core.md), [XLA](notes/xla.md), [accuracy](notes/accuracy.md), [trainer](notes/trainer.md),
[topologies](notes/topologies.md). Figures are from a machine with 2 CPU cores and no accelerator, unless a line says
otherwise.
"""
