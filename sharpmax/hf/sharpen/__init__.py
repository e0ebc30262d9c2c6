"""Switch a policy on in a model's attention, and off again."""
