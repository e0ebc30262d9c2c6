"""Get a model: by name, from a package, a folder or the hub; wrap it for an evaluation harness."""
