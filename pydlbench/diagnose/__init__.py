"""What to do about a step: findings, each with a saving that was measured and not guessed.

A rule reads what is known of a step and names hypotheses, each with an experiment of its own. An
experiment runs the step, or a layer of it, beside the same with one thing changed, in turn. What
saves time beyond doubt is a finding; what does not is listed as tried.
"""
