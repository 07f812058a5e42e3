#!/usr/bin/env bash
# Load run: the gateway beside a bare Pingora proxy, in turns, in front of the same pretend model server. Compare
# the ratio, not the numbers: both share this machine with the load itself.
# With a scenario: its clients, live, against a gateway in front of pretend model servers; prints what
# `switchyard simulate` prints. SECONDS_OF cuts it to so many seconds from the beginning of its window.
#   SECONDS_OF=30 ./tests/bench.sh examples/scenarios/priority-tiers.yaml [--only NAME]...
# Without one:
#   ROUNDS=20 SECONDS_EACH=1 CONNECTIONS=32 HELD=10000 ./tests/bench.sh
set -euo pipefail
if [ $# -gt 0 ]; then
    scenario=$(realpath "$1")
    shift
    cd "$(dirname "$0")/.."
    . tests/prerequisites.sh
    need_build_tools
    cargo build --release --locked --bin switchyard --example live_load
    ulimit -n "$(ulimit -Hn)"
    exec target/release/examples/live_load target/release/switchyard "$scenario" ${SECONDS_OF:+--seconds "$SECONDS_OF"} "$@"
fi
cd "$(dirname "$0")/.."
. tests/bench-lib.sh
held=${HELD:-10000}

cargo build --release --locked --bin switchyard --bin bare_proxy
switchyard=target/release/switchyard bare_proxy=target/release/bare_proxy
# Ten thousand waiting clients are ten thousand sockets.
ulimit -n "$(ulimit -Hn)"

pretend_model backend --model bench --token-time 0s
pretend_model hanging --model held --fail hang
for name in backend hanging; do
    port[bare-$name]=$(free_port)
    start "bare-$name" "$bare_proxy" "127.0.0.1:${port[bare-$name]}" "127.0.0.1:${port[$name]}"
done
cat >"$dir/switchyard.yaml" <<YAML
models:
  bench:
    proxy: http://127.0.0.1:${port[backend]}
    concurrencyLimit: 10000
  held:
    proxy: http://127.0.0.1:${port[hanging]}
    concurrencyLimit: 1
routing:
  admission:
    maxRequests: 100000
YAML
port[gateway]=$(free_port)
start gateway "$switchyard" serve --config "$dir/switchyard.yaml" --listen "127.0.0.1:${port[gateway]}"
for name in gateway bare-backend bare-hanging; do await "${port[$name]}"; done

measure bare-backend gateway backend
report "POST /v1/chat/completions, $connections connections" bare-backend=bare gateway=gateway
report "The model server alone" backend=backend

# Bytes of memory for each request that waits. The first of them gets the one slot, all others wait.
growth() { python3 tests/bench/hold.py "127.0.0.1:${port[$1]}" "${pid[$1]}" "$held" "${@:2}" | sed -n 's/^RESULT \([0-9]*\).*/\1/p'; }
gateway=$(growth gateway "http://127.0.0.1:${port[gateway]}/metrics") bare=$(growth bare-hanging)
echo
echo "Memory with $held requests that wait: gateway $gateway B each, bare $bare B each, $((gateway - bare)) B more"
