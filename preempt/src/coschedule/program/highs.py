"""Optima of the linear program PLP by HiGHS, which the test `optima_are_those_of_highs` compares with.

    cargo test -p preempt --lib -- --ignored --exact coschedule::program::tests::instances_are_printed --nocapture \
        | python3 highs.py highs.json

`pip install highspy numpy` first. The test prints an instance to a line, as JSON:

    {"checksum": 1, "durations": [p_i, ..], "ways": [[[S_ij, ..], ..], ..]}
"""

import json
import sys

import highspy
import numpy as np


def optimum(durations, ways):
    """Seconds of the shortest schedule: min sum(x) over each task alone and each pair in each way, all at once."""
    tasks = len(durations)
    columns = [([i], [1.0]) for i in range(tasks)]
    for speeds in ways:
        for i in range(tasks):
            for j in range(i + 1, tasks):
                columns.append(([i, j], [speeds[i][j], speeds[j][i]]))
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("primal_feasibility_tolerance", 1e-10)
    highs.setOptionValue("dual_feasibility_tolerance", 1e-10)
    # Durations in parts of the longest, because tolerances are absolute.
    unit = max(durations) or 1.0
    for duration in durations:
        highs.addRow(duration / unit, highspy.kHighsInf, 0, [], [])
    for rows, values in columns:
        highs.addCol(1.0, 0.0, highspy.kHighsInf, len(rows), np.array(rows, dtype=np.int32), np.array(values))
    highs.run()
    assert highs.getModelStatus() == highspy.HighsModelStatus.kOptimal, highs.getModelStatus()
    return highs.getInfo().objective_function_value * unit


def main():
    rows = []
    for line in sys.stdin:
        if line.startswith('{"checksum"'):
            instance = json.loads(line)
            rows.append([instance["checksum"], float(f'{optimum(instance["durations"], instance["ways"]):.12g}')])
    with open(sys.argv[1], "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


main()
