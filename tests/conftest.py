"""Settings that every test shares."""

import hypothesis

# Machines are noisy: a property is judged by what it computes, not by how long one example took.
hypothesis.settings.register_profile("sharpmax", deadline=None, derandomize=True)
hypothesis.settings.load_profile("sharpmax")
