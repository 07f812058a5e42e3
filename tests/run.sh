#!/usr/bin/env bash
# Installs what the tests need and runs all of them.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/prerequisites.sh
need_build_tools
need_wasm_target
need_command curl curl
need_command python3 python3
need_envoy

# A real llama-server makes the tests with real models run; without one they say that they are skipped.
if [ -z "${LLAMA_SERVER:-}" ]; then
    for candidate in "$(command -v llama-server || true)" ../shared/llama/llama-server; do
        [ -x "$candidate" ] && LLAMA_SERVER=$(realpath "$candidate") && export LLAMA_SERVER && break
    done
fi
say "llama-server: ${LLAMA_SERVER:-not found: the tests with real models will be skipped}"

if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --locked --workspace --no-fail-fast
    cargo test --locked --workspace --doc
else
    cargo test --locked --workspace --no-fail-fast
fi
