VALUE = "ordered[below] + (ordered[above] - ordered[below]) * (place - below)"
RIGHT = {
    "from exercises.grading import check, hint": "import numpy as np",
    VALUE: "(1 - (place - below)) * ordered[below] + (place - below) * ordered[above]",
    "(times[-1] - times[0]) / gaps": "np.diff(times).mean()",
}
WRONG = {
    "changes-its-input": [
        {"ordered = sorted(values)": "values.sort()\n    ordered = values"},
        {"good = 0\n": "good = 0\n    requests.sort()\n"},
    ]
}
