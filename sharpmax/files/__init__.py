"""Files: written whole or not at all, and fetched from packages by checksum."""
