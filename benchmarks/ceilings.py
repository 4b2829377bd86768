"""What this device reaches at best: the roofs that every floor of the course is drawn from."""

from course_lib import device

MEASURES = ("course_lib/ceilings.py", "course_lib/device.py")


def run() -> list[dict]:
    """One row a ceiling, measured afresh."""
    found = device.ceilings(refresh=True)
    rows = [{"name": "copy", "value": found.bytes_per_s, "unit": "B/s"}]
    rows += [{"name": f"matmul {kind}", "value": rate, "unit": "FLOP/s"} for kind, rate in found.flops_per_s.items()]
    rows.append({"name": "launch", "value": found.launch_s, "unit": "s"})
    rows.append({"name": "cos fp32", "value": found.cos_per_s, "unit": "1/s"})
    return rows
