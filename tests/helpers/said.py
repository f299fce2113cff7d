"""Reading a sentence for the names and numbers in it; its words are in the transcripts."""

import re


def says(text: str, *values: str) -> bool:
    """Whether these stand in a text, in this order, each as a word or phrase of its own."""
    found = ".*?".join(rf"(?<![\w.]){re.escape(one)}(?!\w|\.\d)" for one in values)
    return re.search(found, text, re.DOTALL) is not None
