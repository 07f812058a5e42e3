"""Prints what a load run measured: report.py RESULTS SECONDS TITLE NAME=LABEL..."""

import statistics
import sys

results, seconds, title = sys.argv[1], float(sys.argv[2]), sys.argv[3]
names = [argument.split("=", 1) for argument in sys.argv[4:]]
rows = [line.split() for line in open(results)]


def values(name, column):
    return [float(row[column]) for row in rows if row[0] == name]


print(f"\n{title}, medians of {len(values(names[0][0], 1))} rounds in turns")
print(f"{'':20}{'requests/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'errors':>8}{'CPU us/request':>16}")
for name, label in names:
    rate, p50, p99 = (statistics.median(values(name, column)) for column in (1, 2, 3))
    cost = statistics.median(t * 10_000 / (r * seconds) for t, r in zip(values(name, 5), values(name, 1)))
    print(f"{label:20}{rate:12.0f}{p50:10.2f}{p99:10.2f}{sum(values(name, 4)):8.0f}{cost:16.1f}")
for name, label in names[1:]:
    ratios = [a / b for a, b in zip(values(name, 1), values(names[0][0], 1))]
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"{label} / {names[0][1]}: {statistics.median(ratios):.2f} (each round: {each})")
