"""Opens COUNT requests that get no answer, and prints what PID grew by for each of them, in bytes.

Usage: hold.py HOST:PORT PID COUNT [READY_URL]; READY_URL is polled until the metric says that all of them wait.
"""

import os
import re
import resource
import selectors
import socket
import sys
import time
import urllib.request

address, pid, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
metrics = sys.argv[4] if len(sys.argv) > 4 else None
host, port = address.rsplit(":", 1)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

body = b'{"model":"held","max_tokens":1,"messages":[{"role":"user","content":"' + b"x" * 400 + b'"}]}'
request = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    b"X-LlamaSwap-Priority: batch\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
)


def resident(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return int(re.search(r"^Rss:\s+(\d+)", file.read(), re.M).group(1)) * 1024


def waiting():
    if metrics is None:
        return count
    text = urllib.request.urlopen(metrics).read().decode()
    return sum(float(v) for v in re.findall(r"^llamaswap_scheduler_queue_depth\{[^}]*\} (\S+)", text, re.M))


before = resident(pid)
sockets = []
for _ in range(count):
    s = socket.create_connection((host, int(port)))
    s.sendall(request)
    sockets.append(s)

# All of them have arrived when the metric says so; a proxy without one is given until its memory stands still.
deadline = time.monotonic() + 60
while waiting() < count - 1 and time.monotonic() < deadline:
    time.sleep(0.2)
last = -1
while resident(pid) != last and time.monotonic() < deadline:
    last = resident(pid)
    time.sleep(1)

answered = 0
selector = selectors.DefaultSelector()
for s in sockets:
    selector.register(s, selectors.EVENT_READ)
answered = len(selector.select(timeout=0))
grown = resident(pid) - before
print(f"RESULT {grown / count:.0f} {answered}")
