"""The verbs as Python calls: diagnose, certify, calibrate, evaluate, doctor. Each returns a `Result`."""
