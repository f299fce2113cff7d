"""GPUs: facts from the driver, known cards, FLOP rates, what they could reach and what they do."""
