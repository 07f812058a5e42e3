# Sourced by the load runs: how they start things, put load on them in turns, and print what came of it.

. tests/prerequisites.sh
need_build_tools
need_command curl curl
need_command wrk wrk
need_command python3 python3
# Many short turns: what else runs on the machine hits all alike.
rounds=${ROUNDS:-20} seconds=${SECONDS_EACH:-1} connections=${CONNECTIONS:-32}

dir=$(mktemp -d)
# Of each thing under load, by its name: where it listens, and the process whose time is counted.
declare -A port pid
pids=()
finish() {
    kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

start() { # start NAME COMMAND...: in the background, with its output in a file
    local name=$1
    shift
    "$@" >"$dir/$name.log" 2>&1 &
    pid[$name]=$!
    pids+=($!)
}

await() { # await PORT: until /health answers there
    for _ in $(seq 1200); do
        curl -fs -o /dev/null "http://127.0.0.1:$1/health" && return
        sleep 0.05
    done
    say "no answer on port $1; logs:"
    tail -n 20 "$dir"/*.log >&2
    exit 1
}

pretend_model() { # pretend_model NAME OPTION...: a model server that costs next to nothing
    local name=$1
    shift
    port[$name]=$(free_port)
    start "$name" "$switchyard" demo-backend --port "${port[$name]}" --load-time 0s --slots 0 "$@"
    await "${port[$name]}"
}

# Hundredths of a second that a process has computed for.
ticks() { sed 's/.*) //' "/proc/$1/stat" | awk '{ print $12 + $13 }'; }

load() { # load NAME SECONDS: requests a second, p50 and p99 in ms, errors, ticks
    local before result
    before=$(ticks "${pid[$1]}")
    result=$(wrk -t1 -c"$connections" -d"$2s" -s tests/bench/post.lua "http://127.0.0.1:${port[$1]}")
    echo "$(sed -n 's/^RESULT //p' <<<"$result") $(($(ticks "${pid[$1]}") - before))"
}

measure() { # measure NAME...: all of them in turns, there and back, so that none is always the first
    local name names="$*"
    for name in "$@"; do load "$name" 2 >/dev/null; done
    for _ in $(seq "$rounds"); do
        for name in $names; do echo "$name $(load "$name" "$seconds")" >>"$dir/results"; done
        names=$(tac -s ' ' <<<"$names " | tr -d '\n')
    done
}

report() { # report TITLE NAME=LABEL...: a table, and each one's rate over the first one's
    python3 tests/bench/report.py "$dir/results" "$seconds" "$@"
}
