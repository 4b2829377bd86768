"""One call of a submission's function, wherever it runs: its memory, the call, and what it left behind.

`fences` lays out memory, `trial` makes one call and looks at all that it touched, `in_process` tries an exercise in
this process (what `check` does), `in_ranks` makes a call in several processes. The referee, which has the call made
in a sandbox, lays out memory and looks at it with the same code.
"""
