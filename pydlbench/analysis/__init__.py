"""Functions over tables of visits: what the visits of a step's parts say of the step."""
