"""The one comment of a pull request that says what it changes: written once, then changed, never repeated.

Run by `action.yml`. Where the token may not write comments, as on a pull request from a fork, it says so and succeeds:
the text stands in the step's summary already.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

MARK = "<!-- planc-diff -->"
NOTHING = "no plan changes"
PAGES = 20
"""Pages of a hundred comments that are looked through."""
TIMEOUT_S = 20


def main() -> int:
    body = Path(os.environ["PLANC_COMMENT"]).read_text()
    number = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text())["pull_request"]["number"]
    try:
        print(_written(f"{body.rstrip()}\n\n{MARK}\n", int(number), quiet=body.startswith(NOTHING)))
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403, 404):
            print(f"::warning title=planc::the comment could not be written: GitHub answers {error.code}")
        else:
            print(f"planc: this token may not write comments ({error.code}); the text is in the summary of this step")
    except OSError as error:
        print(f"::warning title=planc::the comment could not be written: {type(error).__name__}")
    return 0


def _written(body: str, number: int, *, quiet: bool) -> str:
    """Write `body` on pull request `number`; a `quiet` one only where planc has commented before."""
    comments = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    mine = _mine(f"{comments}/{number}/comments")
    if mine is None:
        if quiet:
            return "planc: nothing to say"
        _ask("POST", f"{comments}/{number}/comments", {"body": body})
        return "planc: commented"
    if mine["body"].strip() == body.strip():
        return "planc: the comment stands as it is"
    _ask("PATCH", f"{comments}/comments/{int(mine['id'])}", {"body": body})
    return "planc: changed the comment"


def _mine(url: str) -> Any:
    """The comment with our mark that the token's own user wrote; None before there is one."""
    for page in range(1, PAGES + 1):
        found = _ask("GET", f"{url}?per_page=100&page={page}")
        for comment in found:
            if MARK in comment["body"] and comment["user"]["login"] == os.environ["PLANC_COMMENTER"]:
                return comment
        if len(found) < 100:
            break
    return None


def _ask(method: str, url: str, value: Any = None) -> Any:
    headers = {
        "Accept": "application/vnd.github+json",
        "Authorization": f"Bearer {os.environ['PLANC_TOKEN']}",
        "Content-Type": "application/json",
        "User-Agent": "planc",
        "X-GitHub-Api-Version": "2022-11-28",
    }
    data = None if value is None else json.dumps(value).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main())
