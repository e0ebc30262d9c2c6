"""Compare mechanisms of attention: the same tasks, models, seeds, data and questions for all."""
