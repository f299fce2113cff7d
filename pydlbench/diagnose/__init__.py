"""Diagnosis of a step: findings, each with a measured saving.

A rule reads the observations of a step and yields hypotheses, each with an experiment. An
experiment times the step, or a layer of it, in alternation with a changed one. A change whose
saving exceeds its interval is a finding; the others are listed as tried.
"""
