"""Lies in a sandbox over the file of each module that an exercise hides: it can be imported, and defines nothing."""
