"""Runs the same sweep on many machines by an existing engine; finds slow ones, and why."""
