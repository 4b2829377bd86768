"""The error message is a script; read in a report, it would run in the instructor's browser.

NAIVE is False: it aims at the person who reads the report.
"""

EXERCISE = "start.axpy"
FAMILY = "script in the report"
NAIVE = False
CAUGHT = "every string from a submission is escaped"

SCRIPT = "</pre><script>fetch('/formgrader/api/grade', {method: 'PUT', body: '{\"manual_score\": 5}'})</script>"


def axpy(a, x, y, out):
    print(SCRIPT)
    raise ValueError(SCRIPT)
