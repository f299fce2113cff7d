"""The sections of the page, one file each."""
