"""Checking many files: remembered results, several processes, shards and other people's clusters.

`run.check_files` is the entry. Every path through it gives the same answers: a file is analysed first with
what it shows by itself, then, where other files call its functions, once more with that known.
"""
