"""The figures of the page, one file each, and what they are drawn with."""
