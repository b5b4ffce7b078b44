#!/bin/sh
# What `make gpu` does on a borrowed GPU machine: it installs nothing and needs no network, it may be cut off at any
# time, and the same command goes on where it stopped. What comes first tells most.
#
#   PYTHON   an interpreter that has what pyproject.toml lists, torch 2.11 or newer [python3]; what it lacks is named
#   MINUTES  for all of it [30]
#   OUT      where everything is written; records that are in results/ are copied there first [results]
#   DEVICE, SIZE  [cuda, base]; `make gpu DEVICE=cpu SIZE=pico MINUTES=2` tries the command itself
set -u
cd "$(dirname "$0")" || exit 2
PYTHON=${PYTHON:-python3} MINUTES=${MINUTES:-30} OUT=${OUT:-results} DEVICE=${DEVICE:-cuda} SIZE=${SIZE:-base}
begin=$(date +%s)

missing=$("$PYTHON" - <<'END'
import re, tomllib
from importlib.metadata import distributions

with open("pyproject.toml", "rb") as file:
    required = tomllib.load(file)["project"]["dependencies"]
needed = ["triton", *(re.match(r"[\w-]+", requirement)[0] for requirement in required)]
there = {package.metadata["Name"].lower().replace("_", "-") for package in distributions()}
print(*(name for name in needed if name not in there))
END
) || exit 2
[ -z "$missing" ] || {
    echo "gpu: $PYTHON lacks $missing: install that, or name another one, make gpu PYTHON=/path/to/python" >&2
    exit 2
}
mkdir -p "$OUT" || exit 2
[ "$OUT" -ef results ] || cp -Rn results/. "$OUT"/ 2>/dev/null
metadata=${TMPDIR:-/tmp}/leantrain-metadata.$(id -u)
PYTHONPATH=$PWD "$PYTHON" -m suite.record.uninstalled "$metadata" >/dev/null || exit 2
export PYTHONPATH="$PWD:$metadata${PYTHONPATH:+:$PYTHONPATH}"

leantrain() { "$PYTHON" -m suite.cli "$@"; }
left() { echo $((begin + MINUTES * 60 - $(date +%s))); } # seconds
say() { echo "gpu: $*, $(left) s left" >&2; }

say "rehearsal"
rehearsal=$((MINUTES < 12 ? 1 : MINUTES / 6))
leantrain doctor --device "$DEVICE" --rehearse --minutes "$rehearsal" --write "$OUT/rehearsal.jsonl" | tee "$OUT/rehearsal.txt"

if [ "$MINUTES" -ge 20 ] && [ ! -s "$OUT/operators.txt" ]; then
    say "operators"
    timeout $((MINUTES * 20)) "$PYTHON" -m suite.cli kernels --calibrate --device "$DEVICE" --results "$OUT" \
        >"$OUT/operators.partial" && mv "$OUT/operators.partial" "$OUT/operators.txt"
fi

say "kernels"
mkdir -p "$OUT/kernels"
until=$((begin + MINUTES * 60 * 2 / 5))
for kernel in techniques/*/*/kernel.py; do
    id=$(basename "$(dirname "$kernel")")
    [ "$(date +%s)" -lt "$until" ] || break
    [ -s "$OUT/kernels/$id.json" ] && continue
    # 1: a kernel is wrong or over its budget, which the file says
    timeout 120 "$PYTHON" -m suite.cli kernels "$id" --device "$DEVICE" --json >"$OUT/kernels/$id.partial"
    status=$?
    if [ $status -le 1 ]; then
        mv "$OUT/kernels/$id.partial" "$OUT/kernels/$id.json"
    else
        rm -f "$OUT/kernels/$id.partial"
        echo "gpu: kernels $id ended with $status" >&2
    fi
done

say "run"
minutes=$(($(left) / 60))
[ "$minutes" -ge 1 ] || minutes=1
leantrain run --device "$DEVICE" --size "$SIZE" --seeds 1 --minutes "$minutes" --results "$OUT" | tee "$OUT/run.txt"
say "done"
