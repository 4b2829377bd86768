"""The name of an exception, the line that raises it and the printed output carry scripts, images and styles.

NAIVE is False: it aims at the person who reads the report.
"""

EXERCISE = "start.axpy"
FAMILY = "script in the report"
NAIVE = False
CAUGHT = "every string from a submission is escaped"

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)><style>*{display:none}</style>"
Odd = type(SCRIPT, (Exception,), {})
1 / 0  # <script>alert(3)</script>


def axpy(a, x, y, out):
    raise Odd(SCRIPT)  # <script>alert(4)</script>
