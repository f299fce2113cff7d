"""The ladder: isolated operators summed into a prediction, and the step explained term by term.

``check`` predicts a framework's step from its operators, runs it, and names what lies between the
hardware's roof and the measured time. The prediction of a round is stored before its step runs.
"""
