"""Fine-tune a causal model on questions and answers, with a policy in every head."""
