"""Two runs held against each other: which rows belong together, and what can be said of them.

Pure functions of rows and dictionaries; nothing here measures, reads a file or prints.
"""
