"""What `import autograder` finds in a sandbox, where this file lies in place of the package's `__init__.py`.

A lesson's cells import `check` and may call it. There it does nothing: a submission is judged from outside.
"""


def check(*args, **options) -> None:
    """Nothing."""


check_speed = check
