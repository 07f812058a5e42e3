#!/usr/bin/env bash
# Builds Switchyard and runs its demo: three pretend models behind one queue, no GPU and no configuration needed.
# Arguments go to `switchyard serve`, for example: ./examples/quickstart.sh --listen 127.0.0.1:9000
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/prerequisites.sh
need_build_tools
cargo build --release --locked --bin switchyard
exec target/release/switchyard serve "$@"
