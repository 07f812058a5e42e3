#!/usr/bin/env bash
# Load run: the gateway beside a bare Pingora proxy, in turns, in front of the same pretend model server. Compare
# the ratio, not the numbers: both share this machine with the load itself.
#   ROUNDS=5 SECONDS_EACH=5 CONNECTIONS=32 HELD=10000 ./tests/bench.sh
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/prerequisites.sh
need_build_tools
need_command wrk wrk
need_command python3 python3
rounds=${ROUNDS:-5} seconds=${SECONDS_EACH:-5} connections=${CONNECTIONS:-32} held=${HELD:-10000}

cargo build --release --locked --bin switchyard --example bare_proxy
switchyard=target/release/switchyard bare_proxy=target/release/examples/bare_proxy
dir=$(mktemp -d)
pids=()
finish() {
    kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT
# Ten thousand waiting clients are ten thousand sockets.
ulimit -n "$(ulimit -Hn)"

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
await() { # await URL: until it answers
    for _ in $(seq 200); do
        curl -fs -o /dev/null "$1" && return
        sleep 0.05
    done
    say "no answer from $1; logs in $dir:"
    tail -n 20 "$dir"/*.log >&2
    exit 1
}

backend=$(free_port) hanging=$(free_port) gateway=$(free_port) bare=$(free_port) bare_hanging=$(free_port)
start() { # start NAME COMMAND...
    local name=$1
    shift
    "$@" >"$dir/$name.log" 2>&1 &
    pids+=($!)
}
start backend "$switchyard" demo-backend --port "$backend" --model bench --load-time 0s --token-time 0s --slots 0
start hanging "$switchyard" demo-backend --port "$hanging" --model held --load-time 0s --fail hang --slots 0
start bare "$bare_proxy" "127.0.0.1:$bare" "127.0.0.1:$backend"
start bare_hanging "$bare_proxy" "127.0.0.1:$bare_hanging" "127.0.0.1:$hanging"
bare_hanging_pid=$!
cat >"$dir/switchyard.yaml" <<YAML
models:
  bench:
    proxy: http://127.0.0.1:$backend
    concurrencyLimit: 10000
  held:
    proxy: http://127.0.0.1:$hanging
    concurrencyLimit: 1
routing:
  admission:
    maxRequests: 100000
YAML
start gateway "$switchyard" serve --config "$dir/switchyard.yaml" --listen "127.0.0.1:$gateway"
gateway_pid=$!
await "http://127.0.0.1:$gateway/health"
await "http://127.0.0.1:$bare/health"
await "http://127.0.0.1:$bare_hanging/health"

load() { wrk -t2 -c"$connections" -d"$1s" -s tests/bench/post.lua "http://127.0.0.1:$2" | sed -n 's/^RESULT //p'; }
for port in "$gateway" "$bare" "$backend"; do load 2 "$port" >/dev/null; done
: >"$dir/results"
for round in $(seq "$rounds"); do
    for name in bare gateway; do
        echo "$name $(load "$seconds" "${!name}")" >>"$dir/results"
    done
done
echo "backend $(load "$seconds" "$backend")" >>"$dir/results"
# The first of them gets the one slot, all others wait.
echo "held_gateway $(python3 tests/bench/hold.py "127.0.0.1:$gateway" "$gateway_pid" "$held" "http://127.0.0.1:$gateway/metrics" | sed -n 's/^RESULT //p')" >>"$dir/results"
echo "held_bare $(python3 tests/bench/hold.py "127.0.0.1:$bare_hanging" "$bare_hanging_pid" "$held" | sed -n 's/^RESULT //p')" >>"$dir/results"

python3 - "$dir/results" "$connections" "$held" <<'PY'
import statistics
import sys

rows = [line.split() for line in open(sys.argv[1])]
values = lambda name, i: [float(row[i]) for row in rows if row[0] == name and len(row) > i]
print(f"\nPOST /v1/chat/completions, {sys.argv[2]} connections, medians of {len(values('bare', 1))} rounds in turns")
print(f"{'':14}{'requests/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'errors':>10}")
for name in ("backend", "bare", "gateway"):
    rate, p50, p99 = (statistics.median(values(name, i)) for i in (1, 2, 3))
    print(f"{name:14}{rate:12.0f}{p50:10.2f}{p99:10.2f}{sum(values(name, 4)):10.0f}")
ratios = [g / b for g, b in zip(values("gateway", 1), values("bare", 1))]
print(f"gateway / bare: {statistics.median(ratios):.2f} (each round: {', '.join(f'{r:.2f}' for r in ratios)})")
gateway, bare = values("held_gateway", 1)[0], values("held_bare", 1)[0]
print(f"\nMemory with {sys.argv[3]} requests that wait: gateway {gateway:.0f} B each, bare {bare:.0f} B each, "
      f"{gateway - bare:.0f} B more")
PY
