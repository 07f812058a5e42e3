#!/usr/bin/env bash
# Runs all scenarios and writes RESULTS.md and the README's picture anew.
set -euo pipefail
cd "$(dirname "$0")"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
{
    cat <<'END'
# Results

What the scenarios in this folder give. `results.sh` writes this file, and tests compare it. TTFT is the time to the first
token, from a request's arrival at the gate. The README says what these figures are worth.

END
    cargo run --quiet --package switchyard -- simulate --format markdown --out "$out" ./*.yaml
} > "$out/RESULTS.md"
cp "$out/RESULTS.md" "$out/priority-tiers.svg" .
