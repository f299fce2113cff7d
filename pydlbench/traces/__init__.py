"""What somebody has recorded: calls of a step with their times, from logs and traces of others.

Nothing of the user's code is run. Each call becomes a signature, which
:func:`pydlbench.calls.seen.meaning_of` reads as it reads those that pydlbench records itself.
"""
