"""Comparisons: two runs, stored or measured again interleaved; and published figures.

``match``, ``environment``, ``statistics``, ``stored`` and ``interleaved`` are pure functions; only
``rerun`` measures, and only ``published`` reads files.
"""
