"""A step in a framework's process: built, checked, recorded as calls and replayed."""
