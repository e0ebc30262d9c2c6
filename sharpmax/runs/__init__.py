"""Run folders: what was computed, from which settings, by which code, on which machine."""
