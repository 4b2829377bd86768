"""What a function that works on graphs or with the compiler does, as plain data.

A referee that sees numbers and strings only asks these in the function's own process, in place of the function itself;
a lesson asks them to show the same. They say what happened and judge nothing.
"""
