"""Two runs held against each other, stored or measured again, interleaved; and published figures.

What says something of rows (``match``, ``environment``, ``statistics``, ``stored``,
``interleaved``) are pure functions; only ``rerun`` measures, and only ``published`` reads files.
"""
