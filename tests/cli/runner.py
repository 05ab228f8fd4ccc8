"""A small stand-in for GitHub's runner: the steps of a composite action, run as they are written.

What it takes from the runner's documentation: the shell's flags, expressions in `${{ }}`, a step without a status
function runs only after successes, files for outputs and the summary, and workflow commands on standard output.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import yaml

BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
TOKEN = re.compile(r"\s*(?:('(?:[^']|'')*')|(&&|\|\||==|!=|!|\(|\))|([\w.-]+))")
PYTHON = {"&&": "and", "||": "or", "!": "not ", "(": "(", ")": ")", "==": "==", "!=": "!="}
STATUS = ("success", "failure", "always", "cancelled")


@dataclass
class Step:
    """A step's outcome. `ran` is False where its `if` said no."""

    name: str
    ran: bool
    returncode: int = 0
    stdout: str = ""
    stderr: str = ""


@dataclass
class Runner:
    """A job on a pull request or a push, in `workspace`, that uses the action in `action`."""

    action: Path
    workspace: Path
    temp: Path
    event_name: str
    event: Mapping[str, Any]
    api_url: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    failed: bool = False

    def run(self) -> list[Step]:
        """Every step of the action in order."""
        self.temp.mkdir()
        (self.temp / "event.json").write_text(json.dumps(self.event))
        (self.temp / "summary.md").touch()
        return [self._step(step) for step in self.document["runs"]["steps"]]

    def again(self, name: str) -> Step:
        """One step once more."""
        return self._step(next(s for s in self.document["runs"]["steps"] if s["name"] == name))

    @property
    def document(self) -> Any:
        return yaml.safe_load((self.action / "action.yml").read_text())

    @property
    def summary(self) -> str:
        return (self.temp / "summary.md").read_text()

    def _step(self, step: Mapping[str, Any]) -> Step:
        condition = str(step.get("if", "success()")).removeprefix("${{").removesuffix("}}")
        if not any(f"{word}(" in condition for word in STATUS):
            condition = f"success() && ({condition})"
        if not self.value(condition):
            return Step(step["name"], ran=False)
        assert step["shell"] == "bash" and "${{" not in step["run"], "text of strangers would be read as a command"
        script, output = self.temp / "step.sh", self.temp / "output"
        script.write_text(step["run"])
        output.write_text("")
        environment = {**self._environment(), **{k: self.text(v) for k, v in step.get("env", {}).items()}}
        done = subprocess.run(
            [*BASH, str(script)], cwd=self.workspace, env=environment, capture_output=True, text=True, timeout=900
        )
        pairs = (line.partition("=") for line in output.read_text().splitlines())
        self.outputs[step.get("id", "")] = {name: value for name, _, value in pairs}
        self.failed |= done.returncode != 0
        return Step(step["name"], True, done.returncode, done.stdout, done.stderr)

    def _environment(self) -> dict[str, str]:
        known = ("PATH", "HOME", "LANG", "PIP_CONSTRAINT")
        kept = {name: os.environ[name] for name in known if name in os.environ}
        return {
            **kept,
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_API_URL": self.api_url,
            "GITHUB_EVENT_NAME": self.event_name,
            "GITHUB_EVENT_PATH": str(self.temp / "event.json"),
            "GITHUB_OUTPUT": str(self.temp / "output"),
            "GITHUB_REPOSITORY": "someone/plans",
            "GITHUB_STEP_SUMMARY": str(self.temp / "summary.md"),
            "GITHUB_WORKSPACE": str(self.workspace),
            "RUNNER_TEMP": str(self.temp),
        }

    # Expressions.

    def text(self, template: str) -> str:
        """A string with its expressions replaced."""
        return re.sub(r"\$\{\{(.*?)\}\}", lambda found: str(self.value(found[1])), str(template))

    def value(self, expression: str) -> Any:
        """An expression's value. Names that are not there are empty, as on GitHub."""
        words, at, expression = [], 0, expression.strip()
        while at < len(expression):
            found = TOKEN.match(expression, at)
            assert found, f"{expression!r} at {at}"
            at = found.end()
            literal, sign, name = found.groups()
            words.append(repr(literal[1:-1]) if literal else PYTHON[sign] if sign else self._name(name))
        return eval(" ".join(words), {"__builtins__": {}}, self._functions())

    def _functions(self) -> dict[str, Any]:
        return {
            "success": lambda: not self.failed,
            "failure": lambda: self.failed,
            "always": lambda: True,
            "cancelled": lambda: False,
        }

    def _name(self, name: str) -> str:
        if name in STATUS:
            return name
        first, *rest = name.split(".")
        value: Any = {"github": self._github, "inputs": self._inputs, "steps": self._steps}[first]()
        for key in rest:
            value = value.get(key, "") if isinstance(value, Mapping) else ""
        return repr(value)

    def _github(self) -> dict[str, Any]:
        return {
            "action_path": str(self.action),
            "event": self.event,
            "event_name": self.event_name,
            "token": "the job's token",
        }

    def _inputs(self) -> dict[str, str]:
        declared = self.document["inputs"]
        assert set(self.inputs) <= set(declared)
        defaults = {name: "" if "${{" in str(i["default"]) else str(i["default"]) for name, i in declared.items()}
        if "token" not in self.inputs:
            defaults["token"] = "the job's token"
        return {**defaults, **self.inputs}

    def _steps(self) -> dict[str, Any]:
        return {name: {"outputs": values} for name, values in self.outputs.items()}


@dataclass
class Comments:
    """The comments of one pull request, and what was asked of the server that keeps them."""

    bodies: dict[int, dict[str, Any]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""
    refusal: int = 0
    """Status of every answer to a request that writes; 0: it is done."""

    def add(self, body: str, login: str) -> None:
        number = len(self.bodies) + 1
        self.bodies[number] = {"id": number, "body": body, "user": {"login": login}}

    @property
    def mine(self) -> list[str]:
        return [c["body"] for c in self.bodies.values() if c["user"]["login"] == "github-actions[bot]"]


@contextmanager
def github(number: int) -> Iterator[Comments]:
    """A server with the three requests on comments of pull request `number` that the action makes."""
    comments = Comments()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            assert path == f"/repos/someone/plans/issues/{number}/comments"
            page = int(re.findall(r"page=(\d+)", query)[-1])
            self._answer(200, list(comments.bodies.values())[100 * (page - 1) : 100 * page])

        def do_POST(self) -> None:
            assert self.path == f"/repos/someone/plans/issues/{number}/comments"
            self._write(lambda value: comments.add(value["body"], "github-actions[bot]"))

        def do_PATCH(self) -> None:
            at = int(self.path.removeprefix("/repos/someone/plans/issues/comments/"))
            self._write(lambda value: comments.bodies[at].update(body=value["body"]))

        def _write(self, change: Any) -> None:
            value = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.headers["Authorization"] == "Bearer the job's token"
            if not comments.refusal:
                change(value)
            self._answer(comments.refusal or 200, {})

        def _answer(self, status: int, value: Any) -> None:
            comments.asked.append((self.command, self.path))
            text = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    comments.url = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield comments
    finally:
        server.shutdown()
        server.server_close()
