"""Runs a launch script by bash behind walls (`--allow-code`), with stand-ins for all that it would start.

A stand-in writes down its words and ends well. What the script would have started is a text of commands, which is then
read as a script is.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from planc.allowed import Allowance, run_allowed
from planc.diag.fast_dataclass import dataclass
from planc.diag.quoting import printable
from planc.diag.span import Source

LIMITS = Allowance(time_s=10.0, memory_bytes=2**30, answer_bytes=2**20)
MAX_STARTED = 1_000
"""Maximum number of commands that are looked at."""
_STAND_INS = (
    "python python2 python3 torchrun deepspeed accelerate sbatch xpk swift megatron ray docker kubectl gcloud pip pip3"
    " git wget curl ssh scp sudo nvidia-smi rocm-smi scontrol"
)
"""Programs that a machine may have; of those that it has not, bash tells (`command_not_found_handle`)."""
_JOB = {"TERM": "dumb", **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), "1"), "SLURM_JOB_NODELIST": "localhost"}
"""Variables of a job that has started."""
_WORK = "mkdir rm cp mv ln touch chmod dirname basename readlink realpath cat ls clear"
_RECORD = """printf '%d\\0' "$#" >> "$PLANC_ANSWER"; printf '%s\\0' "$name" "$@" >> "$PLANC_ANSWER" """
_STAND_IN = f"""#!/bin/sh
name=${{0##*/}}
case "$name $*" in
*device_count*) echo "$PLANC_RANKS" ;;
scontrol*hostnames*) echo localhost ;;
nvidia-smi*|rocm-smi*) i=0; while [ $i -lt "$PLANC_RANKS" ]; do echo GPU $i; i=$((i + 1)); done ;;
esac
{_RECORD}
"""
_LAUNCHER = f"""#!/bin/bash
name=${{0##*/}}
for ((i = 1; i <= $#; i++)); do
  case "${{!i}}" in bash|sh|/bin/bash|/bin/sh|/usr/bin/bash) exec "${{@:i}}" ;; esac
done
{_RECORD}
"""
"""Stand-in of `srun` and the like: a shell among its words runs, to see what it starts."""
_SETTINGS = f"""
command_not_found_handle() {{ local name=$1; shift; {_RECORD}; }}
cd() {{ builtin cd "$@" 2>/dev/null || :; }}
pushd() {{ builtin pushd "$@" >/dev/null 2>&1 || :; }}
popd() {{ builtin popd >/dev/null 2>&1 || :; }}
source() {{
  local planc_file=$1
  shift
  [ -f "$planc_file" ] || planc_file=$HOME/files/${{planc_file##*/}}
  [ -f "$planc_file" ] || return 0
  builtin source "$planc_file" "$@"
}}
"""
_FIRST = f"""
while IFS= read -r -d '' name && IFS= read -r -d '' text; do
  mkdir -p "$HOME/${{name%/*}}"
  printf '%s' "$text" > "$HOME/$name"
  chmod +x "$HOME/$name"
done
for name in {_STAND_INS}; do ln "$HOME/bin/stand-in" "$HOME/bin/$name"; done
for name in srun mpirun mpiexec; do ln "$HOME/bin/launcher" "$HOME/bin/$name"; done
for name in {_WORK}; do printf '#!/bin/sh\\n%s "$@" 2>/dev/null || :\\n' "$(command -v $name)" > "$HOME/$name"; done
for name in {_WORK}; do chmod +x "$HOME/$name"; done
for name in {_WORK}; do builtin command mv "$HOME/$name" "$HOME/bin/$name"; done
printf '#!/bin/sh\\n:\\n' > "$HOME/bin/sleep"; printf '#!/bin/sh\\nexec cat\\n' > "$HOME/bin/tee"
"$(PATH=/bin:/usr/bin command -v chmod)" +x "$HOME/bin/sleep" "$HOME/bin/tee"
export PATH="$HOME/bin:$PATH" BASH_ENV="$HOME/bin/settings"
builtin cd "$HOME/files" && exec bash "$@" </dev/null
"""


@dataclass(frozen=True)
class Started:
    """The commands that a script started, as a text under its name (`source`), and how its run ended."""

    source: Source
    ended: str


def started(script: Source, beside: Sequence[Source], given: Mapping[str, str], ranks: int) -> Started:
    """Runs `script` in a folder with the files `beside`. `given` has variables and arguments (`1`), `ranks` is the
    number of devices that a node shows."""
    name = PurePosixPath(script.file).name
    files = {f"files/{PurePosixPath(one.file).name}": one.text for one in (*beside, script)}
    files |= {"bin/stand-in": _STAND_IN, "bin/launcher": _LAUNCHER, "bin/settings": _SETTINGS}
    packed = "".join(f"{path}\0{text}\0" for path, text in files.items() if "\0" not in text)
    last = max((int(n) for n in given if n.isdecimal() and len(n) < 4), default=0)
    arguments = [given.get(str(n), "") for n in range(1, last + 1)]
    env = _JOB | {n: v for n, v in given.items() if n.isidentifier() and "\0" not in v} | {"PLANC_RANKS": str(ranks)}
    # A launch script removes folders and writes files wherever it names them: without walls it is not run.
    argv = ["bash", "-c", _FIRST, "bash", name, *arguments]
    ended = run_allowed(argv, given=packed.encode(), env=env, limits=LIMITS, walled=True)
    lines = [shlex.join(words).replace("\n", " ") for words in _commands(ended.answer)]
    said = [ended.why] if ended.why else [f"it ended with status {ended.status}"] if ended.status else []
    told = ended.output.strip().split("\n")[-1]
    said += [f"its last words: {printable(told)[:120]}"] if said and told else []
    said += [f"this system does not wall off {', '.join(ended.open_walls)}"] if ended.open_walls else []
    return Started(Source.of(script.file, "\n".join(lines)), "; ".join(said))


def _commands(answer: bytes) -> list[list[str]]:
    words = answer.decode(errors="replace").split("\0")
    found: list[list[str]] = []
    at = 0
    while at < len(words) and words[at].isdecimal() and len(found) < MAX_STARTED:
        count = int(words[at][:6]) + 1
        found.append(words[at + 1 : at + 1 + count])
        at += count + 1
    return [one for one in found if one]
